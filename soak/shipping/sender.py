"""The shipping daemon: send the journal lines of this host to the samples topic, from a stored position on.

The journal is the buffer. While the cluster is unreachable, lines wait on disk, and no probe waits for this
process. A position is stored only after the cluster has taken all lines before it.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from soak.core.errors import BrokerError
from soak.core.model import Column
from soak.core.plan.plan import ProbePlan
from soak.core.ports import Clock
from soak.core.retry import Backoff, Once, Retry
from soak.core.units import SECOND_NS
from soak.runtime.context import open_page
from soak.runtime.grid import grid_of, host_name
from soak.service.files import file_lock, read_json, write_atomically
from soak.service.systemd import Notifier, notifier
from soak.shipping.announcements import AnnouncementListener, RunFollower
from soak.shipping.discovery import JoinedRuns
from soak.store.journal.reader import complete_size, lines, segment_name, segments, sources
from soak.store.run_announcements import AnnouncementReader
from soak.store.run_folder import Run, RunFolder, ensure_sender_id, read_any_plan, read_run
from soak.store.samples_topic import SamplesWriter, ShippedLine

LOG = logging.getLogger(__name__)
PERIOD_SECONDS = 1.0
SLICE_SECONDS = 5.0  # of a wait: the watchdog is answered in between
BATCH_BYTES = 2 * 2**20
STORE_PERIOD_NS = 5 * SECOND_NS  # lines that were sent after the stored position are sent again
SEND_BACKOFF = Backoff(max_ns=30 * SECOND_NS)
FINAL_SEND_NS = 10 * SECOND_NS
REPEAT_NS = 60 * SECOND_NS
REPEAT_BYTES = 8 * 2**20
_COLUMNS_PREFIX = b'{"t":"c"'

Position = tuple[str, int]
"""Name of a file and an offset in it."""


class LineTarget(Protocol):
    """Where lines go; see `SamplesWriter`."""

    too_large: int

    def send(self, lines: list[ShippedLine]) -> None: ...
    def close(self) -> None: ...


def run(run_dir: Path, stop: threading.Event, clock: Clock, *, is_following: bool = False) -> int:
    """Ship until `stop`, then the remaining lines within bounds; return the exit code.

    With `is_following` the host has joined an announced run, and ends its recording with that run.

    Raises:
        SoakError: this is no run folder, or another process ships it.
    """
    folder = RunFolder(run_dir)
    plan, known = read_any_plan(folder), read_run(folder)
    if plan.ship is None:
        LOG.error("ship_not_configured plan=%s", folder.plan)
        return 1
    page = open_page(folder, plan, known, "ship", clock)
    manager = notifier()
    with file_lock(folder.path / "ship.lock", "the shipping of this run"):
        sender = ensure_sender_id(folder)
        target = SamplesWriter(plan.ship, known.id, known.start_wall_ns, clock, sender)
        shipper = Shipper(folder, target, clock, host_name())
        buffer = plan.ship.buffer if isinstance(plan, ProbePlan) else None
        announced = AnnouncementReader(plan.ship, clock)
        follower = _follower(folder, announced, known, clock) if is_following else None
        wait_seconds = 0.0
        manager.ready()
        while not _wait_for_stop(stop, wait_seconds, manager):
            wait_seconds = shipper.send_batch()
            if follower is not None:
                follower.poll()
            if buffer is not None:
                shipper.trim(buffer)
            refused = Column("ship_refused_announcements_total", (), "announcements")
            page.show([*shipper.samples(), (refused, float(announced.refused))])
        manager.stopping()
        shipper.finish(clock.mono_ns() + FINAL_SEND_NS)
        target.close()
        if follower is not None:
            follower.close()
    return 0


def _follower(
    folder: RunFolder, announced: AnnouncementReader, run: Run, clock: Clock
) -> RunFollower:
    listener = AnnouncementListener(announced, run.name, clock)
    may_join = JoinedRuns(folder.path.parent, run.name).may_join
    return RunFollower(folder, run, listener, may_join, grid_of(folder, run, clock), clock)


def _wait_for_stop(stop: threading.Event, wait_seconds: float, manager: Notifier) -> bool:
    """Wait, answering the watchdog; return whether `stop` is set."""
    manager.alive()
    while wait_seconds > SLICE_SECONDS and not stop.wait(SLICE_SECONDS):
        manager.alive()
        wait_seconds -= SLICE_SECONDS
    return stop.wait(min(wait_seconds, SLICE_SECONDS))


class Shipper:
    """Sends the journals of this host, one batch after the other."""

    def __init__(
        self,
        folder: RunFolder,
        target: LineTarget,
        clock: Clock,
        host: str,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._folder = folder
        self._target = target
        self._clock = clock
        self._host = host
        self._batch_bytes = batch_bytes
        self._path = folder.path / "ship.json"
        self._read_positions: dict[str, Position] | None = None  # by source
        self._columns = _RepeatedColumns(clock)
        self._files = _SourceFiles()
        self._stored_ns = 0
        self._stored_text = ""
        self._retry = Retry(SEND_BACKOFF)
        self._failures = Once()
        self.sent_lines = 0
        self.dropped_bytes = 0

    def send_batch(self) -> float:
        """Send the next lines of all sources; return how many seconds to wait before the next batch."""
        batch, positions = self._next_batch()
        if not batch:
            self._store()
            return PERIOD_SECONDS
        try:
            self._target.send(batch)
        except BrokerError as error:
            if self._failures.is_new(str(error)):
                waiting = self.waiting_bytes()
                LOG.warning("shipping_delayed waiting_bytes=%d error=%s", waiting, error)
            return self._retry.note_failure(self._clock.mono_ns()) / SECOND_NS
        if self._retry.is_failing:
            LOG.info("shipping_resumed waiting_bytes=%d", self.waiting_bytes())
        self._retry.note_success()
        self._failures.clear()
        self.sent_lines += len(batch)
        self._columns.note(batch)
        self._positions().update(positions)
        if self._clock.mono_ns() - self._stored_ns >= STORE_PERIOD_NS:
            self._store()
        is_more = sum(len(line.raw) + 1 for line in batch) >= self._batch_bytes
        return 0.0 if is_more else PERIOD_SECONDS

    def finish(self, until_ns: int) -> None:
        """Send the remaining lines until a batch fails or the time is over, and store the position."""
        while self._clock.mono_ns() < until_ns and self._next_batch()[0]:
            self.send_batch()
            if self._retry.is_failing:
                break
        self._store()

    def trim(self, limit_bytes: int) -> None:
        """Delete the oldest files beyond the limit, sent or not; never the newest of a source.

        The files of one source are deleted in order of their numbers, whatever a clock that was set did to
        their times: to readers, a gap in the numbers is a loss.
        """
        files = [
            [(path.stat(), path) for path in segments(self._folder.journal / source)]
            for source in self._sources()
        ]
        total = sum(status.st_size for of_one in files for status, _ in of_one)
        older = (of_one[:-1] for of_one in files)
        for status, path in heapq.merge(*older, key=lambda item: item[0].st_mtime_ns):
            if total > limit_bytes:
                self._note_dropped(path, status.st_size)
                path.unlink()
                total -= status.st_size

    def waiting_bytes(self) -> int:
        """Return the size of the lines on disk that the cluster has not taken yet."""
        return _unsent_bytes(self._folder, self._files, self._sources(), self._positions())

    def samples(self) -> list[tuple[Column, float]]:
        """Return the values of the Prometheus page."""
        return [
            (Column("ship_sent_lines_total", (), "lines"), float(self.sent_lines)),
            (Column("ship_waiting_bytes", (), "bytes"), float(self.waiting_bytes())),
            (Column("ship_dropped_bytes_total", (), "bytes"), float(self.dropped_bytes)),
            (Column("ship_too_large_lines_total", (), "lines"), float(self._target.too_large)),
        ]

    def _sources(self) -> list[str]:
        return _own_sources(self._folder, self._host)

    def _next_batch(self) -> tuple[list[ShippedLine], dict[str, Position]]:
        """Return the next lines of every source, and the position of each after them."""
        batch: list[ShippedLine] = []
        positions: dict[str, Position] = {}
        room = self._batch_bytes
        for source in self._sources():
            position = self._positions().get(source, ("", 0))
            for path in self._files.from_name(self._folder.journal / source, position[0]):
                if room <= 0:
                    break
                begin = position[1] if path.name == position[0] else 0
                found, end = _complete_lines(path, begin, room)
                room -= end - begin
                position = (path.name, end)
                if found:
                    batch += self._columns.due(source, path, begin)
                batch += [ShippedLine(source, raw) for raw in found]
            positions[source] = position
        return batch, positions

    def _positions(self) -> dict[str, Position]:
        if self._read_positions is None:
            self._read_positions = _stored_positions(self._path)
        return self._read_positions

    def _note_dropped(self, path: Path, size: int) -> None:
        source = path.parent.name
        name, offset = self._positions().get(source, ("", 0))
        lost = size - offset if path.name == name else size * (path.name > name)
        if lost:
            LOG.error("journal_dropped_unsent source=%s file=%s bytes=%d", source, path.name, lost)
            self.dropped_bytes += lost

    def _store(self) -> None:
        self._stored_ns = self._clock.mono_ns()
        text = json.dumps(self._positions()) + "\n"
        if text == self._stored_text:
            return
        try:
            write_atomically(self._path, text)
        except OSError as error:  # after a restart, lines since the last position are sent again
            LOG.warning("position_not_stored error=%s", error)
        else:
            self._stored_text = text


class _SourceFiles:
    """The files of sources from a known one on, without listing folders of hundreds of files each time."""

    def __init__(self) -> None:
        self._listed: dict[Path, tuple[int, list[Path]]] = {}  # by folder, with the time of it

    def from_name(self, folder: Path, name: str) -> list[Path]:
        """Return the files of a source from this one on; all of them where the name is empty.

        One may be missing before others: the folder is listed where it changed since it was listed last. Its
        time is only compared with itself, and may be an earlier one after a clock was set back.
        """
        known = folder / name
        if not name or not known.exists():  # deleted to make room
            return [path for path in segments(folder) if path.name >= name]
        found = []
        while known.exists():
            found.append(known)
            known = folder / segment_name(int(known.stem) + 1)
        changed_ns = folder.stat().st_mtime_ns
        listed = self._listed.get(folder)
        if listed is None or listed[0] != changed_ns:
            listed = self._listed[folder] = changed_ns, segments(folder)
        return [*found, *listed[1][bisect_right(listed[1], found[-1]) :]]


class _RepeatedColumns:
    """Repeats the newest columns line of each source every minute, or after 8 MiB of its records.

    A file begins with one, once an hour. Retention may delete it from the topic, and without it no reader
    that comes later understands the records.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = clock.mono_ns()
        self._newest: dict[str, bytes] = {}
        self._sent_ns: dict[str, int] = {}
        self._bytes_since: dict[str, int] = {}

    def due(self, source: str, path: Path, offset: int) -> list[ShippedLine]:
        """Return the line to repeat before the lines of a file from `offset` on, if it is due."""
        sent_ns = self._sent_ns.get(source, self._begin_ns)
        is_due = (
            self._clock.mono_ns() - sent_ns >= REPEAT_NS
            or self._bytes_since.get(source, 0) >= REPEAT_BYTES
        )
        if offset == 0 or not is_due:
            return []
        if source not in self._newest:  # an earlier process sent it
            self.note(ShippedLine(source, raw.rstrip(b"\n")) for raw in lines(path, 0, offset))
        return [ShippedLine(source, self._newest[source])] if source in self._newest else []

    def note(self, sent: Iterable[ShippedLine]) -> None:
        """Remember the columns lines among those that were sent, and how much came after each."""
        for line in sent:
            if line.raw.startswith(_COLUMNS_PREFIX):
                self._newest[line.source] = line.raw
                self._sent_ns[line.source] = self._clock.mono_ns()
                self._bytes_since[line.source] = 0
            else:
                self._bytes_since[line.source] = self._bytes_since.get(line.source, 0) + len(
                    line.raw
                )


def has_unsent(folder: RunFolder, host: str) -> bool:
    """True where an earlier process left lines that the cluster has not taken."""
    positions = _stored_positions(folder.path / "ship.json")
    return _unsent_bytes(folder, _SourceFiles(), _own_sources(folder, host), positions) > 0


def _own_sources(folder: RunFolder, host: str) -> list[str]:
    """Return the sources of this host: those of other hosts were received, and are not sent on."""
    return [source for source in sources(folder.journal) if source.endswith(f"@{host}")]


def _unsent_bytes(
    folder: RunFolder,
    files: _SourceFiles,
    names: Iterable[str],
    positions: Mapping[str, Position],
) -> int:
    total = 0
    for source in names:
        name, offset = positions.get(source, ("", 0))
        for path in files.from_name(folder.journal / source, name):
            total += path.stat().st_size - (offset if path.name == name else 0)
    return total


def _complete_lines(path: Path, begin: int, limit: int) -> tuple[list[bytes], int]:
    """Return the complete lines from an offset on, up to the one that reaches the limit, and where it ends.

    Of a line that is too long for the topic and for its readers, only the first piece is returned: the target
    counts it, and memory is bounded. A torn line at the end of a file is left out.
    """
    found: list[bytes] = []
    end, is_line_start = begin, True
    for raw in lines(path, begin, complete_size(path)):
        if is_line_start:
            found.append(raw.removesuffix(b"\n"))
        end += len(raw)
        is_line_start = raw.endswith(b"\n")
        if is_line_start and end - begin >= limit:
            break
    return found, end


def _stored_positions(path: Path) -> dict[str, Position]:
    """Return the positions of an earlier process; none where the file is missing or damaged."""
    try:
        found = read_json(path)
        return {str(source): (str(name), int(at)) for source, (name, at) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
