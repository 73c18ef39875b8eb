"""Times one call after another against a fixed schedule; knows nothing of threads or files.

Open loop: slots that come due while a call hangs are served together by the next call, each counted from
its own intended time. So a stall shows at full length, and is not followed by a burst of calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from soak.core.ports import Clock

MAX_WAITING = 100_000  # latencies kept between two `take`


class Meter:
    """`serve` and `between` run in the thread that may hang; the other methods in the one that reads."""

    def __init__(
        self, start_ns: int, period_ns: int, clock: Clock, call: Callable[[], None]
    ) -> None:
        self._next_ns = start_ns
        self._period_ns = period_ns
        self._clock = clock
        self._call = call
        self._latencies_ns: deque[int] = deque(maxlen=MAX_WAITING)
        self._lags_ns: deque[int] = deque(maxlen=MAX_WAITING)
        self._serving_ns: int | None = None

    @property
    def next_due_ns(self) -> int:
        return self._next_ns

    def serve(self) -> None:
        """Make one call for all slots due now; it has failed for all of them when it raises."""
        now_ns = self._clock.mono_ns()
        count = (now_ns - self._next_ns) // self._period_ns + 1
        if count < 1:
            return
        first_ns, self._next_ns = self._next_ns, self._next_ns + count * self._period_ns
        self._serving_ns = first_ns
        self._lags_ns.append(now_ns - first_ns)
        try:
            self._call()
            done_ns = self._clock.mono_ns()
            self._latencies_ns.extend(
                done_ns - due for due in range(first_ns, self._next_ns, self._period_ns)
            )
        finally:
            self._serving_ns = None

    def between(self, work: Callable[[], None]) -> None:
        """Do what belongs between two calls: slots wait for it, and while it hangs its age shows, too."""
        self._serving_ns = self._clock.mono_ns()
        try:
            work()
        finally:
            self._serving_ns = None

    def take_latencies_ns(self) -> list[int]:
        """Return the latencies of the slots served since the last call."""
        return _drained(self._latencies_ns)

    def take_lags_ns(self) -> list[int]:
        """Return by how much each call since the last `take_lags_ns` began after its slot."""
        return _drained(self._lags_ns)

    def hanging_ns(self) -> int:
        """Return the age of what is not back after a whole period, of a call from its slot on; else 0."""
        serving_ns = self._serving_ns
        if serving_ns is None:
            return 0
        age_ns = self._clock.mono_ns() - serving_ns
        return age_ns if age_ns > self._period_ns else 0


def _drained(box: deque[int]) -> list[int]:
    return [box.popleft() for _ in range(len(box))]
