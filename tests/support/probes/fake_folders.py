"""Kafka's partition folders in memory; a test rolls, renames and unlinks segments."""

from __future__ import annotations

from probes.retention_kafka.segments import FileSize, FolderListing, PendingDelete
from tests.support.fakes import FakeClock


class FakeFolders:
    """`tick_ns` is the clock of the filesystem: what happens within one has one time stamp."""

    def __init__(self, clock: FakeClock, tick_ns: int = 1) -> None:
        self._clock = clock
        self._tick_ns = tick_ns
        self._changed: dict[str, int] = {}
        self._live: dict[str, dict[int, int]] = {}
        self._waiting: dict[str, dict[int, PendingDelete]] = {}
        self.listed = 0
        self.unseen: set[int] = set()  # by the next listing, as what is renamed while it is made
        self.error: OSError | None = None
        self.unreadable: set[str] = set()
        self.answer_seconds = 0.0

    def roll(self, path: str, base: int, size: int) -> None:
        self._live.setdefault(path, {})[base] = size
        self._waiting.setdefault(path, {})
        self._changed[path] = self._now()

    def rename(self, path: str, base: int) -> None:
        self._waiting[path][base] = PendingDelete(self._live[path].pop(base), self._now())
        self._changed[path] = self._now()

    def unlink(self, path: str, base: int) -> None:
        del self._waiting[path][base]
        self._changed[path] = self._now()

    def grow(self, path: str, base: int, size: int) -> None:
        """Let a file grow, of which the folder itself shows nothing."""
        self._live[path][base] = size

    def remove(self, path: str) -> None:
        del self._changed[path]

    def changed_ns(self, path: str) -> int | None:
        self._clock.advance(self.answer_seconds)
        if self.error is not None:
            raise self.error
        if path in self.unreadable:
            raise OSError(5, "Input/output error", path)
        return self._changed.get(path)

    def listing(self, path: str) -> FolderListing | None:
        self.listed += 1
        unseen, self.unseen = self.unseen, set()
        live = {base: one for base, one in self._live[path].items() if base not in unseen}
        waiting = {base: one for base, one in self._waiting[path].items() if base not in unseen}
        held = sum(live.values()) + sum(one.bytes for one in waiting.values())
        return FolderListing(held, live[max(live)] if live else 0, live, waiting)

    def size(self, path: str, base: int) -> FileSize | None:
        found = self._live[path].get(base)
        return None if found is None else FileSize(found, found)

    def _now(self) -> int:
        now_ns = self._clock.wall_ns()
        return now_ns - now_ns % self._tick_ns
