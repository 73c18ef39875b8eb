"""Decides which messages go out now: all that are due, at a bounded multiple of the rate after a stall."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from soak.core.schedule import Schedule
from soak.core.units import SECOND_NS

BURST_NS = SECOND_NS // 20  # credit is kept for 50 ms at most, so a stall is not paid back at once


@dataclass(frozen=True, slots=True)
class Due:
    """Messages `first` to `first + count - 1` go out now; `missed` before them are given up."""

    first: int
    count: int
    missed: int


class Pacer:
    """Walks along the schedule; exact integers, so that nothing is sent twice or forgotten.

    The schedule may be extended while it walks, always beyond the present.
    """

    def __init__(
        self, schedule: Schedule, catch_up_ratio: float, backlog_ns: int, now_ns: int
    ) -> None:
        self._schedule = schedule
        self._catch_up_ratio = catch_up_ratio
        self._backlog_ns = backlog_ns
        self._last_ns = now_ns
        self.next_index = schedule.first_at_or_after(now_ns)
        self._rates: tuple[Fraction, Fraction] | None = None  # that the next one is made from
        self._per_ns = 0.0
        self._credit = self._limit(self._credit_per_ns(now_ns, now_ns))

    def due(self, now_ns: int) -> Due:
        """Return what to send now, without taking it: call `sent` for what the client took."""
        oldest_ns = self._schedule.due_ns(self.next_index)
        credit_per_ns = self._credit_per_ns(now_ns, oldest_ns)
        self._credit += (now_ns - self._last_ns) * credit_per_ns
        self._credit = min(self._credit, self._limit(credit_per_ns))
        self._last_ns = now_ns
        missed = 0
        if oldest_ns < now_ns - self._backlog_ns:
            oldest = self._schedule.first_at_or_after(now_ns - self._backlog_ns)
            missed = oldest - self.next_index
            self.next_index = oldest
        waiting = self._schedule.first_at_or_after(now_ns + 1) - self.next_index
        return Due(self.next_index, max(0, min(waiting, int(self._credit))), missed)

    def sent(self, count: int) -> None:
        self.next_index += count
        self._credit -= count

    def give_up(self, until_ns: int) -> int:
        """Skip all that was due up to and at an instant; return how many were not sent."""
        left = max(0, self._schedule.first_at_or_after(until_ns + 1) - self.next_index)
        self.next_index += left
        return left

    def next_due_ns(self) -> int:
        """Return when the next message is due; far away where the rate is 0."""
        return self._schedule.due_ns(self.next_index)

    def _credit_per_ns(self, now_ns: int, oldest_ns: int) -> float:
        """Return how fast credit grows: by the rate of now, or of when the oldest message was due.

        What a stall at a high rate left behind goes out at that rate, also when the rate has fallen since.
        """
        now = self._schedule.rate_at(now_ns)
        then = self._schedule.rate_at(oldest_ns) if oldest_ns < now_ns else now
        if self._rates is None or now is not self._rates[0] or then is not self._rates[1]:
            self._rates = (
                now,
                then,
            )  # the same ones all through a segment, thousands of times a second
            self._per_ns = float(max(now, then)) * self._catch_up_ratio / SECOND_NS
        return self._per_ns

    @staticmethod
    def _limit(credit_per_ns: float) -> float:
        return max(1.0, BURST_NS * credit_per_ns)
