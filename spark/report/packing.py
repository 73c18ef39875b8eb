"""Series as the page holds them: bands of buckets and seconds near incidents, 16 bits a value.

A step of a value is an eighth of its noise from one second to the next: a finer one would store the noise of
the noise, a coarser one could be seen. The words are compressed in blocks that the page unpacks when it
needs them; all low bytes of a block come before all high ones, which are nearly all alike.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spark.batch.coverage import merged_spans

Floats = NDArray[np.float64]
Words = NDArray[np.uint16]

MISSING = 65_535
"""The word of a bucket or second in which nothing was measured."""
MOST_BUCKETS = 2_160
_LENGTHS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400)
_STEPS_A_NOISE = 8.0
_NORMAL_DIFFERENCE = (
    0.954  # median of the absolute difference of two values of a normal distribution
)
_WIDE = 30.0  # a series that spans more is kept as logarithms, so that its low level is as exact as its peak


@dataclass(frozen=True, slots=True)
class Grid:
    """Buckets of `bucket` seconds over the whole run; of each series one value a `step` seconds is known."""

    seconds: int
    step: int
    bucket: int

    @classmethod
    def of(cls, seconds: int, step: int) -> Grid:
        """Return the finest grid of at most `MOST_BUCKETS`; a coarse `step` asks for whole minutes."""
        least = max(-(-seconds // MOST_BUCKETS), 1 if step == 1 else 60)
        return cls(max(seconds, 1), step, next(one for one in (*_LENGTHS, least) if one >= least))

    @property
    def buckets(self) -> int:
        return -(-self.seconds // self.bucket)

    def dense(self, k: NDArray[np.int64], values: Floats, step: int) -> Floats:
        """Return values by `step` seconds, NaN where there is none, up to the end of the last bucket."""
        found = np.full(self.buckets * self.bucket // step, np.nan)
        at = k // step
        is_within = (at >= 0) & (at < found.size)
        found[at[is_within]] = values[is_within]
        return found

    def rows(self, dense: Floats, step: int) -> Floats:
        """Return dense values, (buckets, values a bucket)."""
        return dense.reshape(self.buckets, self.bucket // step)


@dataclass(frozen=True, slots=True)
class Bands:
    """The lowest, middle and highest of each bucket, NaN where nothing was measured."""

    low: Floats
    middle: Floats
    high: Floats


def bands(rows: Floats, low: Floats | None = None, high: Floats | None = None) -> Bands:
    """Return the bands of (buckets, values); `low` and `high`, where known, are of every second in them."""
    ordered = np.sort(rows, axis=1)  # NaN sorts last
    count, at = np.isfinite(ordered).sum(axis=1), np.arange(len(ordered))
    last = np.maximum(count - 1, 0)
    middle = (ordered[at, last // 2] + ordered[at, np.minimum(count // 2, last)]) / 2
    lowest, highest = ordered[:, 0], ordered[at, last]
    if low is not None:
        lowest = np.fmin(lowest, low)
    if high is not None:
        highest = np.fmax(highest, high)
    is_known = np.isfinite(middle)
    return Bands(*(np.where(is_known, part, np.nan) for part in (lowest, middle, highest)))


@dataclass(frozen=True, slots=True)
class Scale:
    """How words become values: `offset + step x word`, and `exp` of that where `is_log`."""

    is_log: bool
    offset: float
    step: float

    def words(self, values: Floats) -> Words:
        """Return the words of values, `MISSING` for NaN."""
        with np.errstate(divide="ignore", invalid="ignore"):
            stored = np.log(values) if self.is_log else values
        known = np.isfinite(stored)
        found = np.full(values.shape, MISSING, np.uint16)
        steps = np.rint((stored[known] - self.offset) / self.step)
        found[known] = np.clip(steps, 0, MISSING - 1).astype(np.uint16)
        return found

    def to_json(self) -> list[float]:
        return [int(self.is_log), float(f"{self.offset:.7g}"), float(f"{self.step:.7g}")]


def usual_distance(dense: Floats, step: int) -> float:
    """Return how many seconds three of four values come at most after the one before; NaN is no value."""
    apart = np.diff(np.flatnonzero(np.isfinite(dense)))
    usual = np.quantile(apart, 0.75, method="inverted_cdf") if apart.size else 1
    return float(usual * step)


def scale_of(native: Floats, band: Bands, more: Floats | None = None) -> Scale:
    """Return the scale for values in order of time, their bands, and `more` values of single seconds."""
    every = np.concatenate([band.low, band.high, *([] if more is None else [more])])
    every = every[np.isfinite(every)]
    known = native[np.isfinite(native)]
    if not every.size:
        return Scale(is_log=False, offset=0.0, step=1.0)
    is_log = bool(every.min() > 0 and every.max() > _WIDE * every.min())
    every, known = (
        np.log(part) if is_log else part for part in (every, known[known > 0] if is_log else known)
    )
    noise = float(np.median(np.abs(np.diff(known)))) / _NORMAL_DIFFERENCE if known.size > 1 else 0.0
    is_whole = not is_log and bool((every == np.rint(every)).all())
    least = float(np.ptp(every)) / (MISSING - 1)
    wanted = max(least, 1.0 if is_whole else noise / _STEPS_A_NOISE) or 1.0
    # as the page reads it, or the last words of a long scale would be off by many steps
    offset, step = float(f"{float(every.min()):.7g}"), float(f"{wanted:.7g}")
    return Scale(is_log, offset, max(step, np.nextafter(0.0, 1.0)))


def band_words(scale: Scale, band: Bands, *, with_extremes: bool) -> Words:
    """Return the middles, and where there are several seconds a bucket how far high and low lie from them."""
    middle = scale.words(band.middle)
    if not with_extremes:
        return middle
    low, high = (scale.words(part).astype(np.int64) for part in (band.low, band.high))
    up, down = np.maximum(high - middle, 0), np.maximum(middle - low, 0)
    return np.concatenate([middle, up.astype(np.uint16), down.astype(np.uint16)])


def block(words: Iterable[Words]) -> str:
    """Return words as base64 of gzip, all low bytes before all high ones."""
    parts = list(words)
    joined = np.concatenate(parts) if parts else np.empty(0, np.uint16)
    split = joined.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return base64.b64encode(gzip.compress(split.tobytes(), 6, mtime=0)).decode()


# --- Stretches that are kept second by second.

BEFORE_ONSET, AFTER_ONSET, BEFORE_END, AFTER_END = 300, 600, 180, 300


def windows(spans: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the stretches around each onset and each end, merged, ascending; `end` is that of the run."""
    around = [(a - BEFORE_ONSET, a + AFTER_ONSET) for a, _ in spans]
    around += [(b - BEFORE_END, b + AFTER_END) for _, b in spans]
    within = sorted((max(0, a), min(end, b)) for a, b in around)
    return merged_spans([(a, b) for a, b in within if a < b], 1)
