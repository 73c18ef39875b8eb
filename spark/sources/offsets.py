"""Offsets of readers in journals that grow while they are read.

A place is the number of a file and a byte in it, always just behind a newline. The last line of a file
counts as torn, and is left out, only once a newer file exists: its writer has ended then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from soak.core.journal_format import MAX_LINE_BYTES, Columns, DamagedLineError, decode
from soak.core.model import Column
from soak.service.files import read_json, write_atomically
from soak.store.journal.history import History
from soak.store.journal.reader import line_end, lines, segment_name, segments, sources

Offset = dict[str, list[int]]
"""Source to [file number, bytes]; what Spark keeps in its checkpoint."""

_BLOCK_BYTES = 65_536
_MOST_COLUMNS_LINES = 16  # of one file; older ones are found by reading the file
_COLUMNS_LINE = b'{"t":"c"'
MISSING = -1
"""The `end` of a span that stands for missing files: its own, and those up to the next one."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [begin, end) of one file; `end` below `begin`: the file lost what was read before.

    `columns_at` are the places of columns lines before `begin` that records in it may refer to.
    """

    source: str
    segment: int
    begin: int
    end: int
    columns_at: tuple[int, ...] = ()

    def path(self, journal: Path) -> Path:
        return journal / self.source / segment_name(self.segment)


class ColumnsIndex:
    """Where the columns lines of the file in hand lie, so that no batch searches it again."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[Path, int, tuple[int, ...]]] = {}  # one entry a source

    def before(self, path: Path, begin: int) -> tuple[int, ...]:
        """Return the places of columns lines in [0, begin), ascending, at most the last sixteen."""
        known, scanned, places = self._seen.get(path.parent, (path, 0, ()))
        if known != path or scanned > begin:
            scanned, places = 0, ()
        for raw in lines(path, scanned, begin):
            if raw.startswith(_COLUMNS_LINE):
                places = (*places, scanned)[-_MOST_COLUMNS_LINES:]
            scanned += len(raw)
        self._seen[path.parent] = (path, begin, places)
        return places


def newest(journal: Path, start: Offset, limit_bytes: int | None) -> Offset:
    """Return how far may be read from `start`: whole lines, about `limit_bytes` over all sources."""
    names = [name for name in sources(journal) if segments(journal / name)]
    share = None if limit_bytes is None else max(1, limit_bytes // max(1, len(names)))
    return {**start, **{name: _advanced(journal / name, start.get(name), share) for name in names}}


def size_bytes(journal: Path, start: Offset, end: Offset) -> int:
    """Return how many bytes lie between two places; at least 1 where the places differ."""
    found = 0
    for source, (last, end_bytes) in end.items():
        first, begin = start.get(source, [-1, 0])
        found += end_bytes
        if first == last:
            found -= begin
            continue
        for path in segments(journal / source):
            if first <= int(path.stem) < last:
                found += path.stat().st_size - (begin if int(path.stem) == first else 0)
    return max(found, int(start != end))


def reached(journal: Path, offset: Offset) -> dict[str, int]:
    """Return the last interval before its place of every source that has one there."""
    history = History(journal)
    found = {name: history.latest_k(name, (number, at)) for name, (number, at) in offset.items()}
    return {name: k for name, k in found.items() if k is not None}


def spans(journal: Path, start: Offset, end: Offset, index: ColumnsIndex) -> list[Span]:
    """Return what lies between two places of every source, by source and file.

    A writer numbers its files in turn, so one that is not there was lost.
    """
    found = []
    for source, (last, end_bytes) in sorted(end.items()):
        first, begin_bytes = start.get(source, [-1, 0])
        before = first
        for path in segments(journal / source):
            number = int(path.stem)
            if not first <= number <= last:
                continue
            if 0 <= before < number - 1:
                found.append(Span(source, before + 1, 0, MISSING))
            before = number
            begin = begin_bytes if number == first else 0
            # a file that is not the last any more does not change, so this is the same on a replay
            stop = end_bytes if number == last else _newline_before(path, 0, path.stat().st_size)
            if stop != begin:
                places = index.before(path, begin) if stop > begin else ()
                found.append(Span(source, number, begin, stop, places))
    return found


def columns_at(path: Path, place: int) -> tuple[str, tuple[Column, ...]] | None:
    """Return id and columns of the columns line at `place`, or None when it is damaged."""
    with path.open("rb") as file:
        file.seek(place)
        raw = file.readline(MAX_LINE_BYTES + 1)
    try:
        line = decode(raw)
    except DamagedLineError:
        return None
    return (line.id, line.columns) if isinstance(line, Columns) else None


def _advanced(folder: Path, start: list[int] | None, limit: int | None) -> list[int]:
    files = segments(folder)  # before any size is taken: all but the last of them are whole
    number, offset = start or [int(files[0].stem), 0]
    for path in files:
        if int(path.stem) < number:
            continue
        if int(path.stem) > number:
            number, offset = int(path.stem), 0
        end = _newline_before(path, offset, path.stat().st_size)
        if limit is not None and end - offset > limit:
            cut = _newline_before(path, offset, offset + limit)
            return [number, cut if cut > offset else line_end(path, offset)]
        if limit is not None:
            limit -= max(0, end - offset)
        offset = max(offset, end)
    return [number, offset]


def _newline_before(path: Path, begin: int, end: int) -> int:
    """Return the place behind the last newline in [begin, end), or `begin` when there is none.

    An `end` below `begin` is returned as the place behind the last newline of the whole file.
    """
    floor = begin if begin <= end else 0
    with path.open("rb") as file:
        while end > floor:
            block = max(floor, end - _BLOCK_BYTES)
            file.seek(block)
            at = file.read(end - block).rfind(b"\n")
            if at >= 0:
                return block + at + 1
            end = block
    return floor


# --- A batch that killed its processes is read in small parts; a line that kills them alone is stepped over.


@dataclass(frozen=True, slots=True)
class Caution:
    """How to read on after deaths: `limit_bytes` a batch up to `until`; 1 is a single line of one source.

    `start` and `deaths` are those of the batch with which a process died last. `passed` names the lines that
    are stepped over, as source, number of the file, first byte and the byte behind it.
    """

    limit_bytes: int = 0  # 0: as usual
    until: Offset = field(default_factory=dict)
    start: Offset = field(default_factory=dict)
    deaths: int = 0
    passed: tuple[tuple[str, int, int, int], ...] = ()

    @classmethod
    def read(cls, path: Path) -> Caution:
        """Return what an earlier process wrote; none where the file is missing or damaged."""
        try:
            found = read_json(path)
            passed = tuple((str(a), int(b), int(c), int(d)) for a, b, c, d in found.pop("passed"))
            return cls(**found, passed=passed)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return cls()

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)) + "\n")

    def applies(self, start: Offset) -> bool:
        """Return whether a batch from `start` on is to be small."""
        return bool(self.limit_bytes) and any(
            start.get(name, [-1, 0]) < place for name, place in self.until.items()
        )

    def end(self, journal: Path, start: Offset) -> Offset:
        """Return where the small batch from `start` on ends."""
        found = newest(journal, start, self.limit_bytes)
        ends: Offset = {}
        for name, place in sorted(self.until.items()):
            begin = start.get(name, [-1, 0])
            end = min(found.get(name, begin), place)
            if end > begin and not (ends and self.limit_bytes == 1):
                ends[name] = end
        return {**start, **ends}


def stepped_over(span: Span, passed: Mapping[tuple[str, int], list[tuple[int, int]]]) -> list[Span]:
    """Return the parts of a span that are not stepped over."""
    if span.end < span.begin:
        return [span]
    parts, begin = [], span.begin
    for first, end in sorted(passed.get((span.source, span.segment), ())):
        if begin <= first < span.end:
            if first > begin:
                parts.append(Span(span.source, span.segment, begin, first, span.columns_at))
            begin = end
    if begin < span.end:
        parts.append(Span(span.source, span.segment, begin, span.end, span.columns_at))
    return parts
