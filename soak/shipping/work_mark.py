"""Notes which lines of the samples topic are being taken, so that a line that ends the process is known.

Stored offsets lag some seconds behind, so a line that ends one process is read by each that follows. After
two deaths with the same lines they are taken one at a time; the line with which two more processes die is set
aside. The note is written before the work begins, and outlives the process. It is not flushed to the drive: a
host that restarts may lose it, which counts as no death.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from soak.core import json_text
from soak.core.retry import Once
from soak.service.files import read_small

LOG = logging.getLogger(__name__)
DEATHS = 2
"""So many processes may die with the same lines, and then with the same single line."""
MAX_ASIDE = 1000
"""So many lines that were set aside are known to a process that reads them again."""
MAX_FILE_BYTES = 2**20

Place = tuple[int, int]
"""Partition and offset."""
LineId = tuple[int, int, int]
"""Place and checksum: the topic may have been made anew."""


@dataclass(frozen=True, slots=True)
class _Suspects:
    """Lines with which processes died; `line` is the one that the last process took alone."""

    spans: dict[int, Place] = field(default_factory=dict)  # first offset and end, by partition
    deaths: int = 0
    line: LineId | None = None
    line_deaths: int = 0

    def overlaps(self, spans: dict[int, Place]) -> bool:
        return any(
            at in self.spans and first < self.spans[at][1] and self.spans[at][0] < end
            for at, (first, end) in spans.items()
        )

    def without(self, taken: dict[int, Place]) -> _Suspects:
        """Return what is left after these lines: the partitions whose last suspect was not taken."""
        left = {
            at: span for at, span in self.spans.items() if at not in taken or taken[at][1] < span[1]
        }
        return replace(self, spans=left)

    def after_death(self) -> _Suspects:
        """Return these with one more death, of the process that was taking them."""
        if self.line is None:
            return replace(self, deaths=self.deaths + 1)
        return replace(self, line_deaths=self.line_deaths + 1)


class WorkMark:
    """Call `begin` before lines are taken, `may_take` before each of them, and `end` after all.

    Call `interrupt` instead of `end` where some wait, as for room on the drive. A process that dies before
    has died with these lines. A note that cannot be stored stops nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._suspects, self._aside = _read(path)
        self._spans: dict[int, Place] = {}
        self._is_careful = False
        self._descriptor: int | None = None
        self._failures = Once()
        self.set_aside = 0  # lines, by this process

    def begin(self, places: Iterable[Place | None]) -> None:
        """Note that the lines at these places are being taken; those without a place are not noted."""
        self._spans = _spans(places)
        if not self._spans:
            return
        is_suspect = self._suspects.overlaps(self._spans)
        deaths = self._suspects.deaths if is_suspect else 0
        self._is_careful = deaths >= DEATHS
        if not self._is_careful:
            self._store(_Suspects(self._spans, deaths), is_working=True)

    def may_take(self, place: Place | None, source: str, raw: bytes) -> bool:
        """Return whether to take a line now; False where it is to be set aside."""
        if place is None or not (self._is_careful or place in self._aside):
            return True
        line = (*place, zlib.crc32(raw, zlib.crc32(source.encode())))
        if self._aside.get(place) == line[2]:
            return False
        if not self._is_careful:
            return True
        deaths = self._suspects.line_deaths if line == self._suspects.line else 0
        if deaths >= DEATHS:
            self._set_aside(line)
            return False
        self._store(replace(self._suspects, line=line, line_deaths=deaths), is_working=True)
        return True

    def end(self) -> None:
        """Note that all of the lines were taken, or set aside."""
        self._suspects = self._suspects.without(self._spans)
        if not self._suspects.spans:
            self._suspects = _Suspects()
        self.interrupt()

    def interrupt(self) -> None:
        """Note that no line is being taken."""
        if self._spans:
            self._spans, self._is_careful = {}, False
            self._store(self._suspects, is_working=False)

    def close(self) -> None:
        """Close the file; the next process knows what is in it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _set_aside(self, line: LineId) -> None:
        partition, offset, checksum = line
        self._aside[partition, offset] = checksum
        self.set_aside += 1
        LOG.error("line_set_aside partition=%d offset=%d deaths=%d", partition, offset, DEATHS)
        # not `is_working`: whatever ends this process now is no death with that line
        self._store(self._suspects, is_working=False)

    def _store(self, suspects: _Suspects, *, is_working: bool) -> None:
        body = {
            "is_working": is_working,
            "spans": {str(at): span for at, span in suspects.spans.items()},
            "deaths": suspects.deaths,
            "line": suspects.line,
            "line_deaths": suspects.line_deaths,
            "aside": [(*place, checksum) for place, checksum in self._aside.items()],
        }
        text = json.dumps(body, separators=(",", ":")) + "\n"
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o640)
            os.pwrite(self._descriptor, text.encode(), 0)  # what was longer stays behind the line
        except OSError as error:
            if self._failures.is_new(str(error)):
                LOG.warning("work_mark_not_stored error=%s", error)
        else:
            self._failures.clear()


def _spans(places: Iterable[Place | None]) -> dict[int, Place]:
    """Return the first offset and the end of these places, by partition."""
    found: dict[int, Place] = {}
    for place in places:
        if place is not None:
            partition, offset = place
            first, end = found.get(partition, (offset, offset))
            found[partition] = min(first, offset), max(end, offset + 1)
    return found


def _read(path: Path) -> tuple[_Suspects, dict[Place, int]]:
    """Return what an earlier process noted, its death counted; nothing where the file is damaged."""
    try:
        raw = read_small(path, MAX_FILE_BYTES, os.O_NOFOLLOW)
        body = json_text.loads(raw.partition(b"\n")[0])
        spans = {int(at): (int(first), int(end)) for at, (first, end) in body["spans"].items()}
        line = body["line"]
        if line is not None:
            partition, offset, checksum = line
            line = int(partition), int(offset), int(checksum)
        suspects = _Suspects(spans, int(body["deaths"]), line, int(body["line_deaths"]))
        aside = {(int(at), int(offset)): int(checksum) for at, offset, checksum in body["aside"]}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return _Suspects(), {}
    newest = dict(list(aside.items())[-MAX_ASIDE:])
    return suspects.after_death() if body["is_working"] else suspects, newest
