"""The period of events: times folded at every candidate length, and how sharply they then agree.

Method:  Rayleigh's statistic |sum exp(2 pi i k / p)|^2 / n over candidate periods p, bursts counted once; the
         longest period within 10 % of the best wins, as every divisor of a period folds as well.
Assumes: a period that is the same throughout; two combs interleaved show as one of half the length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_EVENTS = 5
_LEAST_SECONDS = 4.0
_SHARP = 0.7  # mean resultant length of the folded times
_NEAR_BEST = 0.9
_STEPS = 2000


def period_of(ks: NDArray[np.int64], burst_seconds: int = 2) -> float | None:
    """Return the seconds between events, bursts counted once; None when they keep no period."""
    starts = ks[np.concatenate([[True], np.diff(ks) > burst_seconds])] if ks.size else ks
    if starts.size < LEAST_EVENTS:
        return None
    length = float(starts[-1] - starts[0])
    periods = 1.0 / np.linspace(1.0 / _LEAST_SECONDS, (LEAST_EVENTS - 1) / (length + 1.0), _STEPS)
    angles = 2.0 * np.pi * (starts - starts[0])[None, :] / periods[:, None]
    sharp = np.abs(np.exp(1j * angles).mean(axis=1))
    if sharp.max() < _SHARP:
        return None
    best = float(periods[sharp >= _NEAR_BEST * sharp.max()].max())
    # refined by the count of whole periods between the first and the last
    return length / max(1.0, round(length / best))
