"""Retries: how long to wait after a failure, when to stop restarting, and reporting a failure once.

Nothing here reads a clock: callers pass the time, in nanoseconds of any clock that they keep to.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from soak.core.units import SECOND_NS


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: the wait doubles with each failure in a row, up to a maximum."""

    first_ns: int = SECOND_NS
    max_ns: int = 60 * SECOND_NS

    def wait_ns(self, failures: int) -> int:
        """Return how long to wait after so many failures in a row; 0 after none."""
        return min(self.first_ns << min(failures - 1, 62), self.max_ns) if failures > 0 else 0


@dataclass(slots=True)
class Retry:
    """One thing that is tried again and again: how often it has failed in a row, and when to try next."""

    backoff: Backoff
    failures: int = 0
    due_ns: int = 0

    @property
    def is_failing(self) -> bool:
        return self.failures > 0

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self.due_ns

    def note_failure(self, now_ns: int) -> int:
        """Return how long to wait before the next attempt."""
        self.failures += 1
        wait_ns = self.backoff.wait_ns(self.failures)
        self.due_ns = now_ns + wait_ns
        return wait_ns

    def note_success(self) -> None:
        self.failures = self.due_ns = 0


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a process that dies is restarted: at once after its first death, then ever later.

    A death counts for `window_ns`. More than `max_deaths` in that time are too many; None: never too many.
    """

    backoff: Backoff = field(default_factory=Backoff)
    window_ns: int = 60 * SECOND_NS
    max_deaths: int | None = None


@dataclass(slots=True)
class Restarts:
    """The recent deaths of one process; `due_ns` says when to start it again."""

    policy: RestartPolicy
    due_ns: int = 0
    deaths_ns: list[int] = field(default_factory=list)

    @property
    def is_too_many(self) -> bool:
        limit = self.policy.max_deaths
        return limit is not None and len(self.deaths_ns) > limit

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self.due_ns

    def note_death(self, now_ns: int) -> None:
        recent = [at_ns for at_ns in self.deaths_ns if now_ns - at_ns < self.policy.window_ns]
        self.deaths_ns = [*recent, now_ns]
        self.due_ns = now_ns + self.policy.backoff.wait_ns(len(recent))

    def note_failed_start(self, now_ns: int) -> None:
        """Try again in a second: a process that could not be started has not died."""
        self.due_ns = now_ns + SECOND_NS


class Once:
    """Tells new messages from repeated ones, so that a failure that lasts is reported once.

    A message is new again when `max_messages` others have come since, after `period_ns` (None: never),
    and after `clear`.
    """

    def __init__(self, *, max_messages: int = 1, period_ns: int | None = None) -> None:
        self._max_messages = max_messages
        self._period_ns = period_ns
        self._reported: dict[Hashable, tuple[int, int]] = {}  # when, and how many repeats since

    def is_new(self, message: Hashable, now_ns: int = 0) -> bool:
        """Return whether to report the message; if so, it counts as reported at `now_ns`."""
        return self.repeats_if_new(message, now_ns) is not None

    def repeats_if_new(self, message: Hashable, now_ns: int = 0) -> int | None:
        """Return how often a new message was repeated since it was last reported; None if it is not new."""
        reported_ns, repeated = self._reported.get(message, (None, 0))
        is_recent = self._period_ns is None or now_ns - (reported_ns or 0) < self._period_ns
        if reported_ns is not None and is_recent:
            self._reported[message] = reported_ns, repeated + 1
            return None
        self._reported.pop(message, None)
        if len(self._reported) >= self._max_messages:
            self._reported.clear()  # rather than the oldest: threads may share this
        self._reported[message] = now_ns, 0
        return repeated

    def clear(self) -> None:
        """Forget all messages: the failure is over."""
        self._reported.clear()
