"""What a lab's drive is told while it works, and what it says of itself: two files in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from soak.lab.flash import Settings
from soak.lab.whole_file import replace_text


@dataclass(frozen=True, slots=True)
class Told:
    """How the drive answers from now on."""

    delay_seconds: float = 0.0  # more for every write and every flush
    is_stopped: bool = False  # no request is answered
    error: Literal["", "EIO", "ENOSPC"] = ""  # what every write and every flush fails with
    read_seconds_per_mib: float = 0.0  # in which the drive does nothing else
    write_seconds_per_mib: float = 0.0  # the same
    flash: Settings | None = None  # the erased pages it lives on; without them it never starves


@dataclass(frozen=True, slots=True)
class Said:
    """What the drive has done since it came up; the pages are those of `Told.flash`, 0 without."""

    written_bytes: int = 0
    read_bytes: int = 0
    flushes: int = 0
    trimmed_bytes: int = 0
    waited_seconds: float = 0.0  # of all requests together
    erased_pages: float = 0.0  # below 0: writes wait for so many
    valid_pages: int = 0
    starved_writes: int = 0
    aged_written_bytes: int | None = None  # written by when it was told of its pages
    starved_written_bytes: int | None = None  # and by when the first write waited for one
    starved_wall_ns: int | None = None
    held_up_wall_ns: int | None = None  # when a write or flush first waited for trims or reads


def tell(path: Path, told: Told) -> None:
    """Let the drive read this with its next request."""
    replace_text(path, json.dumps(asdict(told)))


def ask(path: Path) -> Said:
    """Return what it said last, at most half a second ago; nothing yet is all zeros."""
    try:
        return TypeAdapter(Said).validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return Said()
