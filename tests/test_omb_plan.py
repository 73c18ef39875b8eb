"""Workloads and drivers of the OpenMessaging Benchmark to plans: what fits; the rest is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from soak.cli.main import build
from soak.clients.known import librdkafka
from soak.core import plan_text, plugins
from soak.core.errors import PlanError
from soak.core.plan import Plan
from soak.core.units import SECOND_NS
from soak.omb import java_client, java_properties, plan_import, profile, source_file

MINUTE_NS = 60 * SECOND_NS

WORKLOAD = """
name: 1 topic / 100 partitions / 1kb
topics: 3
partitionsPerTopic: 100
keyDistributor: KEY_ROUND_ROBIN
messageSize: 1024
useRandomizedPayloads: true
randomBytesRatio: 0.25
subscriptionsPerTopic: 2
consumerPerSubscription: 4
producersPerTopic: 5
producerRate: 200000
testDurationMinutes: 15
"""
KAFKA = """
name: Kafka
driverClass: io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver
replicationFactor: 3
topicConfig: |
  min.insync.replicas=2
commonConfig: |
  bootstrap.servers=b1:9092,b2:9092
producerConfig: |
  acks=all
  linger.ms=1
  batch.size=131072
consumerConfig: |
  max.partition.fetch.bytes=10485760
"""
PULSAR = """
name: Pulsar
driverClass: io.openmessaging.benchmark.driver.pulsar.PulsarBenchmarkDriver
client:
  serviceUrl: pulsar://localhost:6650
  httpUrl: http://localhost:8080
  ioThreads: 8
  namespacePrefix: benchmark/ns
  tlsEnableHostnameVerification: true
producer:
  pendingQueueSize: 5000
"""


def imported(*texts: str, dialect: str | None = None) -> tuple[Plan, str]:
    """Return the plan of these files, named 0.yaml and so on, and its text."""
    sources = [source_file.read(text, f"{at}.yaml") for at, text in enumerate(texts)]
    text = plan_import.plan(sources, dialect, "plan")
    return plan_text.load(text, "plan").plan, text


def refused(*texts: str, dialect: str | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        imported(*texts, dialect=dialect)
    return str(caught.value)


def test_a_workload_says_what_is_sent_by_how_many_and_how_long() -> None:
    """Producers count by topic there, by process and connection here."""
    plan, _ = imported(WORKLOAD)

    assert plan.name == "1-topic-100-partitions-1kb"
    assert (plan.topic.count, plan.topic.partitions) == (3, 100)
    assert plan.load.rate == 200_000
    assert (plan.load.message_size, plan.load.compressible) == (1024, 0.75)
    assert plan.load.keys.kind == "round_robin"
    assert (plan.load.producers, plan.load.clients_per_producer) == (1, 15)
    assert (plan.consumers.subscriptions, plan.consumers.per_subscription) == (2, 4)
    assert plan.phases.soak == 15 * MINUTE_NS


@pytest.mark.parametrize(
    ("dialect", "minutes"),
    [("upstream", 1), ("confluent", 1), ("redpanda", 30), ("vanlightly", 30)],
)
def test_a_missing_warm_up_means_what_its_dialect_takes_it_to_mean(
    dialect: str, minutes: int
) -> None:
    plan, text = imported(WORKLOAD, dialect=dialect)

    assert plan.phases.warm_up == minutes * MINUTE_NS
    assert "no warmupDurationMinutes" not in text
    assert "--dialect" in imported(WORKLOAD)[1]


@pytest.mark.parametrize(
    ("key", "minutes"),
    [
        ("warmupProducerRate: 100", 30),
        ("sampleRateMillis: 1000", 30),
        ("backlogDrainRatio: 0.5", 1),
    ],
)
def test_a_key_that_one_dialect_has_tells_it(key: str, minutes: int) -> None:
    assert imported(WORKLOAD + key)[0].phases.warm_up == minutes * MINUTE_NS


def test_a_stated_warm_up_stands() -> None:
    assert imported(f"{WORKLOAD}warmupDurationMinutes: 0")[0].phases.warm_up == 0


def test_no_rate_is_a_search_and_no_duration_is_no_end() -> None:
    plan, text = imported("topics: 1\npartitionsPerTopic: 1\nmessageSize: 100\n")

    assert plan.phases.ramp is not None
    assert plan.phases.ramp.soak_share == 1.0
    assert plan.phases.soak == 36 * 60 * MINUTE_NS
    assert "producerRate: 0 is a search" in text
    assert "testDurationMinutes: no end there" in text


def test_a_backlog_is_a_catch_up_and_its_other_place_is_told() -> None:
    plan, text = imported(f"{WORKLOAD}consumerBacklogSizeGB: 5\n")

    assert plan.phases.catch_up is not None
    assert plan.phases.catch_up.backlog_size == 5 * 2**30
    assert "0.yaml:14: consumerBacklogSizeGB: built after the soak here" in text


def test_an_unknown_key_is_ignored_and_told_but_refused_by_the_dialect_that_refuses() -> None:
    _, text = imported(f"{WORKLOAD}producerRat: 4\n")

    assert (
        "0.yaml:14: producerRat: unknown, ignored as the benchmark does; did you mean 'producerRate'?"
        in text
    )
    message = refused(f"{WORKLOAD}producerRat: 4\n", dialect="redpanda")
    assert message.startswith(
        "0.yaml:14: producerRat: unknown key, refused as the redpanda dialect does"
    )


def test_what_has_no_part_here_is_told() -> None:
    more = "payloadFile: 1Kb.data\nkeyDistributor: KEYS\nmessageSize: 10\nrandomizedPayloadPoolSize: 7\n"
    kept = "".join(
        line
        for line in WORKLOAD.splitlines(keepends=True)
        if not line.startswith(("key", "messageSize"))
    )
    plan, text = imported(kept + more)

    assert (plan.load.message_size, plan.load.keys.kind) == (64, "none")
    for key in ("payloadFile", "keyDistributor", "messageSize", "randomizedPayloadPoolSize"):
        assert f": {key}: " in text


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

    assert producer == java_client.PRODUCER_DEFAULTS
    one = imported(WORKLOAD, bare.replace("acks=all", "acks=1"))[0].broker_config.producer
    assert (one["acks"], one["enable.idempotence"]) == ("1", "false")


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


def test_without_a_driver_a_lab_kafka_is_taken_and_told() -> None:
    plan, text = imported(WORKLOAD)

    assert plan.broker_config.bootstrap_servers == ""
    assert "no driver was given" in text


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["- a\n"], "0.yaml:1: neither a workload nor a driver: not a mapping of keys"),
        (["name: x\nfoo: 1\n"], "0.yaml:1: neither a workload nor a driver: it has too few keys"),
        ([WORKLOAD, WORKLOAD], "1.yaml: a second workload"),
        ([KAFKA, WORKLOAD, KAFKA], "2.yaml: a second driver"),
        (
            ["driverClass: org.x.Y\n"],
            "0.yaml:1: driverClass: no driver for 'org.x.Y'; there are kafka, pulsar, redpanda",
        ),
        (
            [WORKLOAD.replace("200000", "fast")],
            "0.yaml:12: producerRate: 'fast' is not a whole number",
        ),
        (
            [WORKLOAD.replace("0.25", "2")],
            "0.yaml:8: randomBytesRatio: must lie between 0 and 1, not 2",
        ),
        (
            [WORKLOAD.replace("topics: 3", "topics: 0")],
            "0.yaml:3: topics: must be at least 1, not 0",
        ),
        (
            [KAFKA.replace("bootstrap.servers", "bootstrap.server")],
            "0.yaml:7: commonConfig: names no bootstrap.servers",
        ),
        ([PULSAR.replace("serviceUrl", "url")], "client.serviceUrl: is missing"),
        ([WORKLOAD.replace("100\n", "99999\n")], "partitions of all topics must be at most"),
    ],
)
def test_a_file_that_makes_no_plan_is_refused_with_its_place(
    texts: list[str], message: str
) -> None:
    assert message in refused(*texts)


def test_the_command_writes_the_plan_whole_or_not_at_all(tmp_path: Path) -> None:
    good, bad, out = tmp_path / "w.yaml", tmp_path / "bad.yaml", tmp_path / "plan.yaml"
    good.write_text(WORKLOAD)
    bad.write_text("driverClass: x\n")
    out.write_text("kept")
    app = build(["omb"])
    refusal = CliRunner().invoke(app, ["omb", "import", str(good), str(bad), "--out", str(out)])

    assert isinstance(refusal.exception, PlanError)
    assert out.read_text() == "kept"
    done = CliRunner().invoke(app, ["omb", "import", str(good), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert plan_text.load(out.read_text(), "plan").plan.topic.count == 3
    assert "note: no driver was given" in done.stderr
    shown = CliRunner().invoke(app, ["omb", "import", str(good)])
    assert shown.stdout == out.read_text()


def test_results_and_plans_are_not_mixed(tmp_path: Path) -> None:
    good = tmp_path / "w.yaml"
    good.write_text(WORKLOAD)
    result = str(Path(__file__).parent / "recorded" / "omb" / "upstream.json")
    app = build(["omb"])
    mixed = CliRunner().invoke(app, ["omb", "import", str(good), result]).exception
    out = CliRunner().invoke(app, ["omb", "import", result, "--out", str(tmp_path / "p")]).exception

    assert "not imported together" in str(mixed)
    assert "these are results" in str(out)


def test_every_dialect_and_driver_has_its_parts() -> None:
    for name in plugins.names(profile.PACKAGE):
        known = profile.load(name)
        assert known.workload_keys >= {"topics", "producerRate"}, name
        assert known.warm_up_minutes > 0, name
    prefixes = [
        plugins.load("soak.omb.drivers", name).PREFIX for name in plugins.names("soak.omb.drivers")
    ]

    assert len(set(prefixes)) == len(prefixes) == 3


@pytest.mark.parametrize("bits", range(2**5))
def test_one_dialect_alone_recognises_a_result(bits: int) -> None:
    telling = (
        "keyDistributor",
        "sampleRateMillis",
        "publishErrorRate",
        "publishDelayLatencyAvg",
        "x",
    )
    keys = frozenset(key for at, key in enumerate(telling) if bits >> at & 1)
    modules = [plugins.load(profile.PACKAGE, name) for name in plugins.names(profile.PACKAGE)]

    assert [module.recognises(keys) for module in modules].count(True) == 1


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


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(sorted(profile.load("vanlightly").workload_keys | {"driverClass"})),
        st.none()
        | st.booleans()
        | st.integers(-5, 10**7)
        | st.floats(0, 2)
        | st.text("a#\n", max_size=3),
    )
)
def test_any_workload_is_a_plan_or_a_clear_error(values: dict[str, object]) -> None:
    message = "0.yaml:"
    try:
        imported(yaml.safe_dump(values))
    except PlanError as error:
        message = str(error)

    assert message.startswith(("0.yaml:", "plan:"))
