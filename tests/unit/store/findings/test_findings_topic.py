"""Findings in compacted topics: stored and sent is what a file would have, with any number of writers."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.alerting.daemon import AlertDaemon
from soak.core.errors import FindingsError
from soak.core.model import Finding
from soak.core.plan.text import load
from soak.core.ports import Message
from soak.core.units import SECOND_NS
from soak.store.findings.port import Findings
from soak.store.findings.rows import Notification
from soak.store.findings.schema import VERSION
from soak.store.findings.store import FindingsStore
from soak.store.findings.topic import FindingsTopics
from soak.store.findings.topic_log import FINDINGS_TOPIC, OUTBOX_TOPIC
from soak.store.run_folder import read_run
from tests.support.alerting.daemon import (
    DELIVERED,
    KEY,
    OTHER,
    RUN,
    AlertWorld,
    FakeSink,
    HookedSink,
)
from tests.support.alerting.findings import NOW, SERIES, change, finding
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.store.findings_log import KEEP_NS, FakeCluster

OPENED = f"{KEY}.confirmed"
DAY_NS = 24 * 3600 * SECOND_NS
STEPS = ["confirmed", "gone", "client", "warning", "other", "send", "again", "compact", "restart"]


def topics(cluster: FakeCluster, run: str = "run1", keep_ns: int = KEEP_NS) -> FindingsTopics:
    return FindingsTopics(run, cluster.log(keep_ns), cluster.clock, keep_ns)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(FakeClock())


def is_saved(step: str) -> Finding | None:
    """Return the finding that a step stores."""
    if step in {"confirmed", "gone", "warning"}:
        return finding(step, resolved_k=200 if step == "gone" else None)
    if step == "client":
        return finding(is_about_cluster=False)
    return finding(key="run1-140", raised_k=140) if step == "other" else None


def work(store: Findings, step: str, at_ns: int) -> None:
    found = is_saved(step)
    if found is not None:
        store.record_changes("run1", [change(found.state)])
        store.assign("run1", {(SERIES, 130): found.key})
        store.save_finding(found, ["mail", "hook"], at_ns)
    elif step in {"send", "again"}:
        for row in store.due(at_ns):
            if store.begin_try(row, at_ns, at_ns) is None:
                continue
            if step == "send":
                store.mark_sent(row, at_ns, "250 ok")
            else:
                store.mark_deferred(row, at_ns, at_ns, "451 later", "half")


def content(store: Findings) -> tuple[object, ...]:
    return (
        store.changes("run1"),
        store.assigned("run1"),
        store.findings("run1"),
        store.notifications("run1"),
        store.open_notifications(),
        store.unresolved("mail"),
    )


@pytest.mark.long
@settings(max_examples=examples(40))
@given(steps=st.lists(st.sampled_from(STEPS), max_size=10))
def test_topics_hold_what_a_file_holds(steps: list[str]) -> None:
    """Whatever is stored and sent, also when Kafka compacts and the process starts anew in between."""
    cluster = FakeCluster(FakeClock())
    place = topics(cluster)
    with FindingsStore(Path(":memory:")) as file:
        for number, step in enumerate(steps):
            if step == "compact":
                cluster.compact()
            elif step == "restart":
                place.close()
                place = topics(cluster)
            else:
                at_ns = NOW + number * SECOND_NS
                work(file, step, at_ns)
                with place.open() as store:
                    work(store, step, at_ns)
        with place.open() as mine, topics(cluster).open() as of_another:
            assert content(mine) == content(of_another) == content(file)


def test_a_batch_that_is_delivered_again_writes_nothing(cluster: FakeCluster) -> None:
    """Not a record, although it comes later."""
    with topics(cluster).open() as store:
        work(store, "confirmed", NOW)
    before = len(cluster.records)
    with topics(cluster).open() as store:
        work(store, "confirmed", NOW + SECOND_NS)

    assert len(cluster.records) == before == 5


def test_keys_name_run_kind_and_identity(cluster: FakeCluster) -> None:
    with topics(cluster).open() as store:
        store.save_finding(finding(), ["mail"], NOW)

    assert list(cluster.values()) == [
        (FINDINGS_TOPIC, b'["run1","finding","run1-130"]'),
        (OUTBOX_TOPIC, b'["run1","notification","run1-130","mail",1,"opened"]'),
    ]


def test_what_is_deleted_is_deleted_in_the_topics(cluster: FakeCluster) -> None:
    """A finding that was never confirmed, and a change that was withdrawn."""
    with topics(cluster).open() as store:
        store.record_changes("run1", [change("warning")])
        store.save_finding(finding("warning"), [], NOW)
        store.record_changes("run1", [change("withdrawn")])
        store.drop_warning("run1-130")

    assert cluster.values() == {}


def test_a_writer_that_lost_its_turn_begins_anew_with_what_the_other_wrote(
    cluster: FakeCluster,
) -> None:
    """The finding resolves while its message is being sent: that message keeps its state."""
    detector, daemon = topics(cluster), topics(cluster)
    with detector.open() as store:
        store.save_finding(finding(), ["mail"], NOW)
    log = detector.log

    def send_meanwhile() -> None:
        log.before_write = lambda: None  # type: ignore[attr-defined]  # of the fake
        with daemon.open() as store:
            work(store, "send", NOW)

    log.before_write = send_meanwhile  # type: ignore[attr-defined]  # of the fake
    with detector.open() as store:
        store.save_finding(finding("gone", resolved_k=200), ["mail"], NOW)
    with topics(cluster).open() as store:
        states = [(row.kind, row.state) for row in store.notifications("run1")]

    assert states == [("opened", "sent"), ("resolved", "pending")]


@pytest.mark.long
def test_a_message_is_sent_whose_finding_lies_behind_an_open_transaction(world: TopicWorld) -> None:
    """That of another run, whose process was killed: its end is awaited before a try."""
    world.cluster.hidden_from[FINDINGS_TOPIC] = 0
    with topics(world.cluster, RUN).open() as store:
        seen = store.findings(RUN), [row.kind for row in store.open_notifications()]
    world.topic_daemon(world.sink).poll()

    assert seen == ([], ["opened"])
    assert [message.key for message in world.sink.messages] == [OPENED]


def test_a_result_that_lies_behind_an_open_transaction_is_not_undone(cluster: FakeCluster) -> None:
    """The detector withdraws a finding whose message was sent meanwhile: readers are notified."""
    detector, daemon = topics(cluster), topics(cluster)
    with detector.open() as store:
        store.save_finding(finding(), ["mail"], NOW)
    end = cluster.end
    with daemon.open() as store:
        work(store, "send", NOW)
    cluster.hidden_from[OUTBOX_TOPIC] = end
    with detector.open() as store:
        work(store, "client", NOW)
    with topics(cluster).open() as store:
        states = [(row.kind, row.state) for row in store.notifications("run1")]

    assert states == [("opened", "sent"), ("resolved", "pending")]


def test_a_turn_whose_records_could_not_be_read_is_given_up(cluster: FakeCluster) -> None:
    """Else the next write would stand on a part of what is stored."""
    place = topics(cluster)
    with place.open() as store:
        store.save_finding(finding(), ["mail"], NOW)
        cluster.put(OUTBOX_TOPIC, b'["run1","notice","x"]', b"{")
    with pytest.raises(FindingsError):
        place.refresh()

    assert not place.log.has_turn


def test_work_that_changes_nothing_takes_no_turn(cluster: FakeCluster) -> None:
    """The detector keeps its turn while the daemon only looks for something to queue."""
    detector, daemon = topics(cluster), topics(cluster)
    with detector.open() as store:
        store.save_finding(finding(), ["mail"], NOW)
    with daemon.open() as store:
        store.queue_added("run1", ["mail"], 0, NOW)
        store.drop_warning("run1-130")

    assert detector.log.has_turn


def test_runs_do_not_see_each_other(cluster: FakeCluster) -> None:
    with topics(cluster, "run2").open() as store:
        store.save_finding(finding(run="run2", key="run2-1"), ["mail"], NOW)
    with topics(cluster).open() as store:
        assert store.open_notifications() == []


def test_a_run_expires_when_nothing_was_written_of_it_for_long(cluster: FakeCluster) -> None:
    """Its records are deleted by the daemon of another run; those of a younger one stay."""
    for run, days in (("old", 60), ("young", 40)):
        with topics(cluster, run).open() as store:
            store.save_finding(finding(run=run, key=f"{run}-1"), ["mail"], NOW)
        cluster.clock.advance(days * 86_400)  # type: ignore[attr-defined]  # a fake
    topics(cluster).claim()

    assert {json.loads(key)[0] for _, key in cluster.values()} == {"young"}


def test_a_run_is_kept_by_its_own_plan(cluster: FakeCluster) -> None:
    """Not by that of the run whose daemon looks for expired ones."""
    with topics(cluster, "long", 90 * DAY_NS).open() as store:
        store.save_finding(finding(run="long", key="long-1"), ["mail"], NOW)
    with topics(cluster, "short", DAY_NS).open() as store:
        store.save_finding(finding(run="short", key="short-1"), ["mail"], NOW)
    cluster.clock.advance(2 * 86_400)  # type: ignore[attr-defined]  # a fake
    topics(cluster, keep_ns=DAY_NS).claim()

    assert {json.loads(key)[0] for _, key in cluster.values()} == {"long"}


def test_a_run_that_goes_on_does_not_expire(cluster: FakeCluster) -> None:
    """Nothing happens in it for longer than its plan keeps it, and its findings stay."""
    quiet, other = topics(cluster, keep_ns=DAY_NS), topics(cluster, "other")
    with quiet.open() as store:
        store.save_finding(finding(), ["mail"], NOW)
    before = cluster.values()
    for _ in range(12):
        cluster.clock.advance(6 * 3600)  # type: ignore[attr-defined]  # a fake
        with quiet.open():
            pass
        other.claim()

    assert cluster.values() == before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            b'{"v":%d,"rows":{}}' % (VERSION + 1),
            (
                f"topic soak.outbox, partition 0, offset 0: the value has schema version {VERSION + 1}, "
                f"this program reads up to {VERSION}: upgrade soakd on this host"
            ),
        ),
        (b"{", "topic soak.outbox, partition 0, offset 0: the value is damaged"),
        (b'{"v":1,"rows":{"notifications":[{}]}}', "partition 0, offset 0: the value is damaged"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_by_its_place(
    cluster: FakeCluster, value: bytes, message: str
) -> None:
    """It stops the run that it is of, each time, and no other run."""
    key = b'["run1","notification","run1-130","mail",1,"opened"]'
    cluster.put(OUTBOX_TOPIC, key, value)
    place = topics(cluster)

    for _ in range(2):
        with pytest.raises(FindingsError) as caught, place.open():
            pass
        assert message in str(caught.value)
    with topics(cluster, "run2").open() as store:
        assert store.open_notifications() == []


def test_records_of_the_layout_before_are_read_as_they_are(cluster: FakeCluster) -> None:
    """Their messages named a cause, and no suspect."""
    with topics(cluster).open() as store:
        store.save_finding(finding(), ["mail"], NOW)
        work(store, "again", NOW)
    for (topic, key), value in cluster.values().items():
        older = json.loads(value) | {"v": 9}
        for row in older["rows"].get("notifications", ()):
            row["cause"] = "retention_cliff"
        cluster.put(topic, key, json.dumps(older).encode())
    with topics(cluster).open() as store:
        (row,) = store.open_notifications()

        assert store.findings("run1") == [finding()]
    assert (row.state, row.cause) == ("deferred", "retention_cliff")


def test_messages_of_the_layout_before_keep_their_order(cluster: FakeCluster) -> None:
    """A kind came between the first and the others, which are numbered by their order."""
    gone = replace(finding(), state="gone", resolved_k=200)
    with topics(cluster).open() as store:
        store.save_finding(finding(), ["mail"], NOW)
        (row,) = store.due(NOW)
        store.begin_try(row, NOW, NOW)
        store.mark_sent(row, NOW)
        store.save_finding(gone, ["mail"], NOW)
    for (topic, key), value in cluster.values().items():
        older = json.loads(value) | {"v": 10}
        for row in older["rows"].get("notifications", ()):
            row["step"] -= row["step"] > 0
        cluster.put(topic, key, json.dumps(older).encode())
    for _ in range(2):
        with topics(cluster).open() as store:
            (row,) = store.due(NOW)
            assert (row.kind, store.unresolved("mail")) == ("resolved", [])


def test_records_of_other_programs_are_skipped(cluster: FakeCluster) -> None:
    for key in (
        b"\xff",
        b"{}",
        b"[]",
        b'["run1","poem","x"]',
        b'["run1","notice"]',
        b'["run1",{},"x"]',
        b'["run1","notice",{}]',
        b'[{},"notice","x"]',
    ):
        cluster.put(FINDINGS_TOPIC, key, b"x")
    with topics(cluster).open() as store:
        assert content(store) == ([], {}, [], [], [], [])


class TopicWorld(AlertWorld):
    """A run whose findings are in topics, and a second daemon for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, DELIVERED)
        self.cluster = FakeCluster(self.clock)
        with FindingsStore(self.folder.findings) as file:
            found = file.findings(RUN)
        with topics(self.cluster, RUN).open() as store:
            for one in found:
                store.save_finding(one, ["mail"], self.clock.wall_ns())

    def topic_daemon(self, sink: object) -> AlertDaemon:
        plan = load(self.folder.plan.read_text(), "plan.yaml").plan
        return AlertDaemon(
            self.folder,
            plan,
            read_run(self.folder),
            {"mail": sink},  # type: ignore[dict-item]  # a fake
            self.clock,
            findings=topics(self.cluster, RUN),
        )

    def outbox(self) -> list[Notification]:
        with topics(self.cluster, RUN).open() as store:
            return store.notifications(RUN)


@pytest.fixture
def world(tmp_path: Path) -> TopicWorld:
    return TopicWorld(tmp_path)


@pytest.mark.long
def test_topics_and_file_send_the_same_messages(world: TopicWorld) -> None:
    """Also the message that the finding is resolved."""
    sink = FakeSink(world.clock, DELIVERED)
    file_daemon, daemon = world.daemon(), world.topic_daemon(sink)
    file_daemon.poll()
    daemon.poll()
    world.save("gone")
    with topics(world.cluster, RUN).open() as store, FindingsStore(world.folder.findings) as file:
        store.save_finding(file.findings(RUN)[0], ["mail"], world.clock.wall_ns())
    file_daemon.poll()
    daemon.poll()

    assert len(sink.messages) == 2
    assert sink.messages == world.sink.messages


@pytest.mark.long
def test_a_daemon_that_is_started_again_does_not_send_again(world: TopicWorld) -> None:
    for _ in range(2):
        daemon = world.topic_daemon(world.sink)
        daemon.poll()
        daemon.close()

    assert [message.key for message in world.sink.messages] == [OPENED]


@pytest.mark.long
def test_a_message_whose_result_was_not_stored_is_sent_again_under_the_same_key(
    world: TopicWorld,
) -> None:
    """As when the daemon is killed between the two."""
    killed: list[Message] = []

    def kill(message: Message) -> None:
        killed.append(message)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        world.topic_daemon(HookedSink(world.sink, kill)).poll()
    world.cluster.owner = None
    world.clock.advance(1000)
    world.topic_daemon(world.sink).poll()

    assert [message.key for message in (*killed, *world.sink.messages)] == [OPENED, OPENED]
    assert [(row.state, row.attempts) for row in world.outbox()] == [("sent", 2)]


@pytest.mark.long
def test_one_of_two_daemons_sends(world: TopicWorld) -> None:
    """The other one sends when the first has ended."""
    one, two = FakeSink(world.clock, DELIVERED), FakeSink(world.clock, DELIVERED)
    first, second = world.topic_daemon(one), world.topic_daemon(two)
    first.poll()
    second.poll()
    sent_at_first = len(one.messages), len(two.messages)
    first.close()
    with topics(world.cluster, RUN).open() as store:
        store.save_finding(finding(run=RUN, key=OTHER), ["mail"], 0)
    second.poll()

    assert sent_at_first == (1, 0)
    assert (len(one.messages), [message.key for message in two.messages]) == (
        1,
        [f"{OTHER}.confirmed"],
    )


@pytest.mark.long
def test_a_daemon_that_lost_the_outbox_does_not_write_that_it_sent(world: TopicWorld) -> None:
    """It was stopped during its try: the new owner sends under the same key, and its result stands."""
    two = FakeSink(world.clock, DELIVERED)
    second = world.topic_daemon(two)

    def lose(_message: Message) -> None:
        world.cluster.owner = None
        second.poll()

    first = world.topic_daemon(HookedSink(world.sink, lose))
    first.poll()
    between = [row.state for row in world.outbox()]
    world.clock.advance(1000)
    second.poll()
    first.poll()

    assert between == ["sending"]
    assert [message.key for message in two.messages] == [OPENED]
    assert [(row.state, row.attempts) for row in world.outbox()] == [("sent", 2)]


@pytest.mark.long
def test_nothing_is_sent_while_the_cluster_is_away(world: TopicWorld) -> None:
    """The message goes out when it answers again."""
    daemon = world.topic_daemon(world.sink)
    world.cluster.is_reachable = False
    daemon.poll()
    before = len(world.sink.messages)
    world.cluster.is_reachable = True
    daemon.poll()

    assert (before, len(world.sink.messages)) == (0, 1)


def test_a_place_can_be_closed_and_used_again(cluster: FakeCluster) -> None:
    with ExitStack() as stack:
        place = topics(cluster)
        stack.callback(place.close)
        with place.open() as store:
            store.save_finding(finding(), ["mail"], NOW)
        place.close()
        with place.open() as store:
            assert [one.key for one in store.findings("run1")] == ["run1-130"]
