"""The retention forecast: when a run reaches the limit of what the cluster keeps, and how much it holds then."""

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
    """Messages since the load began; the last rate goes on for ever."""

    def __init__(self, rates: Iterable[tuple[float, float]], share: float = 1.0) -> None:
        """Take (second, messages a second from it on), ascending from 0, and the share that counts.

        Raises:
            ValueError: they do not begin at 0, do not ascend, or a rate is below 0.
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
        """Return how many were sent in so many seconds."""
        at = int(np.searchsorted(self._seconds, seconds, side="right")) - 1
        if at < 0:
            return 0.0
        return float(self._counts[at] + (seconds - self._seconds[at]) * self._rates[at])

    def when(self, count: float) -> float:
        """Return after how many seconds so many were sent; infinity where they never are."""
        if count <= 0:
            return 0.0
        at = int(np.searchsorted(self._counts, count, side="left")) - 1
        rate = float(self._rates[at])
        if (
            rate == 0
        ):  # only after the last change: before it a count that stands still is passed over
            return math.inf
        return float(self._seconds[at] + (count - self._counts[at]) / rate)


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


def forecast_plan(
    plan: Plan, limits: Limits, stored: Stored, table: Sequence[Point] = ()
) -> Forecast:
    """Return the forecast; `table` holds the rates of the profile's file.

    A ramp counts as over at once, as nobody knows how long it will search, and catch-ups as if they
    took as long as they may. See `doubts`.
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
    """Return why nobody can say when this plan's first deletion will come; none where one can."""
    found = []
    if plan.phases.ramp is not None and plan.phases.ramp.soak_share:
        found.append("the rate of the soak is what the ramp will find")
    if not limits.is_empty:
        found.append("the topics may hold messages already, and the first of them go at once")
    return found


def busiest_ratio(keys: Keys, partitions: int) -> float:
    """Return the rate of a topic's busiest partition over the mean, with the most frequent key on it.

    The other keys are taken to be spread evenly.
    """
    if keys.kind == "none":
        return 1.0
    top = 1 / keys.count
    if keys.kind == "zipf":
        top = 1 / sum(number**-keys.exponent for number in range(1, keys.count + 1))
    return partitions * top + 1 - top


_LIMIT = {"bytes": "the limit in bytes", "time": "the limit in time"}
_MAX_FILL_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Drive:
    """The drive that holds all copies."""

    total_bytes: int
    free_bytes: int

    def fill_ratio(self, held_bytes: float) -> float:
        """Return how full it is with so many bytes more, above 1 where they do not fit."""
        return (self.total_bytes - self.free_bytes + held_bytes) / self.total_bytes


def forecast_lines(found: Forecast, drive: Drive | None) -> list[str]:
    """Return what is foreseen, a sentence a line."""
    if found.first_deletion is None:
        told = ["Retention: nothing is ever deleted, as the topic has no limit that is reached."]
    else:
        told = [_first(found, found.first_deletion)]
    held = amount(found.most_held_bytes, "bytes")
    written = amount(found.written_bytes, "bytes")
    fill = (
        ""
        if drive is None
        else f", the drive then {drive.fill_ratio(found.most_held_bytes):.0%} full"
    )
    return [
        *told,
        f"Storage: {written} are written, at most {held} held, all copies together{fill}.",
    ]


def forecast_warnings(found: Forecast, drive: Drive | None) -> list[str]:
    """Return what a run as planned would miss, a sentence each; none where it sees the limit reached."""
    said = []
    window = found.first_deletion
    if window is not None and found.seen in {"after the run", "after the soak"}:
        said.append(
            f"the soak ends before old data is deleted, {span(window.middle)} after the start: what "
            "deletion does to latency will not be seen"
        )
    if found.seen == "in the soak" and not found.seen_seconds:
        said.append(
            "the soak may end before the broker looks for old data to delete: what deletion does to latency "
            "may not be seen"
        )
    if found.seen == "in the warm-up":
        said.append(
            "old data is deleted from the warm-up on: a step of latency that comes with it "
            "falls into the warm-up, and the soak begins on the higher level"
        )
    if found.seen == "never":
        said.append(
            "no limit of retention is reached, however long the run: its part will not be seen"
        )
    if drive is not None and drive.fill_ratio(found.most_held_bytes) > _MAX_FILL_RATIO:
        held, free = amount(found.most_held_bytes, "bytes"), amount(drive.free_bytes, "bytes")
        said.append(f"{held} are to be held, and the drive has {free} free")
    return said


def forecast_json(
    found: Forecast, limits: Limits, stored: Stored, drive: Drive | None
) -> dict[str, object]:
    """Return what `forecast.json` holds; null for what never happens or is not known."""
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
    """Return what `forecast.json` holds where the cluster told nothing."""
    return {"first_deletion_seconds": None, "seen": "unknown", "notes": [why], "warnings": []}


def no_forecast_line(why: str) -> str:
    """Return the line for a plan of which the first deletion cannot be foreseen."""
    return f"Retention: when old data is first deleted is not foreseen: {why}."


def compare_with_event(
    told: Mapping[str, object],
    seconds: Mapping[str, float | None],
    watched_until: float | None = None,
) -> dict[str, object]:
    """Return forecast and event side by side: `seconds` since the load's start of the first of each.

    `error_seconds` is by how much the first deletion came later than the middle of what was foreseen;
    `is_as_foreseen`: within 10 % or 5 s of the times foreseen, null where there is nothing to compare. It
    is false as well where none came though somebody watched the load for longer, to `watched_until`.
    """
    window, came = told.get("first_deletion_seconds"), seconds.get("first_deletion")
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
    said = f"Retention: {_LIMIT[found.limit]} is reached {when} after the start, {found.seen}"
    if found.seen == "in the soak" and found.seen_seconds:
        said += f", which goes on for {span(found.seen_seconds)} with deletions"
    if found.first_free is not None:
        said += f"; the space is free {span(found.first_free.earliest - window.earliest)} later"
    return f"{said}."


def _pair(window: Window | None) -> list[float] | None:
    return None if window is None else [round(window.earliest, 1), round(window.latest, 1)]


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
