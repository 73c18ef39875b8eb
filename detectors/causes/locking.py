"""Is latency locked to something: to events that come again and again, or second by second to a channel?

Method:  the first event of the run must lie at the onset (at most 3 s before its interval, 2 s after it), or
         their rate must have risen there threefold; then seconds with an event are compared with those
         without, against events each moved by seconds. Locked to them is enough by itself, unless latency was
         so before the step; the time of the onset is so only where nearly every second lies close after an
         event, so that nothing could be compared.
         A channel is followed where latency is high in the seconds in which the channel is.
Assumes: events are reported within two seconds, and cost latency within two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atanh, log10, sqrt

import numpy as np
from numpy.typing import NDArray

from detectors.causes import channel
from detectors.causes.channel import mid_ranks
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import CLEAR, FAIR, SLIGHT, Sign
from detectors.nearby import when
from soak.core import wording
from soak.core.model import Change, Evidence, Series

# --- Event-locked contrast: is latency higher just after events than at other times?

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


_RATE_SECONDS = 60
_JUST_SECONDS = 10
_RATE_ROSE = 3.0
_MOST_P = 0.01
_LEAST_EXPLAINED = 0.2
_CLEARLY_SLOWER = 1.5  # noise grows with the level: less of it is no share in seconds
_SEED = 1
_FLOOR = 1e-6  # seconds: no latency is shorter
_LEAST_SECONDS_WITH = 5  # before their time alone tells anything
_MOST_FREE_RATIO = 0.05  # of the seconds, that lie close after no event


@dataclass(frozen=True, slots=True)
class Words:
    """How an event is called: `a deletion`, `deletions`, `deletions of old segments`, `explain`."""

    one: str
    many: str
    whole: str  # plural in full, as in `deletions of old segments`
    first: str  # singular in full, as in `deletion of old segments`


@dataclass(frozen=True, slots=True)
class Repeated:
    """What repeated events have to do with a step.

    `is_dense`: nothing could be compared, as nearly every second lies close after one; they may explain all.
    """

    signs: tuple[Sign, ...]
    explained: float
    is_dense: bool = False
    is_locked: bool = False


def repeated(
    ks: NDArray[np.int64],
    words: Words,
    facts: Facts,
    *,
    earlier: int | None = None,
    about_first: str = "",
) -> Repeated | None:
    """Return how events in the seconds `ks`, ascending, explain a step; None when they do not.

    `earlier` is how many there were in the run before the window, None where that is not known; `about_first`
    says more of the first one.
    """
    if ks.size == 0 or ks[0] > facts.near[1]:
        return None
    start = begun(ks, words, facts, earlier=earlier, about_first=about_first)
    locking = _locked(ks, facts)
    explained = 0.0 if locking is None else explained_ratio(facts.change, locking)
    is_locked = (
        locking is not None
        and locking.p_value <= _MOST_P
        and explained >= _LEAST_EXPLAINED
        and (bool(start) or not _was_locked(ks, facts, locking))
    )
    if not start and not is_locked:
        return None
    is_dense = not is_locked and _is_dense(ks, facts)
    since = _since(ks, words, facts, None if is_dense else locking, explained, is_dense=is_dense)
    felt = CLEAR + SLIGHT * bool(start) if is_locked else CLEAR - SLIGHT if is_dense else 0.0
    return Repeated(
        (*start, Sign(felt, since)), 1.0 if is_dense else explained, is_dense, is_locked
    )


def begun(
    ks: NDArray[np.int64],
    words: Words,
    facts: Facts,
    *,
    earlier: int | None = None,
    about_first: str = "",
) -> tuple[Sign, ...]:
    """Return that events began at the onset, or came three times as often from then on; empty if neither.

    The arguments are those of `repeated`.
    """
    if ks.size == 0:
        return ()
    start = _first(ks, words, facts, earlier, about_first) or _rose(ks, words, facts)
    return () if start is None else (Sign(FAIR + SLIGHT, start),)


def _first(
    ks: NDArray[np.int64], words: Words, facts: Facts, earlier: int | None, about: str
) -> Evidence | None:
    (low, high), first = facts.near, int(ks[0])
    if earlier or not low <= first <= high:
        return None
    k0 = facts.nearby.k0
    calm = max(0, first - k0)
    since = f"in {calm} s" if earlier is None and k0 > 0 else "in this run"
    return Evidence(
        f"The first {words.first} {since} came {when(first - facts.onset_k)}{about}; "
        f"there was none in the {calm} s before.",
        {"first_k": first, "seconds_after_onset": first - facts.onset_k},
    )


def _rose(ks: NDArray[np.int64], words: Words, facts: Facts) -> Evidence | None:
    onset, (low, high) = facts.onset_k, facts.near
    if not np.any((ks >= low) & (ks <= high)):
        return None
    seconds = min(_RATE_SECONDS, low - facts.nearby.k0, facts.nearby.soak_end(onset) - onset)
    if seconds < _RATE_SECONDS // 3:
        return None
    before = int(np.count_nonzero((ks >= low - seconds) & (ks < low)))
    after = int(np.count_nonzero((ks >= onset) & (ks < onset + seconds)))
    just_before = int(np.count_nonzero((ks >= low - _JUST_SECONDS) & (ks < low)))
    was = max(before / seconds, just_before / _JUST_SECONDS, 1.0 / seconds)  # it rose at the onset
    if after / seconds < _RATE_ROSE * was or after < LEAST_SECONDS:
        return None
    return Evidence(
        f"In the {seconds} s since the onset {after} seconds held {words.whole}, "
        f"in the {seconds} s before it {before}.",
        {"seconds_after": after, "seconds_before": before},
    )


def _is_dense(ks: NDArray[np.int64], facts: Facts) -> bool:
    """True when too few seconds since the onset lie clear of events, and there are enough events."""
    seconds = np.arange(facts.onset_k, facts.end_k)
    held = np.isin(seconds, ks)
    close = np.isin(seconds, np.concatenate([ks + lag for lag in LAGS]))
    most = max(LEAST_SECONDS - 1.0, _MOST_FREE_RATIO * seconds.size)
    is_most = 2 * np.count_nonzero(close) > seconds.size
    return bool(
        np.count_nonzero(held) >= _LEAST_SECONDS_WITH
        and is_most
        and np.count_nonzero(~close) <= most
    )


def _locked(ks: NDArray[np.int64], facts: Facts) -> Locking | None:
    return locking_in(ks, facts, facts.onset_k, facts.end_k)


def _was_locked(ks: NDArray[np.int64], facts: Facts, locking: Locking) -> bool:
    """True when the same events cost half as much, or more, before the step: then they did not make it."""
    start = facts.nearby.soak_start(facts.onset_k)
    before = locking_in(ks, facts, start, facts.change.interval[0])
    if before is None or before.p_value > _MOST_P:
        return False
    return 2.0 * contrast(before) >= contrast(locking)


def locking_in(
    ks: NDArray[np.int64],
    facts: Facts,
    start: int,
    stop: int,
    least_seconds: int = LEAST_SECONDS,
) -> Locking | None:
    """Return how latency is locked to events between two seconds; None when too little is known."""
    series = facts.latency
    if series is None:
        return None
    low, high = np.searchsorted(series.k, [start, stop])
    if high - low < 2 * LEAST_SECONDS:
        return None
    return measured(
        series.k[low:high], series.values[low:high], ks, _SEED, least_seconds=least_seconds
    )


def contrast(locking: Locking) -> float:
    return log10(max(locking.median_with, _FLOOR) / max(locking.median_without, _FLOOR))


def explained_ratio(change: Change, locking: Locking) -> float:
    """Return the share of the step that is absent from seconds without an event.

    As a ratio or, of seconds half as slow again, in seconds, the larger: with another cause, which adds to
    it, the ratio is small.
    """
    step = log10(max(change.after, _FLOOR) / max(change.before, _FLOOR))
    if step <= 0.0:
        return 0.0
    found = contrast(locking) / step
    if locking.median_with >= _CLEARLY_SLOWER * locking.median_without:
        seconds = locking.median_with - locking.median_without
        found = max(found, seconds / (change.after - change.before))
    return max(0.0, min(1.0, found))


def _since(
    ks: NDArray[np.int64],
    words: Words,
    facts: Facts,
    locking: Locking | None,
    explained: float,
    *,
    is_dense: bool,
) -> Evidence:
    change, end = facts.change, facts.end_k
    held = int(np.count_nonzero((ks >= change.onset_k) & (ks < end)))
    length = end - change.onset_k
    many = "All" if held == length else f"{held}"
    since = f"{many} of the first {length} s from the onset on held {words.one}"
    quantity = wording.title(change.series)
    if locking is None:
        numbers = {"seconds_with": held, "seconds": length}
        text = (
            f"{since}. There are too few seconds of both kinds to compare their {quantity}: only the time of "
            "the onset speaks for it."
        )
        if is_dense:
            close = "" if held == length else ", and the others lie close after one"
            text = f"{since}{close}: the {quantity} of seconds without one is not known."
        return Evidence(text, numbers)
    lag = f" {locking.lag_seconds} s after" if locking.lag_seconds else " with"
    return Evidence(
        f"{since}: the median {quantity} of seconds{lag} {words.one} was "
        f"{wording.amount(locking.median_with, 'seconds')}, of the others "
        f"{wording.amount(locking.median_without, 'seconds')} (permutation test, p = {locking.p_value:.2g}); "
        f"{words.many} explain {explained:.0%} of the step.",
        {
            "seconds_with": locking.seconds_with,
            "seconds_without": locking.seconds_without,
            "median_with": locking.median_with,
            "median_without": locking.median_without,
            "p_value": locking.p_value,
            "explained_ratio": explained,
        },
    )


# --- Does latency follow a channel second by second, and what of the step goes away when it is regressed
# on it?
# Method:  Spearman's correlation of the seconds of the new level alone, so that two steps at one time are no
# evidence; then the slope of these seconds, times the channel's own step, as a share of latency's.
# Assumes: what the channel does is felt within the second, and alike before and after the onset.

_LEAST_COMMON = 20
_LEAST_RHO = 0.3
_LEAST_SIGMAS = 3.0


@dataclass(frozen=True, slots=True)
class Coupling:
    """How closely latency follows a channel after the onset, and the share of the step that this makes."""

    rho: float
    explained: float
    seconds: int

    @property
    def is_following(self) -> bool:
        """True for a correlation that is not small and, by Fisher's transformation, no accident."""
        sigmas = atanh(min(self.rho, 0.999)) * sqrt(max(1, self.seconds - 3))
        return self.rho >= _LEAST_RHO and sigmas >= _LEAST_SIGMAS


def coupling(series: Series, facts: Facts) -> Coupling | None:
    """Return how latency follows a channel; None when too few seconds have both."""
    latency, change = facts.latency, facts.change
    if latency is None:
        return None
    k, at, of = np.intersect1d(latency.k, series.k, return_indices=True)
    y, x = (np.log10(np.maximum(v, _FLOOR)) for v in (latency.values[at], series.values[of]))
    before, after = _sides(k, change, facts)
    if np.count_nonzero(after) < _LEAST_COMMON or np.count_nonzero(before) < _LEAST_COMMON:
        return None
    rho = _correlation(mid_ranks(x[after]), mid_ranks(y[after]))
    spread = float(np.var(x[after]))
    slope = float(np.cov(x[after], y[after], bias=True)[0, 1]) / spread if spread > 0.0 else 0.0
    steps = [float(np.median(v[after]) - np.median(v[before])) for v in (x, y)]
    explained = slope * steps[0] / steps[1] if steps[1] > 0.0 else 0.0
    return Coupling(rho, max(0.0, min(1.0, explained)), int(np.count_nonzero(after)))


def _sides(
    k: NDArray[np.int64], change: Change, facts: Facts
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    low, high = change.interval
    before = (k >= channel.start_of(change, facts.nearby)) & (k < low)
    return before, (k >= high) & (k < facts.end_k)


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    spread = float(np.std(x) * np.std(y))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0.0 else 0.0
