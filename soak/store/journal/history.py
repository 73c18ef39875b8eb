"""Read a window of intervals of all sources, touching only the files and blocks that hold them.

Reads only what it needs: files are told apart by their first and last second, and the place of a second
in a file is found by bisection, as a file ascends in k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core.journal_format import DamagedLineError, decode
from soak.core.model import Column, Event, Record, Series
from soak.core.series import series_name
from soak.store.journal.reader import (
    SourceReader,
    complete_size,
    last_record,
    lines,
    segments,
    sources,
)

MAX_WINDOW_SECONDS = 7200
"""Longest window, so that memory stays bounded: some 20 MB at 300 columns."""

_BLOCK_BYTES = 131_072  # some twenty lines: bisection ends here, the rest is decoded
_EVENTS = b'"e":['
_SKIPPED = "_above_messages"  # the histogram's counts: for the report, not for detectors


@dataclass(frozen=True, slots=True)
class SourceSeconds:
    """One source: `k` ascending, shape (n,); `values` of shape (n, columns), NaN where not measured."""

    columns: tuple[Column, ...]
    k: NDArray[np.int64]
    values: NDArray[np.float64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Window:
    """Seconds k0 <= k < k1 of every source that has any there; `events` are (k, source, event) by k."""

    k0: int
    k1: int
    sources: Mapping[str, SourceSeconds]
    events: tuple[tuple[int, str, Event], ...]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Return series id ("source|name") to its column."""
        return {
            series_name(source, column.name): column
            for source, seconds in self.sources.items()
            for column in seconds.columns
        }

    @cached_property
    def _places(self) -> dict[str, tuple[SourceSeconds, int]]:
        """Return series id to where its values are; a thousand topics have thousands of series."""
        places: dict[str, tuple[SourceSeconds, int]] = {}
        for source, seconds in self.sources.items():
            for at, column in enumerate(seconds.columns):
                places.setdefault(series_name(source, column.name), (seconds, at))
        return places

    def series(self, name: str) -> Series:
        """Return the measured seconds of one series id; empty when it has none here."""
        if name not in self._places:
            return Series(name, np.empty(0, np.int64), np.empty(0))
        seconds, at = self._places[name]
        values = seconds.values[:, at]
        is_measured = np.isfinite(values)
        return Series(name, seconds.k[is_measured], values[is_measured])


@dataclass(slots=True)
class History:
    """Reads windows of one run's journals; remembers where whole files begin and end."""

    journal: Path
    block_bytes: int = _BLOCK_BYTES
    _ranges: dict[Path, tuple[int, int]] = field(default_factory=dict)  # one entry a file
    _counted: dict[Path, Counter[str]] = field(default_factory=dict)  # one entry a file

    def latest_k(self, source: str) -> int | None:
        """Return the last second on record, or None when there is none yet."""
        found = last_record(self.journal, source)
        return None if found is None else found[0].k

    def window(self, k0: int, k1: int) -> Window:
        """Return the seconds k0 <= k < k1.

        Raises:
            ValueError: the window is longer than `MOST_SECONDS`.
        """
        if k1 - k0 > MAX_WINDOW_SECONDS:
            raise ValueError(f"a window of {k1 - k0} s; at most {MAX_WINDOW_SECONDS}")
        found: dict[str, SourceSeconds] = {}
        events: list[tuple[int, str, Event]] = []
        for source in sources(self.journal):
            taken = dict(self._records(source, k0, k1))
            if taken:
                ordered = [taken[k] for k in sorted(taken)]
                found[source] = _source_seconds(ordered)
                events += [(one.k, source, event) for one, _ in ordered for event in one.events]
        events.sort(key=lambda item: item[0])
        return Window(k0, k1, found, tuple(events))

    def latest(self) -> dict[str, int]:
        """Return the last second on record of every source that has one."""
        found = {source: self.latest_k(source) for source in sources(self.journal)}
        return {source: k for source, k in found.items() if k is not None}

    def earlier_events(self, k: int) -> dict[str, int]:
        """Return how many events of each kind all records before second `k` tell.

        Looks at every line once: about a second for a day of three sources, the first time.
        """
        counted: Counter[str] = Counter()
        for source in sources(self.journal):
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
        """Give (k, record and columns); a second told twice comes last from the newest file."""
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


def _source_seconds(found: list[tuple[Record, tuple[Column, ...]]]) -> SourceSeconds:
    places: dict[Column, int] = {}
    kept: dict[tuple[Column, ...], tuple[list[int], list[int]]] = {}
    for _, columns in found:
        if columns not in kept:
            at = [i for i, one in enumerate(columns) if not one.metric.endswith(_SKIPPED)]
            kept[columns] = (at, [places.setdefault(columns[i], len(places)) for i in at])
    values = np.full((len(found), len(places)), np.nan)
    for row, (record, columns) in enumerate(found):
        source_at, target_at = kept[columns]
        values[row, target_at] = np.array(record.values)[source_at]
    return SourceSeconds(
        tuple(places),
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
    """Let the reader know the columns that the file begins with."""
    first = next(lines(path, 0, min(end, _BLOCK_BYTES)), b"")
    for _ in reader.read(path, 0, len(first)):
        pass


def position_of_interval(folder: Path, k: int) -> tuple[Path, int] | None:
    """Return a file of a source and where in it a line starts, at or before the records of second `k`.

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
    """Return the start of a line at or before the first record of second `k` or later."""
    low, high = 0, end  # every line that starts before `low` is of an earlier second
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
    """Give (place, k) of the records whose lines start in [begin, end)."""
    with path.open("rb") as file:
        file.seek(begin)
        if not is_line_start:
            begin += len(file.readline())
        while begin < end:
            raw = file.readline()
            if not raw:  # cut off by a power loss
                return
            k = _k_of(raw)
            if k is not None:
                yield begin, k
            begin += len(raw)


def _last_k(path: Path, end: int, size: int) -> int | None:
    while True:
        begin = max(0, end - size)
        found = list(_interval_positions(path, begin, end, is_line_start=begin == 0))
        if found or begin == 0:
            return found[-1][1] if found else None
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
