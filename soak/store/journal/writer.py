"""Append records to the journal of one source, crash-safe and without waiting for the drive."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from soak.core.errors import RunFolderError
from soak.core.journal_format import Columns, End, Line, columns_line, encode
from soak.core.model import Column, Record
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.journal.reader import segment_name, segments

# --- Flushes files to the drive from a thread of its own: who writes them never waits for the drive.

MAX_PENDING_SYNCS = 2  # behind one that hangs: what they would flush, they flush
SYNC_CLOSE_SECONDS = 10.0


class BackgroundSync:
    """One flush at a time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal-sync", daemon=True)

    def ask(self, descriptor: int) -> None:
        """Have flushed what was written so far; the descriptor may be closed at once.

        Raises:
            OSError: no descriptor is left.
        """
        if self._waiting.qsize() >= MAX_PENDING_SYNCS:
            return
        self._waiting.put(os.dup(descriptor))
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Let the thread end after what was asked for; a flush that hangs so long is left to itself."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(SYNC_CLOSE_SECONDS)

    def _work(self) -> None:
        while (descriptor := self._waiting.get()) is not None:
            with contextlib.suppress(OSError):  # the next flush tries again
                os.fdatasync(descriptor)
            os.close(descriptor)


# --- Appends records to the journal of one source: the truth of a run, and crash-proof.
# One `write` a line on an O_APPEND descriptor; a new numbered file after each start, hour or 64 MiB. When
# the disk is full the newest lines are kept in memory, bounded, and written when there is room again. The
# drive is never waited for: a load daemon writes its journal from the thread that sends.

SEGMENT_BYTES = 64 * 2**20
SEGMENT_NS = 3600 * SECOND_NS
MAX_PENDING_BYTES = 32 * 2**20  # kept in memory while the disk is full: hours of most sources
FLUSH_BYTES = 4 * 2**20  # at most, a record: what the disk did not take is written bit by bit

LOG = logging.getLogger("soak.store.journal.writer")

Write = Callable[[int, bytes], int]


class JournalWriter:
    """The only writer of one source; holds its lock until closed.

    Raises:
        RunFolderError: another process writes this source.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        sync_ns: int = 5 * SECOND_NS,
        write: Write = os.write,
        floor_bytes: int = 0,
    ) -> None:
        """With less than `floor_bytes` free the drive counts as full."""
        self._folder = folder
        self._clock = clock
        self._sync_ns = sync_ns
        self._write = write
        self._floor_bytes = floor_bytes
        self._columns: Columns | None = None
        self._descriptor = -1
        self._size = 0
        self._opened_ns = 0
        self._synced_ns = 0
        self._sync = BackgroundSync()
        self._tail: deque[tuple[Line, bytes]] = deque()
        self._tail_bytes = 0
        self.dropped_lines = 0
        self._lock = -1
        self.epoch = 0

    def open(self, first_epoch: int = 1) -> JournalWriter:
        """Take the lock and allocate the incarnation, on disk before it is used.

        `first_inc` is that of a folder in which none was allocated before, or which has lost that.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = os.pread(self._lock, 20, 0)
            self.epoch = int(kept) + 1 if kept.isdigit() else first_epoch
            os.pwrite(self._lock, b"%020d" % self.epoch, 0)
            os.fsync(self._lock)
        except BlockingIOError as error:
            os.close(self._lock)
            raise RunFolderError(f"{self._folder} is written by another process") from error
        except OSError:
            os.close(self._lock)
            raise
        return self

    @property
    def is_behind(self) -> bool:
        """True while lines wait in memory because the disk does not take them."""
        return bool(self._tail)

    def append(self, record: Record, columns: Sequence[Column]) -> None:
        """Write one record; `record.columns_id` is the id of `columns_line(columns)`.

        A disk that is full or fails keeps the line in memory: look at `is_behind`.
        """
        if self._columns is None or self._columns.id != record.columns_id:
            self._columns = columns_line(columns)
            self._put(self._columns)
        self._put(record)
        self._flush(FLUSH_BYTES)

    def copy(self, line: Line) -> None:
        """Write a line that another host's writer made; the columns of a record come before it."""
        if isinstance(line, Columns):
            self._columns = line
        self._put(line)
        self._flush(FLUSH_BYTES)

    def try_again(self) -> None:
        """Write what waits, if the disk takes it by now."""
        self._flush(FLUSH_BYTES)

    def close(self, *, is_end: bool) -> None:
        """Give the source back; `is_end` writes the line that says it ended on purpose.

        The last flush is waited for, but no longer than `background_sync.CLOSE_SECONDS`.
        """
        if is_end:
            self._put(End(self.epoch))
        self._flush(self._tail_bytes)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # what the disk does not take is lost with us
                self._sync.ask(self._descriptor)
        self._sync.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        os.close(self._lock)

    def _put(self, line: Line) -> None:
        raw = encode(line)
        self._tail.append((line, raw))
        self._tail_bytes += len(raw)
        while self._tail_bytes > MAX_PENDING_BYTES and len(self._tail) > 1:
            self._take_first()  # the oldest: its second becomes a gap
            if self.dropped_lines % 100 == 0:
                LOG.error("journal_full folder=%s dropped=%d", self._folder, self.dropped_lines + 1)
            self.dropped_lines += 1

    def _take_first(self) -> None:
        _, raw = self._tail.popleft()
        self._tail_bytes -= len(raw)

    def _flush(self, limit: int) -> None:
        """Write what waits, at least a line and at most some `limit` bytes."""
        try:
            if self._floor_bytes and shutil.disk_usage(self._folder).free < self._floor_bytes:
                return
            while self._tail and limit >= 0:
                self._roll_if_due()
                line, raw = self._tail[0]
                if self._size == 0 and self._columns is not None and line is not self._columns:
                    self._write_line(encode(self._columns))
                self._write_line(raw)
                self._take_first()
                limit -= len(raw)
            if self._clock.mono_ns() - self._synced_ns >= self._sync_ns:
                self._synced_ns = self._clock.mono_ns()
                self._sync.ask(self._descriptor)
        except OSError:  # kept in memory, tried again with the next record
            return

    def _write_line(self, raw: bytes) -> None:
        try:
            written = self._write(self._descriptor, raw)
        except OSError:
            written = 0
        if written == len(raw):
            self._size += written
            return
        if written:  # no reader has taken it: readers stop at the last newline
            self._take_back()
        raise OSError("short write")

    def _take_back(self) -> None:
        """Cut a torn line off; where the drive does not let us, what follows goes into another file."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = -1

    def _roll_if_due(self) -> None:
        now_ns = self._clock.mono_ns()
        is_due = self._size >= SEGMENT_BYTES or now_ns - self._opened_ns >= SEGMENT_NS
        if self._descriptor >= 0 and not is_due:
            return
        last = segments(self._folder)
        number = int(last[-1].stem) + 1 if last else 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if self._descriptor >= 0:
            self._sync.ask(self._descriptor)
        descriptor = os.open(self._folder / segment_name(number), flags, 0o640)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size, self._opened_ns = descriptor, 0, now_ns


# --- Writes a journal from a thread of its own: a drive that takes seconds for a write holds no schedule up.
# The run folder may lie on the drive that is being judged, and a write waits there for a full cache or
# for the
# filesystem's own journal.

MAX_QUEUED_RECORDS = 3600  # records, an hour of a source
DRAIN_SECONDS = 30.0


_Item = tuple[Record, Sequence[Column]]


class BackgroundJournalWriter:
    """Takes records as the writer does; an error in the thread is raised by the next call."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._waiting: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._error: Exception | None = None
        self._is_behind = False  # as of the last record written: the writer is the thread's
        self._dropped = 0

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def is_behind(self) -> bool:
        """True while records wait in memory because the disk does not take them."""
        return self._waiting.qsize() > 1 or self._is_behind

    def append(self, record: Record, columns: Sequence[Column]) -> None:
        """Have one record written; returns at once."""
        self._check()
        if self._waiting.qsize() >= MAX_QUEUED_RECORDS:
            self._dropped += 1
            LOG.error("journal_hangs k=%d dropped=%d", record.k, self._dropped)
            return
        self._waiting.put((record, columns))
        if not self._thread.is_alive():
            self._thread.start()

    def close(self, *, is_end: bool) -> None:
        """Write what waits, and give the source back, unless the drive hangs for `CLOSE_SECONDS`."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(DRAIN_SECONDS)
        self._check()
        if self._thread.is_alive():
            LOG.error("journal_hangs waiting=%d", self._waiting.qsize())
            return
        self._writer.close(is_end=is_end)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._writer.append(*item)
                self._is_behind = self._writer.is_behind
            except Exception as error:  # noqa: BLE001  # raised again where the next record comes from
                self._error = error
                return

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
