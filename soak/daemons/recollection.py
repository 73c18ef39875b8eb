"""What one probe remembers, asked for on a thread of its own: who asks can give up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import Empty, Full, Queue

from soak.core.errors import ProbeError
from soak.core.model import Column, Reading
from soak.core.ports import Probe
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.daemons.recollection")
MOST_ROWS = 64  # waiting to be recorded
SLICE_SECONDS = 0.2  # of a wait

Row = tuple[int, list[tuple[Column, float]]]
Earlier = Callable[[int, int], Iterator[Row]]


class Recollection:
    """The rows of a probe between two instants of the wall clock, in order."""

    def __init__(self, name: str, probe: Probe, earlier: Earlier, span: tuple[int, int]) -> None:
        self._name = name
        self._probe = probe
        self._earlier = earlier
        self._span = span
        self._rows: Queue[Row | None] = Queue(MOST_ROWS)
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
        return _Asked(self._probe, self._thread) if self._thread.is_alive() else self._probe

    def _work(self) -> None:
        try:
            for row in self._earlier(*self._span):
                if not self._put(row):
                    return
        except Exception:  # a bug in a probe costs that probe: the readings will show it
            LOG.exception("earlier_failed probe=%s", self._name)
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


class _Asked:
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
