"""The data types of the project: columns, records, events, series, changes and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from soak.core.series import Labels, column_name

if TYPE_CHECKING:  # 12 MiB that the probe daemon can do without
    import numpy as np
    from numpy.typing import NDArray

Direction = Literal["up", "down"]
Kind = Literal["step", "drift", "spikes", "tail"]


class Column(NamedTuple):
    """What a number in a record means. `lag_seconds`: how late the source may show a change.

    A tuple, for hundreds are made and looked up a second: a frozen dataclass takes about twice as long.
    """

    metric: str
    labels: Labels = ()
    unit: str = ""
    lag_seconds: float = 0.0

    @property
    def name(self) -> str:
        """Return the text form, as Prometheus writes it: `metric{label="value"}`."""
        return column_name(self.metric, self.labels)

    def to_json(self) -> dict[str, object]:
        """Return the column as every file and message holds it."""
        return {
            "metric": self.metric,
            "labels": dict(self.labels),
            "unit": self.unit,
            "lag_seconds": self.lag_seconds,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Column:
        """Return the column that `to_json` described.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: it is something else.
        """
        lag_seconds = float(found["lag_seconds"])
        if not math.isfinite(lag_seconds):
            raise ValueError(f"lag_seconds is {lag_seconds}, not a finite number")
        labels = sorted((str(key), str(value)) for key, value in found["labels"].items())
        return cls(str(found["metric"]), tuple(labels), str(found["unit"]), lag_seconds)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened between two polls; `since_ns` and `at_ns` bound it on the wall clock."""

    kind: str
    at_ns: int
    since_ns: int
    fields: Mapping[str, str | int | float] = field(default_factory=dict)


Span = tuple[int, int, int, int]
"""First and last sequence number of a run of messages, and the offsets of these two."""


@dataclass(frozen=True, slots=True)
class Record:
    """One second of one source. `values` follow the order of the columns line `columns_id`."""

    k: int
    epoch: int
    at_ns: int
    length_ns: int
    columns_id: str
    values: tuple[float, ...]  # NaN where nothing was measured
    histograms: Mapping[str, str] = field(default_factory=dict)
    acknowledged: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    received: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    sent_next: Mapping[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    validity: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        """True unless the client itself was the bottleneck in this second."""
        return not self.validity.get("reason")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a probe gives a second: (column, value) pairs, events, and its own cost."""

    samples: tuple[tuple[Column, float], ...]
    events: tuple[Event, ...] = ()
    cost_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over whole seconds, without gaps filled: `k` ascending, `values` finite, equal length."""

    name: str
    k: NDArray[np.int64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.k.shape != self.values.shape or self.k.ndim != 1:
            raise ValueError(f"{self.name}: k {self.k.shape} and values {self.values.shape} differ")
        if not (abs(self.values) < math.inf).all():
            raise ValueError(f"{self.name}: a series holds no NaN; leave the row out instead")


@dataclass(frozen=True, slots=True)
class Change:
    """A change in one series; `onset_k` is the first second of a level, of a drift or of spikes."""

    series: str  # "source|column name"
    raised_k: int
    onset_k: int
    interval: tuple[int, int]  # seconds k that hold the true onset with 95 % confidence
    before: float
    after: float
    state: Literal["warning", "confirmed", "gone", "withdrawn"]  # the last: a warning not confirmed
    confidence: float
    kind: Kind = "step"
    resolved_k: int | None = None  # second in which it was found to be gone
    period_seconds: float | None = None  # of spikes: from one to the next
    burst_seconds: float | None = None  # of spikes: how long one lasts

    @property
    def direction(self) -> Direction:
        return "up" if self.after > self.before else "down"

    def to_row(self) -> dict[str, Any]:
        """Return the change as every table, state and message holds it, by the names of the columns."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "interval"}
        row["gone_k"] = row.pop("resolved_k")
        row["first_k"], row["last_k"] = self.interval
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Change:
        """Return the change that `to_row` described; a level that is missing (SQLite's NULL) is NaN."""
        names = [name for name in cls.__slots__ if name not in {"interval", "resolved_k"}]
        fields = {name: row[name] for name in names}
        for level in ("before", "after"):
            fields[level] = math.nan if row[level] is None else row[level]
        interval = row["first_k"], row["last_k"]
        return cls(**fields, interval=interval, resolved_k=row["gone_k"])


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason for a cause, as a sentence that stands alone in a mail, and its numbers."""

    text: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one cause has to say about a change. `score` in 0..1; below the bar it does not count."""

    cause: str
    score: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One incident: changes whose onsets lie together, under a key minted once.

    `series` is the headline (its values are `before` and `after`, in the series' unit); `changes` names the
    other series that moved with it. `causes` are sorted, strongest first; never empty once attributed.
    The first word on them is said soon; `is_settled` once all was seen that a cause looks at.
    """

    key: str  # "<run id>-<raised_k of the first raise>", and "-2" and so on where that is taken
    run: str
    raised_k: int
    onset_k: int
    interval: tuple[int, int]
    series: str
    kind: Kind
    before: float
    after: float
    state: Literal["warning", "confirmed", "gone"]
    confidence: float
    is_about_cluster: bool  # upward, in the soak phase, and not the client's fault
    causes: tuple[Explanation, ...] = ()
    changes: tuple[str, ...] = ()
    resolved_k: int | None = None
    is_settled: bool = False

    @property
    def cause(self) -> str:
        return self.causes[0].cause if self.causes else "unknown"

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else float("inf")
