"""Follows the segment files of local partition folders: created, renamed, unlinked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from probes.retention_kafka.log_starts import Partition
from soak.core.model import Event
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

BLOCK_BYTES = 512  # the unit of st_blocks (stat(2)); the size of a sparse index file means nothing
_LOG = re.compile(r"(?P<base>\d{20})\.log(?P<waits>\.deleted)?", re.ASCII)
_NOT_FOUND = (FileNotFoundError, NotADirectoryError)

CREATED = "segment_created"
RENAMED = "segment_renamed"
UNLINKED = "segment_unlinked"

COARSE_NS = 50_000_000
"""A change this soon after another may have the same timestamp: the kernel's clock for files has ticks."""
_TRIES = 3
_MAX_UNLINKED = 1000  # whose sizes are kept until the log start has passed them


@dataclass(frozen=True, slots=True)
class PendingDelete:
    """A segment that was renamed and will be unlinked."""

    bytes: int
    renamed_ns: int  # wall clock: a rename sets the file's ctime


@dataclass(frozen=True, slots=True)
class FileSize:
    """The length of a log file, and the space that it occupies on disk."""

    bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class FolderListing:
    """One partition folder; its segments by base offset with the size of their log files."""

    held_bytes: int  # occupied on disk, with indexes and with files that will be unlinked
    newest_held_bytes: int  # of these the newest log file, which grows
    live: dict[int, int]
    waiting: dict[int, PendingDelete]


def changed_ns(path: str) -> int | None:
    """Return when a file of the folder was last created, renamed or unlinked; None if there is no folder.

    Raises:
        OSError: it cannot be read, as in all of these functions.
    """
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # a Path costs as much as the call
    except _NOT_FOUND:
        return None


def listing(path: str) -> FolderListing | None:
    """Return the content of a folder; files that vanish meanwhile are left out."""
    held, newest, live, waiting = 0, (-1, 0), {}, {}
    live_inodes: dict[int, int] = {}
    waiting_inodes: dict[int, int] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                occupied = status.st_blocks * BLOCK_BYTES
                held += occupied
                match = _LOG.fullmatch(entry.name)
                if match is None:
                    continue
                base = int(match["base"])
                if match["waits"]:
                    waiting[base] = PendingDelete(status.st_size, status.st_ctime_ns)
                    waiting_inodes[base] = status.st_ino
                else:
                    live[base] = status.st_size
                    live_inodes[base] = status.st_ino
                    newest = max(newest, (base, occupied))
    except _NOT_FOUND:
        return None
    # A file that is renamed meanwhile is listed under both names. Two files are the old and the new segment
    # of a compacted log, which stay side by side until the old one is unlinked.
    for base, _ in live_inodes.items() & waiting_inodes.items():
        del live[base]
    return FolderListing(held, newest[1], live, waiting)


def size(path: str, base: int) -> FileSize | None:
    """Return the current size of a segment's log file; None if it no longer exists."""
    try:
        status = os.stat(f"{path}/{base:020d}.log")  # noqa: PTH116  # as above
    except _NOT_FOUND:
        return None
    return FileSize(status.st_size, status.st_blocks * BLOCK_BYTES)


class Folders(Protocol):
    """How folders are read: the functions of this module; tests replace them."""

    def changed_ns(self, path: str) -> int | None: ...
    def listing(self, path: str) -> FolderListing | None: ...
    def size(self, path: str, base: int) -> FileSize | None: ...


@dataclass(slots=True)
class _Folder:
    path: str
    changed_ns: int
    seen_ns: int
    live: dict[int, int]
    waiting: dict[int, PendingDelete]
    held_bytes: int
    newest_held_bytes: int = 0
    gone: dict[int, int] = field(default_factory=dict)  # bytes of unlinked segments


@dataclass(slots=True)
class TopicTotal:
    """The space of one topic on this host."""

    held_bytes: int = 0
    waiting_bytes: int = 0


class Segments:
    """Compares each folder with its last reading.

    A folder's mtime shows whether anything has changed, so an unchanged one costs two stat calls: its own,
    and that of the file that grows. Only as many folders are read as fit the time allowed, in turn.
    """

    def __init__(self, directories: Sequence[str], clock: Clock, folders: Folders) -> None:
        self._directories = directories
        self._clock = clock
        self._read = folders
        self._known: dict[Partition, _Folder] = {}
        self._turn = 0
        self._round_ns: int | None = None
        self._begun_ns: int | None = None
        self._partitions: Sequence[Partition] = ()  # of the last scan
        self._measured: set[Partition] = set()  # whose folder could be read last time
        self.totals: dict[str, TopicTotal] = {}
        self.error: OSError | None = None

    @property
    def round_seconds(self) -> float | None:
        """Return how often each folder is read; None before all were."""
        return None if self._round_ns is None else self._round_ns / SECOND_NS

    def scan(self, partitions: Sequence[Partition], limit_ns: int) -> list[Event]:
        """Read folders in turn for `limit_ns`; return the changes. The first reading of a folder has none.

        A folder that cannot be read is skipped, and the total of its topic is not measured; `error` is the
        last such error, or None.
        """
        events: list[Event] = []
        if partitions is not self._partitions:
            self._partitions = partitions
            self._measured.intersection_update(partitions)
        self.error = None
        end_ns = self._clock.mono_ns() + limit_ns
        for partition in self._in_turn(partitions):
            try:
                events += self._visit(partition)
            except OSError as error:
                self.error = error
                self._measured.discard(partition)
            else:
                self._measured.add(partition)
            if self._clock.mono_ns() >= end_ns:
                break
        return events

    def measured_totals(self) -> dict[str, TopicTotal]:
        """Return the totals of the topics of the last scan whose folders were all read.

        A part of them would look like a topic that grows, or a fall.
        """
        topics = {topic for topic, _ in self._partitions}
        topics -= {one[0] for one in self._partitions if one not in self._measured}
        return {topic: one for topic, one in self.totals.items() if topic in topics}

    def sizes(self, partition: Partition) -> Mapping[int, int]:
        """Return the bytes of the segments of a partition by base offset, including those just unlinked."""
        known = self._known.get(partition)
        if known is None:
            return {}
        waiting = {base: one.bytes for base, one in known.waiting.items()}
        return {**known.gone, **waiting, **known.live}

    def forget_below(self, partition: Partition, offset: int) -> None:
        """Forget unlinked segments below the log start."""
        known = self._known.get(partition)
        if known is not None and known.gone:
            known.gone = {base: size for base, size in known.gone.items() if base >= offset}

    def _in_turn(self, partitions: Sequence[Partition]) -> Iterator[Partition]:
        count = len(partitions)
        for _ in range(count):
            at = self._turn % count
            if at == 0:
                now_ns = self._clock.mono_ns()
                if self._begun_ns is not None:
                    self._round_ns = now_ns - self._begun_ns
                self._begun_ns = now_ns
            self._turn = at + 1
            yield partitions[at]

    def _visit(self, partition: Partition) -> list[Event]:
        known = self._known.get(partition)
        if known is None:
            self._find(partition)
            return []
        now_ns = self._clock.wall_ns()
        changed_ns = self._read.changed_ns(known.path)
        if changed_ns is None:
            self._drop(partition, known)
            return []
        if changed_ns == known.changed_ns:
            self._grow(partition, known)
            known.seen_ns = now_ns
            return []
        found = self._listed(known)
        if found is None:
            self._drop(partition, known)
            return []
        events = list(_changes(partition, known, found, changed_ns, self._clock.wall_ns()))
        self._take(partition, known, found, changed_ns, now_ns)
        return events

    def _listed(self, known: _Folder) -> FolderListing | None:
        """List a folder, again if files are missing: one that is just renamed may be under no name."""
        found = self._read.listing(known.path)
        for _ in range(_TRIES):
            lost = set() if found is None else _lost(known, found)
            if not lost:
                break
            found = self._read.listing(known.path)
            if found is None or _lost(known, found) == lost:
                break
        return found

    def _find(self, partition: Partition) -> None:
        topic, number = partition
        for directory in self._directories:
            path = f"{directory}/{topic}-{number}"
            now_ns, changed_ns = self._clock.wall_ns(), self._read.changed_ns(path)
            found = None if changed_ns is None else self._read.listing(path)
            if found is not None and changed_ns is not None:
                known = _Folder(path, 0, now_ns, {}, {}, 0)
                self._known[partition] = known
                self._take(partition, known, found, changed_ns, now_ns)
                return

    def _take(
        self,
        partition: Partition,
        known: _Folder,
        found: FolderListing,
        changed_ns: int,
        now_ns: int,
    ) -> None:
        total = self.totals.setdefault(partition[0], TopicTotal())
        total.held_bytes += found.held_bytes - known.held_bytes
        total.waiting_bytes += _waiting_bytes(found.waiting) - _waiting_bytes(known.waiting)
        is_settled = now_ns - changed_ns > COARSE_NS
        known.changed_ns = changed_ns if is_settled else 0
        known.seen_ns, known.held_bytes = now_ns, found.held_bytes
        known.live, known.waiting = found.live, found.waiting
        known.newest_held_bytes = found.newest_held_bytes

    def _grow(self, partition: Partition, known: _Folder) -> None:
        """Note the size of the newest segment, the only one that grows."""
        if not known.live:
            return
        base = max(known.live)
        size = self._read.size(known.path, base)
        if size is None:
            return
        known.live[base] = size.bytes
        more = size.held_bytes - known.newest_held_bytes
        known.newest_held_bytes = size.held_bytes
        known.held_bytes += more
        self.totals[partition[0]].held_bytes += more

    def _drop(self, partition: Partition, known: _Folder) -> None:
        """Forget a folder that no longer exists: its topic was deleted, or moved."""
        total = self.totals[partition[0]]
        total.held_bytes -= known.held_bytes
        total.waiting_bytes -= _waiting_bytes(known.waiting)
        del self._known[partition]


def _changes(
    partition: Partition, known: _Folder, found: FolderListing, changed_ns: int, now_ns: int
) -> Iterator[Event]:
    """Yield the events since the last reading, not after the folder's last change."""
    since_ns = known.seen_ns
    at_ns = changed_ns if since_ns < changed_ns <= now_ns else now_ns
    # A new file in place of one that waits is no roll: the log was compacted.
    for base in sorted(found.live.keys() - known.live.keys() - known.waiting.keys()):
        yield _event(CREATED, partition, base, None, (since_ns, at_ns))
    lost = _lost(known, found)
    for base in sorted(lost | (found.waiting.keys() - known.waiting.keys())):
        waits = found.waiting.get(base)
        exact_ns = waits.renamed_ns if waits and since_ns < waits.renamed_ns <= at_ns else at_ns
        size = waits.bytes if waits else known.live[base]
        yield _event(RENAMED, partition, base, size, (since_ns, exact_ns))
    for base in sorted(lost | (known.waiting.keys() - found.waiting.keys())):
        waited = known.waiting.get(base)
        size = waited.bytes if waited else known.live[base]
        event = _event(UNLINKED, partition, base, size, (since_ns, at_ns))
        if waited is not None:
            lag = (at_ns - waited.renamed_ns) / SECOND_NS
            event = _event(UNLINKED, partition, base, size, (since_ns, at_ns), lag)
        known.gone[base] = size
        yield event
    while len(known.gone) > _MAX_UNLINKED:
        del known.gone[min(known.gone)]


def _lost(known: _Folder, found: FolderListing) -> set[int]:
    """Return the known segments that are listed under neither of their names."""
    return known.live.keys() - found.live.keys() - found.waiting.keys()


def _event(
    kind: str,
    partition: Partition,
    base: int,
    size: int | None,
    when: tuple[int, int],
    lag_seconds: float | None = None,
) -> Event:
    fields: dict[str, str | int | float] = {
        "topic": partition[0],
        "partition": partition[1],
        "base_offset": base,
    }
    if size is not None:
        fields["bytes"] = size
    if lag_seconds is not None:
        fields["lag_seconds"] = round(lag_seconds, 3)
    since_ns, at_ns = when
    return Event(kind, at_ns, since_ns, fields)


def _waiting_bytes(waiting: Mapping[int, PendingDelete]) -> int:
    return sum(one.bytes for one in waiting.values())
