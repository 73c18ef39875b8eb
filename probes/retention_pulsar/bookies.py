"""Follows the space that a bookie frees, from its metrics page.

The values of all its folders are summed. If the line of one folder is missing from a page, there is no sum:
once the line is back, the folder would seem to have freed at once all that it ever freed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from probes.common.exposition import Page
from soak.core.errors import ProbeError
from soak.core.model import Column, Event
from soak.core.series import Labels
from soak.core.units import SECOND_NS

RECLAIMED = "space_reclaimed"

_PREFIXES = ("bookie_", "bookie_gc_")  # the second with InterleavedLedgerStorage
_BY = {
    "deletion": ("RECLAIMED_DELETION_SPACE_BYTES",),
    "compaction": ("RECLAIMED_COMPACTION_SPACE_BYTES",),
}
_DELETED = ("DELETED_LEDGER_TOTAL", "DELETED_LEDGER_COUNT")  # newer and older name
_COUNTERS = {**_BY, "deleted": _DELETED}
_GAUGES = {
    "bookie_ACTIVE_ENTRY_LOG_TOTAL": "files",
    "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES": "bytes",
    "bookie_ACTIVE_LEDGER_TOTAL": "ledgers",
}
NAMES = frozenset(
    prefix + name
    for prefix in _PREFIXES
    for name in (
        *(name for names in _BY.values() for name in names),
        *_DELETED,
        *(gauge.removeprefix("bookie_") for gauge in _GAUGES),
    )
)

Samples = list[tuple[Column, float]]
Series = Mapping[Labels, float]
"""Values by the labels of a folder."""


@dataclass(slots=True)
class Bookie:
    """One bookie. `trimmed_ns` is the time of the first trim after which no space has been freed yet."""

    name: str
    trimmed_ns: int | None = None
    _last: dict[str, Series] = field(default_factory=dict)
    _asked_ns: int = 0

    def take(
        self, page: Page, asked_ns: int, answered_ns: int
    ) -> tuple[Samples, Samples, list[Event]]:
        """Return the growth since the last page, the current levels, and the events about freed space.

        The first page has no growth, nor has a counter that was reset.

        Raises:
            ProbeError: the page is not that of a bookie, or its lines are damaged.
        """
        counters = {kind: _series(page, names) for kind, names in _COUNTERS.items()}
        if not any(counters.values()):
            raise ProbeError(f"the page of {self.name} has no metrics of a bookie's storage")
        gauges = {name: _series(page, (name.removeprefix("bookie_"),)) for name in _GAUGES}
        last, self._last = self._last, {**counters, **gauges}
        since_ns, self._asked_ns = self._asked_ns, asked_ns
        growth = {kind: _growth(last.get(kind, {}), now) for kind, now in counters.items()}
        grown = {kind: size for kind, size in growth.items() if size is not None}
        events = [
            self._event(kind, grown[kind], since_ns, answered_ns)
            for kind in _BY
            if grown.get(kind, 0) > 0
        ]
        if events:
            self.trimmed_ns = None
        whole = {
            name: sum(now.values())
            for name, now in gauges.items()
            if now and now.keys() == last.get(name, now).keys()
        }
        return self._sums(grown), self._newest(whole), events

    def _event(self, kind: str, size: float, since_ns: int, at_ns: int) -> Event:
        fields: dict[str, str | int | float] = {"bookie": self.name, "bytes": int(size), "by": kind}
        if self.trimmed_ns is not None:
            fields["lag_seconds"] = round((at_ns - self.trimmed_ns) / SECOND_NS, 3)
        return Event(RECLAIMED, at_ns, since_ns, fields)

    def _sums(self, grown: Mapping[str, float]) -> Samples:
        labels = (("bookie", self.name),)
        found: Samples = []
        freed = [grown[kind] for kind in _BY if kind in grown]
        if freed:
            found.append((Column("retention_reclaimed_bytes", labels, "bytes"), sum(freed)))
        if "compaction" in grown:  # no compaction is a measured zero
            found.append(
                (Column("retention_compacted_bytes", labels, "bytes"), grown["compaction"])
            )
        if "deleted" in grown:
            found.append((Column("retention_dropped_ledgers", labels, "ledgers"), grown["deleted"]))
        return found

    def _newest(self, whole: Mapping[str, float]) -> Samples:
        labels = (("bookie", self.name),)
        return [(Column(name, labels, _GAUGES[name]), value) for name, value in whole.items()]


def _growth(before: Series, now: Series) -> float | None:
    """Return the growth over all folders; None if one is missing, is new or was reset."""
    if not now or before.keys() != now.keys():
        return None
    steps = [now[labels] - before[labels] for labels in now]
    return sum(steps) if all(0 <= step < math.inf for step in steps) else None


def _series(page: Page, names: tuple[str, ...]) -> Series:
    """Return the values of a bookie's folders under the first of these names that the page has."""
    for full in (prefix + name for name in names for prefix in _PREFIXES):
        if full in page.damaged:
            raise ProbeError(f"a line of {full} is damaged")
        series = page.series.get(full)
        if series:
            return series
    return {}
