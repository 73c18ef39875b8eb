"""The data types of the project: columns, records, events, series, changes and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from soak.core.series import Labels, column_name

if TYPE_CHECKING:  # 12 MiB that the probe daemon can do without
    import numpy as np
    from numpy.typing import NDArray

Direction = Literal["up", "down"]
Kind = Literal["step", "drift", "spikes", "stalls", "tail", "outage", "objective"]


THRESHOLDS_SECONDS: tuple[float, ...] = tuple(
    float(f"{10 ** (-4 + step / 8):.6g}") for step in range(6 * 8 + 1)
)
"""Fixed thresholds of latency from 100 us to 100 s, eight per decade: counts above them are columns of their
own, and the ends of the buckets of all histograms on metrics pages."""


class Distribution(NamedTuple):
    """How many latencies lie below the first threshold, between two, and at or above the last; their sum."""

    counts: Sequence[int]  # one more than `THRESHOLDS_SECONDS`
    seconds: float


class Column(NamedTuple):
    """The meaning of one number in a record. `lag_seconds`: how late the source may show a change.

    A named tuple, because hundreds are made and looked up per second: a frozen dataclass takes twice as long.
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
    """Something that happened between two polls, at the wall times `since_ns` and `at_ns`."""

    kind: str
    at_ns: int
    since_ns: int
    fields: Mapping[str, str | int | float] = field(default_factory=dict)

    def number(self, key: str) -> float:
        """Return a field as a number; 0 where it is missing or a text, which patterns of logs may take."""
        found = self.fields.get(key)
        return float(found) if isinstance(found, int | float) else 0.0


Span = tuple[int, int, int, int]
"""First and last sequence number of consecutive messages, and the offsets of these two."""


@dataclass(frozen=True, slots=True)
class Record:
    """One interval of one source. `values` are in the order of the columns with the id `columns_id`.

    `acknowledged` and `received` map the name of a producer stream to spans, `sent_next` to its next
    sequence number. `validity` holds facts about the client itself; its `reason` says why the interval says
    nothing about the cluster.
    """

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
        """True unless the client itself was the bottleneck in this interval."""
        return not self.validity.get("reason")


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one reading of a probe: (column, value) pairs, events, and its own cost."""

    samples: tuple[tuple[Column, float], ...]
    events: tuple[Event, ...] = ()
    cost_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """One metric by interval, gaps left out: `k` ascending, `values` finite, of equal length."""

    name: str
    k: NDArray[np.int64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.k.shape != self.values.shape or self.k.ndim != 1:
            raise ValueError(f"{self.name}: k {self.k.shape} and values {self.values.shape} differ")
        if not (abs(self.values) < math.inf).all():
            raise ValueError(
                f"{self.name}: a series must not hold NaN or infinity; leave the row out"
            )


@dataclass(frozen=True, slots=True)
class Change:
    """A change in one series; `onset_k` is the first interval of the new level, the drift or the spikes.

    An outage goes from 0 to its bad seconds by now: good ones may lie between them. Its messages are those
    of its client: of those due since the start of the run, so many failed or came late in it.
    `discovered_k` says when this state of it was found, and is no part of what was found.
    """

    series: str  # "source|column name"
    raised_k: int
    onset_k: int
    interval: tuple[int, int]  # intervals that hold the true onset with 95 % confidence
    before: float
    after: float
    state: Literal[
        "warning", "confirmed", "gone", "withdrawn"
    ]  # withdrawn: a warning that was not confirmed
    confidence: float
    kind: Kind = "step"
    resolved_k: int | None = None  # interval from which on it was over, or found to be over
    period_seconds: float | None = None  # of spikes: distance between two
    burst_seconds: float | None = None  # of spikes: length of one; of stalls: how many seconds
    failed_messages: int | None = None  # of an outage
    late_messages: int | None = None  # of an outage
    due_messages: int | None = None  # of an outage
    # interval of the record that showed it; None once it is stored as a part of a finding
    discovered_k: int | None = field(default=None, compare=False, repr=False)

    @property
    def direction(self) -> Direction:
        """Return "up" for what is worse than before; an outage and a missed objective always are."""
        is_worse = self.kind in {"outage", "objective"} or self.after > self.before
        return "up" if is_worse else "down"

    def to_row(self) -> dict[str, Any]:
        """Return the change as every table, state and message holds it, by the names of the columns.

        A level that is NaN is missing: JSON has none.
        """
        row = {name: getattr(self, name) for name in self.__slots__ if name != "interval"}
        for level in ("before", "after"):
            row[level] = None if math.isnan(row[level]) else row[level]
        row["gone_k"] = row.pop("resolved_k")
        row["first_k"], row["last_k"] = self.interval
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Change:
        """Return the change that `to_row` described; a level that is missing is NaN."""
        others = {"interval", "resolved_k", "discovered_k"}
        fields = {name: row[name] for name in cls.__slots__ if name not in others}
        for level in ("before", "after"):
            fields[level] = math.nan if row[level] is None else row[level]
        interval = row["first_k"], row["last_k"]
        return cls(
            **fields,
            interval=interval,
            resolved_k=row["gone_k"],
            discovered_k=row.get("discovered_k"),
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason for a cause, as a sentence that can stand alone in a mail, and its numbers."""

    text: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


PROVISIONAL_SCORE = 0.5
"""Causes above it are named; one that lies exactly at it may be taken back by the seconds to come."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a change by one cause; `score` is in 0..1, and low scores do not count.

    `against` speaks against the cause or, where it is unknown, against causes that are ruled out.
    """

    cause: str
    score: float
    evidence: tuple[Evidence, ...]
    against: tuple[Evidence, ...] = ()
    suspect: str = ""  # the broker's host:port, the drive, host or topic


@dataclass(frozen=True, slots=True)
class Finding:
    """One incident, from its first rise to its end, under a key that never changes.

    `series` is the headline; `before` and `after` are its level before the incident and its worst, in its
    unit. `onset_k` and `interval` are those of the first rise. `changes` names the other
    series that changed with it. `causes` are sorted, strongest first, and not empty once attributed. They
    may change until `is_settled`: then all data that causes look at has been seen.
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
    is_about_cluster: bool  # upward, in the soak phase, and not caused by the client
    causes: tuple[Explanation, ...] = ()
    changes: tuple[str, ...] = ()
    resolved_k: int | None = None
    is_settled: bool = False
    failed_messages: int | None = None  # in its outages, of all clients; None without an outage
    late_messages: int | None = None
    due_messages: int | None = None  # to these clients, since the start of the run
    worst_k: int | None = None  # onset of the worst change, which `series` and the levels are of

    @property
    def suspect(self) -> str:
        """Return the suspect of the first cause, "" where it has none."""
        return self.causes[0].suspect if self.causes else ""

    @property
    def cause(self) -> str:
        return self.causes[0].cause if self.causes else "unknown"

    @property
    def is_cause_known(self) -> bool:
        """True when a cause is named that the next seconds will not take back."""
        return self.cause != "unknown" and self.causes[0].score > PROVISIONAL_SCORE

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else float("inf")
