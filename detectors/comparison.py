"""Comparison of the latency of runs: by how much a quantile differs, how sure that is, what it means.

Method:  a run is a matrix of counts: intervals of equal length by bands of latency of 1 %. Its quantile
         is that of all messages. The error of its logarithm comes from the circular block bootstrap over
         the intervals (Politis and Romano 1992), so that autocorrelation counts. The length of a block is
         chosen by the rule of Politis and White (2004, doi:10.1081/ETR-120028836) as corrected by Patton,
         Politis and White (2009, doi:10.1080/07474930802459016), applied to the influence of each interval
         on the quantile: messages above it less those expected (Bahadur 1966).
         With more than one run on a side the noise between runs is the pooled standard deviation of their
         log quantiles, and Student's t with as many degrees of freedom as runs less sides. With one run a
         side it cannot be measured; `run_noise` is what is assumed. Degrees of freedom: Satterthwaite (1946).
         "same": two one-sided tests (Schuirmann 1987) at 5 % put the difference within the margin.
         "worse" or "better": zero lies outside the two-sided interval, and "same" was not shown.
         "cannot tell": neither.
Assumes: a run is stationary over its soak, apart from noise that is much shorter than it. Runs of one side
         are exchangeable. Differences are relative: all tests are on logarithms, so no unit matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Verdict = Literal["better", "same", "worse", "cannot tell"]

BAND_RATIO = 1.01
_LOWEST_SECONDS = 1e-6
BANDS = math.ceil(math.log(3600.0 / _LOWEST_SECONDS) / math.log(BAND_RATIO)) + 2
"""Bands of latency from 1 us to 1 h; the last one holds everything above."""
DRAWS = 400
MOST_INTERVALS = 2048
LEAST_BLOCKS = 5
"""With fewer blocks than this nothing is known about how sure a quantile is."""
LEAST_BEYOND = 20
"""Messages that must lie beyond a quantile, or its bootstrap says little (Hall and Martin 1988)."""
POWER = 0.8
_EQUIVALENCE_ERROR = 0.05


def band_of(seconds: NDArray[np.float64]) -> Ints:
    """Return the band of each latency, shape as `seconds`."""
    ratio = np.log(np.maximum(seconds, _LOWEST_SECONDS) / _LOWEST_SECONDS) / math.log(BAND_RATIO)
    return np.minimum(np.floor(ratio + 1e-9).astype(np.int64), BANDS - 1)


def band_edge(band: float) -> float:
    """Return the lower edge of a band in seconds; a fraction lies within it."""
    return float(_LOWEST_SECONDS * BAND_RATIO**band)


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Counts of messages, shape (intervals, bands); `first_band` is the band of column 0."""

    counts: Floats
    first_band: int
    interval_seconds: int

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def quantile(self, share: float) -> float:
        """Return the quantile in seconds; NaN where nothing was counted."""
        return math.exp(float(self.log_quantiles(self.counts.sum(axis=0)[None, :], share)[0]))

    def log_quantiles(self, sums: Floats, share: float) -> Floats:
        """Return log seconds, shape (rows,), of sums of shape (rows, bands), interpolated in a band."""
        cumulated = np.cumsum(sums, axis=1)
        total = cumulated[:, -1]
        rank = share * total
        band = np.minimum((cumulated < rank[:, None]).sum(axis=1), sums.shape[1] - 1)
        rows = np.arange(sums.shape[0])
        within = sums[rows, band]
        below = cumulated[rows, band] - within
        with np.errstate(invalid="ignore", divide="ignore"):
            place = band + np.clip((rank - below) / within, 0.0, 1.0)
        found = math.log(_LOWEST_SECONDS) + (self.first_band + place) * math.log(BAND_RATIO)
        return np.where(total > 0, found, np.nan)

    def influence(self, share: float) -> Floats:
        """Return by interval how many messages more than expected lie above the quantile."""
        log_value = float(self.log_quantiles(self.counts.sum(axis=0)[None, :], share)[0])
        place = (log_value - math.log(_LOWEST_SECONDS)) / math.log(BAND_RATIO) - self.first_band
        band = min(int(place), self.counts.shape[1] - 1)
        part = 1.0 - (place - band)
        above = self.counts[:, band + 1 :].sum(axis=1) + part * self.counts[:, band]
        return np.asarray(above - (1.0 - share) * self.counts.sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The natural logarithm of a quantile in seconds; the error is NaN where it cannot be known."""

    run: str
    log_value: float
    error: float
    degrees_of_freedom: float
    block_seconds: float = math.nan

    @property
    def value(self) -> float:
        return math.exp(self.log_value)


def estimate(run: str, found: Distribution, share: float, seed: int = 0) -> Estimate:
    """Return a quantile of a run with its standard error by block bootstrap; `share` such as 0.99."""
    n, value = found.counts.shape[0], found.quantile(share)
    log_value = math.log(value) if value > 0 else math.nan
    beyond = found.total * min(share, 1.0 - share)
    if not math.isfinite(log_value) or beyond < LEAST_BEYOND:
        return Estimate(run, log_value, math.nan, 0.0)
    length = block_length(found.influence(share)) if n else 1
    blocks = n / length
    if blocks < LEAST_BLOCKS:
        return Estimate(run, log_value, math.nan, 0.0, length * found.interval_seconds)
    rng = np.random.default_rng(seed)
    cumulated = np.concatenate(
        [np.zeros((1, found.counts.shape[1])), np.cumsum(found.counts, axis=0)]
    )
    ends = np.arange(n) + length
    wrapped = np.where(ends > n, ends - n, 0)
    blocks_sums = cumulated[np.minimum(ends, n)] - cumulated[:n] + cumulated[wrapped]
    chosen = rng.multinomial(max(1, round(blocks)), np.full(n, 1.0 / n), size=DRAWS)
    drawn = found.log_quantiles(chosen.astype(np.float64) @ blocks_sums, share)
    error = float(np.nanstd(drawn, ddof=1)) * math.sqrt(round(blocks) / blocks)
    return Estimate(run, log_value, error, blocks - 1.0, length * found.interval_seconds)


def estimate_of_samples(
    run: str, value: float, samples: Floats, interval_seconds: float
) -> Estimate:
    """Return a quantile that is known of the whole run, with the error of its samples' mean logarithm.

    `samples` are the same quantile of each interval, above 0: for results without histograms.
    """
    logs = np.log(samples)
    length = block_length(logs)
    blocks = logs.size / length
    if not value > 0 or blocks < LEAST_BLOCKS:
        return Estimate(run, math.log(value) if value > 0 else math.nan, math.nan, 0.0)
    n = logs.size
    means = np.convolve(
        np.concatenate([logs, logs[: length - 1]]), np.ones(length) / length, "valid"
    )
    error = math.sqrt(float(np.mean((means[:n] - logs.mean()) ** 2)) / blocks)
    return Estimate(run, math.log(value), error, blocks - 1.0, length * interval_seconds)


def block_length(values: Floats) -> int:
    """Return how many values a block of the circular bootstrap should have: the rule of Politis and White.

    At least 1 and at most min(3 sqrt(n), n / 3), as there.
    """
    n = values.size
    x = values - values.mean() if n else values
    variance = float(x @ x) / n if n else 0.0
    if n < 4 or variance == 0.0:  # noqa: PLR2004  # nothing to correlate
        return 1
    most_lag = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    correlation = (
        np.array([float(x[: n - lag] @ x[lag:]) / n for lag in range(most_lag + 1)]) / variance
    )
    needed = max(5, math.ceil(math.sqrt(math.log10(n))))
    limit = 2.0 * math.sqrt(math.log10(n) / n)
    is_small = np.abs(correlation[1:]) < limit
    cut = most_lag
    for lag in range(most_lag - needed + 1):
        if is_small[lag : lag + needed].all():
            cut = lag  # of the last lag that matters
            break
    width = min(2 * max(cut, 1), most_lag)
    lags = np.arange(width + 1)
    window = np.minimum(1.0, 2.0 * (1.0 - lags / width))  # flat top, then a slope to 0
    weights = window * correlation[: width + 1]
    spectrum = weights[0] + 2.0 * float(weights[1:].sum())
    slope = 2.0 * float((lags * weights).sum())
    if spectrum <= 0.0:
        return 1
    best = (2.0 * slope**2 / (4.0 / 3.0 * spectrum**2)) ** (1 / 3) * n ** (1 / 3)
    return max(1, math.ceil(min(float(best), 3.0 * math.sqrt(n), n / 3)))


@dataclass(frozen=True, slots=True)
class Difference:
    """Logarithm of after / before with its standard error; NaN where it cannot be known."""

    log_ratio: float
    error: float
    degrees_of_freedom: float
    is_noise_measured: bool  # between runs; else it was assumed

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the two-sided interval of the ratio."""
        reach = _reach(self.error, self.degrees_of_freedom, (1.0 + confidence) / 2.0)
        return math.exp(self.log_ratio - reach), math.exp(self.log_ratio + reach)

    def verdict(self, margin: float, error_rate: float = 0.05) -> Verdict:
        """Return what the difference means if one below `margin` (0.05: 5 %) is none.

        `error_rate` is that of "better" and "worse" together where there is no difference.
        """
        if not math.isfinite(self.log_ratio + self.error):
            return "cannot tell"
        reach = _reach(self.error, self.degrees_of_freedom, 1.0 - _EQUIVALENCE_ERROR)
        if abs(self.log_ratio) + reach <= math.log1p(margin):
            return "same"
        if abs(self.log_ratio) <= _reach(
            self.error, self.degrees_of_freedom, 1.0 - error_rate / 2.0
        ):
            return "cannot tell"
        return "worse" if self.log_ratio > 0 else "better"

    def detectable(self, margin: float, error_rate: float = 0.05) -> float:
        """Return the least true ratio above 1 that is called "worse" with a probability of `POWER`."""
        if not math.isfinite(self.error):
            return math.inf
        least = self._least_worse(margin, error_rate)
        return math.exp(least + _reach(self.error, self.degrees_of_freedom, POWER))

    def power(self, ratio: float, margin: float, error_rate: float = 0.05) -> float:
        """Return the probability of "worse" where the true ratio is `ratio`."""
        if not math.isfinite(self.error):
            return 0.0
        beyond = math.log(ratio) - self._least_worse(margin, error_rate)
        if self.error == 0.0:
            return float(beyond > 0)
        return float(_law(self.degrees_of_freedom).cdf(beyond / self.error))

    def _least_worse(self, margin: float, error_rate: float) -> float:
        """Return the least log ratio that is beyond chance, and not shown to be within the margin."""
        beyond_chance = _reach(self.error, self.degrees_of_freedom, 1.0 - error_rate / 2.0)
        reach = _reach(self.error, self.degrees_of_freedom, 1.0 - _EQUIVALENCE_ERROR)
        not_same = math.log1p(margin) - reach
        return max(beyond_chance, not_same)


def difference(
    before: Sequence[Estimate], after: Sequence[Estimate], run_noise: float
) -> Difference:
    """Return by how much a quantile differs between two sides of one run or more.

    `run_noise` is the standard deviation between equal runs as a ratio (0.02: 2 %): it is assumed where no
    side has two runs. The same runs on both sides do not differ.
    """
    names = [sorted(one.run for one in side) for side in (before, after)]
    if names[0] == names[1]:
        return Difference(0.0, 0.0, math.inf, True)
    sides = [np.array([one.log_value for one in side]) for side in (before, after)]
    log_ratio = float(sides[1].mean() - sides[0].mean())
    degrees_of_freedom = sum(side.size - 1 for side in sides)
    if degrees_of_freedom == 0:
        parts = [(one[0].error ** 2, one[0].degrees_of_freedom) for one in (before, after)]
        parts.append((2.0 * math.log1p(run_noise) ** 2, math.inf))
        variance = sum(part for part, _ in parts)
        spread = sum(part**2 / of if of else math.nan for part, of in parts)
        of = variance**2 / spread if spread else math.inf
        return Difference(log_ratio, math.sqrt(variance), of, False)
    between = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / degrees_of_freedom
    within = [one.error**2 for one in (*before, *after) if math.isfinite(one.error)]
    variance = max(between, float(np.mean(within)) if within else 0.0)
    error = math.sqrt(variance * sum(1.0 / side.size for side in sides))
    return Difference(log_ratio, error, float(degrees_of_freedom), True)


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on several: the first of worse, cannot tell and better that is among them."""
    order: tuple[Verdict, ...] = ("worse", "cannot tell", "better")
    return next((one for one in order if one in verdicts), "same" if verdicts else "cannot tell")


def _reach(error: float, degrees_of_freedom: float, probability: float) -> float:
    if error == 0.0:
        return 0.0
    return (
        float(error * _law(degrees_of_freedom).ppf(probability))
        if degrees_of_freedom > 0
        else math.nan
    )


def _law(degrees_of_freedom: float) -> Any:  # noqa: ANN401  # scipy has no types
    return stats.norm if math.isinf(degrees_of_freedom) else stats.t(degrees_of_freedom)


MIN_LEVEL_RUNS = 3
_PERMUTATIONS = 1999
_CLEARLY = 0.75


def level_changes(
    values: Sequence[float], least: float, error_rate: float = 0.05, seed: int = 0
) -> list[tuple[int, float, float]]:
    """Return where the level of values changes: first place of the new level, median before, median after.

    Method: binary segmentation; the statistic is the largest difference of means in units of its error, its
    significance is that among random orders of the values, as in E-divisive (Matteson and James 2014).
    Assumes independent values, such as one of each run. `least` is the smallest change worth naming.
    """
    rng = np.random.default_rng(seed)
    data = np.asarray(values, dtype=np.float64)
    cuts: list[int] = []
    parts = [(0, data.size)]
    while parts:
        begin, end = parts.pop()
        part = data[begin:end]
        if part.size < 2 * MIN_LEVEL_RUNS or np.ptp(part) == 0.0:
            continue
        found, at = _largest_step(part[None, :])
        drawn, _ = _largest_step(rng.permuted(np.tile(part, (_PERMUTATIONS, 1)), axis=1))
        chance = (1 + int((drawn >= found[0] - 1e-12).sum())) / (_PERMUTATIONS + 1)
        place = begin + int(at[0])
        if chance <= error_rate:
            cuts.append(place)
            parts += [(begin, place), (place, end)]
    edges = [0, *sorted(cuts), data.size]
    levels = [float(np.median(data[a:b])) for a, b in pairwise(edges)]
    steps = zip(sorted(cuts), levels[:-1], levels[1:], strict=True)
    return [one for one in steps if abs(one[2] - one[1]) > least]


LEAST_DRIFT_VALUES = 5
"""Of four, chance puts one of twelve in order."""
_MOST_CHANCE = 0.05
_LEAST_DRIFT = 0.1


@dataclass(frozen=True, slots=True)
class Drift:
    """How values went: ratio of the last to the first, and the chance that values without order look so."""

    ratio: float
    chance: float

    @property
    def is_clear(self) -> bool:
        """True where chance is below 5 %, and the change from the first to the last is a tenth or more."""
        is_large = not 1.0 / (1.0 + _LEAST_DRIFT) < self.ratio < 1.0 + _LEAST_DRIFT
        return self.chance < _MOST_CHANCE and is_large


def drift(values: Sequence[float]) -> Drift:
    """Return how positive values went, which are in the order of time, such as one of each run.

    Method: the median of the slopes of all pairs (Theil 1950, Sen 1968) on the logarithm, and Kendall's tau
    as a test that there is an order at all. Assumes independent values.
    """
    places = np.arange(len(values))
    slope = float(stats.theilslopes(np.log(values), places).slope)
    chance = float(stats.kendalltau(places, values).pvalue)  # NaN where all values are equal
    return Drift(math.exp(slope * (len(values) - 1)), 1.0 if math.isnan(chance) else chance)


def least_level_runs(error_rate: float) -> int:
    """Return the least number of values in which `level_changes` can find a change at all.

    Of all orders of n values two at least have a step as large as two levels of n / 2 values each. The orders
    are drawn, so that share must lie clearly below the rate.
    """
    n = 2 * MIN_LEVEL_RUNS
    while 2 / math.comb(n, n // 2) > _CLEARLY * error_rate:
        n += 1
    return n


def _largest_step(rows: Floats) -> tuple[Floats, Ints]:
    """Return for each row the largest standardised step of its mean, and its place."""
    n = rows.shape[1]
    left = np.arange(MIN_LEVEL_RUNS, n - MIN_LEVEL_RUNS + 1)
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, left - 1]
    strength = np.abs(sums) * np.sqrt(n / (left * (n - left)))
    best = strength.argmax(axis=1)
    return strength[np.arange(rows.shape[0]), best], left[best]
