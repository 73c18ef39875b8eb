"""Space that a bookie really freed: an event of its own, and none that a page's gaps would invent."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.errors import ProbeError
from soak.core.units import SECOND_NS
from tests.pulsar_watch import BOOKIE, PAGE, Watch, values


def test_freed_space_is_an_event_of_its_own_with_the_time_since_the_trim() -> None:
    """Seconds to hours later, by deletion or by compaction of the bookie's files."""
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


def test_what_compactions_freed_is_told_also_when_it_is_nothing() -> None:
    """Only then is it known that a bookie's own work did not make its drive busy."""
    watch = Watch()
    watch.poll()
    watch.cluster.deleted_bytes = 23
    deleted = watch.poll()
    watch.cluster.compacted_bytes = 7
    compacted = watch.poll()

    name = "retention_compacted_bytes"
    assert [values(reading)[name] for reading in (deleted, compacted)] == [0, 7]


def test_space_that_no_trim_of_ours_came_before_has_no_lag() -> None:
    """Others use the bookie as well."""
    watch = Watch()
    watch.poll()
    watch.cluster.deleted_bytes = 23

    (event,) = watch.poll().events

    assert (event.fields["by"], "lag_seconds" in event.fields) == ("deletion", False)


def test_a_bookie_that_starts_anew_frees_nothing() -> None:
    """Its counters fall to zero: no negative number, and none invented."""
    watch = Watch()
    watch.cluster.deleted_bytes = 2**30
    watch.poll()
    watch.cluster.deleted_bytes = 0

    reading = watch.poll()

    assert reading.events == ()
    assert values(reading)["retention_reclaimed_bytes"] == 0


def test_a_page_without_the_line_of_a_folder_frees_nothing_when_it_is_back() -> None:
    """Of two folders that freed 5 and 7 GB before; and what they hold does not fall either."""
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


def test_a_counter_without_an_end_frees_nothing() -> None:
    """A page may say that it is infinite."""
    line = b'bookie_RECLAIMED_DELETION_SPACE_BYTES{ledgerDir="/a"} %s\n'
    watch = Watch()
    for value in (b"23", b"+Inf", b"+Inf"):
        watch.cluster.damaged = line % value

        assert watch.poll().events == ()


def test_a_bookie_that_does_not_answer_costs_its_own_numbers_only() -> None:
    """Ledgers are followed all the same, and the error is told."""
    watch = Watch()
    watch.poll()
    watch.cluster.trim()
    watch.cluster.page_error = ProbeError("bookie does not answer")

    found = watch.poll()

    assert [event.kind for event in found.events] == ["retention_deletion", "retention_failed"]
    assert found.events[-1].fields == {"reason": "bookie does not answer"}
    assert "bookie_ACTIVE_LEDGER_TOTAL" not in values(found)


@settings(max_examples=50)
@given(
    line=st.integers(0, PAGE.count("\n") - 1),
    text=st.binary(max_size=30).filter(lambda b: b"\n" not in b),
)
def test_a_damaged_page_never_frees_space(line: int, text: bytes) -> None:
    """A line that is not what it was gives an error or is left out, and no event of its own."""
    watch = Watch()
    watch.poll()
    lines = watch.cluster.page(BOOKIE).splitlines(keepends=True)
    lines[line] = text + b"\n"
    watch.cluster.damaged = b"".join(lines)

    events = watch.poll().events

    assert {event.kind for event in events} <= {"retention_failed"}
