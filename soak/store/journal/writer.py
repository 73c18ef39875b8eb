"""Append records to the journal of one source, crash-safe and without waiting for the drive.

A line is one `write` on an O_APPEND descriptor. A new numbered file begins with each start, hour or 64 MiB.
While the drive takes nothing, the newest lines wait in memory, bounded, and are written when it does again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

from soak.core.errors import JournalError, RunFolderError
from soak.core.journal_format import Columns, End, Line, columns_line, encode
from soak.core.model import Column, Record
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.store.journal.reader import segment_name, segments

SEGMENT_BYTES = 64 * 2**20
SEGMENT_NS = 3600 * SECOND_NS
MAX_PENDING_BYTES = 32 * 2**20  # in memory while the disk is full: hours of most sources
FLUSH_BYTES = 4 * 2**20  # written with one record at most: a backlog is written bit by bit
MAX_PENDING_SYNCS = 2  # behind one that hangs: a later flush covers the skipped ones
SYNC_CLOSE_SECONDS = 10.0
MAX_QUEUED_RECORDS = 3600  # an hour of a source
DRAIN_SECONDS = 30.0

LASTING_ERRORS = frozenset(
    {
        *(errno.EBADF, errno.EFAULT, errno.EINVAL),
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM),
    }
)
"""Defects, or the folder was removed or closed to us. A drive that fails may return any other error."""

LOG = logging.getLogger("soak.store.journal.writer")

Write = Callable[[int, bytes], int]


@contextlib.contextmanager
def drive_failure_logged(failures: Once) -> Iterator[None]:
    """Go on after an error of the drive in a flush, logged once while it lasts; raise `LASTING_ERRORS`."""
    try:
        yield
    except OSError as error:
        if error.errno in LASTING_ERRORS:
            raise
        if failures.is_new(str(error)):
            LOG.error("journal_not_flushed error=%s", error)  # noqa: TRY400  # no defect of ours
    else:
        failures.clear()


class BackgroundSync:
    """Flushes files to the drive in a thread of its own, one at a time and in the order of the requests."""

    def __init__(self, close_seconds: float = SYNC_CLOSE_SECONDS) -> None:
        self._close_seconds = close_seconds
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal-sync", daemon=True)
        self._error: Exception | None = None
        self._failures = Once()

    def request(self, descriptor: int) -> None:
        """Have all that was written so far flushed; the descriptor may be closed at once.

        Raises:
            OSError: no descriptor is left.
            JournalError: the thread has died.
        """
        self._raise_error()
        if self._waiting.qsize() >= MAX_PENDING_SYNCS:
            return
        self._waiting.put(os.dup(descriptor))
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Wait for the requested flushes, unless one hangs; raises `JournalError` if the thread has died."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(self._close_seconds)
        self._raise_error()

    def _work(self) -> None:
        try:
            while (descriptor := self._waiting.get()) is not None:
                with drive_failure_logged(self._failures):
                    try:
                        os.fdatasync(descriptor)
                    finally:
                        os.close(descriptor)  # on a network drive, it may report failed writes
        except Exception as error:  # the next request raises it
            LOG.exception("journal_sync_failed")
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise JournalError(f"the journal cannot be flushed: {self._error}") from self._error


class JournalWriter:
    """The only writer of one source; holds its lock until closed.

    `LASTING_ERRORS`, and errors that are no `OSError`, are raised by the call that meets them. What the
    flushing thread met is raised by the next call, as a `JournalError`.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        sync_ns: int = 5 * SECOND_NS,
        write: Write = os.write,
        floor_bytes: int = 0,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        sync_close_seconds: float = SYNC_CLOSE_SECONDS,
    ) -> None:
        """With less than `floor_bytes` free the drive counts as full."""
        self._folder = folder
        self._clock = clock
        self._sync_ns = sync_ns
        self._write = write
        self._floor_bytes = floor_bytes
        self._max_pending_bytes = max_pending_bytes
        self._columns: Columns | None = None
        self._descriptor = -1
        self._size = 0
        self._opened_ns = 0
        self._synced_ns = 0
        self._sync = BackgroundSync(sync_close_seconds)
        self._pending: deque[tuple[Line, bytes]] = deque()
        self._pending_bytes = 0
        self._failures = Once()  # of writing
        self._sync_failures = Once()
        self.dropped_lines = 0
        self._lock = -1
        self.epoch = 0

    def open(self, first_epoch: int = 1) -> JournalWriter:
        """Take the lock and allocate the epoch, which is on disk before it is used.

        `first_epoch` is the epoch in a folder that has allocated none yet, or lost the number.

        Raises:
            RunFolderError: another process writes this source.
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
        """True while lines wait in memory because the drive does not take them."""
        return bool(self._pending)

    def append(self, record: Record, columns: Sequence[Column]) -> None:
        """Write one record; `record.columns_id` is the id of `columns_line(columns)`.

        If the drive is full or fails, the line waits in memory and `is_behind` is true.
        """
        if self._columns is None or self._columns.id != record.columns_id:
            self._columns = columns_line(columns)
            self._add(self._columns)
        self._add(record)
        self._flush(FLUSH_BYTES)

    def copy(self, line: Line) -> None:
        """Write a line of another host's journal; the columns of a record must be written before it."""
        if isinstance(line, Columns):
            self._columns = line
        self._add(line)
        self._flush(FLUSH_BYTES)

    def retry(self) -> None:
        """Write the pending lines, if the drive takes them by now."""
        self._flush(FLUSH_BYTES)

    def close(self, *, is_end: bool) -> None:
        """Release the source; `is_end` writes the line that says that it ended on purpose.

        Waits for the last flush, but no longer than `sync_close_seconds`.
        """
        try:
            if is_end:
                self._add(End(self.epoch))
            self._flush(self._pending_bytes)
            self._request_sync()
            self._sync.close()
        finally:
            try:
                self._close_file()
            finally:
                os.close(self._lock)

    def _add(self, line: Line) -> None:
        raw = encode(line)
        self._pending.append((line, raw))
        self._pending_bytes += len(raw)
        while self._pending_bytes > self._max_pending_bytes and len(self._pending) > 1:
            self._remove_first()  # the oldest: its interval becomes a gap
            if self.dropped_lines % 100 == 0:
                LOG.error("journal_full folder=%s dropped=%d", self._folder, self.dropped_lines + 1)
            self.dropped_lines += 1

    def _remove_first(self) -> None:
        _, raw = self._pending.popleft()
        self._pending_bytes -= len(raw)

    def _flush(self, limit: int) -> None:
        """Write pending lines, at least one and some `limit` bytes at most."""
        try:
            if self._floor_bytes and shutil.disk_usage(self._folder).free < self._floor_bytes:
                return
            while self._pending and limit >= 0:
                self._roll_if_due()
                line, raw = self._pending[0]
                if self._size == 0 and self._columns is not None and line is not self._columns:
                    self._write_line(encode(self._columns))
                self._write_line(raw)
                self._remove_first()
                limit -= len(raw)
        except OSError as error:
            if error.errno in LASTING_ERRORS:
                raise
            if self._failures.is_new(str(error)):
                LOG.warning("journal_not_written folder=%s error=%s", self._folder, error)
        else:
            self._failures.clear()
            if self._clock.mono_ns() - self._synced_ns >= self._sync_ns:
                self._request_sync()

    def _request_sync(self) -> None:
        if self._descriptor >= 0:
            self._synced_ns = self._clock.mono_ns()
            with drive_failure_logged(self._sync_failures):  # no descriptor is left to flush with
                self._sync.request(self._descriptor)

    def _close_file(self) -> None:
        """Close the segment; even where this fails, the descriptor is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with drive_failure_logged(self._sync_failures):
                os.close(descriptor)

    def _write_line(self, raw: bytes) -> None:
        written = self._write(self._descriptor, raw)
        if written != len(raw):
            if written:  # readers stop at the last newline, so none has taken it
                self._truncate()
            raise OSError(f"short write: {written} of {len(raw)} bytes")
        self._size += written

    def _truncate(self) -> None:
        """Cut off a torn line; where the drive refuses, the next line goes into a new file."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._close_file()

    def _roll_if_due(self) -> None:
        now_ns = self._clock.mono_ns()
        is_due = self._size >= SEGMENT_BYTES or now_ns - self._opened_ns >= SEGMENT_NS
        if self._descriptor >= 0 and not is_due:
            return
        last = segments(self._folder)
        number = int(last[-1].stem) + 1 if last else 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        if self._descriptor >= 0:
            self._sync.request(self._descriptor)
        descriptor = os.open(self._folder / segment_name(number), flags, 0o640)
        self._close_file()
        self._descriptor, self._size, self._opened_ns = descriptor, 0, now_ns


class BackgroundJournalWriter:
    """Writes a journal from a thread of its own, so that a slow write delays no send schedule.

    The run folder may lie on the drive under test, where a write waits for a full cache or for the journal of
    the filesystem. An error in the thread is raised by the next call, as a `JournalError`.
    """

    def __init__(self, writer: JournalWriter, max_queued: int = MAX_QUEUED_RECORDS) -> None:
        self._writer = writer
        self._max_queued = max_queued
        self._queue: SimpleQueue[tuple[Record, Sequence[Column]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._error: Exception | None = None
        self._is_behind = False  # as of the last record written: the thread owns the writer
        self._dropped = 0

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    @property
    def is_behind(self) -> bool:
        """True while records wait in memory because the drive does not take them."""
        return self._queue.qsize() > 1 or self._is_behind

    def append(self, record: Record, columns: Sequence[Column]) -> None:
        """Queue one record for the thread, without waiting; raises `JournalError` if it has died."""
        self._raise_error()
        if self._queue.qsize() >= self._max_queued:
            self._dropped += 1
            LOG.error("journal_hangs k=%d dropped=%d", record.k, self._dropped)
            return
        self._queue.put((record, columns))
        if self._thread.ident is None:
            self._thread.start()

    def close(self, *, is_end: bool) -> None:
        """Write the queued records and release the source, unless the drive hangs for `DRAIN_SECONDS`."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(DRAIN_SECONDS)
        if self._thread.is_alive():
            LOG.error("journal_hangs waiting=%d", self._queue.qsize())
            return
        try:
            self._writer.close(is_end=is_end and self._error is None)
        finally:
            self._raise_error()

    def _work(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                self._writer.append(*item)
                self._is_behind = self._writer.is_behind
        except Exception as error:  # the next call raises it
            LOG.exception("journal_thread_failed")
            self._error = error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise JournalError(f"the journal cannot be written: {self._error}") from self._error
