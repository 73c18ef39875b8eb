"""Event-locked contrast: is latency higher just after events than at other times?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_SECONDS = 8  # with and without an event, to compare them
_SHUFFLES = 499
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
    marks = {lag: np.isin(k, event_ks + lag) for lag in LAGS}
    usable = [lag for lag in LAGS if _is_comparable(marks[lag], least_seconds)]
    if not usable:
        return None
    contrasts = {lag: _contrast(y, marks[lag]) for lag in usable}
    best = max(usable, key=lambda lag: contrasts[lag])
    rng = np.random.default_rng(seed)
    inside = event_ks[(event_ks >= k[0] - LAGS[-1]) & (event_ks <= k[-1])]
    beaten = 0
    for _ in range(_SHUFFLES):
        moved = inside + rng.integers(-_MOVED, _MOVED, inside.size, endpoint=True)
        shuffled = (np.isin(k, moved + lag) for lag in LAGS)
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
        p_value=(1 + beaten) / (1 + _SHUFFLES),
    )


def _is_comparable(mark: NDArray[np.bool_], least_seconds: int) -> bool:
    return min(int(mark.sum()), int((~mark).sum())) >= least_seconds


def _contrast(y: NDArray[np.float64], mark: NDArray[np.bool_]) -> float:
    return float(y[mark].mean() - y[~mark].mean())
