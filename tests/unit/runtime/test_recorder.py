"""The records that daemons write: noted events, clock steps and suspends."""

from __future__ import annotations

from pathlib import Path

from soak.core.clock import Grid
from soak.core.model import Event, Record
from soak.runtime.recorder import Recorder
from soak.store.journal.reader import read_source
from soak.store.journal.writer import JournalWriter
from tests.support.fakes import FakeClock

SOURCE = "produce.0@host"


def recorder_at(path: Path, clock: FakeClock) -> tuple[Recorder, JournalWriter]:
    writer = JournalWriter(path / SOURCE, clock).open()
    return Recorder(writer, Grid.anchored(clock.wall_ns(), clock), clock), writer


def records_in(path: Path, writer: JournalWriter) -> list[Record]:
    writer.close(is_end=True)
    return [record for record, _ in read_source(path, SOURCE)]


def test_a_noted_event_is_in_the_next_record_only(tmp_path: Path) -> None:
    clock = FakeClock()
    recorder, writer = recorder_at(tmp_path, clock)

    recorder.note_event("client", {"batched_calls": "used"})
    noted_ns = clock.wall_ns()
    for k in range(2):
        clock.advance(1.0)
        recorder.append(k, [])
    first, second = records_in(tmp_path, writer)

    assert first.events == (Event("client", noted_ns, noted_ns, {"batched_calls": "used"}),)
    assert second.events == ()


def test_a_clock_step_is_an_event_and_makes_the_second_invalid(tmp_path: Path) -> None:
    clock = FakeClock()
    recorder, writer = recorder_at(tmp_path, clock)
    for k, step_seconds in enumerate((0, -7, 0)):
        clock.advance(1)
        clock.step_wall(step_seconds)
        recorder.append(k, [])

    before, stepped, after = records_in(tmp_path, writer)
    assert (before.events, after.events) == ((), ())
    assert [(event.kind, event.fields["seconds"]) for event in stepped.events] == [
        ("clock_step", -7)
    ]
    assert [one.is_valid for one in (before, stepped, after)] == [True, False, True]


def test_after_a_suspend_the_process_must_start_again(tmp_path: Path) -> None:
    clock = FakeClock()
    recorder, writer = recorder_at(tmp_path, clock)
    clock.suspend(600)
    clock.advance(1)
    recorder.append(0, [])

    (record,) = records_in(tmp_path, writer)
    assert recorder.is_suspended
    assert record.events[0].kind == "suspend"
