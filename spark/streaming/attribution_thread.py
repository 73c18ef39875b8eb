"""Attribution in a thread of its own: a batch keeps its changes and goes on while their causes are found.

Looking for a cause reads minutes of all journals, and would hold up a batch for as long. The moments that are
due follow from what is stored, so nothing waits in line here, and nothing is lost with the process.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol

_LOG = logging.getLogger(__name__)
RETRY_SECONDS = 5.0
"""How long a judgement that failed is put off."""
FINISH_SECONDS = 60.0
"""How long the end of the query waits for a judgement that runs; see `DRAIN_NS` in `spark.streaming.job`."""


class Judge(Protocol):
    """What is used of an `Attribution`."""

    def judge(self) -> bool:
        """Judge as of the next moment that is due; return False when there is none yet."""


@dataclass(slots=True)
class AttributionThread:
    """Calls `judge` after batches until nothing is due, one at a time, until `finish`."""

    attribution: Judge
    retry_seconds: float = RETRY_SECONDS
    failures_total: int = 0
    _news: threading.Event = field(default_factory=threading.Event)
    _end: threading.Event = field(default_factory=threading.Event)
    _is_busy: bool = False
    _thread: threading.Thread | None = None

    @property
    def is_behind(self) -> bool:
        """True while moments may be due that were not judged; one that fails is not waited for."""
        return self._news.is_set() or self._is_busy

    def start(self) -> None:
        """Begin; it is a daemon thread, so a process that dies does not wait for it."""
        self._thread = threading.Thread(target=self._run, name="attribution", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the moments judged that are due; returns at once."""
        self._news.set()

    def finish(self) -> bool:
        """End the thread after the judgement that runs, if any; return whether it has come to an end."""
        self._end.set()
        self._news.set()
        if self._thread is None:
            return True
        self._thread.join(FINISH_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._end.is_set():
            self._news.wait()
            self._is_busy = True  # before the news are taken: one of both says that it is behind
            self._news.clear()
            try:
                while not self._end.is_set() and self.attribution.judge():
                    pass
                self._is_busy = self._end.is_set()
            except Exception:  # noqa: BLE001  # whatever is wrong with one incident, the query goes on
                self.failures_total += 1
                _LOG.exception("attribution_failed failures=%d", self.failures_total)
                self._is_busy = False
                self._end.wait(self.retry_seconds)
                self._news.set()
