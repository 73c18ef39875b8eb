"""Journals on one host, a target that fails on request, and the run folder of another host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from soak.core.clock import Grid
from soak.core.errors import BrokerError
from soak.core.model import Column, Record
from soak.core.ports import Clock
from soak.runtime.recorder import Recorder
from soak.store.journal.reader import read_source
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import Run, RunFolder, write_run
from soak.store.samples_topic import ShippedLine
from tests.support.fakes import FakeClock

START_NS = 1_790_000_000 * 10**9
A, B = Column("a_seconds", (), "seconds"), Column("b_bytes", (("device", "x"),), "bytes")


def folder_of(path: Path, run_id: str = "r1") -> RunFolder:
    folder = RunFolder(path)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_run(folder, Run(run_id, START_NS, "h", {}, "running", "x"))
    return folder


class Host:
    """Writes a source interval by interval; `restart` begins a new epoch."""

    def __init__(self, folder: RunFolder, source: str, clock: Clock | None = None) -> None:
        self.folder = folder
        self.source = source
        self._clock = clock or FakeClock(wall_ns=START_NS)
        self._k = 0
        self.restart()

    def restart(self) -> None:
        path = self.folder.journal / self.source
        self._writer = JournalWriter(path, self._clock).open()
        grid = Grid.anchored(START_NS, self._clock)
        self._recorder = Recorder(self._writer, grid, self._clock)

    def write(self, seconds: int) -> None:
        for _ in range(seconds):
            columns = (A, B) if self._k % 5 else (A,)
            values = [(column, math.nan if self._k % 3 else 0.1 * self._k) for column in columns]
            self._recorder.append(self._k, values)
            self._k += 1

    def close(self, *, is_end: bool) -> None:
        self._writer.close(is_end=is_end)


class FlakyTarget:
    """Takes all lines; in the calls that `fails` names, only the first so many, and then raises an error."""

    def __init__(self, fails: Sequence[int | None] = ()) -> None:
        self._fails = list(fails)
        self.taken: list[ShippedLine] = []
        self.too_large = 0
        self.is_closed = False

    def send(self, lines: Sequence[ShippedLine]) -> None:
        taken = self._fails.pop(0) if self._fails else None
        self.taken += lines[:taken]
        if taken is not None:
            raise BrokerError("soak.samples did not take all lines: no answer")

    def close(self) -> None:
        self.is_closed = True


def records(folder: RunFolder, source: str) -> list[tuple[str, tuple[Column, ...]]]:
    """Return every record of a source as text (NaN equals itself so) and its columns."""
    return [(_text(record), columns) for record, columns in read_source(folder.journal, source)]


def _text(record: Record) -> str:
    return repr(record)
