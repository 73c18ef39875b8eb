"""Read the journal of one source: whole, from an offset, or its newest record; damage becomes a gap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from soak.core.errors import JournalError
from soak.core.journal_format import (
    MAX_INTERVAL,
    MAX_LINE_BYTES,
    Columns,
    DamagedLineError,
    End,
    Line,
    checked_places,
    decode,
    wrong_count,
)
from soak.core.model import Column, Record

CHUNK_BYTES = 4 * 2**20
LAST_BLOCK_BYTES = 65_536
_END_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """A line, or the end of a file, that could not be read, with its place: a gap."""

    path: Path
    offset: int
    reason: str


@dataclass(slots=True)
class SourceReader:
    """Reads one source from any offset on; remembers its columns lines and collects its damage.

    It returns a record as often as the journal has it. A record is identified by (source, epoch, interval):
    callers skip repeated ones where that matters.
    """

    folder: Path
    columns: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    ended_epoch: int = -1
    max_k: int = MAX_INTERVAL  # a later interval is not one of the run
    _checked: dict[str, tuple[int, ...]] = field(default_factory=dict)  # places, by id of columns

    def read(self, path: Path, begin: int, end: int) -> Iterator[tuple[Record, tuple[Column, ...]]]:
        """Yield the records whose lines are in [begin, end) of one file; `end` is behind a newline.

        A file that ends before `end` is damage: it lost lines since, or this host does not see them yet.
        """
        offset, is_line_start = begin, True
        for raw in lines(path, begin, end):
            found = self._line(path, offset, raw) if is_line_start else None
            offset += len(raw)
            is_line_start = raw.endswith(b"\n")
            if found is not None:
                yield found
        if offset < end:
            self.damage.append(Damage(path, offset, f"the bytes up to {end} are missing"))

    def _line(
        self, path: Path, offset: int, raw: bytes
    ) -> tuple[Record, tuple[Column, ...]] | None:
        try:
            line = decode(raw)
        except DamagedLineError as error:
            self.damage.append(Damage(path, offset, str(error)))
            return None
        if isinstance(line, Columns):
            if self.columns.setdefault(line.id, line.columns) != line.columns:
                reason = f"columns line {line.id:.40} has other columns than before"
                self.damage.append(Damage(path, offset, reason))
        elif isinstance(line, End):
            self.ended_epoch = max(self.ended_epoch, line.epoch)
        else:
            return self._with_columns(path, offset, line)
        return None

    def _with_columns(
        self, path: Path, offset: int, record: Record
    ) -> tuple[Record, tuple[Column, ...]] | None:
        columns = self.columns.get(record.columns_id) or self._find_columns(record.columns_id)
        if columns is None or len(columns) != len(record.values):
            reason = f"no columns line {record.columns_id:.40}"
            self.damage.append(Damage(path, offset, reason))
            return None
        places = self._checked.get(record.columns_id)
        if places is None:
            places = self._checked[record.columns_id] = checked_places(columns)
        reason = wrong_count(record, places)
        if record.k > self.max_k:
            reason = f"interval {record.k} is long after the run"
        if reason:
            self.damage.append(Damage(path, offset, reason))
            return None
        return record, columns

    def _find_columns(self, name: str) -> tuple[Column, ...] | None:
        """Search the whole source for a columns line: a reader may have begun in the middle."""
        for path in reversed(segments(self.folder)):  # each file begins with the columns in use
            for raw in lines(path, 0, complete_size(path)):
                if b'"t":"c"' not in raw[:200]:
                    continue
                try:
                    line = decode(raw)
                except DamagedLineError:
                    continue
                if isinstance(line, Columns):
                    self.columns[line.id] = line.columns
                    if line.id == name:
                        return line.columns
        return None


def segment_name(number: int) -> str:
    return f"{number:06d}.jsonl"


def segments(folder: Path) -> list[Path]:
    """Return the files of a source in the order in which they were written."""
    return sorted(
        path for path in folder.glob("*.jsonl") if path.stem.isascii() and path.stem.isdigit()
    )


def sources(journal: Path) -> list[str]:
    """Return the names of all sources of a journal, sorted."""
    if not journal.is_dir():
        return []
    return sorted(path.name for path in journal.iterdir() if path.is_dir())


def complete_size(path: Path) -> int:
    """Return the size of a file up to and including its last newline: behind it, a line may be incomplete."""
    with path.open("rb") as file:
        size, block = file.seek(0, 2), LAST_BLOCK_BYTES
        while size > 0:
            begin = max(0, size - block)
            file.seek(begin)
            at = file.read(size - begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            size, block = begin, CHUNK_BYTES
    return 0


def line_end(path: Path, offset: int) -> int:
    """Return the offset behind the line that holds a byte, in bounded memory however long the line is."""
    with path.open("rb") as file:
        file.seek(offset)
        while raw := file.readline(CHUNK_BYTES):
            offset += len(raw)
            if raw.endswith(b"\n"):
                break
    return offset


def lines(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Yield the raw lines in [begin, end), in bounded memory.

    A line longer than `MAX_LINE_BYTES` comes in pieces: all but its last end without a newline, and `decode`
    refuses the first. So the lengths add up to the offsets in the file in any case.
    """
    with path.open("rb") as file:
        file.seek(begin)
        rest = b""
        while begin < end:
            chunk = file.read(min(CHUNK_BYTES, end - begin))
            if not chunk:
                break
            begin += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (raw + b"\n" for raw in whole)
            if len(rest) > MAX_LINE_BYTES:
                yield rest
                rest = b""
    if rest:
        yield rest


def read_source(
    journal: Path, source: str, reader: SourceReader | None = None
) -> Iterator[tuple[Record, tuple[Column, ...]]]:
    """Yield all records of a source in the order written, each (epoch, interval) once.

    Raises:
        JournalError: the journal was written by a newer version, or has no such source.
    """
    folder = journal / source
    if not folder.is_dir():
        raise JournalError(f"no journal of {source} in {journal}")
    reader = reader or SourceReader(folder)
    seen: set[tuple[int, int]] = set()
    for path in segments(folder):
        for record, columns in reader.read(path, 0, complete_size(path)):
            if (record.epoch, record.k) not in seen:
                seen.add((record.epoch, record.k))
                yield record, columns


def last_record(journal: Path, source: str) -> tuple[Record, tuple[Column, ...]] | None:
    """Return the newest record of a source; reads only the end of its newest file."""
    for path in reversed(segments(journal / source)):
        end, window = complete_size(path), LAST_BLOCK_BYTES
        while end:
            found = list(SourceReader(journal / source).read(path, max(0, end - window), end))
            if found:
                return found[-1]
            if window >= end:
                break
            window *= 8
    return None


def columns_after_last_record(journal: Path, source: str) -> list[Columns]:
    """Return the columns lines behind the newest record, which the next record may refer to."""
    found_columns: list[Columns] = []
    for path in reversed(segments(journal / source)):
        end, window = complete_size(path), LAST_BLOCK_BYTES
        found = _decoded(path, max(0, end - window), end)
        while window < end and not any(isinstance(line, Record) for line in found):
            window *= 8
            found = _decoded(path, max(0, end - window), end)
        newest = max((at for at, line in enumerate(found) if isinstance(line, Record)), default=-1)
        columns = [line for line in found[newest + 1 :] if isinstance(line, Columns)]
        found_columns = columns + found_columns
        if newest >= 0:
            break
    return found_columns


def _decoded(path: Path, begin: int, end: int) -> list[Line]:
    """Return the readable lines in [begin, end), of which the first may be incomplete."""
    found: list[Line] = []
    for raw in lines(path, begin, end):
        with suppress(DamagedLineError):
            found.append(decode(raw))
    return found


def has_ended(source: Path) -> bool:
    """True when the newest file of a source ends with an end line: the source was closed on purpose."""
    files = segments(source)
    if not files:
        return False
    end = complete_size(files[-1])
    with files[-1].open("rb") as file:
        file.seek(max(0, end - _END_LINE_BYTES))
        tail = file.read(end - file.tell()).splitlines()
    try:
        return bool(tail) and isinstance(decode(tail[-1]), End)
    except DamagedLineError:
        return False
