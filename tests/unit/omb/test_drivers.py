"""Drivers of the OpenMessaging Benchmark to the broker of a plan; secrets stay where they are."""

from __future__ import annotations

import pytest
import yaml
from confluent_kafka import Consumer

from soak.brokers.kafka.config import check_settings
from soak.brokers.pulsar.client import convert_settings
from soak.brokers.pulsar.partition_log import MAX_BATCH_MESSAGES
from soak.clients.client_settings import librdkafka_settings
from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.omb import java_client, plan_import, result
from tests.support.omb.plans import KAFKA, PULSAR, WORKLOAD, imported


def test_a_kafka_driver_fills_broker_and_topic() -> None:
    plan, _ = imported(WORKLOAD, KAFKA)

    assert plan.broker_kind == "kafka"
    assert plan.broker_config.bootstrap_servers == "b1:9092,b2:9092"
    assert plan.broker_config.producer["batch.size"] == "131072"
    assert plan.broker_config.consumer == {"max.partition.fetch.bytes": "10485760"}
    assert (plan.topic.replication, plan.topic.settings) == (3, {"min.insync.replicas": "2"})


def test_a_producer_has_the_defaults_of_javas() -> None:
    """Librdkafka would linger for 5 ms and not be idempotent, unlike the benchmark."""
    bare = KAFKA.replace("  linger.ms=1\n  batch.size=131072\n", "")
    producer = imported(WORKLOAD, bare)[0].broker_config.producer

    assert producer == java_client.PRODUCER_DEFAULTS | java_client.KEYED_DEFAULTS
    one = imported(WORKLOAD, bare.replace("acks=all", "acks=1"))[0].broker_config.producer
    assert (one["acks"], one["enable.idempotence"]) == ("1", "false")


def test_common_settings_override_the_defaults() -> None:
    """The benchmark gives a producer the common settings first, then its own."""
    more = "  acks=1\n  linger.ms=10\n  batch.size=1048576\nproducerConfig: |\n  compression.type=none\n"
    driver = KAFKA.replace(
        "producerConfig: |\n  acks=all\n  linger.ms=1\n  batch.size=131072\n", more
    )
    broker = imported(WORKLOAD, driver)[0].broker_config

    assert broker.common == {"acks": "1", "linger.ms": "10", "batch.size": "1048576"}
    assert broker.producer == java_client.KEYED_DEFAULTS | {
        "acks": "1",
        "compression.type": "none",
        "enable.idempotence": "false",
        "max.in.flight.requests.per.connection": "5",
    }


@pytest.mark.parametrize(
    ("setting", "is_idempotent"),
    [
        ("max.in.flight.requests.per.connection=5", "true"),
        ("max.in.flight.requests.per.connection=10", "false"),
        ("retries=1", "true"),
        ("retries=0", "false"),
    ],
)
def test_a_producer_is_idempotent_where_javas_is_unasked(setting: str, is_idempotent: str) -> None:
    plan, _ = imported(WORKLOAD, KAFKA.replace("linger.ms=1", setting))

    assert plan.broker_config.producer["enable.idempotence"] == is_idempotent


@pytest.mark.parametrize(
    "setting",
    [
        "ssl.endpoint.identification.algorithm=",
        "send.buffer.bytes=-1",
        "receive.buffer.bytes=-1",
        "connections.max.idle.ms=-1",
        "batch.size=0",
        "fetch.max.bytes=0",
        "fetch.max.bytes=2147483647",
        "fetch.min.bytes=0",
        "max.partition.fetch.bytes=2147483647",
        "max.poll.interval.ms=2147483647",
        "max.request.size=2147483647",
        "metadata.max.age.ms=0",
        "request.timeout.ms=2147483647",
        "retry.backoff.ms=0",
        "socket.connection.setup.timeout.ms=0",
    ],
)
def test_a_value_that_librdkafka_refuses_becomes_the_nearest_with_a_note(
    setting: str,
) -> None:
    """The client itself accepts it, without a connection."""
    driver = KAFKA.replace("  bootstrap.servers", f"  {setting}\n  bootstrap.servers")
    plan, text = imported(WORKLOAD, driver)
    common = plan.broker_config.common

    Consumer({"group.id": "a", **common}).close()
    assert len(common) == 1
    assert f"commonConfig: {setting.replace('=', ': ')}" in text.replace("empty", "")


@pytest.mark.parametrize(
    ("keys", "at"),
    [("KEY_ROUND_ROBIN", "murmur2_random"), ("RANDOM_NANO", "murmur2_random"), ("NO_KEY", None)],
)
def test_a_key_goes_to_the_partition_that_javas_client_chooses(keys: str, at: str | None) -> None:
    plan, text = imported(WORKLOAD.replace("KEY_ROUND_ROBIN", keys), KAFKA)

    assert plan.broker_config.producer.get("partitioner") == at
    assert ("partitioner murmur2_random" in text) == (at is not None)


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ("acks=all\n  batch.size=131072", 1),
        ("acks=all", 1),  # Java's own is smaller still
        ("acks=all\n  batch.size=1000000", 0),
        ("acks=1\n  batch.size=131072", 0),
        ("acks=all\n  enable.idempotence=false\n  batch.size=131072", 0),
    ],
)
def test_a_small_batch_of_an_idempotent_producer_is_kept_with_a_note(
    settings: str, times: int
) -> None:
    """The benchmark has it too, but it costs librdkafka more."""
    given = "acks=all\n  linger.ms=1\n  batch.size=131072"

    plan, text = imported(WORKLOAD, KAFKA.replace(given, settings))

    size = plan.broker_config.producer["batch.size"]
    assert text.count(f"producerConfig: batch.size {size}: at full speed an idempotent") == times


def test_javas_names_become_librdkafkas_or_get_a_note_with_the_nearest() -> None:
    more = (
        "  buffer.memory=33554432\n  max.request.size=2000000\n  lingr.ms=4\n  key.serializer=x\n"
    )
    driver = KAFKA.replace("consumerConfig", f"{more}consumerConfig")
    plan, text = imported(WORKLOAD, driver)
    producer = plan.broker_config.producer

    assert producer["queue.buffering.max.kbytes"] == "32768"
    assert producer["message.max.bytes"] == "2000000"
    assert set(producer) <= librdkafka_settings()
    assert (
        "1.yaml:9: producerConfig: lingr.ms: omitted: librdkafka has no such setting"
        "; did you mean 'linger.ms'?" in text
    )
    assert "key.serializer: omitted: soakd sends bytes" in text


def test_no_secret_gets_into_a_plan() -> None:
    more = (
        '  sasl.jaas.config=org.example.PlainLoginModule required username="me" password="hunter2";\n'
        "  ssl.key.password=hunter2\n  client.id=a-{zone.id}\n"
        "  sasl.oauthbearer.config=principal=me secret=hunter2\n"
        "  sasl.oauthbearer.token.endpoint.url=https://me:hunter2@idp.example.org/token\n"
    )
    plan, text = imported(WORKLOAD, KAFKA.replace("producerConfig", f"{more}producerConfig"))

    assert "hunter2" not in text
    assert plan.broker_config.common == {
        "sasl.username": "me",
        "sasl.password": "${env:SASL_PASSWORD}",
        "ssl.key.password": "${env:SSL_KEY_PASSWORD}",
        "client.id": "a-",
        "sasl.oauthbearer.config": "${env:SASL_OAUTHBEARER_CONFIG}",
        "sasl.oauthbearer.token.endpoint.url": "${env:SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL}",
    }


@pytest.mark.parametrize(
    ("setting", "user"),
    [
        ("me", "me"),
        ("me;", "me"),
        ('"big user"', "big user"),
        ("'big user'", "big user"),
        (r'"the \\"big\\" one"', 'the "big" one'),
        ('"$ConnectionString"', "$ConnectionString"),
    ],
)
def test_the_name_of_a_user_is_parsed_completely(setting: str, user: str) -> None:
    """A backslash stands for itself twice: in properties, and within the quotes."""
    login = f"username={setting} password='hunter2';"
    line = f"  sasl.jaas.config=org.example.PlainLoginModule required {login}\n"
    plan, _ = imported(WORKLOAD, KAFKA.replace("producerConfig", f"{line}producerConfig"))

    assert plan.broker_config.common["sasl.username"] == user


@pytest.mark.parametrize("value", ["latest", "none"])
def test_a_consumer_that_would_skip_messages_receives_all_with_a_note(value: str) -> None:
    """A plan with the driver's own value is refused before a run."""
    driver = KAFKA.replace("  max.partition", f"  auto.offset.reset={value}\n  max.partition")
    plan, text = imported(WORKLOAD, driver)

    assert plan.broker_config.consumer["auto.offset.reset"] == "earliest"
    check_settings("consumer", plan.broker_config.consumer)
    assert f"consumerConfig: auto.offset.reset: {value} becomes earliest: messages that" in text


def test_a_producer_of_transactions_sends_none_with_a_note() -> None:
    driver = KAFKA.replace("  linger.ms=1", "  transactional.id=a\n  linger.ms=1")
    plan, text = imported(WORKLOAD, driver)

    check_settings("producer", plan.broker_config.producer)
    assert "producerConfig: transactional.id: omitted: soakd sends no transactions" in text


def test_a_redpanda_driver_is_one_of_kafkas_protocol() -> None:
    driver = KAFKA.replace(".kafka.KafkaBenchmarkDriver", ".redpanda.RedpandaBenchmarkDriver")
    plan, text = imported(WORKLOAD, f"{driver}reset: true\nrequestsPerTransaction: 5\n")

    assert plan.broker_kind == "redpanda"
    assert "reset: not carried over" in text
    assert "requestsPerTransaction: not carried over" in text


def test_a_pulsar_driver_fills_broker_and_topic_with_the_benchmarks_defaults() -> None:
    plan, text = imported(WORKLOAD, PULSAR)
    broker = plan.broker_config

    assert (broker.service_url, broker.admin_url) == (
        "pulsar://localhost:6650",
        "http://localhost:8080",
    )
    assert broker.namespace == "benchmark/ns"
    assert broker.client == {"io_threads": "8", "tls_validate_hostname": "true"}
    assert broker.producer["batching_max_publish_delay_ms"] == "1"
    assert broker.producer["max_pending_messages"] == "5000"
    assert broker.consumer == {"receiver_queue_size": "10000", "consumer_type": "Failover"}
    assert plan.topic.settings["bookkeeperAckQuorum"] == "2"
    assert "soakd creates no namespace" in text


def test_a_pulsar_producer_has_the_limits_of_the_benchmark_or_a_note() -> None:
    """The benchmark does not limit the messages of a batch, the time of a send or pending messages."""
    plan, text = imported(WORKLOAD, PULSAR.replace("producer:\n  pendingQueueSize: 5000\n", ""))
    producer = plan.broker_config.producer

    assert convert_settings("producer", producer)["send_timeout_millis"] == 0
    assert producer["batching_max_messages"] == str(MAX_BATCH_MESSAGES)
    assert f"batches have at most {MAX_BATCH_MESSAGES} messages" in text
    assert "max_pending_messages" not in producer
    assert "producer.pendingQueueSize: 0 is no limit in the benchmark" in text
    assert "pendingQueueSize" not in imported(WORKLOAD, PULSAR)[1]


@pytest.mark.parametrize(
    ("data", "token"),
    [("file:///etc/token", "${file:/etc/token}"), ("token:abc", "${env:PULSAR_TOKEN}")],
)
def test_a_pulsar_token_stays_where_it_is(data: str, token: str) -> None:
    part = (
        f"  authentication: {{plugin: org.example.AuthenticationToken, data: '{data}'}}\nproducer:"
    )
    plan, text = imported(PULSAR.replace("producer:", part))

    assert plan.broker_config.client["token"] == token
    assert "token:abc" not in text


def test_every_dialect_and_driver_has_its_parts() -> None:
    for name in plugins.names(result.PACKAGE):
        known = result.load_profile(name)
        assert known.workload_keys >= {"topics", "producerRate"}, name
        assert known.warm_up_minutes > 0, name
    prefixes = [
        plugins.load("soak.omb.drivers", name).PREFIX for name in plugins.names("soak.omb.drivers")
    ]

    assert len(set(prefixes)) == len(prefixes) == 3


def properties(text: str) -> dict[str, str]:
    source = plan_import.read_source_file(yaml.safe_dump({"topicConfig": text}), "driver.yaml")
    return java_client.parse_properties(source, "topicConfig")


def test_properties_are_parsed_as_java_parses_them() -> None:
    assert properties(
        "# no\n! no\n a = 1 \nb:2\nc 3\nd\na=last\nlong=x\\\n   y\nk\\ 1=\\u0041\n"
    ) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "d": "",
        "long": "xy",
        "k 1": "A",
    }


def test_a_wrong_escape_in_properties_is_an_error_with_its_place() -> None:
    with pytest.raises(PlanError, match=r"driver\.yaml:1: topicConfig: not Java properties"):
        properties("a=\\u12")
