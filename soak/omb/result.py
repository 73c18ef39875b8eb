"""A benchmark result in one form for all dialects: its fields, units, dialect profiles and series."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.model import Column, Series
from soak.core.series import series_name

_STATISTICS = {"Avg": "mean", "Min": "min", "Max": "max"}
_SUFFIXES = {name: suffix for suffix, name in _STATISTICS.items()}

COUNT_FIELDS = {
    "publishRate": "publish_rate_per_second",
    "publishErrorRate": "publish_error_rate_per_second",
    "consumeRate": "consume_rate_per_second",
    "backlog": "backlog_messages",
    "sent": "sent_messages",
    "consumed": "received_messages",
    "publishFailed": "failed_messages",
    "consumeFailed": "consume_failed_messages",
}
"""Lists with an entry a sample that are no latencies."""

WHOLE_FIELDS = frozenset({"backlog", "sent", "consumed", "publishFailed", "consumeFailed"})
"""Of these, the ones that hold whole numbers."""


@dataclass(frozen=True, slots=True)
class Family:
    """One latency: its stem in field names, its name here, how many of its unit make a second."""

    stem: str
    name: str
    per_second: int
    side: str  # the rate that says whether anything was measured

    @property
    def metric(self) -> str:
        return f"{self.name}_seconds"

    @property
    def aggregated(self) -> str:
        """Return the stem of the fields that tell of the whole run."""
        return f"aggregated{self.stem[0].upper()}{self.stem[1:]}"


PUBLISH = Family("publishLatency", "publish_latency", 1_000, "publishRate")
DELAY = Family("publishDelayLatency", "publish_delay", 1_000_000, "publishRate")
SCHEDULE = Family("scheduleLatency", "schedule_latency", 1_000, "publishRate")
END_TO_END = Family("endToEndLatency", "end_to_end_latency", 1_000, "consumeRate")
FAMILIES = (PUBLISH, DELAY, SCHEDULE, END_TO_END)

_FIELD = re.compile(r"(?P<stem>[a-zA-Z]+Latency)(?P<suffix>Avg|Min|Max|\d\d\d*pct|Quantiles)")
_STEMS = {family.stem: (family, False) for family in FAMILIES} | {
    family.aggregated: (family, True) for family in FAMILIES
}


@dataclass(frozen=True, slots=True)
class Field:
    """What a latency field holds; `statistic` is "" for a map of percentiles."""

    family: Family
    statistic: str
    is_total: bool

    @property
    def name(self) -> str:
        return statistic_name(self.family, self.statistic)


def parse_field(key: str) -> Field | None:
    """Return what a latency field holds, or None for any other key."""
    match = _FIELD.fullmatch(key)
    if match is None or match["stem"] not in _STEMS:
        return None
    family, is_total = _STEMS[match["stem"]]
    if match["suffix"] == "Quantiles":
        return Field(family, "", is_total) if is_total else None
    return Field(family, _statistic(match["suffix"]), is_total)


def statistic_name(family: Family, statistic: str) -> str:
    """Return the name of one statistic of a latency, such as `publish_latency_p99.9_seconds`."""
    return f"{family.name}_{statistic}_seconds"


def statistic_suffix(statistic: str) -> str:
    """Return how a field says it: `p99.9` is `999pct`."""
    return _SUFFIXES.get(statistic) or f"{statistic[1:].replace('.', '')}pct"


def percentile_of(statistic: str) -> float:
    """Return 99.9 for `p99.9`."""
    return float(statistic[1:])


def _statistic(text: str) -> str:
    if text in _STATISTICS:
        return _STATISTICS[text]
    digits = text.removesuffix("pct")
    return f"p{digits[:2]}" + (f".{digits[2:]}" if digits[2:] else "")


# --- A benchmark's result, the same whatever dialect it was written in: seconds as unit, NaN for missing.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A latency over the whole run: `percentiles` (0 to 100) ascending, shape (m,); `seconds` at each."""

    percentiles: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One run. `seconds` and each of `samples` have shape (n,), one entry a sample.

    Names end with the unit: `publish_latency_p99_seconds`, `publish_rate_per_second`,
    `backlog_messages`. `seconds` tells when a sample ended, counted from the begin of the first.
    """

    dialect: str
    workload: str
    driver: str
    facts: Mapping[str, str | int | float]  # what else it says of the run, by the benchmark's names
    step_seconds: float  # nominal length of a sample
    seconds: Floats
    samples: Mapping[str, Floats]
    totals: Mapping[str, float]  # of the whole run, by the names of `samples`
    distributions: Mapping[str, Distribution]  # by latency, such as `publish_latency_seconds`
    remarks: tuple[str, ...] = ()  # what a reader must know: rebuilt times, caps, missing samples


# --- What tells one dialect of the benchmark's files from another.

PACKAGE = "soak.omb.dialects"

PERCENTILES = ("p50", "p75", "p95", "p99", "p99.9", "p99.99")
SUMMARY = ("mean", *PERCENTILES, "max")
WITH_MIN = ("min", *SUMMARY)
SCHEDULE_STATISTICS = ("min", "p50", "p75", "p99", "max")

NOMINAL_STEP_MILLIS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a dialect writes into a result, and what it takes a workload's silence to mean."""

    facts: tuple[str, ...]  # single values of a result, beside workload and driver
    counts: tuple[str, ...]  # lists that are no latencies
    latencies: Mapping[Family, tuple[str, ...]]  # lists of statistics a sample
    totals: Mapping[Family, tuple[str, ...]]  # the same over the whole run, each with its map
    caps_seconds: Mapping[Family, float]  # greater values were recorded as this one
    warm_up_minutes: int  # of a workload that does not say
    workload_keys: frozenset[str]
    refuses_unknown_keys: bool  # in a workload


def load_profile(name: str) -> Profile:
    """Return a dialect's profile.

    Raises:
        PlanError: there is none of this name; the message lists the known ones.
    """
    profile: Profile = plugins.load(PACKAGE, name).PROFILE
    return profile


def recognise_dialect(keys: frozenset[str]) -> str:
    """Return the name of the dialect in which a result with these keys is written."""
    return next(name for name in plugins.names(PACKAGE) if _dialect_module(name).recognises(keys))


def all_facts() -> frozenset[str]:
    """Return the single values of a result that any dialect knows."""
    return frozenset(fact for name in plugins.names(PACKAGE) for fact in load_profile(name).facts)


def _dialect_module(name: str) -> ModuleType:
    return plugins.load(PACKAGE, name)


# --- A result as series: latencies by sample, and what may explain them by second, under our own names.

SOURCE = "omb"
_QUANTILES = {"p50": "0.5", "p99": "0.99", "p99.9": "0.999"}
_BACKLOG = "backlog_messages"
_RATES = {
    "publish_rate_per_second": "sent_messages",
    "consume_rate_per_second": "received_messages",
}
_PARTS = 5  # of a sample, so that what lasts for a few samples has values enough to be judged


def latency_series(result: Result) -> dict[str, Series]:
    """Return the measured latencies by their names in the result; k counts samples, missing ones left out."""
    found = {}
    for family in (END_TO_END, PUBLISH):
        for statistic in _QUANTILES:
            name = statistic_name(family, statistic)
            values = result.samples.get(name, np.empty(0))
            here = np.flatnonzero(values > 0.0)  # NaN is not
            if here.size:
                found[name] = Series(_name(family, statistic), here, values[here])
    return found


def series_by_second(result: Result) -> dict[str, Series]:
    """Return latencies, rates and backlog by name; k counts seconds, several values a sample.

    Within a sample latencies and rates are the same; a backlog, told at its end, goes straight there.
    """
    begins = np.concatenate([[0.0], result.seconds])
    places = np.arange(result.seconds.size * _PARTS) / _PARTS
    k = np.unique(np.floor(np.interp(places, np.arange(begins.size), begins)).astype(np.int64))
    sample = np.searchsorted(result.seconds, k, side="right")
    told = {one.name: result.samples[name][sample] for name, one in latency_series(result).items()}
    told |= {
        series_name(SOURCE, metric): result.samples[name][sample]
        for name, metric in _RATES.items()
        if name in result.samples
    }
    backlog = result.samples.get(_BACKLOG, np.empty(0))
    known = np.flatnonzero(np.isfinite(backlog))
    if known.size:
        told[series_name(SOURCE, "lag_messages")] = np.interp(
            k, result.seconds[known], backlog[known]
        )
    return {name: _measured(name, k, values) for name, values in told.items()}


def second_of(result: Result, sample: int) -> int:
    """Return the second in which a sample begins; that of the one after the last is the end."""
    return int(result.seconds[sample - 1]) if sample else 0


def _measured(name: str, k: NDArray[np.int64], values: Floats) -> Series:
    here = np.isfinite(values)
    return Series(name, k[here], values[here])


def _name(family: Family, statistic: str) -> str:
    column = Column(family.metric, (("quantile", _QUANTILES[statistic]),), "seconds")
    return series_name(SOURCE, column.name)


# --- Takes numbers and lists of numbers out of parsed JSON; what is none is told with its key.

_NS = 1e9


def parse_number(value: object, name: str, key: str) -> float:
    """Return a number; null and "NaN" (as Jackson writes it) are NaN.

    Raises:
        PlanError: it is none, or infinite.
    """
    if value is None or value == "NaN":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a number")
    if (isinstance(value, float) and not math.isfinite(value)) or abs(value) > 2**63:
        raise PlanError(f"{name}: {key}: {_shown(value)} is out of range")
    return float(value)


def parse_numbers(value: object, name: str, key: str) -> NDArray[np.float64]:
    """Return a list of numbers, shape (n,).

    Raises:
        PlanError: it is no list, or one of its items is no number.
    """
    if not isinstance(value, list):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a list of numbers")
    return np.array(
        [parse_number(item, name, f"{key}[{at}]") for at, item in enumerate(value)],
        dtype=np.float64,
    )


def parse_percentile_map(
    value: object, name: str, key: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return percentiles ascending and their values, each of shape (m,).

    Raises:
        PlanError: it is no map of percentiles between 0 and 100 to numbers.
    """
    if not isinstance(value, Mapping):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a map of percentiles")
    pairs = sorted(
        (_percentile(text, name, key), parse_number(item, name, f"{key}.{text}"))
        for text, item in value.items()
    )
    block = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return block[:, 0], block[:, 1]


def whole_ns(values: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return seconds, to a whole nanosecond: so a number survives its way through ms or us and back."""
    rounded: NDArray[np.float64] = np.round(values * (_NS / per_second)) / _NS
    return rounded


def in_unit(seconds: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return the inverse of `whole_ns`."""
    scaled: NDArray[np.float64] = np.round(seconds * _NS) / (_NS / per_second)
    return scaled


def _percentile(text: str, name: str, key: str) -> float:
    try:
        found = float(text)
    except ValueError as error:
        raise PlanError(f"{name}: {key}: {text!r} is not a percentile") from error
    if not 0.0 <= found <= 100.0:  # noqa: PLR2004  # per cent
        raise PlanError(f"{name}: {key}: {text!r} does not lie between 0 and 100")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004  # a line's worth
