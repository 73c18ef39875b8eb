"""How large an incident was: its latencies before, at the worst and after, and how many messages it slowed.

Read from the journals: the source of the worst change for its quantiles, every source for the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from detectors.minimum_effect import Config as MinimumEffect
from soak.core import wording
from soak.core.model import THRESHOLDS_SECONDS, Column, Finding
from soak.core.series import SeriesId, parse_series
from soak.store.journal.history import MAX_WINDOW_SECONDS, History, SourceSeconds
from soak.store.journal.reader import sources

AROUND_SECONDS = 60
"""The levels before and after are medians of so many seconds on either side."""
LATE_SECONDS = 10
"""What waited in an outage comes within so many seconds after it, and is a part of its size."""
_QUANTILES: Mapping[str, str] = {"0.5": "p50", "0.99": "p99", "0.999": "p99.9", "max": "max"}
_LATENCY, _ABOVE = "_latency_seconds", "_latency_above_messages"
_NOT_COUNTED_BY = ("quantile", "leader")
_MEASURED = {"publish": "acked_messages", "end_to_end": "received_messages"}
_OF_OUTAGE = {
    wording.ACKNOWLEDGEMENTS_STOPPED: f"publish{_LATENCY}",
    wording.ACKNOWLEDGEMENTS_SHORT: f"publish{_LATENCY}",
    wording.DELIVERY_STOPPED: f"end_to_end{_LATENCY}",
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """A latency in seconds before an incident, in its worst second, and after it; NaN: not known."""

    before: float
    worst: float
    after: float


@dataclass(frozen=True, slots=True)
class IncidentSize:
    """The size of an incident. `levels` are by `p50`, `p99`, `p99.9` and `max`, those that were measured."""

    levels: Mapping[str, Level]
    limit: float  # seconds; a message above it was slow
    slow_messages: int | None  # of all sources that measure this latency; None: not counted
    seconds: int  # that the incident lasted, so far where it is open
    latency: str = ""  # `publish` or `end_to_end`
    messages: int | None = None  # whose latency was measured meanwhile; None: not counted
    later_seconds: int = 0  # after its end, whose messages count as well: they waited in it

    def lines(self) -> list[str]:
        """Return a line for each latency, and one for the messages."""
        found = []
        for name, level in self.levels.items():
            before, worst, after = (
                wording.amount(one, "seconds") for one in (level.before, level.worst, level.after)
            )
            end = "" if np.isnan(level.after) else f", now {after}"
            found.append(f"{name} {before} before, {worst} in the worst second{end}")
        return [*found, *filter(None, [self.messages_text()])]

    def messages_text(self) -> str:
        """Return how many were slow, of those that came from the onset to the end or so far, or ""."""
        if self.slow_messages is None:
            return ""
        slow = wording.counted(self.slow_messages, "message")
        if self.messages is not None and self.messages >= self.slow_messages:
            slow = f"{self.slow_messages:,} of {wording.counted(self.messages, 'message')}"
        limit = wording.amount(self.limit, "seconds")
        lasted = wording.span(self.seconds + self.later_seconds)
        later = f", {self.later_seconds} s of them after its end," if self.later_seconds else ""
        return (
            f"{slow} in the {lasted} from the onset on{later} took longer than {limit}, the level before "
            "plus the smallest step"
        )

    def to_json(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "limit_seconds": self.limit,
            "slow_messages": self.slow_messages,
            "levels": {
                name: {
                    part: None if np.isnan(value) else value
                    for part, value in (
                        ("before", level.before),
                        ("worst", level.worst),
                        ("after", level.after),
                    )
                }
                for name, level in self.levels.items()
            },
        }


def incident_size(
    history: History, finding: Finding, end_k: int, effect: MinimumEffect
) -> IncidentSize | None:
    """Return the size of a latency incident that was resolved, or lasted until second `end_k`.

    Slow is a message above the level before by the minimum effect, to the next threshold of the journals.
    None where its latency is no histogram, nothing of it was recorded, or an outage is not over. Reads some
    2 s an hour.
    """
    sought = _sought(history, finding, end_k, effect)
    if sought is None:
        return None
    name, last_k, limit = sought
    rows: dict[str, list[tuple[NDArray[np.int64], Floats]]] = {one: [] for one in _QUANTILES}
    slow: list[int] = []
    messages: list[int] = []
    newest_k = -1  # of what was recorded of the messages
    alike = [one for one in sources(history.journal) if _kind_of(one) == _kind_of(name.source)]
    for first, last in _spans(
        max(0, finding.onset_k - AROUND_SECONDS), last_k + AROUND_SECONDS, MAX_WINDOW_SECONDS
    ):
        for source, seconds in history.window(
            first, last, with_counts=True, of=alike
        ).sources.items():
            newest_k = max([newest_k, *seconds.k[seconds.k < last_k].tolist()[-1:]])
            slow += _slow(seconds, name, limit, finding.onset_k, last_k)
            messages += _messages(seconds, name, finding.onset_k, last_k)
            if source == name.source:
                for quantile, found in rows.items():
                    at = _place(seconds.columns, name, quantile)
                    if at is not None:
                        found.append((seconds.k, seconds.values[:, at]))
    levels = {
        _QUANTILES[quantile]: _level(
            np.concatenate([k for k, _ in many]),
            np.concatenate([values for _, values in many]),
            finding.onset_k,
            last_k,
            is_resolved=finding.resolved_k is not None,
        )
        for quantile, many in rows.items()
        if many
    }
    if finding.kind == "outage":  # where all messages failed no latency is known
        levels = {quantile: one for quantile, one in levels.items() if not np.isnan(one.worst)}
    if not levels:
        return None
    own = _QUANTILES.get(name.label("quantile"), "")
    if own in levels and np.isnan(levels[own].worst):  # only waits are known of it by now
        levels[own] = replace(levels[own], worst=finding.after)
    end_k = end_k if finding.resolved_k is None else min(finding.resolved_k, end_k)
    slow_messages = sum(slow) if slow else None
    return IncidentSize(
        levels,
        limit,
        slow_messages,
        max(0, end_k - finding.onset_k),
        name.metric.removesuffix(_LATENCY),
        sum(messages) if messages else None,
        max(0, newest_k + 1 - end_k) if finding.kind == "outage" else 0,
    )


def _sought(
    history: History, finding: Finding, end_k: int, effect: MinimumEffect
) -> tuple[SeriesId, int, float] | None:
    """Return the latency that an incident is about, the end of its seconds, and from where on one is slow."""
    name = parse_series(finding.series)
    last_k = end_k if finding.resolved_k is None else min(finding.resolved_k, end_k)
    if finding.kind != "outage":
        is_latency = name.metric.endswith(_LATENCY)
        return (name, last_k, _limit(finding.before, effect)) if is_latency else None
    latency = latency_of_outage(finding.series)
    if latency is None or finding.resolved_k is None:
        return None
    before = _usual(history, latency, finding.onset_k)
    return None if np.isnan(before) else (latency, last_k + LATE_SECONDS, _limit(before, effect))


def _kind_of(source: str) -> str:
    return source.partition(".")[0]


def _spans(first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    return pairwise([*range(first, last, most), last])


def latency_of_outage(series: str) -> SeriesId | None:
    """Return the latency, without a quantile, of what waits in an outage; None: it is of none."""
    name = parse_series(series)
    metric = _OF_OUTAGE.get(name.metric)
    return None if metric is None else replace(name, metric=metric)


def _usual(history: History, name: SeriesId, onset_k: int) -> float:
    """Return the p99 of a latency before an outage; NaN where it is not known."""
    found = history.window(
        max(0, onset_k - AROUND_SECONDS), onset_k, with_counts=True, of=[name.source]
    )
    seconds = found.sources.get(name.source)
    at = None if seconds is None else _place(seconds.columns, name, "0.99")
    return np.nan if seconds is None or at is None else _median(seconds.values[:, at])


def _limit(before: float, effect: MinimumEffect) -> float:
    """Return the lowest threshold that lies above a level by the minimum effect."""
    above = (one for one in THRESHOLDS_SECONDS if one > before and effect.is_worth(before, one))
    return next(above, THRESHOLDS_SECONDS[-1])


def _slow(
    seconds: SourceSeconds, name: SeriesId, limit: float, first_k: int, last_k: int
) -> list[int]:
    """Return the number of slow messages of a source, of all leaders together; empty where it counts none."""
    metric = name.metric.removesuffix(_LATENCY) + _ABOVE
    own = {key: value for key, value in name.labels if key not in _NOT_COUNTED_BY}
    wanted = {**own, "threshold": f"{limit:g}"}
    at = [
        i
        for i, column in enumerate(seconds.columns)
        if column.metric == metric and dict(column.labels) == wanted
    ]
    within = (seconds.k >= first_k) & (seconds.k < last_k)
    return [int(np.nansum(seconds.values[within][:, at]))] if at else []


def _messages(seconds: SourceSeconds, name: SeriesId, first_k: int, last_k: int) -> list[int]:
    """Return the number of messages of a source whose latency this is; empty where it counts none."""
    counted = _MEASURED.get(name.metric.removesuffix(_LATENCY))
    at = [i for i, one in enumerate(seconds.columns) if one.metric == counted and not one.labels]
    within = (seconds.k >= first_k) & (seconds.k < last_k)
    return [int(np.nansum(seconds.values[within][:, at]))] if at else []


def _place(columns: tuple[Column, ...], name: SeriesId, quantile: str) -> int | None:
    wanted = {**dict(name.labels), "quantile": quantile}
    return next(
        (
            i
            for i, column in enumerate(columns)
            if column.metric == name.metric and dict(column.labels) == wanted
        ),
        None,
    )


def _level(
    k: NDArray[np.int64],
    values: Floats,
    first_k: int,
    last_k: int,
    *,
    is_resolved: bool,
) -> Level:
    during = values[(k >= first_k) & (k < last_k) & np.isfinite(values)]
    worst = float(during.max()) if during.size else np.nan
    before = _median(values[(k < first_k) & (k >= first_k - AROUND_SECONDS)])
    after = _median(values[(k >= last_k) & (k < last_k + AROUND_SECONDS)])
    return Level(before, worst, after if is_resolved else np.nan)


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else np.nan
