"""Whether a source says that nothing more will come of it: the last line of its newest file."""

from __future__ import annotations

from pathlib import Path

from soak.core.journal_text import DamagedLineError, End, decode
from soak.store.journal import segments
from soak.store.journal_reader import complete_size

_TAIL_BYTES = 4096


def has_ended(source: Path) -> bool:
    """True when the newest file of a source closes with the line that says so."""
    files = segments(source)
    if not files:
        return False
    end = complete_size(files[-1])
    with files[-1].open("rb") as file:
        file.seek(max(0, end - _TAIL_BYTES))
        tail = file.read(end - file.tell()).splitlines()
    try:
        return bool(tail) and isinstance(decode(tail[-1]), End)
    except DamagedLineError:
        return False
