"""What the whole soak and each phase came to: messages, and latencies from the histograms of their seconds.

A second counts for latencies as it does for objectives: not where the client itself was at fault, unless it
waited for the cluster. Messages count in every second of the soak. Latencies of a phase stay encoded until
they are asked for, as a run may have thousands of phases.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
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

    def add_part(self, part: PhaseLatency) -> None:
        highest = math.nan if part.max_seconds is None else part.max_seconds
        self.add([part.histogram], part.overflow, highest)

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


@dataclass(frozen=True, slots=True)
class PhaseLatency:
    """All latencies of one kind that one journal file has of one phase."""

    phase_k: int  # the first second of the phase
    is_soak: bool
    name: str  # `publish` or `end_to_end`
    histogram: str  # V2 in base64
    overflow: int
    max_seconds: float | None  # None: not known


@dataclass(slots=True)
class SoakTotals:
    """The messages and latencies of a soak, and latencies of each phase, by `publish` and `end_to_end`."""

    messages: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, Latency] = field(default_factory=dict)
    _parts: dict[tuple[int, str], list[PhaseLatency]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, part: PhaseLatency) -> None:
        self._parts[part.phase_k, part.name].append(part)
        if part.is_soak:
            self.latencies.setdefault(part.name, Latency()).add_part(part)

    def phase_seconds(self, phase_k: int, name: str) -> dict[str, float | None] | None:
        """Return the quantiles of the phase that began at this second, in seconds; None: nothing is known."""
        parts = self._parts.get((phase_k, name))
        if parts is None:
            return None
        latency = Latency()
        for part in parts:
            latency.add_part(part)
        return latency.seconds()

    def to_text(self) -> str:
        """Return it as JSON."""
        parts = [astuple(part) for several in self._parts.values() for part in several]
        return json.dumps({"messages": self.messages, "latencies": parts})

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
        for part in body["latencies"]:
            found.add(PhaseLatency(*part))
    return found


def totals_of(
    source: str, records: Iterable[tuple[Record, tuple[Column, ...]]], phases: Phases
) -> SoakTotals:
    """Return what the records of one source came to; of one that is no client nothing."""
    found = SoakTotals()
    measured: dict[tuple[int, bool, str], list[ClientSecond]] = defaultdict(list)
    for one in client_seconds(source, records, phases):
        for metric, count in one.messages.items() if one.is_soak else ():
            found.messages[metric] = found.messages.get(metric, 0) + count
        if one.histogram is not None:
            measured[one.phase_k, one.is_soak, one.name].append(one)
    for (phase_k, is_soak, name), seconds in measured.items():
        latency = Latency()
        latency.add(
            [one.histogram for one in seconds if one.histogram is not None],
            sum(one.overflow for one in seconds),
            float(np.fmax.reduce([one.max_seconds for one in seconds])),
        )
        found.add(
            PhaseLatency(
                phase_k,
                is_soak,
                name,
                latency.histogram.encode().decode("ascii"),
                latency.overflow,
                _finite(latency.max_seconds),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class ClientSecond:
    """What a client did in a second of a phase; no histogram where its latencies do not count."""

    k: int
    phase_k: int  # the first second of the phase
    is_soak: bool
    name: str  # of its latency: `publish` or `end_to_end`
    messages: Mapping[str, int]  # by metric
    histogram: str | None
    overflow: int
    max_seconds: float


def client_seconds(
    source: str, records: Iterable[tuple[Record, tuple[Column, ...]]], phases: Phases
) -> Iterator[ClientSecond]:
    """Give the seconds of all phases that a client recorded; of a source that is no client none."""
    places: BySource[_Places | None] = BySource()
    for record, columns in records:
        at = places.get(source, columns, _places)
        decision = None if at is None else phases.decision_at(record.k)
        if at is None or decision is None:
            continue
        values = record.values
        yield ClientSecond(
            record.k,
            decision.from_k,
            decision.phase == "soak",
            at.name,
            {metric: round(value_at(values, place)) for metric, place in at.messages},
            record.histograms.get(at.latency) if _is_counted(record, at.client) else None,
            round(value_at(values, at.overflow)),
            math.nan if at.highest is None else values[at.highest],
        )


def acked_messages(
    source: str, records: Iterable[tuple[Record, tuple[Column, ...]]]
) -> Iterator[tuple[int, int]]:
    """Give the seconds of a producer, in all phases, with the messages acknowledged in each."""
    clients: BySource[Client | None] = BySource()
    for record, columns in records:
        client = clients.get(source, columns, lambda _, found: client_of(found))
        if client is not None and client.is_producer:
            yield record.k, round(value_at(record.values, client.at["acked_messages"]))


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
