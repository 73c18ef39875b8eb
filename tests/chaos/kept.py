"""What stood in the journals at a moment: it must stand there for ever."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path

from soak.core.journal_format import Columns, DamagedLineError, End, decode
from soak.core.model import Record
from soak.store.journal.reader import segments


@dataclass(frozen=True, slots=True)
class Cut:
    """What was taken out of a journal on purpose: a second, or the place of a line that is damaged."""

    source: str
    k: int
    place: str = ""
    received: int = 0  # messages that no other record has: its writer went on


@dataclass(slots=True)
class Kept:
    """Whole lines of every file, noted as (bytes, checksum); deliberate damage is noted by `cut`."""

    journal: Path
    cut: list[Cut] = field(default_factory=list)
    _noted: dict[Path, dict[int, int]] = field(default_factory=dict)

    def note(self) -> None:
        for path in self.journal.glob("*/*.jsonl"):
            raw = path.read_bytes()
            size = raw.rfind(b"\n") + 1
            self._noted.setdefault(path, {})[size] = zlib.crc32(raw[:size])

    def changed(self) -> list[Path]:
        """Return the files of which something that was noted is not there any more."""
        found = []
        for path, noted in self._noted.items():
            raw = path.read_bytes() if path.exists() else b""
            if any(zlib.crc32(raw[:size]) != crc for size, crc in noted.items()):
                found.append(path)
        return found

    def truncate(self, source: str, lines: int) -> None:
        """Take the last lines and half of the one before off a source's newest file; its writer is dead."""
        path = segments(self.journal / source)[-1]
        raw = path.read_bytes()
        rows = raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True)
        gone = rows[-lines - 1 :]
        size = sum(map(len, rows[: -lines - 1])) + len(gone[0]) // 2
        with path.open("r+b") as file:
            file.truncate(size)
        self._noted.pop(path, None)
        self.cut += [Cut(source, one.k) for one in map(_record, gone) if one is not None]

    def overwrite(self, source: str) -> None:
        """Spoil a byte of a record in the middle of a source's largest file."""
        path = max(segments(self.journal / source), key=lambda one: one.stat().st_size)
        raw = path.read_bytes()
        rows = raw[: raw.rfind(b"\n") + 1].splitlines(keepends=True)
        records = [(at, one) for at, one in enumerate(map(_record, rows)) if one is not None]
        at, record = records[len(records) // 2]
        offset = sum(map(len, rows[:at]))
        spoilt = offset + len(rows[at]) // 2
        with path.open("r+b") as file:
            file.seek(spoilt)
            file.write(bytes([raw[spoilt] ^ 1]))
        self._noted.pop(path, None)
        spans = [span for stream in record.received.values() for span in stream]
        received = sum(last - first + 1 for first, last, *_ in spans)
        self.cut.append(Cut(source, record.k, f"{path.name}:{offset}", received))


def _record(raw: bytes) -> Record | None:
    """Return the record of a line; None for any other."""
    try:
        line = decode(raw)
    except DamagedLineError:
        return None
    return None if isinstance(line, Columns | End) else line
