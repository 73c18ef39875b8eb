"""Work on a thread of its own that is done shortly before each reading, at whatever period readings come."""

from __future__ import annotations

from collections.abc import Callable

from probes._worker import Stop, Worker
from soak.core.errors import ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

AHEAD_NS = SECOND_NS // 2
"""A round is begun so long before the reading that is to tell of it, or half a period."""


class Paced:
    """Runs `work` once at the first `check`, and then before each of the next that is to be expected.

    `at_end` is run by the same thread as its last deed: it closes what `work` has opened.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        clock: Clock,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._at_end = at_end
        self._clock = clock
        self._worker = Worker(name, self._rounds)
        self._read_ns: int | None = None
        self._period_ns = SECOND_NS
        self._next_ns = 0
        self._begun_ns: int | None = None

    def check(self) -> None:
        """Raise what a round raised since the last call; a `ProbeError` does not end the thread."""
        now_ns = self._clock.mono_ns()
        if self._read_ns is not None and now_ns > self._read_ns:
            self._period_ns = now_ns - self._read_ns
            self._next_ns = now_ns + self._period_ns - min(AHEAD_NS, self._period_ns // 2)
        self._read_ns = now_ns
        self._worker.check()

    def busy_seconds(self) -> float:
        """Return for how long the round has run that has not ended; 0 between two."""
        begun_ns = self._begun_ns
        return 0.0 if begun_ns is None else (self._clock.mono_ns() - begun_ns) / SECOND_NS

    def close(self) -> None:
        self._worker.close()

    def _rounds(self, stop: Stop) -> None:
        try:
            self._until(stop)
        finally:
            self._at_end()

    def _until(self, stop: Stop) -> None:
        while not stop.wait((self._next_ns - self._clock.mono_ns()) / SECOND_NS):
            due_ns, self._begun_ns = self._next_ns, self._clock.mono_ns()
            if self._begun_ns < due_ns:  # put off while we waited
                self._begun_ns = None
                continue
            try:
                self._work()
            except ProbeError as error:
                self._worker.note(error)
            finally:
                self._begun_ns = None
            if self._next_ns <= due_ns:  # nobody has read meanwhile
                self._next_ns = self._clock.mono_ns() + self._period_ns
