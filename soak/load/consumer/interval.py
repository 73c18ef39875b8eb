"""Counters and histograms of one second of a consumer, and the record's columns made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from soak.core.audit import RECEIVE_ERRORS_EVENT
from soak.core.histogram import Histogram
from soak.core.model import Column, Event
from soak.core.ports import Batch, Heads, ReceiveError
from soak.load.consumer.sequence_tracker import SequenceCounts
from soak.load.latency import LatencyByLeader, quantile_columns, threshold_columns
from soak.load.leaders import Leaders

INVALID_PAUSE_SECONDS = 0.050
"""A consumer that was away from its client for so long, most of the latency that it saw, measured itself."""
BEHIND_SECONDS = 2.0
"""After a late start, and after rereading, latencies are valid once the lag is below this much load."""

MAX_ERROR_EVENTS = 5
"""Maximum number of kinds of errors that are recorded in one second, the most frequent first."""


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """Messages of several batches in order of arrival, each with its arrival time; arrays of shape (n,)."""

    heads: Heads
    partition: NDArray[np.int64]  # running numbers
    offset: NDArray[np.int64]
    at_mono_ns: NDArray[np.int64]
    at_wall_ns: NDArray[np.int64]


def merge_batches(batches: Sequence[Batch]) -> MergedBatch:
    """Merge one batch or more: numpy costs the same for one message as for all."""
    sizes = [len(batch.heads) for batch in batches]
    at_mono_ns = np.concatenate([_arrival_ns(batch) for batch in batches])
    wall_ahead_ns = np.repeat([batch.at_wall_ns - batch.at_mono_ns for batch in batches], sizes)
    return MergedBatch(
        heads=_merge_heads([batch.heads for batch in batches]),
        partition=np.concatenate([batch.partition for batch in batches]),
        offset=np.concatenate([batch.offset for batch in batches]),
        at_mono_ns=at_mono_ns,
        at_wall_ns=at_mono_ns + wall_ahead_ns,
    )


def split_batch(batch: Batch, edge_ns: int) -> tuple[Batch, Batch]:
    """Split a batch at an instant; what counts for the whole batch goes with the later part."""
    first = int(np.searchsorted(_arrival_ns(batch), edge_ns))
    before, after = (
        replace(
            batch,
            heads=batch.heads[rows],
            partition=batch.partition[rows],
            offset=batch.offset[rows],
            came_mono_ns=None if batch.came_mono_ns is None else batch.came_mono_ns[rows],
        )
        for rows in (slice(first), slice(first, None))
    )
    return replace(before, redelivered=0, errors={}), after


def _arrival_ns(batch: Batch) -> NDArray[np.int64]:
    if batch.came_mono_ns is not None:
        return batch.came_mono_ns
    return np.full(len(batch.heads), batch.at_mono_ns, dtype=np.int64)


def _merge_heads(parts: Sequence[Heads]) -> Heads:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    return list(chain.from_iterable(parts))


class ConsumerInterval:
    """What a consumer measured in one second; a finished one is written while the next one counts."""

    def __init__(
        self,
        boot: int,
        leaders: Leaders,
        *,
        is_behind: bool,
        limits_seconds: tuple[float, ...] = (),
    ) -> None:
        """`limits_seconds`: those of the plan's objectives, above which messages are counted."""
        self.by_leader = LatencyByLeader("end_to_end_latency_seconds")
        self._leaders = leaders
        self._boot = boot
        self._is_behind = is_behind
        self._limits_seconds = limits_seconds
        self.latency = Histogram()
        self.redelivered = 0  # known by their offsets, and left out by the client
        self._received = 0
        self._foreign = 0
        self._odd = SequenceCounts()
        self._pause_ns = 0
        self._errors: Counter[ReceiveError] = Counter()

    def note(
        self,
        block: NDArray[np.void],
        is_ours: NDArray[np.bool_],
        batch: MergedBatch,
        counts: SequenceCounts,
    ) -> None:
        """Count messages by their headers, one row each; those that are not ours are foreign.

        Only new messages have a latency: that of a reread message would be the age of the log.
        """
        block = block[is_ours]
        self._received += block.size
        self._foreign += is_ours.size - block.size
        # All processes of one boot share the monotonic clock; between hosts only wall clocks compare.
        is_here = block["boot"] == self._boot
        by_mono = batch.at_mono_ns[is_ours] - block["intended_mono_ns"]
        by_wall = batch.at_wall_ns[is_ours] - (block["sent_wall_ns"] - block["delay_ns"])
        latency_ns = np.where(is_here, by_mono, by_wall)[counts.is_new]
        self.latency.record_ns(latency_ns)
        if self._leaders.several:
            partition = batch.partition[is_ours][counts.is_new]
            self.by_leader.record_ns(self._leaders, partition, latency_ns)
        self._odd.duplicated += counts.duplicated
        self._odd.reordered += counts.reordered
        self._odd.reread += counts.reread

    def note_pause(self, pause_ns: int) -> None:
        self._pause_ns = max(self._pause_ns, pause_ns)

    def note_errors(self, errors: Mapping[ReceiveError, int]) -> None:
        """Count the errors that the client reported instead of messages."""
        self._errors.update(errors)

    def following(self, lag: int | None, rate: float) -> ConsumerInterval:
        """Return the next one, empty; `lag` is in messages (None: unknown), `rate` in messages a second."""
        was_behind = self._is_behind or self._odd.reread > 0
        is_behind = was_behind and (lag is None or lag > rate * BEHIND_SECONDS)
        found = ConsumerInterval(
            self._boot, self._leaders, is_behind=is_behind, limits_seconds=self._limits_seconds
        )
        found.by_leader = self.by_leader.following()
        return found

    def samples(
        self, lag: float, cpu_ratio: float, cpu_waiting_ratio: float
    ) -> list[tuple[Column, float]]:
        """Return columns and values in a fixed order."""
        counts = {
            "received_messages": self._received,
            "foreign_messages": self._foreign,
            "duplicated_messages": self._odd.duplicated,
            "reordered_messages": self._odd.reordered,
            "reread_messages": self._odd.reread,
            "redelivered_messages": self.redelivered,
            "negative_latency_messages": self.latency.negative,
            "overflow_messages": self.latency.overflow,
            "lag_messages": lag,
        }
        return [
            *quantile_columns("end_to_end_latency_seconds", self.latency),
            *((Column(name, (), "messages"), float(value)) for name, value in counts.items()),
            (Column("consumer_pause_seconds", (), "seconds"), self._pause_ns / 1e9),
            (Column("process_cpu_ratio", (), "cores"), cpu_ratio),
            (Column("process_cpu_waiting_ratio", (), "ratio"), cpu_waiting_ratio),
            *self.by_leader.samples(),
            *threshold_columns(
                "end_to_end_latency_above_messages", self.latency, self._limits_seconds
            ),
        ]

    def histograms(self) -> dict[str, Histogram]:
        """Return all histograms by the names of their columns."""
        return {"end_to_end_latency_seconds": self.latency, **self.by_leader.histograms()}

    def error_events(self, at_ns: int, since_ns: int) -> list[Event]:
        """Return one event for each kind of error that the client reported."""
        return [
            Event(RECEIVE_ERRORS_EVENT, at_ns, since_ns, {**_named(error), "errors": count})
            for error, count in self._errors.most_common(MAX_ERROR_EVENTS)
        ]

    def reason(self) -> str:
        """Return why this second says nothing about the cluster, or ""."""
        if self._is_behind or self._odd.reread:
            return "catching_up"
        (latency,) = self.latency.quantiles_seconds((0.99,))
        pause = self._pause_ns / 1e9
        is_invalid = pause > INVALID_PAUSE_SECONDS and not pause < latency / 2
        return "consumer_pause" if is_invalid else ""


def _named(error: ReceiveError) -> dict[str, str]:
    """Return what an error names, by field."""
    return {name: value for name, value in asdict(error).items() if value}
