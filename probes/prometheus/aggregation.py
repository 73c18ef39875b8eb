"""Turns the series of a page into samples: rates, means, quantiles and aggregates over labels.

An aggregate over several series is returned only if the previous reading had the same series: a page that
lacks a line, or a counter that was reset, would look like a fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, count, islice, pairwise
from typing import NamedTuple, TypeVar

from probes.common.counters import Step, Steps
from probes.prometheus.name_map import Entry
from soak.core.model import Column
from soak.core.series import Labels

Key = TypeVar("Key", bound=Hashable)

MAX_GROUPS = 20_000  # whose series are remembered

Samples = list[tuple[Column, float]]
Member = tuple[str, Labels]
Position = tuple[int, Labels, float]
"""The number of a step, and the labels and value of its series."""

Values = Iterable[tuple[str, float]]
"""The label `quantile`, empty if there is none, and the value in the page's unit."""


def cumulative_counts(counts: Mapping[float, float]) -> dict[float, float]:
    """Return the counts up to each upper end, from the counts of each bucket."""
    ends = sorted(counts)
    return dict(zip(ends, accumulate(counts[end] for end in ends), strict=True))


def bucket_quantiles(
    up_to: Mapping[float, float], wanted: Iterable[float]
) -> list[tuple[float, float]]:
    """Return (quantile, value) as histogram_quantile of Prometheus, from counts up to each end.

    The last end is infinite. There is no quantile if nothing was counted, or if the counts cannot be those of
    one histogram. Values are taken to be spread evenly in a bucket; a quantile beyond the last finite end is
    that end, as a lower bound.
    """
    ends = sorted(up_to)
    counts = [up_to[end] for end in ends]
    is_histogram = all(low <= high for low, high in pairwise([0.0, *counts]))  # False with NaN, too
    if ends[-1:] != [math.inf] or ends == [math.inf]:
        return []
    if not is_histogram or not 0.0 < counts[-1] < math.inf:
        return []
    return [(at, _value_at_rank(ends, counts, at * counts[-1])) for at in wanted]


def _value_at_rank(ends: list[float], counts: list[float], rank: float) -> float:
    at = next(index for index, count in enumerate(counts) if count >= rank)
    if ends[at] == math.inf:
        return ends[at - 1]
    low_end, low = (ends[at - 1], counts[at - 1]) if at else (min(0.0, ends[0]), 0.0)
    share = (rank - low) / (counts[at] - low) if counts[at] > low else 1.0
    return low_end + (ends[at] - low_end) * share


def _sum(values: Iterable[float]) -> float:
    """Return the sum; NaN if there is none, as of opposite infinities."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return math.nan


_AGGREGATES: Mapping[str, Callable[[Iterable[float]], float]] = {
    "sum": _sum,
    "max": max,
    "min": min,
}


class _GroupMember(NamedTuple):
    """One series of a group: the role of its name, its labels, and its step."""

    part: str
    labels: Mapping[str, str]
    step: Step


class _Taken(NamedTuple):
    """A series that an entry takes: its step number, its own labels, these by our names, and its value."""

    at: int
    pairs: Labels
    labels: Mapping[str, str]
    value: float


class _Group:
    """The series that an entry of the name map aggregates to one value."""

    def __init__(self, entry: Entry, labels: Mapping[str, str]) -> None:
        self._entry = entry
        self._labels = labels
        self._values = _VALUES[entry.kind]
        self._columns: dict[str, Column] = {}
        self._members: list[tuple[str, Mapping[str, str], int]] = []
        self.is_known = True  # the previous reading had the same series
        self.is_misplaced = False  # a series has a value that none of this metric has

    def add(self, part: str, labels: Mapping[str, str], at: int) -> None:
        """Add the series of the reading's step number `at`."""
        self._members.append((part, labels, at))

    def samples(self, steps: Sequence[Step]) -> Samples:
        group = [_GroupMember(part, labels, steps[at]) for part, labels, at in self._members]
        entry = self._entry
        if entry.is_whole and not all(entry.may_have(one.step.value) for one in group):
            self.is_misplaced = True
            return []
        return [
            (self._column(quantile), value * entry.factor)
            for quantile, value in self._values(entry, group)
            if math.isfinite(value)
        ]

    def _column(self, quantile: str) -> Column:
        column = self._columns.get(quantile)
        if column is None:
            extra = {"quantile": quantile} if quantile else {}
            column = self._columns[quantile] = _column(self._entry, {**self._labels, **extra})
        return column


class Aggregator:
    """Makes the samples of one source, each with the labels `own`.

    `keep` names the labels of a series that are kept in every entry.
    The groups are computed again only if the page has other series than at the last reading.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        own: Labels,
        keep: Callable[[Mapping[str, str]], tuple[str, ...]] = lambda _: (),
        max_groups: int = MAX_GROUPS,
    ) -> None:
        self._entries = [(entry, entry.names()) for entry in entries]
        self._own = own
        self._keep = keep
        self._max_groups = max_groups
        self._members: dict[tuple[str, Labels], AbstractSet[Member]] = {}
        self._last: tuple[object, ...] = ()  # what the groups were computed from
        self._groups: list[_Group] = []

    def samples(
        self,
        steps: Steps,
        damaged: AbstractSet[str],
        copied: AbstractSet[str] = frozenset(),
    ) -> Samples:
        """Return the samples; an entry with a damaged name has none.

        Nor has one with a name that is `copied`: it is on the page and has nothing new. Later entries of its
        metric do not take its place.
        """
        if not steps:  # nothing new: a server scrapes less often than it is read
            return []
        shape = [(name, list(series)) for name, series in steps.items()]
        if (shape, damaged, copied) == self._last:
            for group in self._groups:
                group.is_known = True
        else:
            self._last = shape, damaged, copied
            self._groups = self._group(steps, damaged, copied)
        flat = [step for series in steps.values() for step in series.values()]
        samples = [
            sample for group in self._groups if group.is_known for sample in group.samples(flat)
        ]
        if any(group.is_misplaced for group in self._groups):
            self._last = ()  # the next reading finds the metric of each series again
        return samples

    def _group(
        self, steps: Steps, damaged: AbstractSet[str], copied: AbstractSet[str]
    ) -> list[_Group]:
        positions: dict[str, list[Position]] = {}
        at = count()
        for name, series in steps.items():
            positions[name] = [(next(at), labels, step.value) for labels, step in series.items()]
        found: dict[tuple[str, Labels], _Group] = {}
        waiting: set[str] = set()  # metrics whose first entry has nothing new
        for entry, all_names in self._entries:
            taken = _taken(entry, all_names, positions)
            for names in _present_names(entry, all_names, taken.keys() | damaged | copied):
                if not copied.isdisjoint(names):
                    waiting.add(entry.name)
                if entry.name in waiting or not damaged.isdisjoint(names):
                    break
                self._add_groups(entry, names, taken, found)
        surplus = len(self._members) - max(self._max_groups, len(found))
        for key in list(islice(self._members, max(0, surplus))):  # labels that come and go
            del self._members[key]
        return list(found.values())

    def _add_groups(
        self,
        entry: Entry,
        names: Mapping[str, str],
        taken: Mapping[str, Sequence[_Taken]],
        found: dict[tuple[str, Labels], _Group],
    ) -> None:
        """Add the groups of an entry, one for each combination of kept labels that no earlier entry has."""
        groups: dict[tuple[str, Labels], _Group] = {}
        members: dict[tuple[str, Labels], set[Member]] = {}
        for name, part in names.items():
            for at, pairs, labels, value in taken.get(name, ()):
                wanted = dict.fromkeys((*entry.labels, *self._keep(labels)))
                kept = tuple((label, labels[label]) for label in wanted if label in labels)
                key = entry.name, kept
                if key in found:
                    continue
                if key not in groups:
                    groups[key] = _Group(entry, dict((*self._own, *kept)))
                    members[key] = set()
                groups[key].add(part, labels, at)
                groups[key].is_misplaced |= not entry.may_have(value)
                members[key].add((name, pairs))
        for key, group in groups.items():
            if not group.is_misplaced:
                group.is_known = self._members.pop(key, members[key]) == members[key]
                self._members[key] = members[key]  # moves to the end: the oldest are dropped first
                found[key] = group


def _taken(
    entry: Entry,
    names: Iterable[str],
    positions: Mapping[str, Sequence[Position]],
) -> dict[str, list[_Taken]]:
    """Return the series that an entry takes by name; no name without one."""
    found: dict[str, list[_Taken]] = {}
    for name in names:
        for at, pairs, value in positions.get(name, ()):
            labels = entry.labels_of(pairs)
            if labels is not None:
                found.setdefault(name, []).append(_Taken(at, pairs, labels, value))
    return found


def _present_names(
    entry: Entry, names: Mapping[str, str], present: AbstractSet[str]
) -> list[dict[str, str]]:
    """Return the names of an entry that exist, in their order, those that belong together as one."""
    if entry.kind == "mean":
        both = [
            {f"{spelling}_{part}": part for part in ("sum", "count")}
            for spelling in entry.spellings
        ]
        return [one for one in both if one.keys() <= present]
    found = {name: part for name, part in names.items() if name in present}
    bucketed = {name: part for name, part in found.items() if name in entry.buckets.values()}
    each = [{name: part} for name, part in found.items() if name not in bucketed]
    return [bucketed | one for one in each or [{}] if bucketed or one]


def _gauge(entry: Entry, group: Sequence[_GroupMember]) -> Values:
    values = [one.step.value for one in group]
    if entry.fold != "sum":  # a quantile of nothing has no part in the greatest or the least
        values = [value for value in values if not math.isnan(value)]
    return [("", _AGGREGATES[entry.fold](values))] if values else []


def _counter(entry: Entry, group: Sequence[_GroupMember]) -> Values:
    rates = [
        one.step.growth / one.step.seconds
        for one in group
        if one.step.growth is not None and one.step.seconds > 0
    ]
    return [("", _AGGREGATES[entry.fold](rates))] if len(rates) == len(group) else []


def _mean(_entry: Entry, group: Sequence[_GroupMember]) -> Values:
    grown = _grown(group, [one.part for one in group])
    return [("", grown["sum"] / grown["count"])] if grown.get("count") and "sum" in grown else []


def _histogram(entry: Entry, group: Sequence[_GroupMember]) -> Values:
    try:
        ends = [float(one.labels.get("le", "")) for one in group]
    except ValueError:
        return []
    return _named(bucket_quantiles(_grown(group, ends), entry.quantiles))


def _window(entry: Entry, group: Sequence[_GroupMember]) -> Values:
    counts: dict[float, float] = {}
    for one in group:
        text = (
            one.labels.get("quantile", "").rpartition("_")[2] if one.part == "value" else one.part
        )
        try:
            end = float(text)
        except ValueError:
            return []
        counts[end] = counts.get(end, 0.0) + one.step.value
    if not all(count >= 0 for count in counts.values()):
        return []
    return _named(bucket_quantiles(cumulative_counts(counts), entry.quantiles))


_VALUES: Mapping[str, Callable[[Entry, Sequence[_GroupMember]], Values]] = {
    "gauge": _gauge,
    "counter": _counter,
    "mean": _mean,
    "histogram": _histogram,
    "window": _window,
}


def _grown(group: Sequence[_GroupMember], keys: Sequence[Key]) -> dict[Key, float]:
    """Return the growth summed by key; nothing if that of one series is unknown."""
    found: dict[Key, float] = {}
    for one, key in zip(group, keys, strict=True):
        if one.step.growth is None:
            return {}
        found[key] = found.get(key, 0.0) + one.step.growth
    return found


def _named(values: Iterable[tuple[float, float]]) -> Values:
    return [(f"{at:g}", value) for at, value in values]


def _column(entry: Entry, labels: Mapping[str, str]) -> Column:
    return Column(entry.name, tuple(sorted(labels.items())), entry.unit, entry.lag_seconds)
