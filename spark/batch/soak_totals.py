"""What the whole soak came to: messages, and latencies from the histograms of its seconds.

A second counts for latencies as it does for objectives: not where the client itself was at fault, unless it
waited for the cluster. Messages count in every second of the soak.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

from detectors.client_seconds import BySource, Client, Second, client_of, value_at
from soak.core import json_text
from soak.core.histogram import DIGITS, HIGHEST_US, LOWEST_US, add_all
from soak.core.model import Column, Record
from soak.core.plan.phases import Phases

QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
_SENT = ("sent_messages", "acked_messages", "failed_messages", "missed_messages")
_RECEIVED = ("received_messages",)
_NAMES = {True: "publish", False: "end_to_end"}  # by whether the client is a producer


@dataclass(slots=True)
class Latency:
    """All latencies of one kind; values above an hour are counted as `overflow`, and the maximum is exact."""

    histogram: HdrHistogram = field(
        default_factory=lambda: HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    )
    overflow: int = 0
    max_seconds: float = math.nan

    def add(self, texts: Sequence[str], overflow: int, max_seconds: float) -> None:
        """Add histograms in V2 base64, and the counts that go with them; one that is damaged is left out."""
        add_all(self.histogram, texts)
        self.overflow += overflow
        self.max_seconds = float(np.fmax(self.max_seconds, max_seconds))

    def seconds(self) -> dict[str, float | None]:
        """Return the quantiles of `QUANTILES` and `max`, in seconds; None where nothing was counted."""
        counted = self.histogram.get_total_count()
        total = counted + self.overflow
        if not total:
            return dict.fromkeys((*QUANTILES, "max"))
        found: dict[str, float | None] = {}
        for name, percent in QUANTILES.items():
            rank = percent / 100.0 * total
            if rank > counted:
                found[name] = self.max_seconds
            else:
                value = self.histogram.get_value_at_percentile(100.0 * rank / counted) / 1e6
                found[name] = min(value, self.max_seconds)
        return {**found, "max": self.max_seconds}


@dataclass(slots=True)
class SoakTotals:
    """The messages of a soak by metric, and its latencies by `publish` and `end_to_end`."""

    messages: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, Latency] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return it as JSON."""
        latencies = {
            name: [one.histogram.encode().decode("ascii"), one.overflow, _finite(one.max_seconds)]
            for name, one in self.latencies.items()
        }
        return json.dumps({"messages": self.messages, "latencies": latencies})

    @property
    def availability(self) -> float | None:
        """Return the share of the messages that were due that was acknowledged; None when none was due."""
        acked = self.messages.get("acked_messages", 0)
        lost = self.messages.get("failed_messages", 0) + self.messages.get("missed_messages", 0)
        return acked / (acked + lost) if acked + lost else None


def added_up(texts: Iterable[str]) -> SoakTotals:
    """Return the sum of what `SoakTotals.to_text` gave."""
    found = SoakTotals()
    for text in texts:
        body: Mapping[str, Any] = json_text.loads(text)
        for name, count in body["messages"].items():
            found.messages[name] = found.messages.get(name, 0) + int(count)
        for name, (histogram, overflow, highest) in body["latencies"].items():
            if name not in found.latencies:
                found.latencies[name] = Latency()
            max_seconds = math.nan if highest is None else float(highest)
            found.latencies[name].add([histogram], int(overflow), max_seconds)
    return found


def totals_of(
    source: str, records: Iterable[tuple[Record, tuple[Column, ...]]], phases: Phases
) -> SoakTotals:
    """Return what the records of one source came to; of one that is no client nothing."""
    found = SoakTotals()
    measured: dict[str, list[ClientSecond]] = defaultdict(list)
    for one in client_seconds(source, records, phases):
        for metric, count in one.messages.items():
            found.messages[metric] = found.messages.get(metric, 0) + count
        if one.histogram is not None:
            measured[one.name].append(one)
    for name, seconds in measured.items():
        found.latencies[name] = Latency()
        found.latencies[name].add(
            [one.histogram for one in seconds if one.histogram is not None],
            sum(one.overflow for one in seconds),
            float(np.fmax.reduce([one.max_seconds for one in seconds])),
        )
    return found


@dataclass(frozen=True, slots=True)
class ClientSecond:
    """What a client did in a second of the soak; no histogram where its latencies do not count."""

    k: int
    name: str  # of its latency: `publish` or `end_to_end`
    messages: Mapping[str, int]  # by metric
    histogram: str | None
    overflow: int
    max_seconds: float


def client_seconds(
    source: str, records: Iterable[tuple[Record, tuple[Column, ...]]], phases: Phases
) -> Iterator[ClientSecond]:
    """Give the seconds of the soak that a client recorded; of a source that is no client none."""
    places: BySource[_Places | None] = BySource()
    for record, columns in records:
        at = places.get(source, columns, _places)
        if at is None or phases.at(record.k) != "soak":
            continue
        values = record.values
        yield ClientSecond(
            record.k,
            at.name,
            {metric: round(value_at(values, place)) for metric, place in at.messages},
            record.histograms.get(at.latency) if _is_counted(record, at.client) else None,
            round(value_at(values, at.overflow)),
            math.nan if at.highest is None else values[at.highest],
        )


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the records of a client have what counts; None where they have no such column."""

    client: Client
    name: str
    latency: str
    messages: Sequence[tuple[str, int | None]]
    overflow: int | None
    highest: int | None  # latency


def _places(_source: str, columns: Sequence[Column]) -> _Places | None:
    client = client_of(columns)
    if client is None:
        return None
    name = _NAMES[client.is_producer]
    latency = f"{name}_latency_seconds"
    wanted = (("quantile", "max"),)
    at = (i for i, one in enumerate(columns) if one.metric == latency and one.labels == wanted)
    return _Places(
        client,
        name,
        latency,
        [(one, client.at.get(one)) for one in (_SENT if client.is_producer else _RECEIVED)],
        client.at.get("overflow_messages"),
        next(at, None),
    )


def _is_counted(record: Record, client: Client) -> bool:
    return record.is_valid or client.waits_for_cluster(Second(record.k, np.array(record.values)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
