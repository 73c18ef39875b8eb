"""A probe daemon that starts late first records the seconds that a source with a history still has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from soak.core.errors import ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.plan import ProbePlan
from soak.core.units import SECOND_NS
from soak.runtime.context import OpenJournal, open_journal
from soak.sampling.backfill import MIN_SECONDS, record_backfill
from soak.store.journal.reader import read_source
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.fakes import FakeClock, FakeProbe

A, B = Column("a"), Column("b")
START_NS = 1_790_000_000 * SECOND_NS


class Remembering(FakeProbe):
    """Remembers a value of each second whose number is even, scraped in its middle."""

    def __init__(self, column: Column, clock: FakeClock, seconds_each: float = 0.0) -> None:
        super().__init__(Reading(()))
        self._column = column
        self._clock = clock
        self._seconds_each = seconds_each
        self.asked: list[tuple[int, int]] = []

    def backfill(
        self, since_ns: int, until_ns: int
    ) -> Iterator[tuple[int, list[tuple[Column, float]]]]:
        self.asked.append((since_ns, until_ns))
        for at_ns in range(since_ns + SECOND_NS // 2, until_ns, SECOND_NS):
            k = (at_ns - START_NS) // SECOND_NS
            self._clock.advance(self._seconds_each)
            if k % 2 == 0:
                yield at_ns, [(self._column, float(k))]


def journaling(folder: Path, clock: FakeClock) -> OpenJournal:
    run = RunFolder(folder)
    run.journal.mkdir(parents=True)
    run.phases.touch()
    write_run(run, Run("r", START_NS, "h", {}, "running", "p"))
    return open_journal(run, ProbePlan(name="p", probes={"x": None}), "probe", clock)


def recorded(folder: Path, to: OpenJournal) -> list[tuple[int, dict[str, float]]]:
    to.writer.close(is_end=True)
    return [
        (record.k, dict(zip((column.name for column in columns), record.values, strict=True)))
        for record, columns in read_source(RunFolder(folder).journal, to.source)
    ]


def test_seconds_before_a_late_start_are_recorded_in_order(tmp_path: Path) -> None:
    """Two sources are merged; seconds that none has stay a gap."""
    clock = FakeClock(wall_ns=START_NS + 23 * SECOND_NS)
    to = journaling(tmp_path, clock)
    probes = {"a": Remembering(A, clock), "b": Remembering(B, clock), "c": FakeProbe(Reading(()))}

    left = record_backfill(to, probes, 0, threading.Event(), clock)

    assert left == probes
    assert recorded(tmp_path, to) == [(k, {"a": float(k), "b": float(k)}) for k in range(0, 23, 2)]


def test_only_missing_seconds_are_requested(tmp_path: Path) -> None:
    """From the second after the last one in the journal."""
    clock = FakeClock(wall_ns=START_NS + 100 * SECOND_NS)
    to = journaling(tmp_path, clock)
    probe = Remembering(A, clock)

    record_backfill(to, {"a": probe}, 90, threading.Event(), clock)

    assert probe.asked == [(START_NS + 90 * SECOND_NS, START_NS + 100 * SECOND_NS)]
    assert [k for k, _ in recorded(tmp_path, to)] == [90, 92, 94, 96, 98]


def test_a_start_in_time_requests_nothing(tmp_path: Path) -> None:
    """The query would take longer than the gap."""
    clock = FakeClock(wall_ns=START_NS + (MIN_SECONDS - 1) * SECOND_NS)
    to = journaling(tmp_path, clock)
    probe = Remembering(A, clock)

    record_backfill(to, {"a": probe}, 0, threading.Event(), clock)

    assert probe.asked == []


class Hanging(Remembering):
    """Gives three rows and then nothing until it is let go."""

    let_go = threading.Event()

    def backfill(
        self, since_ns: int, until_ns: int
    ) -> Iterator[tuple[int, list[tuple[Column, float]]]]:
        yield from islice(super().backfill(since_ns, until_ns), 3)
        self.let_go.wait()


def test_a_hanging_server_delays_the_start_by_the_timeout_only(
    tmp_path: Path,
) -> None:
    """The other source is recorded; the probe of the server fails until it answers."""
    clock = FakeClock(wall_ns=START_NS + 23 * SECOND_NS)
    to = journaling(tmp_path, clock)
    probes = {"a": Hanging(A, clock), "b": Remembering(B, clock)}

    left = record_backfill(to, probes, 0, threading.Event(), clock, timeout_ns=SECOND_NS // 4)

    assert left["b"] is probes["b"]
    with pytest.raises(ProbeError, match="still running"):
        left["a"].read()
    assert [k for k, _ in recorded(tmp_path, to)] == list(range(0, 23, 2))
    Hanging.let_go.set()


def test_a_slow_source_is_abandoned_in_time(tmp_path: Path) -> None:
    """The remaining seconds stay a gap."""
    clock = FakeClock(wall_ns=START_NS + 3000 * SECOND_NS)
    to = journaling(tmp_path, clock)
    slow = Remembering(A, clock, seconds_each=0.01)

    record_backfill(to, {"a": slow}, 0, threading.Event(), clock)

    assert 0 < len(recorded(tmp_path, to)) < 1200
