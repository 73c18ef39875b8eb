"""Read a window of intervals of all sources, touching only the files and blocks that hold them.

Intervals ascend within a file, so its first and last one say whether it is needed, and bisection finds where
an interval begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.journal_format import MAX_LINE_BYTES, DamagedLineError, decode
from soak.core.model import Column, Event, Record, Series
from soak.core.series import series_name
from soak.store.journal.reader import (
    SourceReader,
    complete_size,
    lines,
    segments,
    sources,
)

MAX_WINDOW_SECONDS = 7200
"""Longest window, so that memory stays bounded: some 20 MB at 300 columns."""

_BLOCK_BYTES = 131_072  # some twenty lines: bisection ends here, and the lines are decoded
_EVENTS = b'"e":['
_COUNTS = "_above_messages"  # counts of a histogram, for the report and not for detectors


@dataclass(frozen=True, slots=True)
class SourceSeconds:
    """The intervals of one source: `k` ascending, shape (n,); `values` (n, columns), NaN if unmeasured."""

    columns: tuple[Column, ...]
    k: NDArray[np.int64]
    values: NDArray[np.float64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """Intervals k0 <= k < k1 of every source that has some; `events` are (k, source, event) in order of k."""

    k0: int
    k1: int
    sources: Mapping[str, SourceSeconds]
    events: tuple[tuple[int, str, Event], ...]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Return the columns by series name."""
        return {
            series_name(source, column.name): column
            for source, seconds in self.sources.items()
            for column in seconds.columns
        }

    @cached_property
    def _index(self) -> dict[str, tuple[SourceSeconds, int]]:
        """Return an index of the series by name: a thousand topics have thousands of series."""
        index: dict[str, tuple[SourceSeconds, int]] = {}
        for source, seconds in self.sources.items():
            for at, column in enumerate(seconds.columns):
                index.setdefault(series_name(source, column.name), (seconds, at))
        return index

    def series(self, name: str) -> Series:
        """Return the measured intervals of one series; empty where it has none here."""
        if name not in self._index:
            return Series(name, np.empty(0, np.int64), np.empty(0))
        seconds, at = self._index[name]
        values = seconds.values[:, at]
        is_measured = np.isfinite(values)
        return Series(name, seconds.k[is_measured], values[is_measured])


@dataclass(slots=True)
class History:
    """Reads windows from the journals of a run; remembers the first and last interval of complete files."""

    journal: Path
    block_bytes: int = _BLOCK_BYTES
    _ranges: dict[Path, tuple[int, int]] = field(default_factory=dict)  # one entry a file
    _counted: dict[Path, Counter[str]] = field(default_factory=dict)  # one entry a file

    def latest_k(self, source: str, before: tuple[int, int] | None = None) -> int | None:
        """Return the last recorded interval of a source, or None where there is none yet.

        `before`: the last one before a place, which is the number of a file and a byte behind a newline.
        """
        for path in reversed(segments(self.journal / source)):
            number, end = int(path.stem), complete_size(path)
            if before is not None and number >= before[0]:
                end = min(end, before[1]) if number == before[0] else 0
            k = _last_k(path, end, self.block_bytes)
            if k is not None:
                return k
        return None

    def window(
        self, k0: int, k1: int, *, with_counts: bool = False, of: Sequence[str] | None = None
    ) -> Window:
        """Return the intervals k0 <= k < k1 of all sources, or of those named.

        They have the counts above each threshold where asked for.

        Raises:
            ValueError: the window is longer than `MAX_WINDOW_SECONDS`.
        """
        if k1 - k0 > MAX_WINDOW_SECONDS:
            raise ValueError(f"a window of {k1 - k0} s; at most {MAX_WINDOW_SECONDS}")
        found: dict[str, SourceSeconds] = {}
        events: list[tuple[int, str, Event]] = []
        for source in sources(self.journal) if of is None else of:
            taken = dict(self._records(source, k0, k1))
            if taken:
                ordered = [taken[k] for k in sorted(taken)]
                found[source] = _source_seconds(ordered, with_counts=with_counts)
                events += [(one.k, source, event) for one, _ in ordered for event in one.events]
        events.sort(key=lambda item: item[0])
        return Window(k0, k1, found, tuple(events))

    def latest(self) -> dict[str, int]:
        """Return the last recorded interval of every source that has one."""
        found = {source: self.latest_k(source) for source in sources(self.journal)}
        return {source: k for source, k in found.items() if k is not None}

    def earlier_events(self, k: int, *, of: Sequence[str] | None = None) -> dict[str, int]:
        """Return the numbers of events by kind in all records before interval `k`.

        Of all sources, or of those named. The first call reads every line: about a second for a day of three
        sources.
        """
        counted: Counter[str] = Counter()
        for source in sources(self.journal) if of is None else of:
            files = segments(self.journal / source)
            for path in files:
                end = complete_size(path)
                span = self._span(path, end, is_whole=path != files[-1])
                if span is None or span[0] >= k:
                    continue
                if path == files[-1] or span[1] >= k:
                    counted += _events_in(path, end, k)
                    continue
                if path not in self._counted:
                    self._counted[path] = _events_in(path, end, k)
                counted += self._counted[path]
        return dict(counted)

    def _records(
        self, source: str, k0: int, k1: int
    ) -> Iterator[tuple[int, tuple[Record, tuple[Column, ...]]]]:
        """Yield (k, record and columns); of an interval in two files, the newest record comes last."""
        folder = self.journal / source
        reader = SourceReader(folder)
        files = segments(folder)
        for path in files:
            end = complete_size(path)
            span = self._span(path, end, is_whole=path != files[-1])
            if span is None or span[0] >= k1 or span[1] < k0:
                continue
            _read_head(reader, path, end)
            for record, columns in reader.read(
                path, _position_of(path, k0, end, self.block_bytes), end
            ):
                if record.k >= k1:
                    break
                if record.k >= k0:
                    yield record.k, (record, columns)

    def _span(self, path: Path, end: int, *, is_whole: bool) -> tuple[int, int] | None:
        known = self._ranges.get(path)
        if known is not None:
            return known
        first = next(_interval_positions(path, 0, end), None)
        last = _last_k(path, end, self.block_bytes)
        if first is None or last is None:
            return None
        if is_whole:
            self._ranges[path] = (first[1], last)
        return first[1], last


def _source_seconds(
    found: list[tuple[Record, tuple[Column, ...]]], *, with_counts: bool
) -> SourceSeconds:
    index: dict[Column, int] = {}
    kept: dict[tuple[Column, ...], tuple[list[int], list[int]]] = {}
    for _, columns in found:
        if columns not in kept:
            at = [
                i
                for i, one in enumerate(columns)
                if with_counts or not one.metric.endswith(_COUNTS)
            ]
            kept[columns] = (at, [index.setdefault(columns[i], len(index)) for i in at])
    values = np.full((len(found), len(index)), np.nan)
    for row, (record, columns) in enumerate(found):
        source_at, target_at = kept[columns]
        values[row, target_at] = np.array(record.values)[source_at]
    return SourceSeconds(
        tuple(index),
        np.array([record.k for record, _ in found], dtype=np.int64),
        values,
        np.array([record.is_valid for record, _ in found], dtype=np.bool_),
    )


def _events_in(path: Path, end: int, k: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for raw in lines(path, 0, end):
        record = _record_of(raw) if _EVENTS in raw else None
        if record is not None and record.k < k:
            found.update(event.kind for event in record.events)
    return found


def _read_head(reader: SourceReader, path: Path, end: int) -> None:
    """Make the reader read the columns line at the beginning of a file."""
    first = next(lines(path, 0, min(end, _BLOCK_BYTES)), b"")
    for _ in reader.read(path, 0, len(first)):
        pass


def position_of_interval(folder: Path, k: int) -> tuple[Path, int] | None:
    """Return a file of a source and the offset of a line at or before the records of interval `k`.

    None while the source has written nothing.
    """
    files = segments(folder)
    for path in reversed(files):
        end = complete_size(path)
        first = next(_interval_positions(path, 0, end), None)
        if first is not None and (first[1] <= k or path == files[0]):
            return path, _position_of(path, k, end, _BLOCK_BYTES)
    return (files[0], 0) if files else None


def _position_of(path: Path, k: int, end: int, block: int) -> int:
    """Return the offset of a line at or before the first record of interval `k` or later."""
    low, high = 0, end  # every line that starts before `low` is of an earlier interval
    while high - low > block:
        middle = (low + high) // 2
        found = next(_interval_positions(path, middle, high, is_line_start=False), None)
        if found is None or found[1] >= k:
            high = middle
        else:
            low = found[0]
    return low


def _interval_positions(
    path: Path, begin: int, end: int, *, is_line_start: bool = True
) -> Iterator[tuple[int, int]]:
    """Yield (offset, interval) of the records whose lines start in [begin, end)."""
    with path.open("rb") as file:
        file.seek(begin)
        if not is_line_start:
            begin += len(file.readline(MAX_LINE_BYTES + 1))
        while begin < end:
            raw = file.readline(MAX_LINE_BYTES + 1)  # a longer line comes in pieces
            if not raw:  # truncated by a power loss
                return
            k = _k_of(raw)
            if k is not None:
                yield begin, k
            begin += len(raw)


def _last_k(path: Path, end: int, size: int) -> int | None:
    while True:
        begin = max(0, end - size)
        found = reversed(list(lines(path, begin, end)))  # the first may be incomplete, so no record
        last = next((k for raw in found if (k := _k_of(raw)) is not None), None)
        if last is not None or begin == 0:
            return last
        size *= 4


def _k_of(raw: bytes) -> int | None:
    record = _record_of(raw)
    return None if record is None else record.k


def _record_of(raw: bytes) -> Record | None:
    try:
        line = decode(raw)
    except DamagedLineError:
        return None
    return line if isinstance(line, Record) else None
