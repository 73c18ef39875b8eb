"""Read the journal of one source: whole, from an offset, or its newest record; damage becomes a gap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from soak.core.errors import JournalError
from soak.core.journal_format import Columns, DamagedLineError, End, Line, decode
from soak.core.model import Column, Record

CHUNK_BYTES = 4 * 2**20
LAST_BLOCK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that could not be read: a gap with its place."""

    path: Path
    offset: int
    reason: str


@dataclass(slots=True)
class SourceReader:
    """Reads one source from a place on: remembers columns lines, skips and keeps damage.

    `inc_k` of records already given are remembered by the caller where that matters: identity is
    (source, epoch, k), and reading twice changes nothing.
    """

    folder: Path
    columns: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    ended_epoch: int = -1

    def read(self, path: Path, begin: int, end: int) -> Iterator[tuple[Record, tuple[Column, ...]]]:
        """Give the records whose lines lie in [begin, end) of one file, which ends at a newline."""
        offset = begin
        for raw in lines(path, begin, end):
            found = self._line(path, offset, raw)
            offset += len(raw)
            if found is not None:
                yield found

    def _line(
        self, path: Path, offset: int, raw: bytes
    ) -> tuple[Record, tuple[Column, ...]] | None:
        try:
            line = decode(raw)
        except DamagedLineError as error:
            self.damage.append(Damage(path, offset, str(error)))
            return None
        if isinstance(line, Columns):
            self.columns[line.id] = line.columns
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
            self.damage.append(Damage(path, offset, f"no columns line {record.columns_id}"))
            return None
        return record, columns

    def _find_columns(self, name: str) -> tuple[Column, ...] | None:
        """Look through the whole source: a reader may have begun in the middle."""
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
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def sources(journal: Path) -> list[str]:
    """Return the names of all sources that have written, sorted."""
    if not journal.is_dir():
        return []
    return sorted(path.name for path in journal.iterdir() if path.is_dir())


def complete_size(path: Path) -> int:
    """Return the bytes of a file up to and with its last newline: what is safe to read."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        while size > 0:
            begin = max(0, size - CHUNK_BYTES)
            file.seek(begin)
            at = file.read(size - begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            size = begin
    return 0


def lines(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Give the raw lines in [begin, end), in chunks of bounded size."""
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
    if rest:
        yield rest


def read_source(
    journal: Path, source: str, reader: SourceReader | None = None
) -> Iterator[tuple[Record, tuple[Column, ...]]]:
    """Give all records of a source, each (epoch, k) once, in the order written.

    Raises:
        JournalError: the journal was written by a newer version, or there is no such source.
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
    """Return the newest record, reading from the end of the newest file no more than it takes."""
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
    """Return the columns lines that were written after the newest record: what the next may refer to."""
    behind: list[Columns] = []
    for path in reversed(segments(journal / source)):
        end, window = complete_size(path), LAST_BLOCK_BYTES
        found = _decoded(path, max(0, end - window), end)
        while window < end and not any(isinstance(line, Record) for line in found):
            window *= 8
            found = _decoded(path, max(0, end - window), end)
        newest = max((at for at, line in enumerate(found) if isinstance(line, Record)), default=-1)
        behind = [line for line in found[newest + 1 :] if isinstance(line, Columns)] + behind
        if newest >= 0:
            break
    return behind


def _decoded(path: Path, begin: int, end: int) -> list[Line]:
    """Return the lines in [begin, end) that can be read; the first may be the rest of one."""
    found: list[Line] = []
    for raw in lines(path, begin, end):
        with suppress(DamagedLineError):
            found.append(decode(raw))
    return found


# --- Whether a source says that nothing more will come of it: the last line of its newest file.

_END_LINE_BYTES = 4096


def has_ended(source: Path) -> bool:
    """True when the newest file of a source closes with the line that says so."""
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
