"""Counters to growth between two readings: what fell (a wrap, a reset) gives nothing, no negative rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from soak.core.units import SECOND_NS

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Growth(Generic[Key]):
    """By how much counters grew in `seconds`; empty at the first reading."""

    seconds: float = 0.0
    by: Mapping[Key, float] = field(default_factory=dict)

    def per_second(self, key: Key, scale: float = 1.0) -> float | None:
        """Return the growth a second, divided by `scale`; None when it is not known."""
        grown = self.by.get(key)
        return None if grown is None else grown / scale / self.seconds

    def ratio(self, over: Key, under: Key, scale: float = 1.0) -> float | None:
        """Return one growth by another, divided by `scale`; None when `under` did not grow."""
        above, below = self.by.get(over), self.by.get(under)
        return None if above is None or not below else above / scale / below


class Deltas(Generic[Key]):
    """Remembers the previous counters and when they were read."""

    def __init__(self) -> None:
        self._last: Mapping[Key, float] = {}
        self._last_ns = 0

    def take(self, counters: Mapping[Key, float], at_ns: int) -> Growth[Key]:
        last, self._last = self._last, dict(counters)
        seconds = (at_ns - self._last_ns) / SECOND_NS
        self._last_ns = at_ns
        if not last or seconds <= 0:
            return Growth()
        grown = {key: value - last[key] for key, value in counters.items() if key in last}
        return Growth(seconds, {key: value for key, value in grown.items() if value >= 0})
