"""What a live view keeps of the journals: of each source the newest second, of the run the shape of all.

The newest minutes are read at once, the part before them in small portions, so that the first look at a run
of 36 hours takes no longer than one at a run that has just begun. Memory is bounded whatever a run lasts.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from soak.core.model import Column, Record
from soak.store.journal.history import position_of_interval
from soak.store.journal.reader import SourceReader, complete_size, line_end, segments

HISTORY_SECONDS = 240
"""The newest part of a run, of which every second is kept."""
BAND_EDGES = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Seconds; the bands of the heat strip lie below, between and above them."""
MAX_BINS = 480
COUNTS = (
    "sent_messages",
    "acked_messages",
    "failed_messages",
    "missed_messages",
    "in_flight_messages",
    "received_messages",
    "lag_messages",
)
_MAX_COLUMN_SETS = 64
_PART_SECONDS = 256
_SILENT, _ANSWERED = 1, 2
_QUANTILES = ("0.5", "0.99", "0.999")


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of one latency in an interval, in seconds; NaN without a value."""

    p50: float = math.nan
    p99: float = math.nan
    p999: float = math.nan


@dataclass(frozen=True, slots=True)
class Bin:
    """Some seconds of the run: messages by band of publish latency, seconds of outage, the worst p99."""

    bands: tuple[float, ...] = (0.0,) * (len(BAND_EDGES) + 1)
    silent_seconds: int = 0  # messages were due, and none was acknowledged
    publish_p99: float = math.nan
    end_to_end_p99: float = math.nan

    def merged(self, other: Bin) -> Bin:
        return Bin(
            tuple(a + b for a, b in zip(self.bands, other.bands, strict=True)),
            self.silent_seconds + other.silent_seconds,
            worst((self.publish_p99, other.publish_p99)),
            worst((self.end_to_end_p99, other.end_to_end_p99)),
        )


class _Places:
    """Where the values of a record are that a look needs."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        plain = {column.metric: at for at, column in enumerate(columns) if not column.labels}
        labelled = {
            (column.metric, column.labels): at
            for at, column in enumerate(columns)
            if len(column.labels) == 1
        }
        self.counts = {name: plain[name] for name in COUNTS if name in plain}
        self.quantiles = {
            latency: [
                labelled.get((f"{latency}_latency_seconds", (("quantile", name),)))
                for name in _QUANTILES
            ]
            for latency in ("publish", "end_to_end")
        }
        self.above = [
            labelled.get(("publish_latency_above_messages", (("threshold", f"{edge:g}"),)))
            for edge in BAND_EDGES
        ]


@dataclass(frozen=True, slots=True)
class Second:
    """What one source recorded in one interval; `bands` is empty where it counts none."""

    epoch: int
    k: int
    counts: Mapping[str, float]
    publish: Latency
    end_to_end: Latency
    bands: tuple[float, ...]
    reason: str

    def count(self, name: str) -> float:
        """Return a count, 0 where it was not measured."""
        value = self.counts.get(name, 0.0)
        return value if math.isfinite(value) else 0.0

    @property
    def is_due(self) -> bool:
        """True when the cluster had something to acknowledge."""
        return any(
            self.count(f"{name}_messages") > 0 for name in ("sent", "failed", "missed", "in_flight")
        )


def _second_of(record: Record, places: _Places) -> Second:
    values = record.values
    counts = {name: values[at] for name, at in places.counts.items()}

    def latency(name: str) -> Latency:
        return Latency(*(math.nan if at is None else values[at] for at in places.quantiles[name]))

    bands: tuple[float, ...] = ()
    above = [values[at] for at in places.above if at is not None]
    if len(above) == len(BAND_EDGES) and all(map(math.isfinite, above)):
        total = max(counts.get("acked_messages", above[0]), above[0])
        edges = [total, *above, 0.0]
        bands = tuple(max(0.0, a - b) for a, b in pairwise(edges))
    return Second(
        record.epoch,
        record.k,
        counts,
        latency("publish"),
        latency("end_to_end"),
        bands,
        str(record.validity.get("reason", "")),
    )


def worst(values: Iterable[float]) -> float:
    """Return the largest finite value; NaN without one. Quantiles of several sources cannot be added."""
    return max(filter(math.isfinite, values), default=math.nan)


def worst_latency(several: Iterable[Latency]) -> Latency:
    found = list(several)
    return Latency(
        worst(one.p50 for one in found),
        worst(one.p99 for one in found),
        worst(one.p999 for one in found),
    )


@dataclass(slots=True)
class Strip:
    """The whole run in at most `MAX_BINS` bins, which become longer as it goes on."""

    seconds: int = 1
    bins: dict[int, Bin] = field(default_factory=dict)
    answers: dict[int, bytearray] = field(
        default_factory=dict
    )  # a byte a second: the constants below

    def add(self, k: int, bin_: Bin) -> None:
        while k // self.seconds >= MAX_BINS:
            longer: dict[int, Bin] = {}
            for at, one in self.bins.items():
                longer[at // 2] = longer[at // 2].merged(one) if at // 2 in longer else one
            self.bins, self.seconds = longer, 2 * self.seconds
        at = k // self.seconds
        known = self.bins.get(at)
        self.bins[at] = bin_ if known is None else known.merged(bin_)

    def note_answer(self, k: int, came: float, *, is_due: bool) -> None:
        """Note what one of several producers got in a second: an answer to any of them is one."""
        part = self.answers.get(k // _PART_SECONDS)
        if part is None:
            part = self.answers[k // _PART_SECONDS] = bytearray(_PART_SECONDS)
        at = k % _PART_SECONDS
        part[at] = max(part[at], _ANSWERED if came > 0 else _SILENT if is_due else 0)

    def in_order(self, until_k: float = math.inf) -> tuple[Bin, ...]:
        """Return all bins; seconds behind `until_k` may get an answer yet."""
        silent = Counter(k // self.seconds for k in self._silent_seconds() if k <= until_k)
        return tuple(
            replace(self.bins.get(at, Bin()), silent_seconds=silent[at])
            for at in range(max(self.bins, default=-1) + 1)
        )

    def _silent_seconds(self) -> Iterator[int]:
        """Yield the silent seconds but the first of each: a message may be answered in the next one."""
        last = -2
        for number, part in sorted(self.answers.items()):
            if _SILENT not in part:
                continue
            for k in (number * _PART_SECONDS + at for at, one in enumerate(part) if one == _SILENT):
                if last == k - 1:
                    yield k
                last = k


@dataclass(slots=True)
class Ring:
    """One value for each of the newest seconds of several sources: the worst of them."""

    values: dict[int, float] = field(default_factory=dict)

    def add(self, k: int, value: float) -> None:
        self.values[k] = worst((value, self.values.get(k, math.nan)))
        if len(self.values) > 2 * HISTORY_SECONDS:
            from_k = max(self.values) - HISTORY_SECONDS
            self.values = {at: one for at, one in self.values.items() if at > from_k}

    def until(self, newest_k: int) -> tuple[float, ...]:
        """Return the values up to a second, NaN where there is none; not the empty part before the run."""
        first = max(newest_k - HISTORY_SECONDS + 1, min(self.values, default=newest_k + 1))
        return tuple(self.values.get(k, math.nan) for k in range(first, newest_k + 1))


@dataclass(slots=True)
class Silence:
    """The last second in which something came, and what has been due and has failed since."""

    last_k: int = -1
    since: dict[int, tuple[bool, float]] = field(default_factory=dict)  # due and failed, by second

    def add(self, k: int, came: float, *, is_due: bool, failed: float = 0.0) -> None:
        if came > 0 and k > self.last_k:
            self.last_k = k
            self.since = {at: one for at, one in self.since.items() if at > k}
        elif came == 0 and k > self.last_k:
            was_due, before = self.since.get(k, (False, 0.0))
            self.since[k] = (is_due or was_due, failed + before)

    def length(self, until_k: int, is_paused: Callable[[int], bool] = lambda _: False) -> int:
        """Return for how many seconds nothing has come although it was due; none is in a pause."""
        due = (k for k, (is_due, _) in sorted(self.since.items()) if is_due and not is_paused(k))
        first = next(due, until_k + 1)
        return max(0, until_k - max(self.last_k, first - 1))

    def failed(self, until_k: int) -> float:
        return sum(failed for k, (_, failed) in self.since.items() if k <= until_k)


# --- The journals.


@dataclass(slots=True)
class Source:
    """The journal of one source: the part that was not read yet, at its end and before."""

    name: str
    folder: Path
    reader: SourceReader
    newest: Second | None = None
    place: tuple[Path, int] | None = None  # behind the last line that was read
    first: tuple[int, int] | None = None  # epoch and interval that were read first at the end
    last: tuple[int, int] = (-1, -1)  # and last
    last_older: tuple[int, int] = (-1, -1)
    older: deque[tuple[Path, int, int]] = field(default_factory=deque)  # file, begin, end
    older_bytes: int = 0
    _places: dict[str, _Places] = field(default_factory=dict)

    def start(self, from_k: int) -> None:
        """Begin at an interval; what lies before it is left for `older_parts`."""
        begin = position_of_interval(self.folder, from_k)
        if begin is None:
            return
        self.place = begin
        for path in segments(self.folder):
            if path <= begin[0]:
                end = begin[1] if path == begin[0] else complete_size(path)
                if end:
                    self.older.append((path, 0, end))
                    self.older_bytes += end

    def new_parts(self) -> Iterator[tuple[Path, int, int]]:
        """Yield the parts of files that were written since the last call: path, begin and end."""
        if self.place is None:
            return
        at, offset = self.place
        for path in segments(self.folder):
            if path >= at:
                end = complete_size(path)
                self.place = (path, end)
                yield path, offset if path == at else 0, end

    def older_parts(self, most_bytes: int) -> Iterator[tuple[Path, int, int]]:
        """Yield the next parts of what lies before, oldest first, of about so many bytes."""
        while self.older and most_bytes > 0:
            path, begin, end = self.older.popleft()
            cut = line_end(path, begin + most_bytes) if end - begin > most_bytes else end
            if cut < end:
                self.older.appendleft((path, cut, end))
            most_bytes -= cut - begin
            yield path, begin, cut

    def is_repeated(self, second: Second, *, is_older: bool) -> bool:
        """True for a record that was read before: a journal may have one twice."""
        at = second.epoch, second.k
        if is_older:
            was_read = at <= self.last_older or (self.first is not None and at >= self.first)
            self.last_older = max(at, self.last_older)
            return was_read
        was_read = at <= self.last
        self.first, self.last = self.first or at, max(at, self.last)
        return was_read

    def wait_for(self, k: int) -> None:
        """Read what was recorded from an interval on again: this host's clock is behind."""
        self.place = position_of_interval(self.folder, k)

    def unread_bytes(self) -> int:
        return sum(end - begin for _, begin, end in self.older)

    def seconds(self, path: Path, begin: int, end: int) -> Iterator[Second]:
        """Yield what the records in a part of a file say; damaged lines are skipped."""
        for record, columns in self.reader.read(path, begin, end):
            places = self._places.get(record.columns_id)
            if places is None:
                if len(self._places) >= _MAX_COLUMN_SETS:
                    self._places.clear()
                places = self._places[record.columns_id] = _Places(columns)
            yield _second_of(record, places)
        self.reader.damage.clear()


def is_followed(source: str) -> bool:
    """True for producers, consumers and probes; a folder may have any name."""
    daemon, at, _ = source.partition("@")
    role, dot, number = daemon.partition(".")
    is_numbered = bool(dot) and number.isascii() and number.isdigit() and len(number) < 7  # noqa: PLR2004  # digits
    return bool(at) and (role == "probe" or (role in {"produce", "consume"} and is_numbered))
