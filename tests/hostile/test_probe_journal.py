"""What a cluster answers to a probe: a column or an event that no journal holds costs no second."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.broker_log.timestamps import TimestampReader
from soak.core.errors import ProbeError
from soak.core.journal_format import MAX_LISTED_BYTES, MAX_TEXT_CHARACTERS, MAX_TIME_NS
from soak.core.model import Column, Event, Reading, Record
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import ProbePlan
from soak.core.ports import Probe
from soak.core.units import SECOND_NS
from soak.runtime.context import OpenJournal, open_journal
from soak.runtime.recorder import LEFT_OUT_EVENT
from soak.sampling import daemon
from soak.sampling.backfill import record_backfill
from soak.sampling.scheduler import MAX_REASON_CHARACTERS, Scheduler
from soak.store.journal.reader import SourceReader, read_source
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.fakes import FakeClock, FakeProbe

SECONDS = 5
OWN = Column("host_cpu_seconds", (), "seconds")
FOREIGN = {
    "half a pair": Column("up", (("instance", "\ud800"),)),
    "a wide label": Column("up", (("instance", "a" * (MAX_TEXT_CHARACTERS + 1)),)),
    "many labels": Column("up", tuple((f"l{at:03}", "x") for at in range(65))),
    "a long name": Column("x" * 301),
    "a lag without an end": Column("up", (), "", math.inf),
}
EVENTS = {
    "half a pair": Event("noted", 0, 0, {"topic": "\udfff"}),
    "a long text": Event("noted", 0, 0, {"topic": "x" * (MAX_TEXT_CHARACTERS + 1)}),
    "a time in the year 2200": Event("noted", MAX_TIME_NS + 1, 0),
    "a number without an end": Event("noted", 0, 0, {"size": math.inf}),
    "one of the load": Event("expired", 0, 0, {"partition": -1, "from_offset": 0, "to_offset": 1}),
    "a list": Event("noted", 0, 0, {"topic": []}),  # type: ignore[dict-item]  # as a cluster may answer
}


def journaling(path: Path, clock: FakeClock) -> OpenJournal:
    folder = RunFolder(path)
    folder.journal.mkdir(parents=True)
    write_run(folder, Run("r", clock.wall_ns(), "h", {}, "running", "p"))
    folder.phases.write_text(decision_line("soak", 0) + decision_line("end", SECONDS))
    return open_journal(folder, ProbePlan(name="p", probes={"x": None}), "probe", clock)


def recorded(path: Path) -> list[tuple[Record, tuple[Column, ...]]]:
    """Return what a reader finds; all that was written must pass it."""
    (folder,) = RunFolder(path).journal.iterdir()
    reader = SourceReader(folder)
    found = list(read_source(folder.parent, folder.name, reader))
    assert reader.damage == []
    return found


def run(path: Path, *probes: Probe) -> list[tuple[Record, tuple[Column, ...]]]:
    """Return what the probe daemon has recorded of five seconds."""
    clock = FakeClock()
    to = journaling(path, clock)
    scheduler = Scheduler(
        {f"probe{at}": one for at, one in enumerate(probes)}, clock, row_timeout_seconds=30.0
    )
    daemon.record(to, scheduler, threading.Event(), clock)
    return recorded(path)


def reading(*columns: Column, events: tuple[Event, ...] = ()) -> Reading:
    return Reading(tuple((column, 23.0) for column in columns), events, 0.001)


def left_out(found: list[tuple[Record, tuple[Column, ...]]]) -> list[tuple[object, object]]:
    events = [one for record, _ in found for one in record.events if one.kind == LEFT_OUT_EVENT]
    return [(one.fields["columns"], one.fields["events"]) for one in events]


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_column_that_no_journal_holds_costs_no_second(tmp_path: Path, kind: str) -> None:
    """Once a label was seen its column stays: every later second has the others, and it is counted once."""
    foreign = FakeProbe(reading(FOREIGN[kind]), reading(OWN))

    found = run(tmp_path, FakeProbe(reading(Column("host_load"))), foreign)

    assert [record.k for record, _ in found] == list(range(SECONDS))
    assert [columns.count(Column("host_load")) for _, columns in found] == [1] * SECONDS
    assert [FOREIGN[kind] in columns for _, columns in found] == [False] * SECONDS
    last, columns = found[-1]
    assert last.values[columns.index(OWN)] == 23.0
    assert left_out(found) == [(1, 0)]


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_that_no_journal_holds_costs_no_second(tmp_path: Path, kind: str) -> None:
    """The event beside it is recorded."""
    noted = Event("noted", 7, 7, {"topic": "t"})

    found = run(tmp_path, FakeProbe(reading(OWN, events=(EVENTS[kind], noted)), reading(OWN)))

    assert [record.k for record, _ in found] == list(range(SECONDS))
    assert [event for event in found[0][0].events if event.kind == "noted"] == [noted]
    assert left_out(found) == [(0, 1)]


@pytest.mark.long
def test_columns_and_events_that_fill_a_line_are_cut(tmp_path: Path) -> None:
    """Each is within its bounds; together they are more than a line holds."""
    wide = "\N{GRINNING FACE}" * MAX_TEXT_CHARACTERS
    columns = tuple(Column("up", (("instance", f"{at}{wide[4:]}"),)) for at in range(120))
    events = tuple(Event("noted", at, at, {"topic": wide}) for at in range(120))
    room = MAX_LISTED_BYTES // (12 * MAX_TEXT_CHARACTERS)

    found = run(tmp_path, FakeProbe(reading(OWN, *columns, events=events), reading(OWN)))

    assert [record.k for record, _ in found] == list(range(SECONDS))
    assert 0 < sum(one.metric == "up" for one in found[-1][1]) <= room
    assert 0 < sum(one.kind == "noted" for one in found[0][0].events) <= room
    ((columns_out, events_out),) = left_out(found)
    assert columns_out == 120 - sum(one.metric == "up" for one in found[-1][1])
    assert events_out == 120 - sum(one.kind == "noted" for one in found[0][0].events)


def test_the_reason_of_a_failure_is_cut(tmp_path: Path) -> None:
    """It is what a cluster answered; the failure itself is recorded."""
    found = run(tmp_path, FakeProbe(ProbeError("x" * 9000)))

    assert [event.fields["reason"] for event in found[0][0].events] == ["x" * MAX_REASON_CHARACTERS]


class Remembering(FakeProbe):
    """Remembers each second, with a column and a value that no journal holds."""

    def backfill(
        self, since_ns: int, until_ns: int
    ) -> Iterator[tuple[int, list[tuple[Column, float]]]]:
        for at_ns in range(since_ns, until_ns, SECOND_NS):
            yield (
                at_ns,
                [
                    (OWN, 1.0),
                    (FOREIGN["half a pair"], 2.0),
                    (Column("node_load"), math.inf),
                ],
            )


def test_a_backfill_keeps_the_bounds_too(tmp_path: Path) -> None:
    clock = FakeClock()
    to = journaling(tmp_path, clock)
    clock.advance(23.0)

    record_backfill(to, {"x": Remembering(Reading(()))}, 0, threading.Event(), clock)
    to.writer.close(is_end=True)

    found = recorded(tmp_path)
    assert [record.k for record, _ in found] == list(range(23))
    assert {columns for _, columns in found} == {(OWN, Column("node_load"))}
    assert all(record.values[0] == 1.0 and math.isnan(record.values[1]) for record, _ in found)


@pytest.mark.parametrize("year", [1678, 1700, 1823, 2117, 2200, 2261, 9999])
def test_a_log_line_of_a_year_that_no_journal_holds_has_no_time(year: int) -> None:
    """Its event is one of the second in which it was read."""
    line = f"[{year}-06-01 00:00:00,000] INFO Rolled new log segment at offset 5 in 3 ms."
    reader, now_ns = TimestampReader(), FakeClock().wall_ns()

    assert reader.wall_ns(line, now_ns, is_fresh=False) is None


def test_a_zone_that_a_strange_date_seems_to_have_moves_no_time_out_of_bounds() -> None:
    """A fresh line of the year 1824 shows a zone 200 years away, and the next one is of 2115."""
    reader, now_ns = (
        TimestampReader(),
        1_790_000_000 * SECOND_NS // (900 * SECOND_NS) * 900 * SECOND_NS,
    )
    reader.wall_ns("[1824-06-01T00:00:00] x", now_ns, is_fresh=True)

    found = reader.wall_ns("[2115-06-01T00:00:00] x", now_ns, is_fresh=False)

    assert found is None or abs(found) <= MAX_TIME_NS
