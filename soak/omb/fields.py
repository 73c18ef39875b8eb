"""The benchmark's field names, what each measures, and its name here."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STATISTICS = {"Avg": "mean", "Min": "min", "Max": "max"}
_SUFFIXES = {name: suffix for suffix, name in _STATISTICS.items()}

COUNTS = {
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

WHOLE = frozenset({"backlog", "sent", "consumed", "publishFailed", "consumeFailed"})
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


def parse(key: str) -> Field | None:
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


def suffix(statistic: str) -> str:
    """Return how a field says it: `p99.9` is `999pct`."""
    return _SUFFIXES.get(statistic) or f"{statistic[1:].replace('.', '')}pct"


def percentile(statistic: str) -> float:
    """Return 99.9 for `p99.9`."""
    return float(statistic[1:])


def _statistic(text: str) -> str:
    if text in _STATISTICS:
        return _STATISTICS[text]
    digits = text.removesuffix("pct")
    return f"p{digits[:2]}" + (f".{digits[2:]}" if digits[2:] else "")
