"""A flash drive's erased pages: while they last writes are quick, then they wait for the drive's collection.

Loaded by nbdkit too, in the system's Python, so it imports the standard library alone. No IO, no clock.

Model: a drive of L logical pages has P = L (1 + spare_ratio) physical ones, each erased, stale or valid. A
page that is written takes an erased one; what it held before becomes stale, as a page that is trimmed does.
In the background stale pages are erased, more slowly the fewer of the used pages they are: at
collected_pages_per_second times stale / (stale + valid), since to erase a block is to move what is valid in
it. A write that finds no erased page waits until its pages would have been collected; all stand in one queue.
While one waits the drive may collect faster, as it does nothing else: background and foreground collection.

What is trimmed shares its blocks with pages that stay valid, and those are moved before a block is free: of a
drive that is valid to the share u, 1 / (1 - u) pages a page (Hu et al. 2009, doi:10.1145/1534530.1534544). So
a trim is work, more of it the more is trimmed and the fuller the drive; how much a page takes is set, and as
a rule nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096
_MIB_PAGES = 2**20 // PAGE_BYTES
_STEP_SECONDS = 0.1  # of the collection, whose rate changes as it goes
_LEAST_SECONDS = 0.001
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Settings:
    """What a drive is; all but the first three may change while it works."""

    spare_ratio: float = 0.28  # physical pages beyond the logical ones, of these
    is_full: bool = True  # every logical page was written once, as after a long life without trim
    kept_ratio: float = 0.0  # else: of the logical pages, valid for good, as what others wrote once
    collected_pages_per_second: float = 10_000.0  # as if nothing were valid
    foreground_ratio: float = 1.0  # so many times as fast while a write waits
    write_seconds: float = 0.0
    flush_seconds: float = 0.0
    starved_seconds: float = 0.0  # longer for each write that finds no erased page
    trim_seconds_per_mib: float = 0.0  # of what was valid, on a drive that is all but empty


class Flash:
    """The pages of one drive; `now` is a clock in seconds that never goes back. For one thread at a time."""

    def __init__(self, capacity_bytes: int, settings: Settings, now: float) -> None:
        logical = capacity_bytes // PAGE_BYTES
        self.settings = settings
        self._is_valid = bytearray((b"\x01" if settings.is_full else b"\x00") * logical)
        self.valid = logical if settings.is_full else round(logical * settings.kept_ratio)
        self._at = now
        self.stale = 0.0
        self._logical = logical
        self._pages = logical * (1 + settings.spare_ratio)
        self.erased = self._pages - self.valid
        self.written_pages = 0
        self.trimmed_pages = 0
        self.starved_writes = 0
        self.starved_at_written_pages: int | None = None  # when the pool ran out, the first time

    def write(self, offset: int, count: int, now: float) -> float:
        """Take pages for so many bytes; return how many seconds that takes."""
        self.collect(now)
        first, last = _pages(offset, count)
        pages = last - first
        # Beside what is kept for good there may be no room: then some of that goes.
        fresh = min(self._is_valid.count(0, first, last), self._logical - self.valid)
        self._is_valid[first:last] = b"\x01" * pages
        self.valid += fresh
        self.stale += pages - fresh
        self.erased -= pages
        self.written_pages += pages
        if self.erased >= 0:
            return self.settings.write_seconds
        if self.starved_at_written_pages is None:
            self.starved_at_written_pages = self.written_pages
        self.starved_writes += 1
        debt_seconds = -self.erased / self._collected_per_second()
        return self.settings.write_seconds + self.settings.starved_seconds + debt_seconds

    def trim(self, offset: int, count: int, now: float) -> float:
        """Take so many bytes for no longer needed, whole pages only; return how long the drive is at it."""
        self.collect(now)
        first, last = -(-offset // PAGE_BYTES), (offset + count) // PAGE_BYTES
        freed = self._is_valid.count(1, first, last) if first < last else 0
        if not freed:
            return 0.0
        self._is_valid[first:last] = bytes(last - first)
        self.valid -= freed
        self.stale += freed
        self.trimmed_pages += freed
        moved = freed * self._pages / (self._pages - self.valid)
        return moved / _MIB_PAGES * self.settings.trim_seconds_per_mib

    def collect(self, now: float) -> None:
        """Let the drive erase stale pages until now."""
        left = now - self._at
        step = max(_STEP_SECONDS, left / _MOST_STEPS)
        while left > 0 and self.stale > 0:
            rate, seconds = self._collected_per_second(), min(step, left)
            if self.erased < 0:
                seconds = min(seconds, max(-self.erased / rate, _LEAST_SECONDS))
            collected = min(self.stale, rate * seconds)
            self.stale -= collected
            self.erased += collected
            left -= seconds
        self._at = now

    def _collected_per_second(self) -> float:
        """Return the rate now, in pages; never 0 where one is missing: then some are stale."""
        rate = self.settings.collected_pages_per_second
        if self.erased < 0:
            rate *= self.settings.foreground_ratio
        return rate * self.stale / (self.stale + self.valid)


def _pages(offset: int, count: int) -> tuple[int, int]:
    """Return the first page that a request touches and the one after its last."""
    return offset // PAGE_BYTES, -(-(offset + count) // PAGE_BYTES)
