"""A probe host on a real Kafka: it waits, joins a run, ends with it, and joins the next."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from soak.core.clock import Grid, SystemClock
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.runtime.context import PhaseFile
from soak.runtime.grid import host_name
from soak.service import children
from soak.service.files import write_atomically
from soak.service.systemd import notifier
from soak.shipping import receiver
from soak.shipping.announcements import RunAnnouncer
from soak.shipping.discovery import JoinedRuns
from soak.shipping.ingest import Ingest
from soak.shipping.receiver import receive_until_stop
from soak.store.journal.reader import SourceReader, read_source, sources
from soak.store.run_announcements import Announcement, AnnouncementReader, AnnouncementWriter
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.store.samples_topic import SamplesReader

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOURCE = f"probe@{host_name()}"
LIMIT_SECONDS = 120


class Main:
    """The host that receives, under another name: takes lines into a folder and announces its run."""

    def __init__(
        self, path: Path, run_id: str, ship: Ship, seconds: int, ahead_seconds: int = 20
    ) -> None:
        self.clock = SystemClock()
        self.folder = RunFolder(path / run_id)
        start_ns = self.clock.wall_ns() + ahead_seconds * SECOND_NS
        self.run = Run(run_id, start_ns, "main", {}, "running", "x")
        write_run(self.folder, self.run)
        write_atomically(
            self.folder.phases, decision_line("soak", 0) + decision_line("end", seconds)
        )
        self._ship = ship
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def records(self) -> list[tuple[int, int]]:
        """Return epoch and second of every record that came."""
        if SOURCE not in sources(self.folder.journal):
            return []
        return [(one.epoch, one.k) for one, _ in read_source(self.folder.journal, SOURCE)]

    def has_end(self) -> bool:
        """True once the source has said that it is at its end."""
        if SOURCE not in sources(self.folder.journal):
            return False
        reader = SourceReader(self.folder.journal / SOURCE)
        found = [one.epoch for one, _ in read_source(self.folder.journal, SOURCE, reader)]
        return bool(found) and reader.ended_epoch == found[-1]

    def _receive(self) -> None:
        run, clock = self.run, self.clock
        ingest = Ingest(self.folder, clock, "main")
        reader = SamplesReader(self._ship, run.id, run.start_wall_ns, {}, clock)
        grid = Grid.anchored(run.start_wall_ns, clock)
        voice = AnnouncementWriter(self._ship, clock)
        announcing = RunAnnouncer(voice, run, PhaseFile(self.folder.phases), grid, clock)
        for _ in receive_until_stop(reader, ingest, self._stop, notifier({}), clock):
            announcing.poll()
        announcing.close()
        ingest.close()
        reader.close()


@contextmanager
def host(plan: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    """`soak probe` as its unit starts it, ended if need be."""
    command = [sys.executable, "-m", "soak.cli.main", "probe", str(plan), "--run-dir", str(home)]
    with subprocess.Popen(
        children.with_death_signal(command), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_SECONDS)


def until(condition: Callable[[], object], what: str) -> None:
    """Ask until it holds; a bound, not a pace."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {LIMIT_SECONDS} s for {what}")
        threading.Event().wait(0.1)


def spoken(process: subprocess.Popen[str]) -> str:
    """Return the next line that the host prints."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def ship(lab_kafka: Running) -> Ship:
    servers = lab_kafka.bootstrap_servers
    return Ship(bootstrap_servers=servers, topic="joined", timeout=3 * SECOND_NS)


@pytest.fixture
def plan(tmp_path: Path, ship: Ship) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: x\nprobes: {pressure: {}}\nfree_space_floor: 1MiB\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: {ship.topic}, timeout: 3s}}\n"
    )
    return path


def test_a_host_joins_each_later_run_and_ends_with_it(
    ship: Ship, plan: Path, tmp_path: Path
) -> None:
    """Announcements name the run and its end."""
    home, seconds = JoinedRuns(tmp_path / "host", "x"), 5
    mains, codes = [], []
    for run_id in ("r1", "r2"):
        with host(plan, home.home) as process:
            waits = spoken(process)
            main = Main(tmp_path / "main", run_id, ship, seconds)
            with main.receiving():
                joins = spoken(process)
                codes.append(process.wait(LIMIT_SECONDS))
                with host(plan, home.home):  # sends what a slow machine had no time for
                    until(main.has_end, "the last record")
        mains.append(main)

    where = f"topic {ship.topic} at {ship.bootstrap_servers}"
    assert waits == f"waiting for an announced run of plan x on {where}\n"
    assert joins.startswith(f"probing into {home.home}/x-r2, run r2;")
    assert codes == [0, 0]
    assert (home.home / "current").resolve() == home.folder_of("r2").path.resolve()  # of the pages
    assert [[k for _, k in main.records()] for main in mains] == [list(range(seconds))] * 2
    assert [(run.id, run.start_wall_ns, run.state) for _, run in home.joined()] == [
        (main.run.id, main.run.start_wall_ns, "ended") for main in mains
    ]


def test_a_host_that_was_killed_or_stopped_resumes(ship: Ship, plan: Path, tmp_path: Path) -> None:
    """It ends on SIGTERM."""
    home = JoinedRuns(tmp_path / "host", "x")
    main = Main(tmp_path / "main", "r3", ship, 3600, ahead_seconds=4)
    with main.receiving():
        with host(plan, home.home) as process:
            until(main.records, "a first record")
            process.kill()
        with host(plan, home.home) as process:
            again = spoken(process)
            until(lambda: len({epoch for epoch, _ in main.records()}) == 2, "a second life")
        ((folder, stopped),) = home.joined()
        with host(plan, home.home) as process:
            until(lambda: len({epoch for epoch, _ in main.records()}) == 3, "a third life")
            end_k = main.records()[-1][1] + 12  # announced every 5 s
            write_atomically(
                main.folder.phases, decision_line("soak", 0) + decision_line("end", end_k)
            )
            code = process.wait(LIMIT_SECONDS)
            until(main.has_end, "the last record")

    assert again.startswith(f"probing into {home.home}/x-r3, run r3;")
    assert stopped.state == "interrupted"
    assert (code, read_run(folder).state) == (0, "ended")
    assert main.records()[-1][1] == end_k - 1


def test_the_receiver_announces_its_run_until_it_is_stopped(ship: Ship, tmp_path: Path) -> None:
    """Every few seconds, and at last that it is over."""
    clock, stop, folder = SystemClock(), threading.Event(), RunFolder(tmp_path / "r")
    run = Run("r4", clock.wall_ns() - 30 * SECOND_NS, "a", {}, "running", "y")
    write_run(folder, run)
    folder.plan.write_text(
        "name: y\nbroker: {kafka: {bootstrap_servers: 'h:9'}}\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: {ship.topic}, timeout: 3s}}\n"
    )
    runs = AnnouncementReader(ship, clock)
    heard: list[Announcement] = []

    def has_heard(condition: Callable[[], bool]) -> bool:
        heard.extend(runs.poll(0.5))
        return bool(heard) and condition()

    runs.open()
    runs.poll(3.0)  # its place is the end of now
    daemon = threading.Thread(target=receiver.run, args=(folder.path, stop, clock))
    daemon.start()
    until(lambda: has_heard(lambda: True), "a word")
    write_atomically(folder.phases, decision_line("soak", 0) + decision_line("end", 20))
    stop.set()
    daemon.join(LIMIT_SECONDS)
    until(lambda: has_heard(lambda: heard[-1].is_over), "the last word")
    runs.close()

    assert (heard[0].end_k, heard[0].is_over) == (None, False)
    assert (heard[-1].end_k, heard[-1].is_over) == (20, True)
    assert {(one.plan, one.run_id, one.start_wall_ns) for one in heard} == {
        ("y", "r4", run.start_wall_ns)
    }
