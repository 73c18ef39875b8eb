"""One checkpoint, one query: who may use it, and how far it has come."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from soak.core import json_text
from soak.core.errors import RunFolderError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from spark.sources.offsets import Offset, newest

_JVM_LOCK = "jvm.lock"
_PATIENCE_NS = 20 * SECOND_NS
_PAUSE_NS = SECOND_NS // 10
LOOK_NS = 10 * SECOND_NS
"""How often a query that commits nothing is asked whether there is anything for it to take in."""


def await_predecessor(folder: Path, clock: Clock, patience_ns: int = _PATIENCE_NS) -> None:
    """Return when no JVM of an earlier driver uses the checkpoint any more.

    A driver that was killed leaves its JVM behind for a moment, and that may be writing.

    Raises:
        RunFolderError: it is still there after `patience_ns`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _JVM_LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    end_ns = clock.mono_ns() + patience_ns
    try:
        while True:
            try:
                # Java locks with fcntl, which a flock does not see
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if clock.mono_ns() >= end_ns:
                    raise RunFolderError(f"a Spark of an earlier process holds {path}") from error
                clock.sleep_until(clock.mono_ns() + _PAUSE_NS)
            else:
                return
    finally:
        os.close(descriptor)  # gives the lock back


@contextmanager
def held(session: SparkSession, folder: Path) -> Iterator[None]:
    """Let the session's JVM hold the lock for `await_predecessor` for as long as it lives."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  # the only way to the JVM
    file = jvm.java.io.RandomAccessFile(str(folder / _JVM_LOCK), "rw")
    lock = file.getChannel().tryLock()
    if lock is None:
        raise RunFolderError(f"another Spark holds {folder / _JVM_LOCK}")
    yield  # `lock` is kept from the JVM's garbage collection by its name here


def committed(checkpoint: Path) -> Offset | None:
    """Return the offset of the source up to which all is done, or None before the first batch.

    Reads Spark's offset log: a version line, a line of metadata, one line a source.
    """
    try:
        done = [int(at.name) for at in (checkpoint / "commits").iterdir() if at.name.isdigit()]
        lines = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
        offset: Offset = json_text.loads(lines[2])
    except (FileNotFoundError, ValueError, IndexError):
        return None
    return offset


def is_all_read(checkpoint: Path, journal: Path) -> bool:
    """True when there is nothing in the journals that the query has not taken in."""
    offset = committed(checkpoint) or {}
    return newest(journal, offset, None) == offset


@dataclass(slots=True)
class Headway:
    """Whether a query makes progress; ask about once a second. The watchdog limits how long it makes none."""

    checkpoint: Path
    journal: Path
    clock: Clock
    _offset: Offset | None = None
    _look_ns: int = 0  # when to look whether all is read

    def has_progressed(self) -> bool:
        """True when something was committed since the last call, or nothing is left to take in."""
        offset, now_ns = committed(self.checkpoint), self.clock.mono_ns()
        if offset != self._offset:
            self._offset = offset
            return True
        if now_ns < self._look_ns:
            return False
        self._look_ns = now_ns + LOOK_NS
        return is_all_read(self.checkpoint, self.journal)
