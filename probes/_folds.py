"""Steps of a page's series to samples under our names, one entry of a name map after another.

A number over several series is given only when they are those of the reading before: a page that lacks
a line, or a counter that began anew, would else look like a fall. Until then such a metric is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from probes._buckets import cumulative, quantiles
from probes._name_map import Entry
from probes._steps import Step, Steps
from soak.core.model import Column, Labels

Key = TypeVar("Key", bound=Hashable)

MOST_GROUPS = 20_000  # of which the series are remembered

Samples = list[tuple[Column, float]]
Member = tuple[str, Labels]


def _sum(values: Iterable[float]) -> float:
    """Return the sum; NaN where there is none, as of two infinities."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return math.nan


_FOLDS: Mapping[str, Callable[[Iterable[float]], float]] = {
    "sum": _sum,
    "max": max,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class _One:
    """One series of a group: the part that its name plays, its labels, and what it did."""

    part: str
    labels: Mapping[str, str]
    step: Step


class Folds:
    """Makes samples of one source. Each gets the labels `own`; those in `keep` stay apart in every entry."""

    def __init__(self, entries: Sequence[Entry], own: Labels, keep: tuple[str, ...] = ()) -> None:
        self._entries = [(entry, entry.names()) for entry in entries]
        self._own = own
        self._keep = keep
        self._members: dict[tuple[str, Labels], AbstractSet[Member]] = {}

    def samples(self, steps: Steps, damaged: AbstractSet[str]) -> Samples:
        """Return what can be said; a name in `damaged` makes no sample."""
        found: Samples = []
        for entry, all_names in self._entries:
            names = _names_here(entry, all_names, steps, damaged)
            if not damaged.isdisjoint(names):
                continue
            for kept, group in self._groups(entry, names, steps).items():
                place = entry.name, kept
                if self._members.get(place, group.keys()) == group.keys():
                    found += self._of_group(entry, kept, list(group.values()))
                self._members[place] = group.keys()
        if len(self._members) > MOST_GROUPS:  # labels that come and go
            self._members.clear()
        return found

    def _groups(
        self, entry: Entry, names: Mapping[str, str], steps: Steps
    ) -> dict[Labels, dict[Member, _One]]:
        """Return the series meant by an entry, by the labels that are kept."""
        groups: dict[Labels, dict[Member, _One]] = {}
        wanted = (*entry.labels, *self._keep)
        for name, part in names.items():
            for pairs, step in steps.get(name, {}).items():
                labels = dict(pairs)
                if entry.takes(labels):
                    kept = tuple((key, labels[key]) for key in wanted if key in labels)
                    groups.setdefault(kept, {})[name, pairs] = _One(part, labels, step)
        return groups

    def _of_group(self, entry: Entry, kept: Labels, group: Sequence[_One]) -> Samples:
        labels = {**dict(self._own), **dict(kept)}
        values = _VALUES[entry.kind](entry, group)
        return [
            (_column(entry, labels | extra), value * entry.factor)
            for extra, value in values
            if math.isfinite(value)
        ]


def _names_here(
    entry: Entry, names: Mapping[str, str], steps: Steps, damaged: AbstractSet[str]
) -> dict[str, str]:
    """Return the names to take: of several spellings the first that is there, and all that belong to it."""
    here = {name: part for name, part in names.items() if name in steps or name in damaged}
    if entry.kind == "mean":
        for spelling in entry.spellings:
            both = {f"{spelling}_{part}": part for part in ("sum", "count")}
            if here.keys() >= both.keys():
                return both
        return {}
    bucketed = {name: part for name, part in here.items() if name in entry.buckets.values()}
    first = next(((name, part) for name, part in here.items() if name not in bucketed), None)
    return bucketed | dict([first] if first else [])


Values = Iterable[tuple[dict[str, str], float]]
"""Labels that are added, and the value in the page's unit."""


def _gauge(entry: Entry, group: Sequence[_One]) -> Values:
    values = [one.step.value for one in group]
    return [] if any(map(math.isnan, values)) else [({}, _FOLDS[entry.fold](values))]


def _counter(entry: Entry, group: Sequence[_One]) -> Values:
    rates = [
        one.step.growth / one.step.seconds
        for one in group
        if one.step.growth is not None and one.step.seconds > 0
    ]
    return [({}, _FOLDS[entry.fold](rates))] if len(rates) == len(group) else []


def _mean(_entry: Entry, group: Sequence[_One]) -> Values:
    grown = _grown(group, [one.part for one in group])
    return [({}, grown["sum"] / grown["count"])] if grown.get("count") else []


def _histogram(entry: Entry, group: Sequence[_One]) -> Values:
    try:
        ends = [float(one.labels.get("le", "")) for one in group]
    except ValueError:
        return []
    return _named(quantiles(_grown(group, ends), entry.quantiles))


def _window(entry: Entry, group: Sequence[_One]) -> Values:
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
    return _named(quantiles(cumulative(counts), entry.quantiles))


_VALUES: Mapping[str, Callable[[Entry, Sequence[_One]], Values]] = {
    "gauge": _gauge,
    "counter": _counter,
    "mean": _mean,
    "histogram": _histogram,
    "window": _window,
}


def _grown(group: Sequence[_One], keys: Sequence[Key]) -> dict[Key, float]:
    """Return growth summed by key; nothing when that of one series is not known."""
    found: dict[Key, float] = {}
    for one, key in zip(group, keys, strict=True):
        if one.step.growth is None:
            return {}
        found[key] = found.get(key, 0.0) + one.step.growth
    return found


def _named(values: Iterable[tuple[float, float]]) -> Values:
    return [({"quantile": f"{at:g}"}, value) for at, value in values]


def _column(entry: Entry, labels: Mapping[str, str]) -> Column:
    return Column(entry.name, tuple(sorted(labels.items())), entry.unit, entry.lag_seconds)
