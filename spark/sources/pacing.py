"""When a source plans its next batch, and of how many bytes: three seconds of work, however slow a host is.

Spark's own trigger waits for the next tick after each batch, so a query with a backlog would idle between its
batches; and a batch of a fixed size takes a minute on a busy host. Here the query triggers without a pause,
and its source waits: for the interval of the plan while it keeps up, not at all while it is behind. The time
from the plan of a batch to the next question is what the batch took, all included.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.core.ports import Clock
from soak.core.units import SECOND_NS

FIRST_BYTES = 2**20  # before anything is known of the host
LEAST_BYTES = 2**16
BATCH_NS = 3 * SECOND_NS
"""What a batch of a backlog should take; of 5 s at most it leaves a host room to falter."""
POLL_NS = SECOND_NS // 5
"""How long a question is left unanswered when it is not time for a batch."""
_MOST_GROWTH, _MOST_SHRINKAGE = 4.0, 0.25  # of one batch to the next


@dataclass(slots=True)
class Pace:
    """The pace of one query; `interval_ns` is that of its batches while it keeps up."""

    clock: Clock
    interval_ns: int
    most_bytes: int
    limit_bytes: int = FIRST_BYTES
    _planned_bytes: int = 0  # of the batch in hand; 0: none
    _planned_ns: int = 0
    _is_limited: bool = False  # it left something for the next
    _is_first: bool = True

    def is_time(self) -> bool:
        """Return whether a batch may be planned; waits for a moment when not.

        Ask when the last batch is done, as Spark does.
        """
        now_ns = self.clock.mono_ns()
        if self._planned_bytes:
            self._learn(now_ns - self._planned_ns)
            self._planned_bytes = 0
        due_ns = self._planned_ns + self.interval_ns
        if self._is_first or self._is_limited or now_ns >= due_ns:
            return True
        self.clock.sleep_until(min(due_ns, now_ns + POLL_NS))
        return self.clock.mono_ns() >= due_ns

    def plan(self, size_bytes: int, *, is_limited: bool) -> None:
        """Note the batch that follows; `is_limited`: there was more to take. Of 0 bytes there is none."""
        now_ns = self.clock.mono_ns()
        if size_bytes:
            self._planned_bytes, self._planned_ns, self._is_limited = size_bytes, now_ns, is_limited
        else:
            self._is_limited = False
            self.clock.sleep_until(now_ns + POLL_NS)  # Spark asks again at once

    def _learn(self, took_ns: int) -> None:
        """Set the limit by what a batch took: one that was not limited says little about larger ones.

        The first one starts the workers, and says nothing.
        """
        is_slow = took_ns > BATCH_NS
        if not self._is_first and (self._is_limited or is_slow):
            factor = BATCH_NS / max(took_ns, 1)
            factor = min(max(factor, _MOST_SHRINKAGE), _MOST_GROWTH)
            wanted = round((self.limit_bytes if self._is_limited else self._planned_bytes) * factor)
            self.limit_bytes = min(max(wanted, LEAST_BYTES), self.most_bytes)
        self._is_first = False
