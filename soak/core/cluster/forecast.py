"""The retention forecast: when a run reaches a retention limit of the cluster, and how much is stored then.

A log is a row of segments (Kafka) or ledgers (Pulsar). A segment is closed when it is full or old enough. It
is then deleted as a whole, at the next check of the broker, as soon as the later segments alone fill the
limit in bytes, or its last message is older than the limit in time. Its space is free some time later.
Sources: Kafka's UnifiedLog.deleteOldSegments and LogSegment.shouldRoll, Pulsar's ManagedLedgerImpl; measured
in docs/explanation/retention.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from soak.core.plan.load import Keys
from soak.core.plan.phases import drain_k, planned_phases
from soak.core.plan.plan import Plan
from soak.core.plan.rates import Point, rates_between
from soak.core.units import SECOND_NS
from soak.core.wording import amount, span


class Arrivals:
    """The number of messages since the start of the load; the last rate never ends."""

    def __init__(self, rates: Iterable[tuple[float, float]], share: float = 1.0) -> None:
        """Take (second, rate from then on) in ascending order from second 0, and the share that counts.

        Raises:
            ValueError: they do not start at 0, do not ascend, or a rate is below 0.
        """
        pairs = np.array([(float(second), float(rate)) for second, rate in rates])
        if pairs.size == 0 or pairs[0, 0] != 0 or (np.diff(pairs[:, 0]) <= 0).any():
            raise ValueError("rates must ascend from second 0")
        self._seconds, self._rates = pairs[:, 0], pairs[:, 1] * share
        if (self._rates < 0).any():
            raise ValueError("a rate must not be below 0")
        sent = np.diff(self._seconds) * self._rates[:-1]
        self._counts = np.concatenate([[0.0], np.cumsum(sent)])

    @property
    def highest_rate(self) -> float:
        return float(self._rates.max())

    @property
    def last_rate(self) -> float:
        return float(self._rates[-1])

    def count(self, seconds: float) -> float:
        """Return the number of messages sent in this many seconds."""
        at = int(np.searchsorted(self._seconds, seconds, side="right")) - 1
        if at < 0:
            return 0.0
        return float(self._counts[at] + (seconds - self._seconds[at]) * self._rates[at])

    def when(self, count: float) -> float:
        """Return the seconds until this many messages are sent; infinity if they never are."""
        if count <= 0:
            return 0.0
        at = int(np.searchsorted(self._counts, count, side="left")) - 1
        rate = float(self._rates[at])
        if rate == 0:  # only after the last change: searchsorted skips earlier pauses
            return math.inf
        return float(self._seconds[at] + (count - self._counts[at]) / rate)


NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The retention limits and segments of each partition, in seconds and bytes; infinity: no limit."""

    segment_bytes: float = NEVER
    segment_entries: float = NEVER  # batches, if the system counts them
    segment_seconds: float = NEVER
    least_segment_seconds: float = 0.0  # a full segment is not closed earlier
    keep_bytes: float = NEVER
    keep_seconds: float = NEVER
    check_seconds: float = 0.0  # interval between checks of the broker
    free_seconds: float | None = 0.0  # from deletion to free space; None: unknown
    local_bytes: float = NEVER  # limit on the drives with tiered storage
    local_seconds: float = NEVER
    max_message_bytes: float = NEVER  # a larger message is refused; also where it is unknown
    copies: int | None = None  # None: those of the plan
    compression: str = ""  # by the cluster; empty: that of the producer
    is_empty: bool = True  # the topics hold no messages yet
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        spans = (self.segment_seconds, self.least_segment_seconds, self.keep_seconds)
        sizes = (self.segment_bytes, self.segment_entries, self.keep_bytes, self.check_seconds)
        rest = (self.local_bytes, self.local_seconds, self.free_seconds or 0.0)
        if any(not value >= 0 for value in (*spans, *sizes, *rest)):
            raise ValueError(f"a limit must not be below 0: {self}")


@dataclass(frozen=True, slots=True)
class Stored:
    """The size of a message in the log, with its share of the batch, and the messages per batch."""

    message_bytes: float
    messages_per_batch: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The run, in seconds since the start of its load."""

    partitions: int
    copies: int = 1
    busiest_ratio: float = 1.0  # rate of the busiest partition over the mean
    soak: tuple[float, float]
    end: float  # of the load


@dataclass(frozen=True, slots=True)
class Window:
    """The earliest and the latest time of an event, in seconds since the start of the load."""

    earliest: float
    latest: float

    @property
    def middle(self) -> float:
        return (self.earliest + self.latest) / 2

    def plus(self, seconds: float) -> Window:
        return Window(self.earliest + seconds, self.latest + seconds)


Seen = Literal["never", "after the run", "in the warm-up", "in the soak", "after the soak"]
"""The part of the run with the first deletion; `never` without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The first deletion in the busiest partition; bytes count all partitions and copies."""

    limit: Literal["", "bytes", "time"]  # which is reached first
    first_closed: float  # the first segment; infinity: never
    first_deletion: Window | None  # None: never
    first_free: Window | None  # None: never, or unknown
    deletions_every: float  # seconds between two, once all partitions delete
    written_bytes: float  # by the end of the load, if nothing were deleted
    most_held_bytes: float
    seen: Seen
    seen_seconds: float  # of the soak after the first deletion, at least


def forecast(arrivals: Arrivals, stored: Stored, limits: Limits, scene: Scene) -> Forecast:
    """Return the forecast; `arrivals` are those of all partitions together."""
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
    """The log of one partition with `share` of all messages."""

    def __init__(self, arrivals: Arrivals, share: float, stored: Stored, limits: Limits) -> None:
        self._arrivals = arrivals
        self._share = share
        self._stored = stored
        self._limits = limits

    def bytes_by(self, seconds: float) -> float:
        return self._arrivals.count(seconds) * self._share * self._stored.message_bytes

    @property
    def closed(self) -> float:
        """Return the time at which the first segment is closed."""
        return min(
            max(self._when(self._messages_that_fill), self._limits.least_segment_seconds),
            self._limits.segment_seconds,
        )

    def when_over(self, closed: float) -> float:
        """Return the time from which the later segments alone fill the limit in bytes."""
        if math.isinf(closed):
            return NEVER
        wanted = self._limits.keep_bytes + self.bytes_by(closed)
        return max(closed, self._when(wanted / self._stored.message_bytes))

    def segment_seconds(self, rate: float) -> float:
        """Return the seconds that one segment covers at a rate of all partitions."""
        own = rate * self._share
        full = self._messages_that_fill / own if own > 0 else NEVER
        return min(max(full, self._limits.least_segment_seconds), self._limits.segment_seconds)

    def most_held(self) -> float:
        """Return the maximum of stored bytes at the highest rate, including those that wait to be freed."""
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
    """Return the part of the run with the first deletion, and the seconds of the soak with deletions."""
    begin, end = scene.soak
    if window is None:
        return "never", 0.0
    left = max(0.0, end - max(begin, window.latest))
    if window.earliest >= scene.end:
        return "after the run", 0.0
    if window.earliest >= end:
        return "after the soak", 0.0
    return ("in the warm-up" if window.latest <= begin else "in the soak"), left


def forecast_plan(
    plan: Plan, limits: Limits, stored: Stored, table: Sequence[Point] = ()
) -> Forecast:
    """Return the forecast; `table` holds the rates of the profile's file.

    The length of a ramp is unknown and counts as 0; catch-ups count at their maximum. See
    `forecast_obstacles`.
    """
    lengths = dataclasses.replace(plan.phases, ramp=None)
    phases = planned_phases(lengths)
    end = drain_k(phases, lengths)
    soak = phases.first_k("soak") or 0
    arrivals = Arrivals(
        [(second, float(rate)) for second, rate in rates_between(plan.load, phases, table, 0, end)]
    )
    scene = Scene(
        partitions=plan.topic.total_partitions,
        copies=limits.copies or plan.topic.replication,
        busiest_ratio=busiest_ratio(plan.load.keys, plan.topic.partitions),
        soak=(soak, soak + lengths.soak // SECOND_NS),
        end=end,
    )
    return forecast(arrivals, stored, limits, scene)


def forecast_obstacles(plan: Plan, limits: Limits) -> list[str]:
    """Return why the first deletion of this plan cannot be forecast; an empty list if it can."""
    found = []
    if plan.phases.ramp is not None and plan.phases.ramp.soak_share:
        found.append("the ramp decides the rate of the soak")
    if not limits.is_empty:
        found.append("the topics may hold older messages, which may be deleted at once")
    return found


def busiest_ratio(keys: Keys, partitions: int) -> float:
    """Return the rate of a topic's busiest partition, which has the most frequent key, over the mean.

    The other keys are assumed to be spread evenly.
    """
    if keys.kind == "none":
        return 1.0
    top = 1 / keys.count
    if keys.kind == "zipf":
        top = 1 / sum(number**-keys.exponent for number in range(1, keys.count + 1))
    return partitions * top + 1 - top


_LIMIT = {"bytes": "the limit in bytes", "time": "the limit in time"}
_LIMIT_KEYS = {
    "bytes": "retention.bytes and segment.bytes (Pulsar: retentionSizeInMB)",
    "time": "retention.ms and segment.ms (Pulsar: retentionTimeInMinutes)",
}
_MAX_FILL_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Drive:
    """The drive that holds all copies."""

    total_bytes: int
    free_bytes: int

    def fill_ratio(self, held_bytes: float) -> float:
        """Return the fill ratio with this many bytes more; above 1 if they do not fit."""
        return (self.total_bytes - self.free_bytes + held_bytes) / self.total_bytes


def forecast_lines(found: Forecast, drive: Drive | None) -> list[str]:
    """Return the forecast as sentences, one per line."""
    if found.first_deletion is None:
        first_line = "Retention: no data is deleted, because no limit of the topic is reached."
    else:
        first_line = _first(found, found.first_deletion)
    held = amount(found.most_held_bytes, "bytes")
    written = amount(found.written_bytes, "bytes")
    fill = (
        ""
        if drive is None
        else f", the drive then {drive.fill_ratio(found.most_held_bytes):.0%} full"
    )
    return [
        first_line,
        f"Storage: {written} are written, at most {held} held, all copies together{fill}.",
    ]


def forecast_warnings(found: Forecast, drive: Drive | None) -> list[str]:
    """Return what the planned run would miss, one sentence each; empty if it reaches the limit in time."""
    found_warnings = []
    window = found.first_deletion
    if window is not None and found.seen in {"after the run", "after the soak"}:
        found_warnings.append(
            f"the soak ends before old data is deleted, {span(window.middle)} after the start: what "
            f"deletion does to latency will not be seen{_earlier(found)}"
        )
    if found.seen == "in the soak" and not found.seen_seconds:
        found_warnings.append(
            "the soak may end before the broker looks for old data to delete: what deletion does to latency "
            f"may not be seen{_earlier(found)}"
        )
    if found.seen == "in the warm-up":
        found_warnings.append(
            "old data is deleted from the warm-up on: a step of latency that comes with it "
            "falls into the warm-up, and the soak begins on the higher level"
        )
    if found.seen == "never":
        found_warnings.append(
            "no limit of retention is reached, however long the run: its part will not be seen; set one in "
            "topic.settings, such as retention.bytes"
        )
    if drive is not None and drive.fill_ratio(found.most_held_bytes) > _MAX_FILL_RATIO:
        held, free = amount(found.most_held_bytes, "bytes"), amount(drive.free_bytes, "bytes")
        found_warnings.append(f"{held} are to be held, and the drive has {free} free")
    return found_warnings


def _earlier(found: Forecast) -> str:
    """Return which keys of a plan make the soak see the first deletion."""
    return f"; lower {_LIMIT_KEYS[found.limit]} in topic.settings, or lengthen phases.soak"


def forecast_json(
    found: Forecast, limits: Limits, stored: Stored, drive: Drive | None
) -> dict[str, object]:
    """Return the content of `forecast.json`; null is never or unknown."""
    numbers = {
        key: _finite(value) if isinstance(value, float) else value
        for key, value in asdict(limits).items()
        if key != "notes"
    }
    return {
        "limit": found.limit,
        "first_closed_seconds": _rounded(found.first_closed),
        "first_deletion_seconds": _pair(found.first_deletion),
        "first_free_seconds": _pair(found.first_free),
        "deletions_every_seconds": _rounded(found.deletions_every),
        "written_bytes": round(found.written_bytes),
        "most_held_bytes": round(found.most_held_bytes),
        "drive_fill_ratio": None
        if drive is None
        else round(drive.fill_ratio(found.most_held_bytes), 4),
        "seen": found.seen,
        "seen_seconds": round(found.seen_seconds, 1),
        "message_bytes": round(stored.message_bytes, 1),
        "messages_per_batch": round(stored.messages_per_batch, 2),
        "limits": numbers,
        "notes": list(limits.notes),
        "warnings": forecast_warnings(found, drive),
    }


def unknown_forecast_json(why: str) -> dict[str, object]:
    """Return the content of `forecast.json` when the cluster's limits could not be read."""
    return {"first_deletion_seconds": None, "seen": "unknown", "notes": [why], "warnings": []}


def no_forecast_line(why: str) -> str:
    """Return the line for a plan whose first deletion cannot be forecast."""
    return f"Retention: the first deletion cannot be forecast: {why}."


def compare_with_event(
    predicted: Mapping[str, object],
    seconds: Mapping[str, float | None],
    watched_until: float | None = None,
) -> dict[str, object]:
    """Return forecast and event side by side; `seconds` since the start of the load, by kind of event.

    `error_seconds` is the delay of the first deletion after the middle of the forecast window.
    `is_as_foreseen`: within 10 % or 5 s of the window; null if there is nothing to compare, false if no
    deletion came although the load was observed for longer, until `watched_until`.
    """
    window, came = predicted.get("first_deletion_seconds"), seconds.get("first_deletion")
    error = ratio = holds = None
    if isinstance(window, list):
        early, late = (float(value) for value in window)
        middle = (early + late) / 2
        most = max(TOLERANCE_SECONDS, TOLERANCE_RATIO * middle)
        if came is not None:
            error = came - middle
            ratio = error / middle if middle > 0 else None
            holds = max(early - came, came - late, 0.0) <= most
        elif watched_until is not None and watched_until > late + most:
            holds = False
    return {
        "first_deletion_seconds": came,
        "first_free_seconds": seconds.get("first_free"),
        "error_seconds": None if error is None else round(error, 1),
        "error_ratio": None if ratio is None else round(ratio, 3),
        "is_as_foreseen": holds,
    }


TOLERANCE_SECONDS = 5.0
TOLERANCE_RATIO = 0.1


def _first(found: Forecast, window: Window) -> str:
    when = span(window.earliest)
    if span(window.latest) != when:
        when = f"between {when} and {span(window.latest)}"
    is_maybe_later = found.seen == "in the soak" and not found.seen_seconds
    where = "in the soak or after it" if is_maybe_later else found.seen
    text = f"Retention: {_LIMIT[found.limit]} is reached {when} after the start, {where}"
    if found.seen_seconds and found.seen == "in the soak":
        text += f", which goes on for {span(found.seen_seconds)} with deletions"
    if found.first_free is not None:
        text += f"; the space is free {span(found.first_free.earliest - window.earliest)} later"
    return f"{text}."


def _pair(window: Window | None) -> list[float] | None:
    return None if window is None else [round(window.earliest, 1), round(window.latest, 1)]


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
