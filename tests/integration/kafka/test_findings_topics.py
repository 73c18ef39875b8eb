"""Findings and notifications in topics of a real Kafka: the same mails as from a file, from one daemon."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from soak.alerting.daemon import AlertDaemon
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError
from soak.core.model import Change
from soak.core.plan.plan import Store
from soak.core.plan.text import load
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from soak.service import children
from soak.sinks.mail import Config, MailSink
from soak.store.findings.store import FindingsStore
from soak.store.findings.topic import FindingsTopics
from soak.store.findings.topic_log import FINDINGS_TOPIC, OUTBOX_TOPIC, TOPICS, KafkaFindingsLog
from soak.store.run_folder import read_run
from spark.streaming.attribution import Attribution
from tests.support.alerting.daemon import DELIVERED, KEY, OTHER, RUN, AlertWorld
from tests.support.alerting.findings import SERIES, finding
from tests.support.alerting.mail_server import Inbox, served
from tests.support.spark.growing_run import advance
from tests.support.spark.synthetic_run import PRODUCER, Shape, write_synthetic_run

pytestmark = pytest.mark.broker

KEEP_NS = 90 * 24 * 3600 * SECOND_NS
PATIENCE_SECONDS = 60
TO = "a@example.org"
STEP = Change(
    series=f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}',
    raised_k=206,
    onset_k=202,
    interval=(201, 203),
    before=0.0026,
    after=0.038,
    state="confirmed",
    confidence=0.99,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Kafka of its own, whose topics are changed and deleted."""
    found = kafka.start(tmp_path_factory.mktemp("findings-kafka"), {})
    yield found
    found.kill()  # nothing in it is needed any more


@pytest.fixture
def place(broker: Running, request: pytest.FixtureRequest) -> Iterator[FindingsTopics]:
    """The findings of a run that no other test writes."""
    found = place_of(broker, request.node.name)
    yield found
    found.close()


def place_of(broker: Running, run: str, client: Mapping[str, str] | None = None) -> FindingsTopics:
    url = f"kafka://{broker.bootstrap_servers}"
    store = Store(url=url, timeout=3 * SECOND_NS, client=dict(client or {}))
    clock = SystemClock()
    return FindingsTopics(run, KafkaFindingsLog(store, run, clock), clock, KEEP_NS)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.1)


def without_date(mail: EmailMessage) -> list[tuple[object, ...]]:
    """Return headers and content of all parts; the borders between parts are random."""
    return [
        (
            [(k, v) for k, v in part.items() if k not in {"Date", "Content-Type"}],
            part.get_content_type(),
            None if part.is_multipart() else part.get_payload(decode=True),
        )
        for part in mail.walk()
    ]


def test_a_finding_of_many_series_fits(place: FindingsTopics) -> None:
    """Which is more than the megabyte that a broker takes by default, and hardly compressible."""
    names = tuple(f"{SERIES}{{leader={at * 2654435761 % 2**32:x}}}" for at in range(60_000))
    many = replace(finding(), key="many-1", run=place.run, changes=names)
    with place.open() as store:
        store.save_finding(many, (), 1)

    with place.open() as store:
        assert store.finding("many-1") == many


def test_topics_and_file_give_the_same_mails(place: FindingsTopics, tmp_path: Path) -> None:
    """A finding that is opened, corrected and resolved."""
    world, from_file, from_topics = AlertWorld(tmp_path, DELIVERED), Inbox(), Inbox()
    plan = load(world.folder.plan.read_text(), "plan.yaml").plan
    with served(from_file) as one, served(from_topics) as two:
        sinks = [MailSink(Config(to=(TO,), host="127.0.0.1", port=port)) for port in (one, two)]
        run = read_run(world.folder)
        daemons = [
            AlertDaemon(world.folder, plan, run, {"mail": sinks[0]}, world.clock),
            AlertDaemon(world.folder, plan, run, {"mail": sinks[1]}, world.clock, findings=place),
        ]
        for state in ("confirmed", "gone"):
            world.save(state)
            with FindingsStore(world.folder.findings) as file, place.open() as store:
                store.save_finding(file.findings(RUN)[0], ["mail"], world.clock.wall_ns())
            for daemon in daemons:
                daemon.poll()
    mails = [[mail for _, mail in inbox.mails] for inbox in (from_file, from_topics)]

    assert [mail["Message-ID"] for mail in mails[1]] == [
        f"<{KEY}.confirmed@localhost>",
        f"<{KEY}.gone@localhost>",
    ]
    assert list(map(without_date, mails[0])) == list(map(without_date, mails[1]))


def test_attribution_stores_the_same_in_topics_as_in_a_file(
    broker: Running, tmp_path: Path
) -> None:
    """The change, the finding with its cause, and the message that is pending."""
    shape = Shape(
        seconds=600, deletions_k=200, fault_k=202, sinks=f"{{mail: {{to: [{TO}]}}}}", is_ended=False
    )
    folder = write_synthetic_run(tmp_path / "r", shape)
    plan = load(folder.plan.read_text(), "plan.yaml").plan
    store = Store(url=f"kafka://{broker.bootstrap_servers}")
    stored = []
    for one in (plan, replace(plan, store=store)):
        judge = Attribution(folder, "attributed", one, SystemClock())
        advance(judge, [STEP])
        judge.conclude()
        with judge.findings.open() as found:
            queued = [(row.sink, row.kind, row.state) for row in found.notifications("attributed")]
            stored.append((found.changes("attributed"), found.findings("attributed"), queued))
        judge.findings.close()

    assert stored[0] == stored[1]
    assert stored[1][1][0].cause == "retention_cliff"
    assert stored[1][2] == [("mail", "opened", "pending")]


class Killing(Inbox):
    """Keeps a mail and kills a process before it replies, once."""

    victim: int | None = None

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802  # the library's name
        answer = await super().handle_DATA(server, session, envelope)
        if self.victim is not None:
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None
        return answer


def test_of_two_daemons_the_other_sends_again_what_a_killed_one_did_not_store(
    broker: Running, tmp_path: Path
) -> None:
    """Under the same Message-ID; a daemon that is started later sends neither again."""
    world, inbox = AlertWorld(tmp_path, DELIVERED).without_charts(), Killing()
    place = place_of(broker, RUN)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        """Start a daemon on a host of its own, with a copy of the run folder."""
        shutil.copytree(world.folder.path, tmp_path / name)
        command = [
            sys.executable,
            "-m",
            "soak.cli.main",
            "alert",
            "--run-dir",
            str(tmp_path / name),
        ]
        with (tmp_path / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(children.with_death_signal(command), stdout=log, stderr=log)
            )
        return started[-1]

    def save(key: str) -> None:
        found = finding(key=key, run=RUN, series=SERIES.replace("@h", "@host"))
        with place.open() as store:
            store.save_finding(found, ["mail"], SystemClock().wall_ns())

    def sent() -> list[str]:
        with place.open() as store:
            return [row.subject for row in store.notifications(RUN) if row.state == "sent"]

    with served(inbox) as port:
        world.folder.findings.unlink()
        world.change_plan(
            f"{{store: 'kafka://{broker.bootstrap_servers}', "
            f"sinks: {{mail: {{to: [{TO}], host: 127.0.0.1, port: {port}}}}}}}"
        )
        try:
            first = start("one")
            inbox.victim = first.pid
            wait_for(lambda: has_owner(broker), "the first daemon")
            second = start("two")
            save(KEY)
            wait_for(lambda: sent() == [KEY], "the second daemon to send")
            second.terminate()
            second.wait(PATIENCE_SECONDS)
            start("three")
            save(OTHER)
            wait_for(lambda: sent() == [KEY, OTHER], "the third daemon to send")
        finally:
            for process in started:
                process.kill()
                process.wait()
    place.close()
    ids = [mail["Message-ID"] for _, mail in inbox.mails]

    assert first.returncode == -signal.SIGKILL
    assert ids == [f"<{KEY}.confirmed@localhost>"] * 2 + [f"<{OTHER}.confirmed@localhost>"]


def has_owner(broker: Running) -> bool:
    """Return whether a daemon owns the outbox of the run."""
    admin, group = AdminClient({"bootstrap.servers": broker.bootstrap_servers}), f"soak-alert-{RUN}"
    try:
        found = admin.describe_consumer_groups([group])[group].result(10)
    except KafkaException:  # the first group of a cluster has no coordinator yet
        return False
    return any(one.assignment.topic_partitions for one in found.members)


def test_a_daemon_that_lost_the_outbox_cannot_write(broker: Running) -> None:
    """The broker refuses it; the new owner writes."""
    short = {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}
    one, two = (place_of(broker, "fenced", short) for _ in range(2))
    with one.open() as store:
        store.save_finding(finding(), ["mail"], 0)
    was_owner = one.claim(), two.claim()
    with one.open() as store:
        (row,) = store.due(0)
        store.begin_try(row, 0, 0)
    wait_for(two.claim, "the other daemon")  # meanwhile the first does nothing for too long

    with pytest.raises(FindingsError, match="another alert daemon"), one.open() as store:
        store.mark_sent(row, 0)
    with two.open() as store:
        assert [one.state for one in store.open_notifications()] == ["sending"]
        store.mark_sent(row, 0)
        assert store.open_notifications() == []
    assert was_owner == (True, False)
    one.close()
    two.close()


def test_the_owner_stays_when_another_daemon_joins_and_leaves(broker: Running) -> None:
    """Each time the group has a new generation, and a write of the old one is made again."""
    one, two = (place_of(broker, "joined") for _ in range(2))
    owners = [one.claim(), two.claim()]
    for number, change_group in enumerate((lambda: None, two.close)):
        change_group()
        with one.open() as store:
            store.save_finding(finding(key=f"run1-{number}", raised_k=number), ["mail"], number)
        owners.append(one.claim())
    with two.open() as store:
        keys = [found.key for found in store.findings("run1")]
    one.close()
    two.close()

    assert owners == [True, False, True, True]
    assert keys == ["run1-0", "run1-1"]


def test_two_writers_take_turns(broker: Running) -> None:
    """Each sees what the other wrote before, and nothing is lost."""
    places = [place_of(broker, "turns") for _ in range(2)]
    for number in range(11):
        with places[number % 2].open() as store:
            store.save_finding(finding(key=f"run1-{number}", raised_k=number), ["mail"], number)
    for place in places:
        with place.open() as store:
            assert [one.raised_k for one in store.findings("run1")] == list(range(11))
        place.close()


def test_topics_are_made_compacted_with_one_partition(
    broker: Running, place: FindingsTopics
) -> None:
    with place.open() as store:
        assert store.findings("run1") == []
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    known = admin.list_topics(timeout=10).topics
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in TOPICS]
    settings = [one.result(10) for one in admin.describe_configs(resources).values()]

    assert [len(known[topic].partitions) for topic in TOPICS] == [1, 1]
    assert [one["cleanup.policy"].value for one in settings] == ["compact", "compact"]


def set_policy(broker: Running, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, FINDINGS_TOPIC, incremental_configs=[entry]
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(10)


def test_a_topic_that_is_not_compacted_is_refused(broker: Running, place: FindingsTopics) -> None:
    """With the command that mends it."""
    with place_of(broker, "other").open():
        pass
    set_policy(broker, "delete")
    try:
        with pytest.raises(FindingsError, match=r"cleanup\.policy=delete .* kafka-configs"):
            place.refresh()
    finally:
        set_policy(broker, "compact")


def test_a_topic_that_is_deleted_in_use_is_an_error_until_a_restart(
    broker: Running, place: FindingsTopics
) -> None:
    """Nothing is begun anew unasked."""
    with place.open() as store:
        store.save_finding(finding(), ["mail"], 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([OUTBOX_TOPIC])[OUTBOX_TOPIC].result(10)

    for _ in range(2):
        with pytest.raises(FindingsError, match=r"topic soak\.outbox was deleted while"):
            place.refresh()
    place.close()
    with place.open() as store:
        assert store.open_notifications() == []


def test_what_lies_behind_an_open_transaction_is_known_to_a_writer(broker: Running) -> None:
    """That of another run, whose process hangs: its end is awaited."""
    one, two = (place_of(broker, "behind") for _ in range(2))
    with one.open() as store:
        store.save_finding(finding(), ["mail"], 0)
    hanging = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "soakd-hanging",
            "transaction.timeout.ms": "60000",
        }
    )
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(OUTBOX_TOPIC, b"x", b'["hanging","notice","x"]')
    hanging.flush(10)
    with one.open() as store:
        (row,) = store.due(0)
        store.begin_try(row, 0, 0)
        store.mark_sent(row, 0)
    with two.open() as store:
        hidden = [row.state for row in store.open_notifications()]
        Timer(1, hanging.abort_transaction).start()
        store.save_finding(finding(is_about_cluster=False), ["mail"], 0)
        states = [(row.kind, row.state) for row in store.notifications("run1")]
    one.close()
    two.close()

    assert hidden == ["pending"]
    assert states == [("opened", "sent"), ("resolved", "pending")]
