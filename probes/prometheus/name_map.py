"""Which metrics of a page are read, how each exporter spells them and what they become, as TOML files.

There is one file in `name_maps/` for each kind of page; a plan may name files of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from probes.common import toml_tables
from soak.core.errors import PlanError
from soak.core.plan.config import STRICT
from soak.core.series import Labels

FOLDER = Path(__file__).parent / "name_maps"

Kind = Literal["gauge", "counter", "mean", "histogram", "window"]
Aggregate = Literal["sum", "max", "min"]

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_RENAMED = "exported_"
"""What a scraper puts before the name of a label that it has itself."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Entry:
    """One of our metrics, and where its value comes from.

    Of several entries of one name, and of the spellings of one, what they give under the same labels comes
    from the first that the page has.

    gauge:     the value as it is.
    counter:   its growth a second.
    mean:      growth of `<spelling>_sum` divided by growth of `<spelling>_count`.
    histogram: quantiles of the growth of `<spelling>_bucket`, whose label `le` is a bucket's upper end.
    window:    quantiles over buckets that count the last window only and are not cumulative: `buckets` is the
               name of each bucket by its upper end, or the label `quantile` is a range `a_b`.
    """

    name: str  # that of the page if possible, without `_total` if it becomes a rate
    # Names on the page, any text in UTF-8.
    spellings: list[str] = field(default_factory=list)
    kind: Kind
    unit: str  # of the result
    factor: float = 1.0  # from the page's unit to ours
    labels: list[str] = field(
        default_factory=list
    )  # that are kept; all others are aggregated by `fold`
    where: dict[str, str | list[str]] = field(default_factory=dict)  # "": without this label
    # Label to a regular expression: series with a value that it matches whole are left out.
    unless: dict[str, str] = field(default_factory=dict)
    # Label of the page to ours: the `name` of a bean is a collector, `gc`.
    renames: dict[str, str] = field(default_factory=dict)
    # What the name on the page says, as labels: `_99thpercentile` is the quantile 0.99.
    adds: dict[str, str] = field(default_factory=dict)
    # A value with a fraction shows that another metric has the name on this page.
    is_whole: bool = False
    fold: Aggregate = "sum"
    quantiles: list[float] = field(default_factory=list)
    buckets: dict[str, str] = field(default_factory=dict)  # upper end in the page's unit -> name
    lag_seconds: float = 0.0  # by how much the page may show a change late
    # Reported as missing if the page does not have it; of several entries of one name that of the first.
    is_expected: bool = True

    def __post_init__(self) -> None:
        self._check_names()
        if self.kind in ("histogram", "window") and not self.quantiles:
            raise ValueError(f"quantiles must be named for a {self.kind}")
        if not all(0.0 < at < 1.0 for at in self.quantiles):
            raise ValueError("quantiles must lie between 0 and 1")
        if not (math.isfinite(self.factor) and self.factor):
            raise ValueError("factor must be a number other than 0")
        if not 0.0 <= self.lag_seconds < math.inf:
            raise ValueError("lag_seconds must be a finite number, not negative")
        if self.buckets and self.kind != "window":
            raise ValueError("buckets go with the kind window only")
        for label, pattern in self.unless.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"unless: {label}: {error}") from error
        for upper in self.buckets:
            if math.isnan(float(upper)):
                raise ValueError("the upper end of a bucket must be a number")

    def _check_names(self) -> None:
        if not _METRIC.fullmatch(self.name):
            raise ValueError(f"{self.name}: a metric's name must be letters, digits, '_' and ':'")
        on_page = (*self.spellings, *self.buckets.values())
        if not on_page:
            raise ValueError("spellings must name at least one metric of the page")
        if not all(name and name.isprintable() for name in on_page):
            raise ValueError(f"{self.name}: a name on the page must be printable text")

    def names(self) -> dict[str, str]:
        """Return the names that the page may have for it, each with its role.

        Counters come with and without `_total`: some exporters add it to each of them, some never do.
        """
        if self.kind == "counter":
            bare = [spelling.removesuffix("_total") for spelling in self.spellings]
            both = [one for name in bare for one in (f"{name}_total", name)]
            return dict.fromkeys((*self.spellings, *both), "value")
        if self.kind == "mean":
            return {f"{name}_{part}": part for name in self.spellings for part in ("sum", "count")}
        if self.kind == "histogram":
            return {f"{name}_bucket": "bucket" for name in self.spellings}
        ranges = dict.fromkeys(self.spellings, "value")
        return ranges | {name: upper for upper, name in self.buckets.items()}

    def may_have(self, value: float) -> bool:
        """Return whether a series of this metric may have this value; a NaN says nothing."""
        return not (self.is_whole and value % 1.0 > 0.0)

    def labels_of(self, series: Labels) -> dict[str, str] | None:
        """Return the labels of a series by our names, with those that are added.

        None if `where` does not select it, or `unless` leaves it out.
        """
        labels = dict(series)
        labels |= {
            key.removeprefix(_RENAMED): value for key, value in series if key.startswith(_RENAMED)
        }
        labels |= {ours: labels[key] for key, ours in self.renames.items() if key in labels}
        labels |= self.adds
        for key, wanted in self.where.items():
            found = labels.get(key, "")
            if found != wanted if isinstance(wanted, str) else found not in wanted:
                return None
        left_out = (
            re.fullmatch(pattern, labels.get(key, "")) for key, pattern in self.unless.items()
        )
        return None if any(left_out) else labels


def load(names: Iterable[str]) -> list[Entry]:
    """Return the entries of several maps, in order.

    Raises:
        PlanError: a map is missing, an entry in it is wrong, or entries of one name have different units.
    """
    entries: list[Entry] = []
    units: dict[str, str] = {}
    for name in names:
        path = toml_tables.table_path(FOLDER, name)
        for entry in toml_tables.read_tables(path, "metric", Entry):
            if units.setdefault(entry.name, entry.unit) != entry.unit:
                raise PlanError(f"{path}: {entry.name} is defined with two units")
            entries.append(entry)
    return entries


def missing(
    entries: Iterable[Entry],
    on_page: Mapping[str, Iterable[Labels]],
    damaged: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Return the expected metrics for which the page has no series; one that cannot be read is there."""
    there: dict[str, bool] = {}
    for entry in entries:
        is_there = any(
            name in damaged
            or any(entry.labels_of(one) is not None for one in on_page.get(name, ()))
            for name in entry.names()
        )
        there[entry.name] = is_there or there.get(entry.name, not entry.is_expected)
    return [name for name, is_there in there.items() if not is_there]
