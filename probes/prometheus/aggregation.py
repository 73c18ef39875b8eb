"""Turns the series of a page into samples: rates, means, quantiles and aggregates over labels."""

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


def cumulative_counts(counts: Mapping[float, float]) -> dict[float, float]:
    """Return counts up to each upper end from the counts of each bucket alone."""
    ends = sorted(counts)
    return dict(zip(ends, accumulate(counts[end] for end in ends), strict=True))


def bucket_quantiles(
    up_to: Mapping[float, float], wanted: Iterable[float]
) -> list[tuple[float, float]]:
    """Return (quantile, value) from the counts up to each upper end, the last of which is infinite.

    Nothing when nothing was counted, or when the counts cannot be those of one histogram. Inside a bucket the
    counts are taken to be even; a quantile beyond the last finite end gives that end: it is at least that.
    """
    ends = sorted(up_to)
    counts = [up_to[end] for end in ends]
    is_one = all(low <= high for low, high in pairwise([0.0, *counts]))  # False with NaN, too
    if len(ends) < 2 or ends[-1] != math.inf or not is_one or not 0.0 < counts[-1] < math.inf:  # noqa: PLR2004  # a finite end and the infinite one
        return []
    return [(at, _value_at_rank(ends, counts, at * counts[-1])) for at in wanted]


def _value_at_rank(ends: list[float], counts: list[float], rank: float) -> float:
    at = next(index for index, count in enumerate(counts) if count >= rank)
    if ends[at] == math.inf:
        return ends[at - 1]
    low_end, low = (ends[at - 1], counts[at - 1]) if at else (min(0.0, ends[0]), 0.0)
    share = (rank - low) / (counts[at] - low) if counts[at] > low else 1.0
    return low_end + (ends[at] - low_end) * share


# --- Steps of a page's series to samples under our names, one entry of a name map after another.
# A number over several series is given only when they are those of the reading before: a page that lacks
# a line, or a counter that began anew, would else look like a fall. Until then such a metric is missing.

Key = TypeVar("Key", bound=Hashable)

MAX_GROUPS = 20_000  # of which the series are remembered

Samples = list[tuple[Column, float]]
Member = tuple[str, Labels]
SeriesLayout = list[tuple[str, list[Labels]]]
"""The series of a reading by name, in its order."""


def _sum(values: Iterable[float]) -> float:
    """Return the sum; NaN where there is none, as of two infinities."""
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
    """One series of a group: the part that its name plays, its labels, and what it did."""

    part: str
    labels: Mapping[str, str]
    step: Step


class _Group:
    """The series that an entry makes one number of, in one place."""

    def __init__(self, entry: Entry, labels: Mapping[str, str]) -> None:
        self._entry = entry
        self._labels = labels
        self._values = _VALUES[entry.kind]
        self._columns: dict[str, Column] = {}
        self._members: list[tuple[str, Mapping[str, str], int]] = []
        self.is_known = True  # the reading before had the same series

    def add(self, part: str, labels: Mapping[str, str], at: int) -> None:
        """Take in the series that is the reading's step number `at`."""
        self._members.append((part, labels, at))

    def samples(self, steps: Sequence[Step]) -> Samples:
        group = [_GroupMember(part, labels, steps[at]) for part, labels, at in self._members]
        return [
            (self._column(quantile), value * self._entry.factor)
            for quantile, value in self._values(self._entry, group)
            if math.isfinite(value)
        ]

    def _column(self, quantile: str) -> Column:
        column = self._columns.get(quantile)
        if column is None:
            extra = {"quantile": quantile} if quantile else {}
            column = self._columns[quantile] = _column(self._entry, {**self._labels, **extra})
        return column


class Aggregator:
    """Makes samples of one source. Each gets the labels `own`; those in `keep` stay apart in every entry.

    What belongs together is worked out anew only when the page has other series than at the last reading.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        own: Labels,
        keep: tuple[str, ...] = (),
        most: int = MAX_GROUPS,
    ) -> None:
        self._entries = [(entry, entry.names()) for entry in entries]
        self._own = own
        self._keep = keep
        self._most = most
        self._members: dict[tuple[str, Labels], AbstractSet[Member]] = {}
        self._last: tuple[SeriesLayout, AbstractSet[str]] = [], frozenset()
        self._groups: list[_Group] = []

    def samples(self, steps: Steps, damaged: AbstractSet[str]) -> Samples:
        """Return what can be said; a name in `damaged` makes no sample."""
        if not steps:  # nothing new: a server is asked more often than it scrapes
            return []
        shape = [(name, list(series)) for name, series in steps.items()]
        if (shape, damaged) == self._last:
            for group in self._groups:
                group.is_known = True
        else:
            self._last = shape, damaged
            self._groups = self._laid_out(shape, damaged)
        flat = [step for series in steps.values() for step in series.values()]
        return [
            sample for group in self._groups if group.is_known for sample in group.samples(flat)
        ]

    def _laid_out(self, shape: SeriesLayout, damaged: AbstractSet[str]) -> list[_Group]:
        places: dict[str, list[tuple[int, Labels]]] = {}
        at = count()
        for name, series in shape:
            places[name] = [(next(at), labels) for labels in series]
        found: list[_Group] = []
        for entry, all_names in self._entries:
            names = _names_here(entry, all_names, places.keys(), damaged)
            if damaged.isdisjoint(names):
                found += self._groups_of(entry, names, places)
        surplus = len(self._members) - max(self._most, len(found))
        for place in list(islice(self._members, max(0, surplus))):  # labels that come and go
            del self._members[place]
        return found

    def _groups_of(
        self,
        entry: Entry,
        names: Mapping[str, str],
        places: Mapping[str, Sequence[tuple[int, Labels]]],
    ) -> Iterable[_Group]:
        """Return the groups of an entry, by the labels that are kept."""
        groups: dict[Labels, _Group] = {}
        members: dict[Labels, set[Member]] = {}
        wanted = (*entry.labels, *self._keep)
        for name, part in names.items():
            for at, pairs in places.get(name, ()):
                labels = dict(pairs)
                if not entry.takes(labels):
                    continue
                kept = tuple((key, labels[key]) for key in wanted if key in labels)
                if kept not in groups:
                    groups[kept] = _Group(entry, dict((*self._own, *kept)))
                    members[kept] = set()
                groups[kept].add(part, labels, at)
                members[kept].add((name, pairs))
        for kept, group in groups.items():
            place = entry.name, kept
            group.is_known = self._members.pop(place, members[kept]) == members[kept]
            self._members[place] = members[kept]  # behind those that were here before
        return groups.values()


def _names_here(
    entry: Entry, names: Mapping[str, str], there: AbstractSet[str], damaged: AbstractSet[str]
) -> dict[str, str]:
    """Return the names to take: of several spellings the first that is there, and all that belong to it."""
    here = {name: part for name, part in names.items() if name in there or name in damaged}
    if entry.kind == "mean":
        for spelling in entry.spellings:
            both = {f"{spelling}_{part}": part for part in ("sum", "count")}
            if here.keys() >= both.keys():
                return both
        return {}
    bucketed = {name: part for name, part in here.items() if name in entry.buckets.values()}
    first = next(((name, part) for name, part in here.items() if name not in bucketed), None)
    return bucketed | dict([first] if first else [])


Values = Iterable[tuple[str, float]]
"""The label `quantile`, empty where it has none, and the value in the page's unit."""


def _gauge(entry: Entry, group: Sequence[_GroupMember]) -> Values:
    values = [one.step.value for one in group]
    return [] if any(map(math.isnan, values)) else [("", _AGGREGATES[entry.fold](values))]


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
    """Return growth summed by key; nothing when that of one series is not known."""
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
