"""When a run reaches the limit of what the cluster keeps, how much is held then, and what the run sees of it.

A log is a row of segments (Kafka) or ledgers (Pulsar). One is closed when it is full or old enough. From then
on it is deleted whole, at the next look, as soon as what is left still fills the limit in bytes, or the last
message in it is older than the limit in time. Its space is free some time after that. Sources:
Kafka's UnifiedLog.deleteOldSegments and LogSegment.shouldRoll, Pulsar's ManagedLedgerImpl; measured in
docs/retention.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from soak.core.arrivals import Arrivals

NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What each partition keeps, and in what segments. Seconds and bytes; infinity: no such limit."""

    segment_bytes: float = NEVER
    segment_entries: float = NEVER  # batches, where the system counts them
    segment_seconds: float = NEVER
    least_segment_seconds: float = 0.0  # a full one is not closed before
    keep_bytes: float = NEVER
    keep_seconds: float = NEVER
    check_seconds: float = 0.0  # the broker looks this often
    free_seconds: float | None = 0.0  # from deletion to free space; None: not foreseen
    local_bytes: float = (
        NEVER  # of these the drives keep no more, where the rest is stored elsewhere
    )
    local_seconds: float = NEVER
    copies: int | None = None  # None: as the plan has it
    compression: str = ""  # by the cluster; empty: as the producer sent it
    is_empty: bool = True  # there are no messages yet
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        spans = (self.segment_seconds, self.least_segment_seconds, self.keep_seconds)
        sizes = (self.segment_bytes, self.segment_entries, self.keep_bytes, self.check_seconds)
        rest = (self.local_bytes, self.local_seconds, self.free_seconds or 0.0)
        if any(not value >= 0 for value in (*spans, *sizes, *rest)):
            raise ValueError(f"a limit must not be below 0: {self}")


@dataclass(frozen=True, slots=True)
class Stored:
    """What becomes of a message in the log: bytes, with its share of the batch; messages a batch."""

    message_bytes: float
    messages_per_batch: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The run around the load, seconds since its start."""

    partitions: int
    copies: int = 1
    busiest_ratio: float = 1.0  # rate of the busiest partition over the mean
    soak: tuple[float, float]
    end: float  # of the load


@dataclass(frozen=True, slots=True)
class Window:
    """When something happens for certain, if the forecast holds; seconds since the load's start."""

    earliest: float
    latest: float

    @property
    def middle(self) -> float:
        return (self.earliest + self.latest) / 2

    def plus(self, seconds: float) -> Window:
        return Window(self.earliest + seconds, self.latest + seconds)


Seen = Literal["never", "after the run", "in the warm-up", "in the soak", "after the soak"]
"""Where the first deletion falls; `never` where no limit is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The first deletion is that of the busiest partition; bytes are of all partitions and copies."""

    limit: Literal["", "bytes", "time"]  # which is reached first
    first_closed: float  # the first segment; infinity: never
    first_deletion: Window | None  # None: never
    first_free: Window | None  # None: never, or not foreseen
    deletions_every: float  # seconds between two, once all partitions delete
    written_bytes: float  # by the end of the load, if nothing were deleted
    most_held_bytes: float
    seen: Seen
    seen_seconds: float  # of the soak after the first deletion, at least


def forecast(arrivals: Arrivals, stored: Stored, limits: Limits, scene: Scene) -> Forecast:
    """Return what the plan leads to; `arrivals` are those of all partitions together."""
    first = _Partition(arrivals, scene.busiest_ratio / scene.partitions, stored, limits)
    closed = first.closed
    by_bytes, by_time = first.when_over(closed), closed + limits.keep_seconds
    due = min(by_bytes, by_time)
    window = None if math.isinf(due) else Window(due, due + limits.check_seconds)
    free = None
    if window is not None and limits.free_seconds is not None:
        free = window.plus(limits.free_seconds)
    mean = _Partition(arrivals, 1 / scene.partitions, stored, limits)
    written = mean.bytes_by(scene.end)
    every = mean.segment_seconds(arrivals.last_rate)
    seen, seconds = _seen(window, scene)
    return Forecast(
        limit="" if window is None else "bytes" if by_bytes <= by_time else "time",
        first_closed=closed,
        first_deletion=window,
        first_free=free,
        deletions_every=every / scene.partitions,
        written_bytes=written * scene.partitions * scene.copies,
        most_held_bytes=min(written, mean.most_held()) * scene.partitions * scene.copies,
        seen=seen,
        seen_seconds=seconds,
    )


class _Partition:
    """One partition's log, `share` of all messages."""

    def __init__(self, arrivals: Arrivals, share: float, stored: Stored, limits: Limits) -> None:
        self._arrivals = arrivals
        self._share = share
        self._stored = stored
        self._limits = limits

    def bytes_by(self, seconds: float) -> float:
        return self._arrivals.count(seconds) * self._share * self._stored.message_bytes

    @property
    def closed(self) -> float:
        """Return when the first segment is closed."""
        return min(
            max(self._when(self._messages_that_fill), self._limits.least_segment_seconds),
            self._limits.segment_seconds,
        )

    def when_over(self, closed: float) -> float:
        """Return when the limit in bytes would still be filled without the first segment."""
        if math.isinf(closed):
            return NEVER
        wanted = self._limits.keep_bytes + self.bytes_by(closed)
        return max(closed, self._when(wanted / self._stored.message_bytes))

    def segment_seconds(self, rate: float) -> float:
        """Return how long a segment lasts at a rate of all partitions."""
        own = rate * self._share
        full = self._messages_that_fill / own if own > 0 else NEVER
        return min(max(full, self._limits.least_segment_seconds), self._limits.segment_seconds)

    def most_held(self) -> float:
        """Return the most bytes that are there at the highest rate, those that wait to be freed too."""
        rate = self._arrivals.highest_rate
        flow = rate * self._share * self._stored.message_bytes
        if flow == 0:
            return 0.0
        segment = self.segment_seconds(rate)
        limits = self._limits
        waits = limits.check_seconds + (limits.free_seconds or 0.0)
        by_bytes = min(limits.keep_bytes, limits.local_bytes) + flow * (segment + waits)
        seconds = min(limits.keep_seconds, limits.local_seconds) + segment + waits
        return min(by_bytes, flow * seconds)

    @property
    def _messages_that_fill(self) -> float:
        limits, stored = self._limits, self._stored
        return min(
            limits.segment_bytes / stored.message_bytes,
            limits.segment_entries * stored.messages_per_batch,
        )

    def _when(self, messages: float) -> float:
        return NEVER if math.isinf(messages) else self._arrivals.when(messages / self._share)


def _seen(window: Window | None, scene: Scene) -> tuple[Seen, float]:
    """Return where the first deletion falls, and for how much of the soak deletions go on."""
    begin, end = scene.soak
    if window is None:
        return "never", 0.0
    left = max(0.0, end - max(begin, window.latest))
    if window.earliest >= scene.end:
        return "after the run", 0.0
    if window.earliest >= end:
        return "after the soak", 0.0
    return ("in the warm-up" if window.latest <= begin else "in the soak"), left
