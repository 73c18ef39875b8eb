"""The shipping daemon: send the journal lines of this host to the samples topic, from a stored position on."""

from __future__ import annotations

import heapq
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from soak.core.errors import BrokerError
from soak.core.model import Column
from soak.core.plan.plan import ProbePlan, Ship
from soak.core.ports import Clock
from soak.core.retry import Backoff, Once, Retry
from soak.core.units import SECOND_NS
from soak.runtime.context import open_page
from soak.runtime.grid import grid_of, host_name
from soak.service.files import file_lock, write_atomically
from soak.service.systemd import Notifier, notifier
from soak.shipping.announcements import AnnouncementListener, RunFollower
from soak.shipping.discovery import JoinedRuns
from soak.store.journal.reader import lines, segment_name, segments, sources
from soak.store.run_announcements import AnnouncementReader
from soak.store.run_folder import Run, RunFolder, ensure_sender_id, read_any_plan, read_run
from soak.store.samples_topic import SamplesWriter, ShippedLine

# --- The columns line that a source's next records refer to, sent again now and then.
# A file begins with one, once an hour: without this, whoever comes when the topic has lost it could read
# nothing of the source until the next.

REPEAT_NS = 60 * SECOND_NS
_MARK = b'{"t":"c"'


class RepeatedColumns:
    """Remembers the newest columns line of each source, and when one went last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = clock.mono_ns()
        self._newest: dict[str, bytes] = {}
        self._sent_ns: dict[str, int] = {}

    def due(self, source: str, path: Path, offset: int) -> list[ShippedLine]:
        """Return the line that is to go before what a file has from `offset` on, if it is time for it."""
        sent_ns = self._sent_ns.get(source, self._begin_ns)
        if offset == 0 or self._clock.mono_ns() - sent_ns < REPEAT_NS:
            return []
        if source not in self._newest:  # an earlier process sent it
            self.note(ShippedLine(source, raw.rstrip(b"\n")) for raw in lines(path, 0, offset))
        return [ShippedLine(source, self._newest[source])] if source in self._newest else []

    def note(self, sent: Iterable[ShippedLine]) -> None:
        """Remember what went."""
        for line in sent:
            if line.raw.startswith(_MARK):
                self._newest[line.source] = line.raw
                self._sent_ns[line.source] = self._clock.mono_ns()


# --- The shipping daemon: sends the lines of this host's journals to a Kafka topic, from a kept position on.
# The journal is the buffer: while the cluster is away lines wait on disk, and nothing that samples waits for
# this process. A position is kept only when the cluster has taken what lies before it.

LOG = logging.getLogger("soak.shipping.sender")
ROUND_SECONDS = 1.0
SLICE_SECONDS = 5.0  # of a wait
BATCH_BYTES = 2 * 2**20
KEEP_NS = 5 * SECOND_NS  # a position is kept this often; what was sent after it is sent again
SEND_BACKOFF = Backoff(SECOND_NS, 30 * SECOND_NS)
FINAL_SEND_NS = 10 * SECOND_NS


class LineTarget(Protocol):
    """Where lines go; see `SamplesWriter`."""

    too_large: int

    def send(self, lines: list[ShippedLine]) -> None: ...
    def close(self) -> None: ...


def run(run_dir: Path, stop: threading.Event, clock: Clock, *, is_following: bool = False) -> int:
    """Ship until `stop`, then what is left, within bounds; return the exit code.

    With `is_following` the host joined its run as one that was announced, and hears here of its end.

    Raises:
        SoakError: no run folder, or another process ships it.
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
        following = _follower(folder, plan.ship, known, clock) if is_following else None
        wait_seconds = 0.0
        manager.ready()
        while not _waited_until_stop(stop, wait_seconds, manager):
            wait_seconds = shipper.round()
            if following is not None:
                following.poll()
            if buffer is not None:
                shipper.trim(buffer)
            page.show(shipper.samples())
        manager.stopping()
        shipper.finish(clock.mono_ns() + FINAL_SEND_NS)
        target.close()
        if following is not None:
            following.close()
    return 0


def _follower(folder: RunFolder, ship: Ship, run: Run, clock: Clock) -> RunFollower:
    listening = AnnouncementListener(AnnouncementReader(ship, clock), run.name, clock)
    may_join = JoinedRuns(folder.path.parent, run.name).may_join
    return RunFollower(folder, run, listening, may_join, grid_of(folder, run, clock), clock)


def _waited_until_stop(stop: threading.Event, wait_seconds: float, manager: Notifier) -> bool:
    """Wait, and return whether it was told to stop; the watchdog does not wait."""
    manager.alive()
    while wait_seconds > SLICE_SECONDS and not stop.wait(SLICE_SECONDS):
        manager.alive()
        wait_seconds -= SLICE_SECONDS
    return stop.wait(min(wait_seconds, SLICE_SECONDS))


class Shipper:
    """One round after the other over the journals of this host."""

    def __init__(self, folder: RunFolder, target: LineTarget, clock: Clock, host: str) -> None:
        self._folder = folder
        self._target = target
        self._clock = clock
        self._host = host
        self._path = folder.path / "ship.json"
        self._places: dict[str, tuple[str, int]] | None = None  # file and offset, by source
        self._columns = RepeatedColumns(clock)
        self._kept_ns = 0
        self._kept_text = ""
        self._retry = Retry(SEND_BACKOFF)
        self._errors = Once()
        self.sent_lines = 0
        self.dropped_bytes = 0

    def round(self) -> float:
        """Send a batch; return how long to wait before the next."""
        batch, places = self._batch()
        if not batch:
            self._keep()
            return ROUND_SECONDS
        try:
            self._target.send(batch)
        except BrokerError as error:
            return self._put_off(str(error))
        if self._retry.is_failing:
            LOG.info("shipping_again waiting_bytes=%d", self.waiting_bytes())
        self._retry.note_success()
        self._errors.clear()
        self.sent_lines += len(batch)
        self._columns.note(batch)
        self._known().update(places)
        self._keep_now_and_then()
        is_more = sum(len(line.raw) for line in batch) >= BATCH_BYTES
        return 0.0 if is_more else ROUND_SECONDS

    def finish(self, until_ns: int) -> None:
        """Send what is left, once more from the start of each batch that fails, until then."""
        while self._clock.mono_ns() < until_ns and self._batch()[0] and not self._failed_round():
            pass
        self._keep()

    def trim(self, limit_bytes: int) -> None:
        """Delete the oldest files beyond so many bytes, whether they were sent or not; never the newest.

        Those of one source go in their order, whatever a clock that was set made of their times: behind
        a gap nothing would be found again.
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
        """Return how much is on disk and was not taken yet."""
        return _unsent_bytes(self._folder, self._sources(), self._known())

    def samples(self) -> list[tuple[Column, float]]:
        """Return what the page for Prometheus shows."""
        return [
            (Column("ship_sent_lines_total", (), "lines"), float(self.sent_lines)),
            (Column("ship_waiting_bytes", (), "bytes"), float(self.waiting_bytes())),
            (Column("ship_dropped_bytes_total", (), "bytes"), float(self.dropped_bytes)),
            (Column("ship_too_large_lines_total", (), "lines"), float(self._target.too_large)),
        ]

    def _failed_round(self) -> bool:
        self.round()
        return self._retry.is_failing

    def _sources(self) -> list[str]:
        """Return the sources of this host: what came from another is not ours to send."""
        return _own_sources(self._folder, self._host)

    def _batch(self) -> tuple[list[ShippedLine], dict[str, tuple[str, int]]]:
        """Return the next lines of every source and where each will stand then."""
        batch: list[ShippedLine] = []
        places: dict[str, tuple[str, int]] = {}
        left = BATCH_BYTES
        for source in self._sources():
            place = self._known().get(source, ("", 0))
            for path in _files_from(self._folder.journal / source, place[0]):
                if left <= 0:
                    break
                begin = place[1] if path.name == place[0] else 0
                text, is_more = _complete_lines(path, begin, left)
                left -= len(text)
                place = (path.name, begin + len(text))
                if text:
                    batch += self._columns.due(source, path, begin)
                batch += [ShippedLine(source, raw) for raw in text.split(b"\n")[:-1]]
                if is_more:
                    break
            places[source] = place
        return batch, places

    def _known(self) -> dict[str, tuple[str, int]]:
        if self._places is None:
            self._places = _stored_positions(self._path)
        return self._places

    def _put_off(self, why: str) -> float:
        if self._errors.is_new(why):
            LOG.warning("shipping_put_off waiting_bytes=%d error=%s", self.waiting_bytes(), why)
        return self._retry.note_failure(self._clock.mono_ns()) / SECOND_NS

    def _note_dropped(self, path: Path, size: int) -> None:
        source = path.parent.name
        name, offset = self._known().get(source, ("", 0))
        lost = size - offset if path.name == name else size * (path.name > name)
        if lost:
            LOG.error("journal_dropped_unsent source=%s file=%s bytes=%d", source, path.name, lost)
            self.dropped_bytes += lost

    def _keep_now_and_then(self) -> None:
        if self._clock.mono_ns() - self._kept_ns >= KEEP_NS:
            self._keep()

    def _keep(self) -> None:
        self._kept_ns = self._clock.mono_ns()
        text = json.dumps(self._known()) + "\n"
        if text == self._kept_text:
            return
        try:
            write_atomically(self._path, text)
        except OSError as error:  # what was sent since is sent again after a restart
            LOG.warning("position_not_kept error=%s", error)
        else:
            self._kept_text = text


def has_unsent(folder: RunFolder, host: str) -> bool:
    """True where an earlier process left something that the cluster has not taken."""
    return (
        _unsent_bytes(
            folder, _own_sources(folder, host), _stored_positions(folder.path / "ship.json")
        )
        > 0
    )


def _own_sources(folder: RunFolder, host: str) -> list[str]:
    return [source for source in sources(folder.journal) if source.endswith(f"@{host}")]


def _unsent_bytes(
    folder: RunFolder, names: Iterable[str], places: Mapping[str, tuple[str, int]]
) -> int:
    total = 0
    for source in names:
        name, offset = places.get(source, ("", 0))
        for path in _files_from(folder.journal / source, name):
            total += path.stat().st_size - (offset if path.name == name else 0)
    return total


def _files_from(folder: Path, name: str) -> list[Path]:
    """Return a source's files from a known one on: by their numbers, as a run of weeks has hundreds."""
    known = folder / name
    if not name or not known.exists():  # deleted to make room
        return [path for path in segments(folder) if path.name >= name]
    found = []
    while known.exists():
        found.append(known)
        known = folder / segment_name(int(known.stem) + 1)
    return found


def _complete_lines(path: Path, begin: int, limit: int) -> tuple[bytes, bool]:
    """Return what is complete from an offset on, and whether some of it may be left for the next time.

    A line longer than the limit is read whole. A torn line at the end of a file is not one.
    """
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read(limit)
        while b"\n" not in text and (more := file.read(limit)):
            text += more
    whole = text[: text.rfind(b"\n") + 1]
    return whole, bool(whole) and len(text) >= limit


def _stored_positions(path: Path) -> dict[str, tuple[str, int]]:
    """Return the positions of an earlier process; none when there are none that can be read."""
    try:
        found = json.loads(path.read_text())
        return {str(source): (str(name), int(at)) for source, (name, at) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
