"""Writes a journal from a thread of its own: a drive that takes seconds for a write holds no schedule up.

The run folder may lie on the drive that is being judged, and a write waits there for a full cache or for the
filesystem's own journal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from soak.core.model import Column, Record
from soak.store.journal import JournalWriter

MOST_WAITING = 3600  # records, an hour of a source
CLOSE_SECONDS = 30.0

LOG = logging.getLogger("soak.store.journal_thread")

_Item = tuple[Record, Sequence[Column]]


class JournalThread:
    """Takes records as the writer does; an error in the thread is raised by the next call."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._waiting: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._error: Exception | None = None
        self._is_behind = False  # as of the last record written: the writer is the thread's
        self._dropped = 0

    @property
    def inc(self) -> int:
        return self._writer.inc

    @property
    def is_behind(self) -> bool:
        """True while records wait in memory because the disk does not take them."""
        return self._waiting.qsize() > 1 or self._is_behind

    def append(self, record: Record, columns: Sequence[Column]) -> None:
        """Have one record written; returns at once."""
        self._check()
        if self._waiting.qsize() >= MOST_WAITING:
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
            self._thread.join(CLOSE_SECONDS)
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
