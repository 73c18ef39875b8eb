"""A model of a flash drive's erased pages: writes are fast until they run out, then wait for collection.

nbdkit loads this module too, in the system's Python, so it imports only the standard library. No IO.

Model: a drive of L logical pages has P = L (1 + spare_ratio) physical ones, each erased, stale or valid. A
write takes an erased page; the old page of the same address becomes stale, as does a trimmed page. In the
background the drive erases stale pages, more slowly the fewer of the used pages are stale: at
collected_pages_per_second times stale / (stale + valid), because erasing a block means moving its valid
pages. A write that finds no erased page waits until its pages would have been collected; all writes share
one queue. Meanwhile the drive may collect faster, because it does nothing else: background and foreground
collection.

Trimmed pages share their blocks with valid pages, which are moved before a block is free: on a drive whose
share u is valid, 1 / (1 - u) pages for each page (Hu et al. 2009, doi:10.1145/1534530.1534544). So a trim is
work: more, the more is trimmed and the fuller the drive is. The time for a page is a setting, by default 0.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE_BYTES = 4096
_MIB_PAGES = 2**20 // PAGE_BYTES
_STEP_SECONDS = 0.1  # of the collection, whose rate changes with the pages
_MIN_STEP_SECONDS = 0.001
_MAX_STEPS = 1000


@dataclass(frozen=True)
class Settings:
    """The properties of a drive; all but the first three may change while it is in use."""

    spare_ratio: float = 0.28  # physical pages beyond the logical ones, as a share of these
    is_full: bool = True  # every logical page is valid, as after a long life without trim
    kept_ratio: float = 0.0  # else: share of the logical pages that stays valid for good
    collected_pages_per_second: float = 10_000.0  # if no page were valid
    foreground_ratio: float = 1.0  # factor of that rate while a write waits
    write_seconds: float = 0.0
    flush_seconds: float = 0.0
    starved_seconds: float = 0.0  # added to each write that finds no erased page
    trim_seconds_per_mib: float = 0.0  # of valid pages, on a nearly empty drive


class Flash:
    """The pages of one drive; `now` is a monotonic clock in seconds. For one thread at a time."""

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
        """Take pages for this many bytes; return how many seconds the write takes."""
        self.collect(now)
        first, last = _pages(offset, count)
        pages = last - first
        # If the pages that are kept for good leave no room, some of them are replaced.
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
        """Discard the whole pages among these bytes; return how many seconds the drive is busy with it."""
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
        """Erase stale pages until now."""
        remaining = now - self._at
        step = max(_STEP_SECONDS, remaining / _MAX_STEPS)
        while remaining > 0 and self.stale > 0:
            rate, seconds = self._collected_per_second(), min(step, remaining)
            if self.erased < 0:
                seconds = min(seconds, max(-self.erased / rate, _MIN_STEP_SECONDS))
            collected = min(self.stale, rate * seconds)
            self.stale -= collected
            self.erased += collected
            remaining -= seconds
        self._at = now

    def _collected_per_second(self) -> float:
        """Return the rate now, in pages; above 0 if a write waits, because some pages are stale then."""
        rate = self.settings.collected_pages_per_second
        if self.erased < 0:
            rate *= self.settings.foreground_ratio
        return rate * self.stale / (self.stale + self.valid)


def _pages(offset: int, count: int) -> tuple[int, int]:
    """Return the first page that a request touches and the one after its last."""
    return offset // PAGE_BYTES, -(-(offset + count) // PAGE_BYTES)
