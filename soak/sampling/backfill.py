"""Records the seconds before a daemon started, where the source of a probe still has their values.

A daemon that starts late, or again after a while, has a gap in its journal. What a Prometheus server has
scraped in the meantime belongs there, in the same source and in order. Servers are asked on threads of
their own: one that hangs blocks the start for `TIMEOUT_NS` at most, and its probe alone after that.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from queue import Empty, Full, Queue

from soak.core.errors import ProbeError
from soak.core.model import Column, Reading
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.runtime.context import OpenJournal

LOG = logging.getLogger("soak.sampling.backfill")
MAX_WAITING_ROWS = 64  # to be recorded
SLICE_SECONDS = 0.2  # of a wait

Row = tuple[int, list[tuple[Column, float]]]
Backfill = Callable[[int, int], Iterator[Row]]

MIN_SECONDS = 10  # a shorter gap is not filled: the query would cause another
TIMEOUT_NS = 10 * SECOND_NS  # seconds that have not come by then stay a gap


class BackfillQuery:
    """The rows of a probe between two instants of the wall clock, in order; read on a thread of its own."""

    def __init__(self, name: str, probe: Probe, backfill: Backfill, span: tuple[int, int]) -> None:
        self._name = name
        self._probe = probe
        self._backfill = backfill
        self._span = span
        self._rows: Queue[Row | None] = Queue(MAX_WAITING_ROWS)
        self._is_abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"backfill-{name}", daemon=True)

    def rows(self, stop: threading.Event, timeout_ns: int) -> Iterator[Row]:
        """Yield the rows as they come, until there are no more, or none has come for `timeout_ns`."""
        self._thread.start()
        slices = remaining = max(1, int(timeout_ns / SECOND_NS / SLICE_SECONDS))
        while remaining and not stop.is_set():
            try:
                row = self._rows.get(timeout=SLICE_SECONDS)
            except Empty:
                remaining -= 1
                continue
            if row is None:
                return
            remaining = slices
            yield row

    def finish(self) -> Probe:
        """Stop the query; return the probe, whose readings fail while the thread still uses it."""
        self._is_abandoned.set()
        return _BusyProbe(self._probe, self._thread) if self._thread.is_alive() else self._probe

    def _work(self) -> None:
        try:
            for row in self._backfill(*self._span):
                if not self._put(row):
                    return
        except Exception:  # a bug in a probe must not end the daemon; its readings will fail
            LOG.exception("backfill_failed probe=%s", self._name)
        self._put(None)

    def _put(self, row: Row | None) -> bool:
        """Pass on a row; return False if the query was abandoned."""
        while not self._is_abandoned.is_set():
            try:
                self._rows.put(row, timeout=SLICE_SECONDS)
            except Full:
                continue
            return True
        return False


class _BusyProbe:
    """A probe whose backfill is still running: two threads must not use it at once."""

    def __init__(self, probe: Probe, thread: threading.Thread) -> None:
        self._probe = probe
        self._thread = thread

    def read(self) -> Reading:
        """Read the probe; raises `ProbeError` while the backfill is running."""
        if self._thread.is_alive():
            raise ProbeError("the backfill of this probe is still running")
        return self._probe.read()

    def close(self) -> None:
        """Close the probe, unless its thread hangs: then the end of the process closes it."""
        if not self._thread.is_alive():
            self._probe.close()


def record_backfill(
    to: OpenJournal,
    probes: Mapping[str, Probe],
    begin_k: int,
    stop: threading.Event,
    clock: Clock,
    timeout_ns: int = TIMEOUT_NS,
) -> dict[str, Probe]:
    """Record the values that sources have of second `begin_k` and later ones.

    Returns the probes to read from now on: one whose query is still running fails until it has ended.
    """
    grid = to.grid
    now_k = grid.interval_index_at(clock.mono_ns())
    if now_k - begin_k < MIN_SECONDS:
        return dict(probes)
    span = grid.wall_of(begin_k), grid.wall_of(now_k)
    queries = {
        name: BackfillQuery(name, probe, backfill, span)
        for name, probe in probes.items()
        if (backfill := getattr(probe, "backfill", None)) is not None  # a source with a history
    }
    if not queries:
        return dict(probes)
    limit_ns = clock.mono_ns() + timeout_ns
    rows = heapq.merge(
        *(one.rows(stop, timeout_ns) for one in queries.values()), key=lambda row: row[0]
    )
    recorded = 0
    for k, group in groupby(rows, lambda row: (row[0] - grid.start_wall_ns) // SECOND_NS):
        if stop.is_set() or clock.mono_ns() > limit_ns:
            LOG.warning("backfill_incomplete from_k=%d to_k=%d", k, now_k)
            break
        if begin_k <= k < now_k:
            values = {column: value for _, samples in group for column, value in samples}
            to.recorder.append_earlier(k, list(values.items()))
            recorded += 1
    LOG.info("backfill_recorded count=%d from_k=%d to_k=%d", recorded, begin_k, now_k)
    return {**probes, **{name: one.finish() for name, one in queries.items()}}
