"""The last minute of one series, value by value, and the hours before as medians: what the kinds look at.

A minute counts from 30 values on, ten minutes from 5, as soon as a minute of later ten does; what was not
measured is left out. Values are kept as 32-bit numbers, so that a state that was stored and read again is the
same bit for bit.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.minimum_effect import MAD_TO_SD

MINUTE = 60
COARSE = 10  # minutes to a coarse block
FINE_BLOCKS = 60
COARSE_BLOCKS = 36
_LEAST_VALUES = 30
_LEAST_MINUTES = 5
_SPREAD_EVERY = 10  # rows between two looks at level and spread
_PAIRS = ("last", "fine", "coarse")

Block = tuple[int, float]
"""Number of a minute (or of ten) since second 0, and the median in it, on the scale of judgement."""


@dataclass(slots=True)
class Recent:
    """`last` has the newest 60 values as (k, y); `level` and `sd` are theirs, looked at every ten rows."""

    rows: int = 0
    level: float = float("nan")
    sd: float = 0.0
    last: list[tuple[int, float]] = field(default_factory=list)
    fine: list[Block] = field(default_factory=list)
    coarse: list[Block] = field(default_factory=list)

    def take(self, k: int, y: float) -> bool:
        """Take the next value; return whether a minute ended before it."""
        has_ended = bool(self.last) and k // MINUTE != self.last[-1][0] // MINUTE and self._close()
        self.last.append((k, _rounded(y)))
        del self.last[:-MINUTE]
        self.rows += 1
        if self.rows % _SPREAD_EVERY == 0 and len(self.last) >= _LEAST_VALUES:
            values = [value for _, value in self.last]
            self.level = _median(values)
            self.sd = MAD_TO_SD * _median([abs(value - self.level) for value in values])
        return has_ended

    def since(self, k: int) -> NDArray[np.float64]:
        """Return the values of second `k` and later, of the last minute."""
        return np.array([y for at, y in self.last if at >= k])

    def before(self, k: int) -> float:
        """Return the level before second `k`: of five minutes, or of the rest of the last; NaN if unknown."""
        blocks = [y for minute, y in self.fine if (minute + 1) * MINUTE <= k][-_LEAST_MINUTES:]
        known = blocks or [y for at, y in self.last if at < k]
        return float(np.median(known)) if known else float("nan")

    def _close(self) -> bool:
        minute = self.last[-1][0] // MINUTE
        values = [y for k, y in self.last if k // MINUTE == minute]
        if len(values) < _LEAST_VALUES:
            return False
        if self.fine and self.fine[-1][0] // COARSE < minute // COARSE:
            self._close_ten(self.fine[-1][0] // COARSE)
        self.fine.append((minute, _rounded(float(np.median(values)))))
        self.fine = [one for one in self.fine if one[0] > minute - FINE_BLOCKS]
        return True

    def _close_ten(self, ten: int) -> None:
        among = [y for at, y in self.fine if at // COARSE == ten]
        if len(among) >= _LEAST_MINUTES:
            self.coarse.append((ten, _rounded(float(np.median(among)))))
            self.coarse = [one for one in self.coarse if one[0] > ten - COARSE_BLOCKS]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        packed = {name: _packed(getattr(self, name)) for name in _PAIRS}
        return {"rows": self.rows, "level": self.level, "sd": self.sd, **packed}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Recent:
        """Return what `to_state` described."""
        pairs = {name: _unpacked(state[name]) for name in _PAIRS}
        return cls(state["rows"], state["level"], state["sd"], **pairs)


def _median(values: Sequence[float]) -> float:
    """Return the median of finite numbers: of sixty, sorting them costs less than a call of NumPy."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def median(values: NDArray[np.float64]) -> float:
    """Return the median of finite values; numpy's asks more questions than a short array has values."""
    low, high = (values.size - 1) // 2, values.size // 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / 2.0)


def _rounded(y: float) -> float:
    return float(np.float32(y))


def _packed(pairs: Sequence[tuple[int, float]]) -> str:
    """Return pairs of second or block and value as text, 8 bytes a pair in base64."""
    at = np.array([at for at, _ in pairs], dtype="<i4").tobytes()
    return b64encode(at + np.array([y for _, y in pairs], dtype="<f4").tobytes()).decode()


def _unpacked(text: str) -> list[tuple[int, float]]:
    raw = b64decode(text)
    half = len(raw) // 2
    at, y = np.frombuffer(raw[:half], "<i4"), np.frombuffer(raw[half:], "<f4")
    return list(zip(at.tolist(), y.tolist(), strict=True))
