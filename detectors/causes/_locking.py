"""Event-locked contrast: is latency higher just after events than at other times?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_SECONDS = 8  # with and without an event, to compare them
_SHUFFLES = 499
_ENOUGH = 10  # shuffles as good, to stop: Besag and Clifford 1991, doi:10.1093/biomet/78.2.301
_MOVED = 6  # seconds, either way
LAGS = (0, 1, 2)  # seconds from the event to what it costs: polling, and files unlinked later


@dataclass(frozen=True, slots=True)
class Locking:
    """Medians of seconds with and without an event, at the lag that tells them apart best."""

    lag_seconds: int
    seconds_with: int
    seconds_without: int
    median_with: float
    median_without: float
    p_value: float


def measured(
    k: NDArray[np.int64],
    values: NDArray[np.float64],
    event_ks: NDArray[np.int64],
    seed: int,
    *,
    least_seconds: int = LEAST_SECONDS,
) -> Locking | None:
    """Return the contrast of positive values, or None when too few seconds are with or without events.

    The p-value is that of the best lag against the best lag of events each moved by a few seconds at
    random: that keeps how their number varies over minutes, and breaks only what is locked to them.
    """
    y = np.log10(np.maximum(values, 1e-6))
    span = _Span(k)
    marks = {lag: span.marked(event_ks + lag) for lag in LAGS}
    usable = [lag for lag in LAGS if _is_comparable(marks[lag], least_seconds)]
    if not usable:
        return None
    contrasts = {lag: _contrast(y, marks[lag]) for lag in usable}
    best = max(usable, key=lambda lag: contrasts[lag])
    rng = np.random.default_rng(seed)
    inside = event_ks[(event_ks >= k[0] - LAGS[-1]) & (event_ks <= k[-1])]
    beaten = done = 0
    while done < _SHUFFLES and beaten < _ENOUGH:
        done += 1
        moved = inside + rng.integers(-_MOVED, _MOVED, inside.size, endpoint=True)
        shuffled = (span.marked(moved + lag) for lag in LAGS)
        best_of = max(
            (_contrast(y, mark) for mark in shuffled if _is_comparable(mark, least_seconds)),
            default=0.0,
        )
        beaten += best_of >= contrasts[best]
    return Locking(
        lag_seconds=best,
        seconds_with=int(marks[best].sum()),
        seconds_without=int((~marks[best]).sum()),
        median_with=float(np.median(values[marks[best]])),
        median_without=float(np.median(values[~marks[best]])),
        p_value=(1 + beaten) / (1 + done),
    )


class _Span:
    """Marks rows by their seconds: a table of all seconds between the first and the last row."""

    def __init__(self, k: NDArray[np.int64]) -> None:
        self._first = int(k[0])
        self._place = k - self._first
        self._length = int(self._place[-1]) + 1

    def marked(self, seconds: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows are of one of these seconds."""
        at = seconds - self._first
        table = np.zeros(self._length, np.bool_)
        table[at[(at >= 0) & (at < self._length)]] = True
        return table[self._place]


def _is_comparable(mark: NDArray[np.bool_], least_seconds: int) -> bool:
    held = int(np.count_nonzero(mark))
    return min(held, mark.size - held) >= least_seconds


def _contrast(y: NDArray[np.float64], mark: NDArray[np.bool_]) -> float:
    return float(y[mark].mean() - y[~mark].mean())
