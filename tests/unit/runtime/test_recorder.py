"""The records that daemons write: events that happen between two records."""

from __future__ import annotations

from pathlib import Path

from soak.core.clock import Grid
from soak.core.model import Event
from soak.runtime.recorder import Recorder
from soak.store.journal.reader import read_source
from soak.store.journal.writer import JournalWriter
from tests.support.fakes import FakeClock


def test_a_noted_event_is_in_the_next_record_only(tmp_path: Path) -> None:
    clock = FakeClock()
    writer = JournalWriter(tmp_path / "produce.0@host", clock).open()
    recorder = Recorder(writer, Grid.anchored(clock.wall_ns(), clock), clock)

    recorder.note_event("client", {"batched_calls": "used"})
    noted_ns = clock.wall_ns()
    for k in range(2):
        clock.advance(1.0)
        recorder.append(k, [])
    writer.close(is_end=True)
    first, second = (record for record, _ in read_source(tmp_path, "produce.0@host"))

    assert first.events == (Event("client", noted_ns, noted_ns, {"batched_calls": "used"}),)
    assert second.events == ()
