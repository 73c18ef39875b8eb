"""`soak audit`: what is asked of a cluster, and what is said of it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from soak.brokers import _redpanda_durability, redpanda
from soak.cli import _durability, main
from soak.core import plan_text, plugins
from soak.core.errors import PlanError
from soak.lab.ports import Running
from soak.store.run_folder import RunFolder
from tests.pages import pages

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


def test_a_misspelt_setting_is_told_with_its_own_line_as_by_check(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan.yaml", NOWHERE, "lingr.ms: 5")

    with pytest.raises(
        PlanError, match=r"plan\.yaml:3: broker\.kafka\.producer\.lingr\.ms: the cl"
    ):
        audit(plan)


@pytest.mark.parametrize("name", plugins.names("soak.brokers"))
def test_every_broker_knows_its_durability(name: str) -> None:
    assert callable(importlib.import_module(f"soak.brokers._{name}_durability").read)


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

    _durability.record(folder, loaded.plan, loaded.document)

    told = json.loads(folder.durability.read_text())
    assert (told["level"], told["lowest"], told["highest"]) == (None, 1, 4)
    assert "no Kafka broker answered" in told["notes"][0]


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
        config = redpanda.Config(bootstrap_servers=NOWHERE, metrics_urls=(f"{url}/metrics",))
        told = _redpanda_durability._of_cluster(config)

    assert told.value == value
    assert where in told.where


def test_without_redpandas_pages_the_cluster_property_is_unknown() -> None:
    told = _redpanda_durability._of_cluster(redpanda.Config(bootstrap_servers=NOWHERE))

    assert told.value is None
    assert "metrics_urls" in told.where


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
    assert "not comparable: they promise different things" in text


@pytest.mark.broker
def test_a_topic_that_exists_speaks_for_itself(lab_kafka: Running, tmp_path: Path) -> None:
    servers = lab_kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    name = "soak-durability"
    new = NewTopic(name, 1, 1, config={"flush.messages": "1", "min.insync.replicas": "2"})
    admin.create_topics([new])[name].result(30)
    plan = write_plan(tmp_path / "plan.yaml", servers, topic=f"name: {name}, use_existing: true")

    code, text = audit(plan, "--format", "json")

    told = json.loads(text)
    by_name = {one["name"]: one for one in told["settings"]}
    assert (code, told["level"], told["copies"], told["confirmed"]) == (0, 2, 1, 1)
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

    told = json.loads(text)
    by_name = {one["name"]: one for one in told["settings"]}
    assert (code, told["level"], told["copies"], told["confirmed"]) == (0, 3, 3, 2)
    assert by_name["min.insync.replicas"]["where"] == "min.insync.replicas of every broker"
