"""Drivers of the OpenMessaging Benchmark to the broker of a plan; secrets stay where they are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.clients.known import librdkafka
from soak.core import plugins
from soak.omb import java_client, java_properties, profile
from tests.omb_plans import KAFKA, PULSAR, WORKLOAD, imported


def test_a_kafka_driver_fills_broker_and_topic() -> None:
    plan, _ = imported(WORKLOAD, KAFKA)

    assert plan.broker_kind == "kafka"
    assert plan.broker_config.bootstrap_servers == "b1:9092,b2:9092"
    assert plan.broker_config.producer["batch.size"] == "131072"
    assert plan.broker_config.consumer == {"max.partition.fetch.bytes": "10485760"}
    assert (plan.topic.replication, plan.topic.settings) == (3, {"min.insync.replicas": "2"})


def test_a_producer_does_unasked_what_javas_does() -> None:
    """Librdkafka would wait 5 ms for a batch and not be idempotent: another test than the benchmark's."""
    bare = KAFKA.replace("  linger.ms=1\n  batch.size=131072\n", "")
    producer = imported(WORKLOAD, bare)[0].broker_config.producer

    assert producer == java_client.PRODUCER_DEFAULTS | java_client.KEYED_DEFAULTS
    one = imported(WORKLOAD, bare.replace("acks=all", "acks=1"))[0].broker_config.producer
    assert (one["acks"], one["enable.idempotence"]) == ("1", "false")


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
def test_a_batch_that_keeps_an_idempotent_producer_busy_stands_and_is_told(
    settings: str, times: int
) -> None:
    """It is what the benchmark did; how much it costs here is another thing."""
    given = "acks=all\n  linger.ms=1\n  batch.size=131072"

    plan, text = imported(WORKLOAD, KAFKA.replace(given, settings))

    size = plan.broker_config.producer["batch.size"]
    assert text.count(f"producerConfig: batch.size {size}: at full speed an idempotent") == times


def test_javas_names_become_librdkafkas_or_are_told_with_the_nearest() -> None:
    more = (
        "  buffer.memory=33554432\n  max.request.size=2000000\n  lingr.ms=4\n  key.serializer=x\n"
    )
    driver = KAFKA.replace("consumerConfig", f"{more}consumerConfig")
    plan, text = imported(WORKLOAD, driver)
    producer = plan.broker_config.producer

    assert producer["queue.buffering.max.kbytes"] == "32768"
    assert producer["message.max.bytes"] == "2000000"
    assert set(producer) <= librdkafka()
    assert (
        "1.yaml:9: producerConfig: lingr.ms: left out: librdkafka has no such setting"
        "; did you mean 'linger.ms'?" in text
    )
    assert "key.serializer: left out: messages are bytes here" in text


def test_no_secret_gets_into_a_plan() -> None:
    more = (
        '  sasl.jaas.config=org.example.PlainLoginModule required username="me" password="hunter2";\n'
        "  ssl.key.password=hunter2\n  client.id=a-{zone.id}\n"
    )
    plan, text = imported(WORKLOAD, KAFKA.replace("producerConfig", f"{more}producerConfig"))

    assert "hunter2" not in text
    assert plan.broker_config.common == {
        "sasl.username": "me",
        "sasl.password": "${env:SASL_PASSWORD}",
        "ssl.key.password": "${env:SSL_KEY_PASSWORD}",
        "client.id": "a-",
    }


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
    assert "no namespace is made here" in text


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
    for name in plugins.names(profile.PACKAGE):
        known = profile.load(name)
        assert known.workload_keys >= {"topics", "producerRate"}, name
        assert known.warm_up_minutes > 0, name
    prefixes = [
        plugins.load("soak.omb.drivers", name).PREFIX for name in plugins.names("soak.omb.drivers")
    ]

    assert len(set(prefixes)) == len(prefixes) == 3


def test_properties_are_read_as_java_reads_them() -> None:
    plain = "# no\n! no\n a = 1\nb:2\nc 3\nd\na=last\nurl=a=b:c\n"
    escaped = "long=x\\\n   y\nkey\\ with\\=odd=\\u0041\\tb\n"

    assert java_properties.parse(plain + escaped) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "d": "",
        "long": "xy",
        "key with=odd": "A\tb",
        "url": "a=b:c",
    }


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_any_text_is_some_properties(text: str) -> None:
    assert all(isinstance(value, str) for value in java_properties.parse(text).values())
