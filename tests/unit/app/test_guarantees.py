"""Durability and retention of a plan: `soak audit`, the forecast, and what a run records of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from soak.app import guarantees
from soak.brokers import redpanda
from soak.brokers import redpanda as redpanda_durability
from soak.cli import main
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Topic
from soak.lab.ports import Running
from soak.store.run_folder import RunFolder
from tests.support.checking import checked
from tests.support.pages import pages

NOWHERE = "127.0.0.1:9"


def soak(*arguments: object) -> tuple[int, str]:
    """Return exit code and output of a command; a plan's fault is raised."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(main.build(words), words, catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def audit(*arguments: object) -> tuple[int, str]:
    return soak("audit", *arguments)


def write_plan(path: Path, servers: str, producer: str = "", topic: str = "") -> Path:
    path.write_text(
        f"name: audited\nbroker:\n  kafka: {{bootstrap_servers: '{servers}', timeout: 5s, "
        f"producer: {{{producer}}}}}\ntopic: {{{topic}}}\n"
    )
    return path


def test_a_plan_that_no_lab_can_serve_starts_none(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("name: x\nbroker: {kafka: {}}\ntopic: {replication: 3}\n")

    with pytest.raises(PlanError, match=r"plan\.yaml:3: topic\.replication: 3 copies need"):
        audit(plan)


def test_a_misspelt_setting_is_reported_with_its_line_as_by_check(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.yaml", NOWHERE, "lingr.ms: 5")

    with pytest.raises(
        PlanError, match=r"plan\.yaml:3: broker\.kafka\.producer\.lingr\.ms: the cl"
    ):
        audit(plan)


def test_a_cluster_that_does_not_answer_is_a_fault_with_line_and_key(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"name: x\nbroker:\n  kafka: {{bootstrap_servers: '{NOWHERE}', timeout: 50ms}}\n"
    )

    with pytest.raises(
        PlanError, match=r"plan\.yaml:3: broker\.kafka: no Kafka broker answered .*refused"
    ):
        audit(plan)


def test_a_run_goes_on_when_its_cluster_does_not_tell(tmp_path: Path) -> None:
    text = f"name: x\nbroker: {{kafka: {{bootstrap_servers: '{NOWHERE}', timeout: 50ms}}}}\n"
    folder, loaded = RunFolder(tmp_path), plan_text.load(text, "plan")

    guarantees.record_durability(folder, loaded.plan, loaded.document)

    result = json.loads(folder.durability.read_text())
    assert (result["level"], result["lowest"], result["highest"]) == (None, 1, 4)
    assert "no Kafka broker answered" in result["notes"][0]


@pytest.mark.parametrize(
    ("body", "value", "where"),
    [
        ('{"write_caching_default": "true"}', "true", "write_caching_default of the cluster"),
        ('{"write_caching_default": false}', "false", "write_caching_default of the cluster"),
        ("{}", None, "does not tell: 'write_caching_default'"),
        ('{"write_caching_default": null}', None, "write_caching_default is null"),
        ("no page", None, "does not tell"),
    ],
)
def test_redpandas_cluster_property_is_read_where_its_metrics_are(
    body: str, value: str | None, where: str
) -> None:
    with pages({"/v1/cluster_config": body}) as url:
        config = redpanda_durability.Config(
            bootstrap_servers=NOWHERE, metrics_urls=(f"{url}/metrics",)
        )
        result = redpanda_durability.cluster_caching(config)

    assert result.value == value
    assert where in result.where


def test_without_redpandas_pages_the_cluster_property_is_unknown() -> None:
    result = redpanda_durability.cluster_caching(
        redpanda_durability.Config(bootstrap_servers=NOWHERE)
    )

    assert result.value is None
    assert "metrics_urls" in result.where


@pytest.mark.broker
def test_the_level_follows_the_settings_of_a_live_kafka(lab_kafka: Running, tmp_path: Path) -> None:
    """A topic that is yet to be made; one copy, so that only the flush can raise the level."""
    servers = lab_kafka.bootstrap_servers
    weak = write_plan(tmp_path / "weak.yaml", servers)
    strong = write_plan(tmp_path / "strong.yaml", servers, topic="settings: {flush.messages: 1}")
    mute = write_plan(
        tmp_path / "mute.yaml", servers, "acks: 0", topic="settings: {flush.messages: 1}"
    )

    assert "kafka, level 1 of 4: replication async, local async" in audit(weak)[1]
    assert "kafka, level 2 of 4: replication async, local sync" in audit(strong)[1]
    assert "kafka, level 1 of 4: replication async, local async" in audit(mute)[1]
    assert "`flush.messages: 1` would help local" in audit(weak)[1]
    assert (
        "Durability: level 2 of 4: replication async, local sync; `soak audit"
        in (soak("check", strong)[1])
    )
    assert audit(weak, weak)[0] == 0
    code, text = audit(weak, strong)
    assert code == 1
    assert "not comparable: they give different guarantees" in text


@pytest.mark.broker
def test_a_topic_that_exists_speaks_for_itself(lab_kafka: Running, tmp_path: Path) -> None:
    servers = lab_kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    name = "soak-durability"
    new = NewTopic(name, 1, 1, config={"flush.messages": "1", "min.insync.replicas": "2"})
    admin.create_topics([new])[name].result(30)
    plan = write_plan(tmp_path / "plan.yaml", servers, topic=f"name: {name}, use_existing: true")

    code, text = audit(plan, "--format", "json")

    result = json.loads(text)
    by_name = {one["name"]: one for one in result["settings"]}
    assert (code, result["level"], result["copies"], result["confirmed"]) == (0, 2, 1, 1)
    assert by_name["flush.messages"]["where"] == f"topic {name}"
    assert by_name["min.insync.replicas"]["value"] == "2"


@pytest.mark.broker
def test_a_labs_cluster_is_started_to_be_asked_and_stopped_again(tmp_path: Path) -> None:
    """A copy on each of three nodes: that acks=all waits for two of them, min.insync.replicas decides."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "name: x\nlab: {nodes: 3, settings: {min.insync.replicas: 2}}\nbroker: {kafka: {}}\n"
        "topic: {replication: 3}\n"
    )

    code, text = audit(plan, "--format", "json")

    result = json.loads(text)
    by_name = {one["name"]: one for one in result["settings"]}
    assert (code, result["level"], result["copies"], result["confirmed"]) == (0, 3, 3, 2)
    assert by_name["min.insync.replicas"]["where"] == "min.insync.replicas of every broker"


LOAD = "load: {rate: 1k/s, message_size: 1000B}\nphases: {warm_up: 5s, soak: 60s}\n"
KAFKA = """
broker: {kafka: {producer: {linger.ms: 0}}}
topic: {partitions: 1, settings: {retention.ms: 20000, segment.ms: 10000}}
"""
PULSAR = """
broker: {pulsar: {producer: {batching_enabled: false}}}
lab: {settings: {managedLedgerMaxEntriesPerLedger: 10000}}
topic: {partitions: 1, settings: {retentionSizeInMB: 20}}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KAFKA, "the limit in time is reached between 30 s and 31 s after the start, in the soak"),
        (
            PULSAR,
            "the limit in bytes is reached between 30 s and 35 s after the start, in the soak",
        ),
    ],
)
def test_a_check_foretells_what_a_lab_will_do_before_it_is_started(
    tmp_path: Path, text: str, expected: str
) -> None:
    """From the settings that it will be started with."""
    said = checked(tmp_path, f"{LOAD}{text}")

    assert expected in said


@pytest.mark.parametrize(("policy", "named"), [("''", "empty"), ("compact", "compact")])
def test_a_topic_that_keeps_everything_says_why(tmp_path: Path, policy: str, named: str) -> None:
    text = KAFKA.replace("settings: {", f"settings: {{cleanup.policy: {policy}, ")
    said = checked(tmp_path, f"{LOAD}{text}")

    assert "no data is deleted, because no limit of the topic is reached" in said
    assert f"  note: cleanup.policy is {named}: nothing is deleted" in said


def test_a_run_that_will_not_see_it_is_warned_of(tmp_path: Path) -> None:
    text = KAFKA.replace("20000", "200000")
    said = checked(tmp_path, f"{LOAD}{text}")

    assert "Warning: the soak ends before old data is deleted, 3 min 30 s after" in said


def test_a_cluster_that_does_not_tell_ends_no_run(tmp_path: Path) -> None:
    """The forecast is unknown then, and says why."""
    addresses = "{service_url: 'pulsar://127.0.0.1:9', admin_url: 'http://127.0.0.1:9'}"
    text = f"name: x\nbroker: {{pulsar: {addresses}}}\n"
    folder = RunFolder(tmp_path)

    guarantees.record_forecast(folder, plan_text.load(text, "p").plan, ())

    result = json.loads(folder.forecast.read_text())
    assert (result["seen"], result["first_deletion_seconds"]) == ("unknown", None)
    assert "the Pulsar admin interface at http://127.0.0.1:9" in result["notes"][0]


def test_limits_that_are_none_end_no_run(tmp_path: Path) -> None:
    """A cluster may say anything."""
    text = "name: x\nbroker: {pulsar: {}}\nlab: {settings: {retentionCheckIntervalInSeconds: -5}}\n"
    folder = RunFolder(tmp_path)

    guarantees.record_forecast(folder, plan_text.load(text, "p").plan, ())

    result = json.loads(folder.forecast.read_text())
    assert "settings make no sense" in result["notes"][0]


def test_a_soak_whose_rate_a_ramp_will_find_is_not_foreseen(tmp_path: Path) -> None:
    """Neither its first deletion nor that it will not see one."""
    load = LOAD.replace("soak: 60s", "soak: 60s, ramp: {soak_share: 0.8}")
    said = checked(tmp_path, f"{load}{KAFKA}")

    assert "first deletion cannot be forecast: the ramp decides the rate" in said
    assert "Warning: the soak ends" not in said


def test_redpanda_looks_every_ten_seconds_and_frees_at_once() -> None:
    topic = Topic(settings={"retention.ms": "1000"})

    config = redpanda.Config(bootstrap_servers=NOWHERE)
    found = redpanda.RedpandaGuarantees(config).assumed_retention(topic, {})

    assert (found.keep_seconds, found.check_seconds, found.free_seconds) == (1, 10, 0)
