"""How long a daemon was silent: time without a sign of life fills a measure, time with signs drains it.

So one that comes up again and again, and dies each time, is noticed as well as one that never comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.core.units import SECOND_NS
from soak.daemons.supervise import START_LIMIT_NS

LIMIT_NS = 300 * SECOND_NS
"""Silent for so much longer than it was heard, a daemon is missed; heard for as long, it is back."""

Sign = object
"""What is another one when a daemon has done something since."""


@dataclass(slots=True)
class Pulse:
    """How long one daemon was silent, on the monotonic clock."""

    sign: Sign
    changed_ns: int  # when its sign was seen to change, or first looked at
    grace_ns: int
    is_told: bool  # it is missed, and people are told
    limit_ns: int = LIMIT_NS  # how long one that was heard may be silent
    silent_ns: int = 0
    since_ns: int = 0  # when the silence began
    until_ns: int = 0  # and when it was last silent
    is_heard: bool = False

    def look(self, sign: Sign, now_ns: int, step_ns: int) -> None:
        """Take in a sign; `step_ns` is the time that counts since the one before."""
        if sign != self.sign:
            if self._is_starting:
                self.silent_ns = 0
            self.sign, self.changed_ns, self.is_heard = sign, now_ns, True
        if not self.is_quiet(now_ns):
            self.silent_ns = max(0, min(self.silent_ns, self._limit_ns) - step_ns)
            return
        if not self.silent_ns:
            self.since_ns = self.changed_ns
        self.silent_ns = min(self.silent_ns + step_ns, self._limit_ns)
        self.until_ns = now_ns

    def is_quiet(self, now_ns: int) -> bool:
        return now_ns - self.changed_ns > self.grace_ns

    @property
    def is_missed(self) -> bool:
        return self.silent_ns >= self._limit_ns

    @property
    def is_missed_with_others(self) -> bool:
        """True when it was silent for as long as others that are missed, though it may take longer."""
        return self.is_heard and self.silent_ns >= LIMIT_NS

    @property
    def _is_starting(self) -> bool:
        return not self.is_heard and not self.is_told

    @property
    def _limit_ns(self) -> int:
        if self.is_told:
            return LIMIT_NS
        return self.limit_ns if self.is_heard else START_LIMIT_NS
