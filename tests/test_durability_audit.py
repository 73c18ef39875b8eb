"""`soak audit`: what is asked of a cluster, and what is said of it."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from soak.brokers import _pulsar_durability, _redpanda_durability, pulsar, redpanda
from soak.cli import _durability, main
from soak.core import durability, plan_text, plugins
from soak.core.clock import SystemClock
from soak.core.errors import PlanError
from soak.core.plan import Topic
from soak.core.ports import Outgoing, Topics
from soak.core.units import SECOND_NS
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.ports import Running
from soak.store.run_folder import RunFolder

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


@contextmanager
def pages(bodies: dict[str, str]) -> Iterator[str]:
    """Serve pages on loopback by their paths; yields the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in bodies else 404)
            self.end_headers()
            self.wfile.write(bodies.get(self.path, "").encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("name", plugins.names("soak.brokers"))
def test_every_broker_knows_its_durability(name: str) -> None:
    assert callable(importlib.import_module(f"soak.brokers._{name}_durability").read)


def test_a_cluster_that_does_not_answer_is_a_fault_with_line_and_key(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"name: x\nbroker:\n  kafka: {{bootstrap_servers: '{NOWHERE}', timeout: 50ms}}\n"
    )

    with pytest.raises(PlanError, match=r"plan\.yaml:3: broker\.kafka: no broker answered"):
        audit(plan)


def test_a_run_goes_on_when_its_cluster_does_not_tell(tmp_path: Path) -> None:
    text = f"name: x\nbroker: {{kafka: {{bootstrap_servers: '{NOWHERE}', timeout: 50ms}}}}\n"
    folder = RunFolder(tmp_path)

    _durability.record(folder, plan_text.load(text, "plan").plan)

    told = json.loads(folder.durability.read_text())
    assert (told["level"], told["lowest"], told["highest"]) == (None, 1, 4)
    assert "no broker answered" in told["notes"][0]


@pytest.mark.parametrize(
    ("body", "value", "where"),
    [
        ('{"write_caching_default": "true"}', "true", "write_caching_default of the cluster"),
        ('{"write_caching_default": false}', "false", "write_caching_default of the cluster"),
        ("{}", None, "does not tell: 'write_caching_default'"),
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


BOOKIE = "/api/v1/config/server_config"
ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"
OF_BROKER = {
    f"{ADMIN}/brokers/configuration/runtime": (
        '{"managedLedgerDefaultWriteQuorum": "3", "managedLedgerDefaultAckQuorum": "2", '
        '"brokerDeduplicationEnabled": "false"}'
    )
}
POLICY = '{"bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}'


def on_pulsar(bodies: dict[str, str], topic: Topic, bookies: int = 0) -> dict[str, Any]:
    """Return what is said of a topic where these pages are admin interface and bookies alike."""
    with pages(bodies) as url:
        config = pulsar.Config(admin_url=url, bookie_urls=",".join([url] * bookies))
        return durability.to_json(_pulsar_durability.read(config, topic))


def settings_of(told: dict[str, Any]) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["value"], one["where"]) for one in told["settings"]}


def test_a_pulsar_topic_that_does_not_exist_is_judged_by_the_plan() -> None:
    topic = Topic(name="t", replication=3, settings={"deduplicationEnabled": "true"})

    told = on_pulsar(OF_BROKER, topic)

    assert (told["level"], told["lowest"], told["highest"]) == (None, 3, 4)
    found = settings_of(told)
    assert found["bookkeeperWriteQuorum"] == ("3", "the plan's topic")
    assert found["bookkeeperAckQuorum"] == ("2", "the plan's topic")
    assert found["deduplicationEnabled"] == ("true", "the plan's topic")
    assert found["journalSyncData"][0] is None
    assert "bookie_urls" in found["journalSyncData"][1]


def test_a_pulsar_topic_that_exists_speaks_for_itself() -> None:
    own = {
        f"{TOPIC}/persistence?applied=true": POLICY,
        f"{TOPIC}/deduplicationEnabled?applied=true": "true",
        BOOKIE: '{"journalWriteData": "true"}',
    }

    told = on_pulsar({**OF_BROKER, **own}, Topic(name="t", replication=1), 2)

    assert told["level"] == 4
    found = settings_of(told)
    assert found["bookkeeperAckQuorum"] == ("2", "topic persistent://public/default/t")
    assert found["deduplicationEnabled"] == ("true", "topic persistent://public/default/t")
    assert found["journalSyncData"] == ("true", "every bookie")


@pytest.mark.parametrize(
    ("of_namespace", "copies", "where"),
    [(POLICY, 2, "namespace public/default"), ("", 3, "the broker's configuration")],
)
def test_without_policies_of_topics_the_namespace_or_the_broker_decides(
    of_namespace: str, copies: int, where: str
) -> None:
    """An empty answer is a topic without a policy."""
    bodies = {
        **OF_BROKER,
        f"{TOPIC}/persistence?applied=true": "",
        f"{ADMIN}/namespaces/public/default/persistence": of_namespace,
    }

    told = on_pulsar(bodies, Topic(name="t", replication=1))

    assert told["copies"] == copies
    assert settings_of(told)["bookkeeperWriteQuorum"] == (str(copies), where)


@pytest.mark.parametrize(
    ("page", "there", "synced"),
    [
        ('{"journalSyncData": "false"}', 1, "false"),
        ('{"journalSyncData": "false"}', 3, "false"),
        ("{}", 1, "true"),
        ("{}", 3, None),
        ("a page of something else", 1, None),
    ],
)
def test_the_weakest_bookie_decides_and_one_that_was_not_asked_leaves_it_open(
    page: str, there: int, synced: str | None
) -> None:
    bookies = ", ".join(['{"bookieId": "b:3181"}'] * there)
    bodies = {**OF_BROKER, BOOKIE: page, f"{ADMIN}/bookies/all": f'{{"bookies": [{bookies}]}}'}

    told = on_pulsar(bodies, Topic(name="t"), 1)

    assert settings_of(told)["journalSyncData"][0] == synced


def test_a_topic_of_pulsar_that_is_not_stored_promises_nothing() -> None:
    told = on_pulsar({}, Topic(name="non-persistent://public/default/t"))

    assert (told["level"], told["local"]["reason"]) == (1, "nothing is stored")


@pytest.mark.broker
def test_the_level_of_a_live_pulsar(lab_pulsar: Pulsar) -> None:
    """One bookie, whose journal is flushed; without its page nobody can tell."""
    name, settings = "soak-durability", {"deduplicationEnabled": "true"}
    without = pulsar.Config(service_url=lab_pulsar.service_url, admin_url=lab_pulsar.admin_url)
    whole = replace(without, bookie_urls=lab_pulsar.addresses["bookie_urls"])
    broker = pulsar.connect(whole, SystemClock())
    broker.create_topics(Topics((name,), 1), 1, settings)

    there = _pulsar_durability.read(whole, Topic(name=name, use_existing=True))
    planned = _pulsar_durability.read(without, Topic(name="soak-not-there", replication=3))

    assert there.level == 2
    assert settings_of(durability.to_json(there)) == {
        "bookkeeperWriteQuorum": ("1", f"topic persistent://public/default/{name}"),
        "bookkeeperAckQuorum": ("1", f"topic persistent://public/default/{name}"),
        "journalWriteData": ("true", "every bookie"),
        "journalSyncData": ("true", "every bookie"),
        "deduplicationEnabled": ("true", f"topic persistent://public/default/{name}"),
    }
    assert (planned.lowest, planned.highest) == (3, 4)


@pytest.mark.broker
def test_what_the_level_of_pulsar_says_is_what_its_bookie_does(lab_pulsar: Pulsar) -> None:
    """Level 2 claims a flush before each acknowledgement: 23 messages, one by one, cost 23 flushes."""
    topic = Topics(("soak-durability-flushed",), 1)
    config = pulsar.Config(
        service_url=lab_pulsar.service_url,
        admin_url=lab_pulsar.admin_url,
        bookie_urls=lab_pulsar.addresses["bookie_urls"],
    )
    broker = pulsar.connect(config, SystemClock())
    broker.create_topics(topic, 1, {})
    producer = broker.producer(topic)
    before = _journal_syncs(lab_pulsar)

    for token in range(23):
        producer.send(Outgoing([0], [b"x" * 64], token))
        assert _is_acknowledged(producer)
    producer.close(10)

    assert _pulsar_durability.read(config, Topic(name=topic.names[0])).local == "sync"
    assert _journal_syncs(lab_pulsar) - before >= 23


def _is_acknowledged(producer: pulsar.PulsarProducer) -> bool:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + 30 * SECOND_NS
    while clock.mono_ns() < deadline_ns:
        if producer.take().token.size:
            return True
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 1000)
    return False


def _journal_syncs(lab: Pulsar) -> int:
    with urlopen(lab.bookie_metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = "bookie_journal_JOURNAL_SYNC_count{"
    found = [line for line in lines if line.startswith(name) and 'success="true"' in line]
    return sum(int(float(line.split()[-1])) for line in found)


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
