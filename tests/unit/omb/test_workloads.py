"""Workloads of the OpenMessaging Benchmark become plans, with notes on what does not fit."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from soak.cli.main import build
from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.units import SECOND_NS
from soak.omb import result as profile
from tests.support.examples import examples
from tests.support.omb.plans import KAFKA, PULSAR, WORKLOAD, imported
from tests.support.paths import RECORDED

MINUTE_NS = 60 * SECOND_NS


def refused(*texts: str, dialect: str | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        imported(*texts, dialect=dialect)
    return str(caught.value)


def test_a_workload_becomes_topics_load_consumers_and_phases() -> None:
    """The benchmark counts producers by topic, soakd by process and connection."""
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
    ("rate", "producers", "processes", "readers"),
    [
        (1_000_000, 1, (5, 1), 5),
        (1_000_000, 10, (5, 6), 5),
        (400_000, 1, (2, 2), 4),
        (200_000, 1, (1, 3), 4),
        (100, 1000, (3, 1000), 4),
    ],
)
def test_there_are_as_many_processes_as_the_rate_needs(
    rate: int, producers: int, processes: tuple[int, int], readers: int
) -> None:
    """One process sends 200,000 messages a second; additional connections have a note."""
    text = WORKLOAD.replace("200000", str(rate)).replace(
        "producersPerTopic: 5", f"producersPerTopic: {producers}"
    )

    plan, notes = imported(text)

    assert (plan.load.producers, plan.load.clients_per_producer) == processes
    assert plan.consumers.per_subscription == readers
    asked, here = 3 * producers, math.prod(processes)
    assert (f"producersPerTopic: {asked} become {here}" in notes) == (here > asked)


@pytest.mark.parametrize(
    ("dialect", "minutes"),
    [("upstream", 1), ("confluent", 1), ("redpanda", 30), ("vanlightly", 30)],
)
def test_a_missing_warm_up_has_the_default_of_its_dialect(dialect: str, minutes: int) -> None:
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
def test_a_key_of_one_dialect_identifies_it(key: str, minutes: int) -> None:
    assert imported(WORKLOAD + key)[0].phases.warm_up == minutes * MINUTE_NS


def test_a_stated_warm_up_is_kept() -> None:
    assert imported(f"{WORKLOAD}warmupDurationMinutes: 0")[0].phases.warm_up == 0


def test_no_rate_is_a_search_and_no_duration_is_no_end() -> None:
    plan, text = imported("topics: 1\npartitionsPerTopic: 1\nmessageSize: 100\n")

    assert plan.phases.ramp is not None
    assert plan.phases.ramp.soak_share == 1.0
    assert plan.phases.soak == 36 * 60 * MINUTE_NS
    assert "producerRate: 0 is a search" in text
    assert "testDurationMinutes: no end in the benchmark" in text


def test_a_backlog_becomes_a_catch_up_with_a_note_on_its_place() -> None:
    plan, text = imported(f"{WORKLOAD}consumerBacklogSizeGB: 5\n")

    assert plan.phases.catch_up is not None
    assert plan.phases.catch_up.backlog_size == 5 * 2**29
    assert "consumerBacklogSizeGB: the benchmark counts 2 subscriptions together" in text
    assert "0.yaml:14: consumerBacklogSizeGB: built after the soak" in text


def test_an_unknown_key_is_ignored_with_a_note_or_refused_as_in_its_dialect() -> None:
    _, text = imported(f"{WORKLOAD}producerRat: 4\n")

    assert (
        "0.yaml:14: producerRat: unknown key, ignored as in the benchmark; did you mean 'producerRate'?"
        in text
    )
    message = refused(f"{WORKLOAD}producerRat: 4\n", dialect="redpanda")
    assert message.startswith(
        "0.yaml:14: producerRat: unknown key, refused as in the redpanda dialect"
    )


def test_a_key_that_two_dialects_have_does_not_make_one_of_them_refuse_another() -> None:
    """Vanlightly's ignores unknown keys."""
    _, text = imported(f"{WORKLOAD}sampleRateMillis: 1000\nproducerRat: 4\n")

    assert "producerRat: unknown key, ignored as in the benchmark" in text


def test_keys_without_a_counterpart_have_a_note() -> None:
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


@pytest.mark.parametrize(
    ("key", "line"),
    [("subscriptionsPerTopic", 9), ("consumerPerSubscription", 10), ("producersPerTopic", 11)],
)
def test_no_client_of_a_side_becomes_one_with_a_note(key: str, line: int) -> None:
    before = re.sub(f"{key}: .*", f"{key}: 0", WORKLOAD)

    assert (
        f"# 0.yaml:{line}: {key}: 0 becomes 1: a run both sends and receives" in imported(before)[1]
    )
    assert "a run sends and reads" not in imported(WORKLOAD)[1]


@pytest.mark.parametrize("copies", [-1, 0])
def test_a_default_number_of_copies_becomes_one_with_a_note(copies: int) -> None:
    plan, text = imported(WORKLOAD, KAFKA.replace("Factor: 3", f"Factor: {copies}"))

    assert plan.topic.replication == 1
    assert f"# 1.yaml:4: replicationFactor: {copies} becomes 1: a plan states the number" in text


@pytest.mark.parametrize("topics", ["topics: 0\n", ""])
def test_an_existing_topic_is_used_as_in_the_fork(topics: str) -> None:
    """It has a name instead of a number."""
    text = WORKLOAD.replace("topics: 3\n", topics)
    plan, notes = imported(f"{text}existingTopicList: [foo]\n")

    assert (plan.topic.names, plan.topic.use_existing) == (("foo",), True)
    assert plan.load.clients_per_producer == 5
    assert "existingTopicList: set topic.partitions to the number that it has" in notes


@pytest.mark.parametrize(
    ("lists", "count"),
    [
        ("existingTopicList: [a, b]", 2),
        ("existingProduceTopicList: [a]\nexistingConsumeTopicList: [a]", 1),
    ],
)
def test_several_existing_topics_are_created_anew_with_a_note(lists: str, count: int) -> None:
    plan, notes = imported(f"{WORKLOAD.replace('topics: 3', 'topics: 0')}{lists}\n")

    assert (plan.topic.count, plan.topic.use_existing) == (count, False)
    assert "TopicList: not carried over: " in notes


def test_a_list_of_topics_has_no_meaning_in_a_dialect_without_it() -> None:
    plan, notes = imported(f"{WORKLOAD}existingTopicList: [foo]\n", dialect="upstream")

    assert (plan.topic.count, plan.topic.use_existing) == (3, False)
    assert "existingTopicList: unknown key, ignored as in the benchmark" in notes


def test_without_a_driver_a_lab_kafka_is_used_with_a_note() -> None:
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
            [f"{WORKLOAD}existingTopicList: [foo]\n"],
            "0.yaml:3: topics: must be 0 together with existingTopicList, as in the redpanda dialect",
        ),
        (
            [KAFKA.replace("bootstrap.servers", "bootstrap.server")],
            "0.yaml:7: commonConfig: has no bootstrap.servers",
        ),
        *(
            (
                [WORKLOAD.replace("1024", value)],
                f"0.yaml:6: messageSize: not YAML: the value is not of type {kind}",
            )
            for value, kind in (
                ("!!int ''", "int"),
                ("!!float ''", "float"),
                ("!!bool foo", "bool"),
                ("!!timestamp foo", "timestamp"),
                ("2026-02-31", "timestamp"),
                ("0x" + "f" * 6000, "int"),
                ("!!float '" + "1:" * 400 + "1'", "float"),
            )
        ),
        ([WORKLOAD.replace("1024", '"\\UFFFFFFFF"')], "0.yaml:1: not YAML: "),
        (
            [KAFKA.replace("linger.ms=1", "buffer.memory=\u00b2")],
            "0.yaml:9: producerConfig: buffer.memory: '\u00b2' is not a number of bytes",
        ),
        ([PULSAR.replace("serviceUrl", "url")], "client.serviceUrl: is missing"),
        ([WORKLOAD.replace("100\n", "99999\n")], "partitions: must be at most 100000"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_its_place(texts: list[str], message: str) -> None:
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
    result = str(RECORDED / "omb" / "upstream.json")
    app = build(["omb"])
    mixed = CliRunner().invoke(app, ["omb", "import", str(good), result]).exception
    out = CliRunner().invoke(app, ["omb", "import", result, "--out", str(tmp_path / "p")]).exception

    assert "not imported together" in str(mixed)
    assert "these are results" in str(out)


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


@settings(max_examples=examples(60))
@given(
    st.dictionaries(
        st.sampled_from(sorted(profile.load_profile("vanlightly").workload_keys | {"driverClass"})),
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
