"""Retention in Pulsar: each trim is one event with its ledgers, and freed space is another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.retention_pulsar.cluster import PulsarCluster
from probes.retention_pulsar.ledgers import Ledger, LedgerList, Ledgers, parse_internal_stats
from probes.retention_pulsar.probe import Config, RetentionPulsar, check_settings
from soak.app import lifecycle
from soak.core.errors import NotAvailableError, ProbeError, SettingError
from soak.core.model import Event
from soak.core.plan import text as plan_text
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.pages import pages
from tests.support.probes.pulsar_watch import (
    BOOKIE,
    PAGE,
    STATS,
    TOPIC,
    FakeCluster,
    Watch,
    stats,
    values,
)


def test_the_first_poll_has_no_changes() -> None:
    """What is there then says nothing of when it came."""
    found = Watch().poll()

    assert found.events == ()
    assert values(found)["retention_deletions"] == 0
    assert values(found)["retention_held_bytes"] == 2**20 + STATS["currentLedgerSize"]


def test_twenty_three_trims_are_twenty_three_events() -> None:
    """One ledger each, with id, entries and bytes."""
    watch = Watch()
    watch.poll()
    events: list[Event] = []
    total = 0.0
    for _ in range(23):
        watch.cluster.roll()
        watch.poll()
        watch.cluster.trim()
        reading = watch.poll()
        events += reading.events
        total += values(reading)["retention_deleted_bytes"]

    assert [event.kind for event in events] == ["retention_deletion"] * 23
    assert events[0].fields == {
        "topic": TOPIC,
        "partition": 0,
        "from_ledger": 1,
        "to_ledger": 2,
        "ledgers": 1,
        "entries": 1000,
        "bytes": 2**20,
    }
    assert [event.fields["from_ledger"] for event in events] == [1, *range(2, 2 + 22 * 5, 5)]
    assert total == 23 * 2**20


def test_a_trim_lies_between_the_previous_request_and_this_answer() -> None:
    """The interval holds it for certain, however slow the cluster is."""
    watch = Watch()
    start_ns = watch.clock.wall_ns()
    watch.poll()
    watch.cluster.trim()

    (event,) = watch.poll().events

    assert (event.since_ns - start_ns, event.at_ns - start_ns) == (0, 3 * SECOND_NS // 2)


def test_a_new_ledger_is_an_event() -> None:
    """So that periodic rolls can be recognised."""
    watch = Watch(partitions=2)
    watch.poll()
    watch.cluster.roll(partition=1)

    (event,) = watch.poll().events

    assert event.kind == "ledger_created"
    assert event.fields == {"topic": TOPIC, "partition": 1, "ledger": 17}


def test_a_ledger_deleted_between_others_is_a_deletion() -> None:
    """One event a gap, beside that of the oldest ledgers; to_ledger is the next one that is left."""
    watch = Watch()
    for _ in range(6):
        watch.cluster.roll()
    watch.poll()
    ids = watch.cluster.ids[0]
    assert ids == [1, 2, 7, 12, 17, 22, 27, 32]
    watch.cluster.ids[0] = [2, 12, 27, 32]

    reading = watch.poll()

    assert [event.kind for event in reading.events] == ["retention_deletion"] * 3
    assert [
        (event.fields["from_ledger"], event.fields["to_ledger"], event.fields["ledgers"])
        for event in reading.events
    ] == [(1, 2, 1), (7, 12, 1), (17, 27, 2)]
    found = values(reading)
    assert (found["retention_deletions"], found["retention_deleted_bytes"]) == (3, 4 * 2**20)
    assert found["retention_held_bytes"] == 3 * 2**20 + STATS["currentLedgerSize"]
    assert watch.poll().events == ()


def test_an_empty_ledger_that_leaves_the_list_between_others_was_not_deleted() -> None:
    """Nothing was written to it before the next one was opened."""
    ledgers = Ledgers()
    full, empty, new = Ledger(1, 1000, 2**20), Ledger(2, 0, 0, is_open=True), Ledger(3, 5, 5)
    ledgers.update((TOPIC, 0), LedgerList((full, empty)), 0, 1)

    found = ledgers.update((TOPIC, 0), LedgerList((full, new)), 2, 3)

    assert found.trims == ()
    assert [event.kind for event in found.events] == ["ledger_created"]


def test_a_cursor_on_a_deleted_ledger_holds_nothing() -> None:
    """It stays where it was until it moves, and its own ledger is none of the topic's."""
    left_behind = {"markDeletePosition": "1:-1", "readPosition": "1:0", "cursorLedger": 4}
    found = stats([7, 12])
    found["cursors"] = {"sub": {**left_behind, "state": "Open"}}

    assert parse_internal_stats(found) == parse_internal_stats(stats([7, 12]))
    assert [one.id for one in parse_internal_stats(found).ledgers] == [7, 12]


def test_bytes_of_a_ledger_that_was_open_at_the_last_poll_are_unknown() -> None:
    """They are left out of the event and of the sum."""
    watch = Watch()
    watch.poll()
    watch.cluster.roll()
    watch.cluster.trim(2)

    reading = watch.poll()

    trim = reading.events[-1]
    assert (trim.fields["ledgers"], "bytes" in trim.fields) == (2, False)
    assert values(reading)["retention_deletions"] == 1
    assert "retention_deleted_bytes" not in values(reading)


def test_a_failed_poll_is_covered_by_the_next() -> None:
    """Nothing is lost, and the interval is longer."""
    watch = Watch()
    start_ns = watch.clock.wall_ns()
    watch.poll()
    watch.cluster.trim()
    watch.cluster.error = ProbeError("no answer")
    watch.clock.advance(22)
    age = values(watch.poll())["retention_poll_age_seconds"]
    watch.cluster.error = None

    (event,) = watch.poll().events

    assert (age, event.since_ns) == (24.25, start_ns)


@pytest.mark.parametrize("how", ["halved", "silent"])
def test_a_partition_that_changes_its_broker_does_not_affect_the_others(how: str) -> None:
    """Held bytes are left out rather than those of a part."""
    watch = Watch(partitions=3)
    watch.poll()
    for at in (0, 1):
        watch.cluster.trim(partition=at)
    setattr(watch.cluster, how, {1})
    meanwhile = watch.poll()
    setattr(watch.cluster, how, set())
    after = watch.poll()

    assert [event.fields.get("partition") for event in meanwhile.events] == [0, None]
    assert "soak-1, partition 1: " in str(meanwhile.events[-1].fields["reason"])
    assert "retention_held_bytes" not in values(meanwhile)
    assert [event.fields["partition"] for event in after.events] == [1]


def test_a_topic_that_does_not_answer_does_not_affect_the_others() -> None:
    """Until the timeout of one answer has passed; then the bookies are polled."""
    topics = tuple(f"t-{number}" for number in range(7))
    clock = FakeClock()
    probe = RetentionPulsar(Config(topics=topics, timeout=10 * SECOND_NS), clock)
    asked: list[str] = []

    class Slow(FakeCluster):
        def ledgers(self, topic: str) -> dict[int, Any]:
            asked.append(topic)
            if topic in ("t-1", "t-2"):
                clock.advance(6)
                raise ProbeError(f"no answer about {topic}")
            return {0: stats([1, 2])}

    cluster = Slow(clock, 1)
    for _ in range(2):
        probe.poll(cluster)
        clock.advance(1)

    assert asked == ["t-0", "t-1", "t-2", "t-3", "t-4", "t-5", "t-6", "t-0", "t-1", "t-2"]
    found = probe.loop.buffer.take(clock.mono_ns())
    assert [event.kind for event in found.events] == ["retention_failed"]
    assert "bookie_ACTIVE_LEDGER_TOTAL" in values(found)


@pytest.mark.long
def test_many_ledgers_are_polled_less_often() -> None:
    """7,500 of them once in three seconds."""
    watch = Watch()
    watch.cluster.ids[0] = list(range(7_500))

    for _ in range(5):
        watch.poll()

    assert watch.cluster.asked == 2


def test_ledgers_that_start_again_are_an_event_but_no_trim() -> None:
    """The topic was created again on another cluster."""
    watch = Watch()
    watch.cluster.ids[0] = [50, 51]
    watch.poll()
    watch.cluster.ids[0] = [1, 2]

    reading = watch.poll()

    assert [event.kind for event in reading.events] == ["log_start_moved_back"]
    assert values(reading)["retention_deletions"] == 0


@pytest.mark.parametrize(("added", "kinds"), [(0, []), (5, ["retention_deletion"])])
def test_a_vanished_empty_ledger_was_trimmed_if_it_had_been_filled(
    added: int, kinds: list[str]
) -> None:
    """A broker that takes over a partition leaves an empty ledger out of its list."""
    ledgers = Ledgers()
    ledgers.update(("t", 0), LedgerList((Ledger(23, 0, 0, is_open=True),), 4), 0, 1)

    moved = ledgers.update(("t", 0), LedgerList((Ledger(24, 0, 0, is_open=True),), added), 10, 11)

    assert [event.kind for event in moved.events] == ["ledger_created", *kinds]


def test_a_recorded_answer_is_parsed() -> None:
    """The numbers of the open ledger are outside the list, in which they are zero."""
    first, _, last = parse_internal_stats(STATS).ledgers

    assert first == Ledger(61, 200, 212_000)
    assert last == Ledger(207, 95, 100_700, is_open=True)


def test_a_ledger_that_is_being_closed_has_no_numbers_yet() -> None:
    """The list has 0 for it, which is not what it holds."""
    *_, last = parse_internal_stats({**STATS, "state": "ClosingLedger"}).ledgers

    assert last == Ledger(207, 0, 0, is_open=True)


@pytest.mark.long
@settings(max_examples=examples(50))
@given(
    key=st.sampled_from(sorted({*STATS, "ledgers"})),
    value=st.one_of(
        st.none(),
        st.text(),
        st.integers(),
        st.floats(),
        st.lists(st.dictionaries(st.text(), st.none())),
    ),
)
def test_a_damaged_answer_is_an_error_or_correct(key: str, value: object) -> None:
    """Whatever one of its parts is."""
    try:
        found = parse_internal_stats({**STATS, key: value})
    except ProbeError:
        return

    assert [one.id for one in found.ledgers] in ([61, 71, 207], [])
    assert all(one.entries >= 0 and one.bytes >= 0 for one in found.ledgers)


@settings(max_examples=examples(50))
@given(counts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_every_ledger_is_trimmed_once(counts: list[tuple[int, int]]) -> None:
    """Whatever lies between two polls, closed ledgers add up to the trimmed ones."""
    ledgers, ids, following, gone, unknown = Ledgers(), [0], 1, 0, 0
    ledgers.update(("t", 0), LedgerList((Ledger(0, 10, 23, is_open=True),)), 0, 0)
    for second, (rolls, trims) in enumerate(counts, 1):
        ids += range(following, following + rolls)
        following += rolls
        seen = ids[:-rolls] if rolls else ids  # what the poll before could see
        cut = min(trims, len(ids) - 1)
        unknown += max(0, cut - len(seen))
        del ids[:cut]
        log = LedgerList(tuple(Ledger(at, 10, 23, is_open=at == ids[-1]) for at in ids))
        moved = ledgers.update(("t", 0), log, second * 10, second * 10 + 1)
        gone += sum(trim.ledgers for trim in moved.trims)

    assert gone + unknown + len(ids) == following


def test_without_a_cluster_or_a_topic_it_is_not_available() -> None:
    """There is nothing to poll."""
    probe = RetentionPulsar(Config(), FakeClock())
    probe.read()
    probe.loop.wait(20.0)

    with pytest.raises(NotAvailableError, match="admin_url"):
        probe.read()


def test_a_token_in_a_plan_is_refused() -> None:
    """It must be a reference, as for the broker's client."""
    with pytest.raises(SettingError, match="a secret must not stand in a plan"):
        check_settings(Config(client={"token": "eyJ"}))


def test_it_uses_the_settings_of_the_brokers_clients() -> None:
    """Unless it has settings of its own."""
    text = (
        "name: x\nbroker: {pulsar: {service_url: 'pulsar://b:1', admin_url: 'http://b:2', bookie_urls: "
        "'http://c:3', namespace: a/b, client: {tls_trust_certs_file_path: /ca}}}\n"
        "probes: {retention_pulsar: {bookie_urls: 'http://own:4'}}\n"
    )
    run = Run("r1", 0, "host", {}, "running")

    probe = lifecycle.resolve_plan(plan_text.load(text, "p").plan, None, run).probes[
        "retention_pulsar"
    ]

    assert (probe.admin_url, probe.bookie_urls) == ("http://b:2", "http://own:4")
    assert (probe.namespace, probe.topics) == ("a/b", ("soak-r1",))
    assert probe.client == {"tls_trust_certs_file_path": "/ca"}


@pytest.fixture
def cluster_at() -> Callable[[str], PulsarCluster]:
    return lambda url: PulsarCluster(url, [f"{url}/metrics"], "a/b", {}, 10)


def test_requests_use_the_paths_of_pulsar_and_its_bookies(
    cluster_at: Callable[[str], PulsarCluster],
) -> None:
    """Partitions by number, and a page as it is."""
    path = "/admin/v2/persistent/a/b/t/partitioned-internalStats"
    answer = json.dumps({"partitions": {"persistent://a/b/t-partition-23": STATS}})
    with pages({path: answer, "/metrics": PAGE}) as url:
        cluster = cluster_at(url)

        found = cluster.ledgers("t")
        page = cluster.page(cluster.bookies[0])
        cluster.close()

    assert found == {23: STATS}
    assert page.decode() == PAGE


@pytest.mark.parametrize(
    "answer", ["", "[]", '{"partitions": 5}', '{"partitions": {"x": {}}}', 500]
)
def test_any_other_answer_is_an_error(
    cluster_at: Callable[[str], PulsarCluster], answer: str | int
) -> None:
    """Never an empty cluster."""
    path = "/admin/v2/persistent/a/b/t/partitioned-internalStats"
    with pages({path: answer}) as url, pytest.raises(ProbeError):
        cluster_at(url).ledgers("t")


def test_freed_space_is_an_event_with_the_time_since_the_trim() -> None:
    """Seconds to hours later, by deletion or by compaction."""
    watch = Watch()
    watch.poll()
    watch.cluster.trim()
    trimmed = watch.poll().events[0]
    watch.clock.advance(23)
    watch.cluster.compacted_bytes = 23 * 2**20

    reading = watch.poll()

    (event,) = reading.events
    assert event.kind == "space_reclaimed"
    assert event.fields == {
        "bookie": "bookie:8000",
        "bytes": 23 * 2**20,
        "by": "compaction",
        "lag_seconds": (event.at_ns - trimmed.at_ns) / SECOND_NS,
    }
    assert values(reading)["retention_reclaimed_bytes"] == 23 * 2**20
    assert values(reading)["bookie_ACTIVE_LEDGER_TOTAL"] == 8


def test_space_freed_by_compaction_may_be_zero() -> None:
    """Only then is it known that a bookie's compaction did not load its drive."""
    watch = Watch()
    watch.poll()
    watch.cluster.deleted_bytes = 23
    deleted = watch.poll()
    watch.cluster.compacted_bytes = 7
    compacted = watch.poll()

    name = "retention_compacted_bytes"
    assert [values(reading)[name] for reading in (deleted, compacted)] == [0, 7]


def test_space_freed_without_a_trim_of_ours_has_no_lag() -> None:
    """Others use the bookie as well."""
    watch = Watch()
    watch.poll()
    watch.cluster.deleted_bytes = 23

    (event,) = watch.poll().events

    assert (event.fields["by"], "lag_seconds" in event.fields) == ("deletion", False)


def test_a_restarted_bookie_frees_nothing() -> None:
    """Its counters fall to zero."""
    watch = Watch()
    watch.cluster.deleted_bytes = 2**30
    watch.poll()
    watch.cluster.deleted_bytes = 0

    reading = watch.poll()

    assert reading.events == ()
    assert values(reading)["retention_reclaimed_bytes"] == 0


def test_a_line_that_is_back_on_the_page_frees_nothing() -> None:
    """The levels of the other folders do not fall either."""
    line = 'bookie_{}{{ledgerDir="/{}"}} {}\n'
    lines = [
        line.format(name, folder, size)
        for name in ("RECLAIMED_DELETION_SPACE_BYTES", "ACTIVE_ENTRY_LOG_SPACE_BYTES")
        for folder, size in (("a", 5 * 10**9), ("b", 7 * 10**9))
    ]
    whole, part = "".join(lines).encode(), "".join(lines[::2]).encode()
    watch = Watch()
    readings = []
    for page in (whole, part, whole, whole):
        watch.cluster.damaged = page
        readings.append(watch.poll())

    assert [reading.events for reading in readings] == [()] * 4
    freed = [values(reading).get("retention_reclaimed_bytes") for reading in readings]
    held = [values(reading).get("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES") for reading in readings]
    assert freed == [None, None, None, 0.0]
    assert held == [12e9, None, None, 12e9]


def test_an_infinite_counter_frees_nothing() -> None:
    """A page may say that it is infinite."""
    line = b'bookie_RECLAIMED_DELETION_SPACE_BYTES{ledgerDir="/a"} %s\n'
    watch = Watch()
    for value in (b"23", b"+Inf", b"+Inf"):
        watch.cluster.damaged = line % value

        assert watch.poll().events == ()


def test_a_bookie_that_does_not_answer_affects_its_own_metrics_only() -> None:
    """Ledgers are followed, and the error is reported."""
    watch = Watch()
    watch.poll()
    watch.cluster.trim()
    watch.cluster.page_error = ProbeError("bookie does not answer")

    found = watch.poll()

    assert [event.kind for event in found.events] == ["retention_deletion", "retention_failed"]
    assert found.events[-1].fields == {"reason": "bookie does not answer"}
    assert "bookie_ACTIVE_LEDGER_TOTAL" not in values(found)


@settings(max_examples=examples(50))
@given(
    line=st.integers(0, PAGE.count("\n") - 1),
    text=st.binary(max_size=30).filter(lambda b: b"\n" not in b),
)
def test_a_damaged_page_never_frees_space(line: int, text: bytes) -> None:
    """A changed line is an error or is left out."""
    watch = Watch()
    watch.poll()
    lines = watch.cluster.page(BOOKIE).splitlines(keepends=True)
    lines[line] = text + b"\n"
    watch.cluster.damaged = b"".join(lines)

    events = watch.poll().events

    assert {event.kind for event in events} <= {"retention_failed"}
