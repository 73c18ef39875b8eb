"""One checkpoint, one query: who may use it, and how far it has come."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from soak.core import json_text
from soak.core.errors import RunFolderError, SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import reporting_permission_errors
from spark.sources.offsets import Caution, Offset, newest, size_bytes

_LOG = logging.getLogger(__name__)
_JVM_LOCK = "jvm.lock"
_PATIENCE_NS = 20 * SECOND_NS
_OWN_END_NS = 5 * SECOND_NS
"""How long a JVM may take to end by itself, once its driver is gone."""
_FLOCK = "hhqqi"  # struct flock of Linux: type, whence, start, length, process
_PAUSE_NS = SECOND_NS // 10
LOOK_NS = 10 * SECOND_NS
"""How often a query that commits nothing is asked whether there is anything for it to take in."""


def await_predecessor(folder: Path, clock: Clock, patience_ns: int = _PATIENCE_NS) -> None:
    """Return when no JVM of an earlier driver uses the checkpoint any more.

    A driver that was killed leaves its JVM behind for a moment, and that may be writing.

    Raises:
        RunFolderError: it is still there after `patience_ns`, or the lock is of another user.
    """
    if not _is_released(folder, clock, patience_ns):
        raise RunFolderError(f"a Spark of an earlier process holds {folder / _JVM_LOCK}")


def end_predecessor(
    folder: Path, temporary: Path, clock: Clock, patience_ns: int = _OWN_END_NS
) -> None:
    """Kill the JVM of an earlier driver where it uses the checkpoint for longer than `patience_ns`.

    Call it while no driver of this checkpoint lives. A JVM that is stopped, or waits for something as it
    ends, would keep each later driver from its work. Only one with the folder `temporary` is killed.

    Raises:
        RunFolderError: the checkpoint is used by something else, or still is, or the lock is of another user.
    """
    if _is_released(folder, clock, patience_ns):
        return
    holder = _holder(folder / _JVM_LOCK)
    try:
        if holder is not None and f"-Djava.io.tmpdir={temporary}" in holder.cmdline():
            _LOG.warning("spark_of_earlier_process_killed pid=%d", holder.pid)
            holder.kill()
    except psutil.NoSuchProcess:
        pass  # it has ended meanwhile
    except psutil.AccessDenied as error:
        raise RunFolderError(
            f"{folder / _JVM_LOCK} is held by {holder}, of another user"
        ) from error
    await_predecessor(folder, clock)


def _is_released(folder: Path, clock: Clock, patience_ns: int) -> bool:
    """Wait until no process holds the JVM's lock; False when one still does after `patience_ns`."""
    lock = folder / _JVM_LOCK
    with reporting_permission_errors(lock):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    end_ns = clock.mono_ns() + patience_ns
    try:
        while True:
            try:
                # Java locks with fcntl, which a flock does not see
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if clock.mono_ns() >= end_ns:
                    return False
                clock.sleep_until(clock.mono_ns() + _PAUSE_NS)
            else:
                return True
    finally:
        os.close(descriptor)  # gives the lock back


def _holder(lock: Path) -> psutil.Process | None:
    """Return the process of this host that holds a lock of fcntl."""
    with lock.open("rb+") as file:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    kind, pid = answer[0], answer[-1]
    try:
        return psutil.Process(pid) if kind != fcntl.F_UNLCK and pid > 0 else None
    except psutil.NoSuchProcess:
        return None


def location(checkpoint: Path) -> str:
    """Return a checkpoint as Spark's option takes it: a URI, whatever fs.defaultFS is, without escapes."""
    return f"file://{checkpoint}"


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
    number = _last_of(checkpoint / "commits")
    return None if number < 0 else planned(checkpoint, number)


def _last_of(folder: Path) -> int:
    """Return the number of the last batch in a log of Spark, or -1."""
    try:
        return max((int(at.name) for at in folder.iterdir() if at.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def planned(checkpoint: Path, batch: int) -> Offset | None:
    """Return the offset up to which a batch reads, or None when Spark has not noted it."""
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
        offset: Offset = json_text.loads(lines[2])
    except (FileNotFoundError, ValueError, IndexError):
        return None
    return offset


DEATHS = 2
"""So many processes may die with the same batch before the next one gets a smaller one."""
SHRINKAGE = 8
_OF_SURROUNDINGS = (
    os.strerror(errno.ENOSPC),
    f"{RunFolderError.__module__}.{RunFolderError.__qualname__}: ",
)


def note_death(checkpoint: Path, journal: Path, caution: Path) -> None:
    """Make the next batch smaller where processes died with the one that the checkpoint has planned.

    Call it before the query starts. Spark gives a batch that was planned and not committed to every process
    again, so one that ends the process, as by its memory, would end all. Its plan is removed from the
    checkpoint, and what it held is read in parts, an eighth as large at each further death, down to a line; a
    line with which two more die is stepped over.
    """
    batch = _last_of(checkpoint / "offsets")
    end = planned(checkpoint, batch)
    if end is None or batch <= _last_of(checkpoint / "commits"):
        return
    known, start = Caution.read(caution), committed(checkpoint) or {}
    deaths = known.deaths + 1 if known.start == start else 1
    is_careful = known.applies(start)
    now = replace(known, start=start, deaths=deaths)
    if is_careful and known.limit_bytes == 1 and deaths >= DEATHS:
        passed = dict.fromkeys([*known.passed, *_between(start, end)])
        now = replace(now, deaths=0, passed=tuple(passed))
    elif is_careful:
        limit = max(1, known.limit_bytes // SHRINKAGE)
        now = replace(now, limit_bytes=limit, deaths=deaths if limit == known.limit_bytes else 0)
    elif deaths >= DEATHS:
        limit = max(1, size_bytes(journal, start, end) // SHRINKAGE)
        now = replace(now, limit_bytes=limit, until=end, deaths=0)
    now.write(caution)
    if now.limit_bytes and now.applies(start):
        _LOG.error(
            "batch_read_in_parts batch=%d limit_bytes=%d stepped_over=%d",
            *(batch, now.limit_bytes, len(now.passed)),
        )
        for path in (checkpoint / "offsets" / str(batch), checkpoint / "offsets" / f".{batch}.crc"):
            path.unlink(missing_ok=True)


@dataclass(slots=True)
class Keeping:
    """Notes the error with which the driver could not keep what a batch found."""

    error: SoakError | OSError | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the block: Spark reports it as one of the query, in words of its own."""
        try:
            yield
        except (SoakError, OSError) as error:
            self.error = error
            raise


@contextmanager
def deaths_noted(checkpoint: Path, journal: Path, caution: Path) -> Iterator[Keeping]:
    """Note that the last process died, if it did; this one does unless the block ends as it should.

    The block is the life of the query: nothing before or after it is a fault of a batch. Nor are errors of
    the drive, the run folder or the store in it: they do not count. Lost connections do: the JVM is gone.

    Raises:
        SoakError, OSError: what was noted of the keeping of a batch, in place of Spark's error.
    """
    marker = caution.with_name("running")
    if marker.exists():
        note_death(checkpoint, journal, caution)
    marker.touch()
    keeping = Keeping()
    try:
        yield keeping
    except Exception as error:
        if keeping.error is not None or _is_of_surroundings(error):
            marker.unlink(missing_ok=True)
        if keeping.error is not None:
            raise keeping.error from error
        raise
    marker.unlink(missing_ok=True)


def _is_of_surroundings(error: Exception) -> bool:
    """Return whether an error is none of a batch; Spark passes on those of executors as texts."""
    if any(text in str(error) for text in _OF_SURROUNDINGS):
        return True
    return isinstance(error, SoakError | OSError) and not isinstance(error, ConnectionError)


def _between(start: Offset, end: Offset) -> list[tuple[str, int, int, int]]:
    """Return the lines of a batch that holds a single one."""
    found = []
    for name, (segment, behind) in sorted(end.items()):
        first, begin = start.get(name, [-1, 0])
        if [first, begin] != [segment, behind]:
            found.append((name, segment, begin if first == segment else 0, behind))
    return found


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
