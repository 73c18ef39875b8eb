"""A benchmark result in one form for all dialects: its fields, units, dialect profiles and series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Column, Series
from soak.core.plan import plugins
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
"""Lists with an entry for each sample, apart from latencies."""

WHOLE_FIELDS = frozenset({"backlog", "sent", "consumed", "publishFailed", "consumeFailed"})
"""Those of them that hold whole numbers."""

Floats = NDArray[np.float64]

PACKAGE = "soak.omb.dialects"

PERCENTILES = ("p50", "p75", "p95", "p99", "p99.9", "p99.99")
SUMMARY = ("mean", *PERCENTILES, "max")
WITH_MIN = ("min", *SUMMARY)
SCHEDULE_STATISTICS = ("min", "p50", "p75", "p99", "max")

NOMINAL_STEP_MILLIS = 10_000

SOURCE = "omb"
_QUANTILES = {"p50": "0.5", "p99": "0.99", "p99.9": "0.999"}
_BACKLOG = "backlog_messages"
_RATES = {
    "publish_rate_per_second": "sent_messages",
    "consume_rate_per_second": "received_messages",
}
_PARTS = 5  # of a sample, so that a few samples have values enough for the causes


@dataclass(frozen=True, slots=True)
class Family:
    """One latency: its stem in field names, its name in soakd, how many of its units make a second."""

    stem: str
    name: str
    per_second: int
    side: str  # the rate that shows whether anything was measured

    @property
    def metric(self) -> str:
        return f"{self.name}_seconds"

    @property
    def aggregated(self) -> str:
        """Return the stem of the fields about the whole run."""
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
    """The meaning of a latency field; `statistic` is "" for a map of percentiles."""

    family: Family
    statistic: str
    is_total: bool

    @property
    def name(self) -> str:
        return statistic_name(self.family, self.statistic)


def parse_field(key: str) -> Field | None:
    """Return the meaning of a latency field, or None for any other key."""
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
    """Return the suffix of field names for a statistic: `999pct` for `p99.9`."""
    return _SUFFIXES.get(statistic) or f"{statistic[1:].replace('.', '')}pct"


def _statistic(text: str) -> str:
    if text in _STATISTICS:
        return _STATISTICS[text]
    digits = text.removesuffix("pct")
    return f"p{digits[:2]}" + (f".{digits[2:]}" if digits[2:] else "")


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A latency over the whole run: `percentiles` (0 to 100) ascending, shape (m,); `seconds` at each."""

    percentiles: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One run. `seconds` and each of `samples` have shape (n,), one entry a sample.

    Names end with the unit: `publish_latency_p99_seconds`, `publish_rate_per_second`,
    `backlog_messages`. `seconds` are the ends of the samples, counted from the start of the first.
    """

    dialect: str
    workload: str
    driver: str
    facts: Mapping[
        str, str | int | float
    ]  # other values of the file about the run, by the benchmark's names
    step_seconds: float  # nominal length of a sample
    seconds: Floats
    samples: Mapping[str, Floats]
    totals: Mapping[str, float]  # of the whole run, by the names of `samples`
    distributions: Mapping[str, Distribution]  # by latency, such as `publish_latency_seconds`
    remarks: tuple[
        str, ...
    ] = ()  # on the quality of the numbers: rebuilt times, caps, missing samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The fields that a dialect writes into a result, and its defaults for a workload."""

    facts: tuple[str, ...]  # single values of a result, except workload and driver
    counts: tuple[str, ...]  # lists that are not latencies
    latencies: Mapping[Family, tuple[str, ...]]  # lists of statistics a sample
    totals: Mapping[Family, tuple[str, ...]]  # the same over the whole run, each with its map
    caps_seconds: Mapping[Family, float]  # greater values were recorded as this one
    warm_up_minutes: int  # the default of a workload
    workload_keys: frozenset[str]
    refuses_unknown_keys: bool  # in a workload


def dialects() -> list[str]:
    return plugins.names(PACKAGE)


def load_profile(name: str) -> Profile:
    """Return the profile of a dialect.

    Raises:
        PlanError: there is no such dialect; the message lists the known ones.
    """
    profile: Profile = plugins.load(PACKAGE, name).PROFILE
    return profile


def recognise_dialect(keys: frozenset[str]) -> str:
    """Return the name of the dialect of a result with these keys."""
    return next(name for name in dialects() if plugins.load(PACKAGE, name).recognises(keys))


def all_facts() -> frozenset[str]:
    """Return the names of single values in results of any dialect."""
    return frozenset(fact for name in dialects() for fact in load_profile(name).facts)


def latency_series(result: Result) -> dict[str, Series]:
    """Return the measured latencies by their names in the result; k counts samples, without missing ones."""
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
    """Return latencies, rates and backlog by name; k counts seconds, with several values for a sample.

    Latencies and rates are constant within a sample; the backlog, known at its ends, is interpolated.
    """
    begins = np.concatenate([[0.0], result.seconds])
    places = np.arange(result.seconds.size * _PARTS) / _PARTS
    k = np.unique(np.floor(np.interp(places, np.arange(begins.size), begins)).astype(np.int64))
    sample = np.searchsorted(result.seconds, k, side="right")
    found = {one.name: result.samples[name][sample] for name, one in latency_series(result).items()}
    found |= {
        series_name(SOURCE, metric): result.samples[name][sample]
        for name, metric in _RATES.items()
        if name in result.samples
    }
    backlog = result.samples.get(_BACKLOG, np.empty(0))
    known = np.flatnonzero(np.isfinite(backlog))
    if known.size:
        found[series_name(SOURCE, "lag_messages")] = np.interp(
            k, result.seconds[known], backlog[known]
        )
    return {name: _measured(name, k, values) for name, values in found.items()}


def second_of(result: Result, sample: int) -> int:
    """Return the second in which a sample starts; for the sample after the last, the end."""
    return int(result.seconds[sample - 1]) if sample else 0


def _measured(name: str, k: NDArray[np.int64], values: Floats) -> Series:
    here = np.isfinite(values)
    return Series(name, k[here], values[here])


def _name(family: Family, statistic: str) -> str:
    column = Column(family.metric, (("quantile", _QUANTILES[statistic]),), "seconds")
    return series_name(SOURCE, column.name)
