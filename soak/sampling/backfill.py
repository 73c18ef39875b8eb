"""Records the seconds before a daemon started, where the source of a probe still has their values."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from queue import Empty, Full, Queue

from soak.core.errors import ProbeError
from soak.core.journal_format import columns_line
from soak.core.model import Column, Reading, Record
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.runtime.context import OpenJournal

QUERY_LOG = logging.getLogger("soak.sampling.backfill")
MAX_WAITING_ROWS = 64  # waiting to be recorded
SLICE_SECONDS = 0.2  # of a wait

Row = tuple[int, list[tuple[Column, float]]]
Backfill = Callable[[int, int], Iterator[Row]]


class BackfillQuery:
    """The rows of a probe between two instants of the wall clock, in order."""

    def __init__(self, name: str, probe: Probe, earlier: Backfill, span: tuple[int, int]) -> None:
        self._name = name
        self._probe = probe
        self._earlier = earlier
        self._span = span
        self._rows: Queue[Row | None] = Queue(MAX_WAITING_ROWS)
        self._is_given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"earlier-{name}", daemon=True)

    def rows(self, stop: threading.Event, patience_ns: int) -> Iterator[Row]:
        """Yield them as they come, until there are no more, or none has come for so long."""
        self._thread.start()
        slices = left = max(1, int(patience_ns / SECOND_NS / SLICE_SECONDS))
        while left and not stop.is_set():
            try:
                row = self._rows.get(timeout=SLICE_SECONDS)
            except Empty:
                left -= 1
                continue
            if row is None:
                return
            left = slices
            yield row

    def given_up(self) -> Probe:
        """Ask for no more; return the probe, which fails as long as the thread is still at it."""
        self._is_given_up.set()
        return _BusyProbe(self._probe, self._thread) if self._thread.is_alive() else self._probe

    def _work(self) -> None:
        try:
            for row in self._earlier(*self._span):
                if not self._put(row):
                    return
        except Exception:  # noqa: BLE001  # a bug in a probe costs that probe: the readings will show it
            QUERY_LOG.exception("earlier_failed probe=%s", self._name)
        self._put(None)

    def _put(self, row: Row | None) -> bool:
        """Hand a row over; False when nobody wants it any more."""
        while not self._is_given_up.is_set():
            try:
                self._rows.put(row, timeout=SLICE_SECONDS)
            except Full:
                continue
            return True
        return False


class _BusyProbe:
    """A probe whose memory is still being asked for: two threads must not be in it at once."""

    def __init__(self, probe: Probe, thread: threading.Thread) -> None:
        self._probe = probe
        self._thread = thread

    def read(self) -> Reading:
        """Read the probe.

        Raises:
            ProbeError: not yet.
        """
        if self._thread.is_alive():
            raise ProbeError("what it remembers of earlier seconds is still being asked for")
        return self._probe.read()

    def close(self) -> None:
        """Close the probe; one whose thread hangs is left to the process's end."""
        if not self._thread.is_alive():
            self._probe.close()


# --- Seconds before a daemon came, as a probe's source remembers them: recorded before the first of our own.
# A daemon that starts late, or again after a while, has a gap in its journal. What a Prometheus server has
# scraped meanwhile belongs there, in the same source and in order. Servers are asked on threads of their own:
# one that hangs holds up the start no longer than `PATIENCE_NS`, and its probe alone after that.

LOG = logging.getLogger("soak.sampling.backfill")
MIN_SECONDS = 10  # a shorter gap is left: asking would make another
TIMEOUT_NS = 10 * SECOND_NS  # what is not there by then stays a gap


def record_backfill(
    to: OpenJournal,
    probes: Mapping[str, Probe],
    begin_k: int,
    stop: threading.Event,
    clock: Clock,
    patience_ns: int = TIMEOUT_NS,
) -> dict[str, Probe]:
    """Record what is remembered of second `begin_k` and those after it.

    Returns the probes to be read from now on: one that is still being asked fails until it is not.
    """
    grid = to.grid
    now_k = grid.k_at(clock.mono_ns())
    if now_k - begin_k < MIN_SECONDS:
        return dict(probes)
    span = grid.wall_of(begin_k), grid.wall_of(now_k)
    asked = {
        name: BackfillQuery(name, probe, earlier, span)
        for name, probe in probes.items()
        if (earlier := getattr(probe, "earlier", None)) is not None  # only a source with a memory
    }
    if not asked:
        return dict(probes)
    limit_ns = clock.mono_ns() + patience_ns
    rows = heapq.merge(
        *(one.rows(stop, patience_ns) for one in asked.values()), key=lambda row: row[0]
    )
    made_up = 0
    for k, group in groupby(rows, lambda row: (row[0] - grid.start_wall_ns) // SECOND_NS):
        if stop.is_set() or clock.mono_ns() > limit_ns:
            LOG.warning("earlier_seconds_left_out from_k=%d to_k=%d", k, now_k)
            break
        if begin_k <= k < now_k:
            values = {column: value for _, samples in group for column, value in samples}
            _append(to, k, values)
            made_up += 1
    LOG.info("earlier_seconds_recorded count=%d from_k=%d to_k=%d", made_up, begin_k, now_k)
    return {**probes, **{name: one.given_up() for name, one in asked.items()}}


def _append(to: OpenJournal, k: int, values: Mapping[Column, float]) -> None:
    columns = tuple(values)
    record = Record(
        k=k,
        epoch=to.writer.epoch,
        at_ns=to.grid.wall_of(k + 1),
        length_ns=SECOND_NS,
        columns_id=columns_line(columns).id,
        values=tuple(values.values()),
    )
    to.writer.append(record, columns)
