"""What holds for every fault that changes something: it is felt, it is undone, and it says what it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab import set_clock
from soak.lab.drive.flash import Settings
from soak.lab.faults import all_faults, find_fault
from soak.lab.faults.active import activating, restart_if_ended
from soak.lab.faults.broker_process import leader_before
from soak.lab.faults.host import clock_environment
from soak.lab.faults.retention import await_deletion
from soak.lab.ports import Target
from soak.service import children
from tests.support.fakes import FakeClock
from tests.support.lab.faults import inject
from tests.support.lab.sleeping_broker import SleepingBroker, Witness, asleep, is_stopped
from tests.support.paths import ROOT


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SleepingBroker]:
    broker = asleep(tmp_path)
    broker.log_path = tmp_path / "broker.log"
    yield broker
    broker.kill()


@pytest.fixture
def lines() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def target(
    broker: SleepingBroker, tmp_path: Path, lines: list[Mapping[str, object]]
) -> Iterator[Target]:
    """A broker and two daemons that do nothing."""
    daemons = {
        name: children.spawn(["sleep", "600"], log_path=tmp_path / "log")
        for name in ("produce.0", "consume.0")
    }
    pids = {name: daemon.pid for name, daemon in daemons.items()}
    yield Target(broker, lines.append, SystemClock(), daemons=lambda: pids)
    for daemon in daemons.values():
        children.kill(daemon)


def test_what_went_wrong_in_the_middle_is_undone(target: Target) -> None:
    """In the opposite order, and the error comes out."""
    undone: list[str] = []

    def begin() -> None:
        with activating(target) as active:
            active.on_lift(undone.append, "first")
            active.on_lift(undone.append, "second")
            raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        begin()

    assert undone == ["second", "first"]


def test_a_step_that_cannot_be_undone_keeps_the_others_not_back(target: Target) -> None:
    """The error is raised."""
    undone: list[str] = []
    with activating(target) as active:
        active.on_lift(undone.append, "first")
        active.on_lift(os.close, -1)

    with pytest.raises(LabError, match="could not be undone"):
        active.lift()
    active.lift()

    assert undone == ["first"]


def test_the_onset_is_when_it_was_done_or_when_it_was_felt(
    target: Target, lines: list[Mapping[str, object]]
) -> None:
    """The first moment counts; each is recorded."""
    with activating(target) as active:
        before = active.onset_wall_ns
        active.record(what=1)
        active.record(what=2)
        done = active.onset_wall_ns
        active.set_onset(lambda: 23)
    active.lift()

    assert (before, done, active.onset_wall_ns) == (None, lines[0]["at_wall_ns"], 23)
    assert [line["what"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    ("fault", "daemon", "other"),
    [("client_pause", "produce.0", "consume.0"), ("consumer_pause", "consume.0", "produce.0")],
)
def test_daemons_of_one_kind_stand_still_and_go_on(
    fault: str, daemon: str, other: str, target: Target
) -> None:
    """The others run on."""
    pids = target.daemons()
    active = inject(fault, target)
    os.waitid(os.P_PID, pids[daemon], os.WSTOPPED | os.WNOWAIT)
    is_other_stopped = is_stopped(pids[other])
    active.lift()

    assert not is_other_stopped
    assert not is_stopped(pids[daemon])


def test_a_stopped_consumer_is_felt_when_it_goes_on(
    target: Target, lines: list[Mapping[str, object]]
) -> None:
    """Until then nothing is received, so nothing is late."""
    active = inject("consumer_pause", target)
    before = active.onset_wall_ns
    active.lift()

    assert before is None
    assert active.onset_wall_ns is not None
    assert active.onset_wall_ns > int(str(lines[0]["at_wall_ns"]))


def test_a_slow_consumer_runs_for_a_part_of_the_time(target: Target) -> None:
    """It is stopped again and again, and goes on for good when the fault is lifted."""
    witness = Witness(enough=3)
    slow = Target(target.broker, witness.record, SystemClock(), daemons=target.daemons)
    active = inject("consumer_slow", slow, pause=10**6, every=2 * 10**6)
    was_stopped = witness.has_enough.wait(20)

    active.lift()

    assert was_stopped
    assert active.onset_wall_ns == witness.lines[0]["at_wall_ns"]
    assert not is_stopped(target.daemons()["consume.0"])


def test_a_backlog_is_read_from_the_drive_once_nothing_of_it_is_kept(
    broker: SleepingBroker, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drive reads slowly from the first; the topic's segments are forgotten before consumers go on."""
    delays: list[float] = []
    forgotten: list[tuple[int, bool]] = []
    pid = target.daemons()["consume.0"]
    monkeypatch.setattr(
        "os.posix_fadvise",
        lambda file, *_: forgotten.append((os.fstat(file).st_ino, is_stopped(pid))),
    )
    drive = SimpleNamespace(
        read_slowly=delays.append, drop_page_cache=lambda: forgotten.append((0, True))
    )
    injected = replace(target, drives={1: drive})  # type: ignore[dict-item]  # what a fault needs of one
    segment = broker.data_directory / "soak-x-0" / "00.log"
    segment.touch()
    (broker.data_directory / "other-0").mkdir()
    (broker.data_directory / "other-0" / "00.log").touch()
    active = inject("cold_catch_up", injected, per_mib=SECOND_NS // 2)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

    active.lift()

    assert delays == [0.5]
    assert forgotten == [(segment.stat().st_ino, True), (0, True)]
    assert active.onset_wall_ns is not None
    assert not is_stopped(pid)

    active.close()
    active.close()
    assert delays == [0.5, 0.0]


def test_a_drive_does_not_stay_slow_where_no_consumer_could_be_stopped(target: Target) -> None:
    """The half that was done is undone."""
    delays: list[float] = []
    drive = SimpleNamespace(read_slowly=delays.append)
    alone = replace(target, drives={1: drive}, daemons=dict)  # type: ignore[dict-item]  # as above

    with pytest.raises(LabError, match="no daemon `consume`"):
        inject("cold_catch_up", alone, per_mib=SECOND_NS // 2)

    assert delays == [0.5, 0.0]


def test_a_clock_is_set_in_the_file_that_daemons_look_at_and_set_right_again(
    target: Target, tmp_path: Path
) -> None:
    """Those that were not started so are left alone."""
    environment = clock_environment(tmp_path)
    file = Path(environment[set_clock.VARIABLE])
    before = file.read_text()
    active = inject("clock_step", replace(target, environment=environment), by=5 * SECOND_NS // 2)
    during = file.read_text()

    active.lift()

    assert (before, during, file.read_text()) == ("0", "-2500000000", "0")
    with pytest.raises(LabError, match="not started under a clock that can be set"):
        inject("clock_step", target)


@pytest.mark.long
def test_a_process_under_a_clock_that_is_set_sees_its_wall_clock_step_alone(tmp_path: Path) -> None:
    """An hour back, also after the file is removed; monotonic clocks and sleeps are not affected."""
    environment = clock_environment(tmp_path)
    file = Path(environment[set_clock.VARIABLE])
    file.write_text(str(-3600 * SECOND_NS))
    clocks = "clock.wall_ns(), clock.mono_ns(), clock.boot_ns()"
    lines = (
        "import os, time",
        "from soak.core.clock import SystemClock",
        "clock = SystemClock()",
        f"print({clocks}, int(time.time() * 1e9))",
        f"os.unlink({str(file)!r})",
        "clock.sleep_until(clock.mono_ns() + 250_000_000)",
        "print(clock.wall_ns())",
    )
    clock = SystemClock()
    here = [clock.wall_ns(), clock.mono_ns(), clock.boot_ns(), clock.wall_ns(), clock.wall_ns()]

    there = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    away = [int(one) - other for one, other in zip(there, here, strict=True)]
    assert [round(one / SECOND_NS / 3600) for one in away] == [-1, 0, 0, -1, -1]


def test_a_quiet_run_loses_one_daemon(target: Target) -> None:
    """By SIGKILL; the run's supervisor is to start it again."""
    active = inject("quiet", target)
    _, status = os.waitpid(target.daemons()["consume.0"], 0)
    active.lift()

    assert os.WTERMSIG(status) == signal.SIGKILL
    with pytest.raises(LabError, match="no daemon `probe` runs; known: "):
        inject("quiet", target, kills="probe")


def test_a_hog_shares_one_processor_with_the_broker_alone(
    broker: SleepingBroker, target: Target
) -> None:
    """Afterwards the broker has all of them again and no hog runs."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor only")
    here = psutil.Process()
    known = {child.pid for child in here.children()}
    active = inject("cpu_hog", target, hogs=1)
    held = os.sched_getaffinity(broker.pid)
    (hog,) = [child for child in here.children() if child.pid not in known]
    free = os.sched_getaffinity(target.daemons()["produce.0"])

    active.lift()

    assert len(held) == 1
    assert free == os.sched_getaffinity(0) == os.sched_getaffinity(broker.pid)
    assert not hog.is_running()


def test_a_process_that_ended_under_a_hog_is_left_alone(
    broker: SleepingBroker, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another's by the time the fault is lifted."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor only")
    active = inject("cpu_hog", target, hogs=1)
    pid = broker.pid
    broker.kill()
    asked: list[Path] = []

    def iterdir(folder: Path) -> Iterator[Path]:
        asked.append(folder)
        yield from ()

    monkeypatch.setattr(Path, "iterdir", iterdir)

    active.lift()

    assert Path(f"/proc/{pid}/task") not in asked


@pytest.mark.long
def test_a_neighbour_that_could_not_write_is_reported_when_it_is_lifted(
    broker: SleepingBroker, target: Target
) -> None:
    """With the last that it said: nothing was there to be found, so the detector missed nothing."""
    known = {child.pid for child in psutil.Process().children()}
    broker.data_directory = broker.data_directory / "gone"
    active = inject("noisy_neighbour", target, writers=2)
    writers = {child.pid for child in psutil.Process().children()} - known
    for pid in writers:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(LabError, match="ended by itself with status 1: FileNotFoundError"):
        active.lift()

    assert len(writers) == 2
    assert not writers & {child.pid for child in psutil.Process().children()}


def test_a_hog_that_died_is_reported_and_the_broker_has_its_processors_again(
    broker: SleepingBroker, target: Target
) -> None:
    """One step that fails keeps none back."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor only")
    known = {child.pid for child in psutil.Process().children()}
    active = inject("cpu_hog", target, hogs=1)
    (hog,) = [child for child in psutil.Process().children() if child.pid not in known]
    hog.kill()
    os.waitid(os.P_PID, hog.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(LabError, match="ended by itself with status -9: no output"):
        active.lift()

    assert os.sched_getaffinity(broker.pid) == os.sched_getaffinity(0)


def test_a_killed_broker_is_started_again_when_the_fault_is_lifted(
    broker: SleepingBroker, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before."""
    restarted: list[int] = []
    monkeypatch.setattr(SleepingBroker, "restart", lambda self: restarted.append(self.number))
    active = inject("broker_kill", target)
    was_there = list(restarted)

    active.lift()

    assert broker.process.returncode == -9
    assert (was_there, restarted) == ([], [1])


def test_a_broker_that_runs_is_not_started_again(broker: SleepingBroker) -> None:
    """Its `restart` would fail the test."""
    restart_if_ended(broker)

    assert broker.process.poll() is None


class Renumbered(SleepingBroker):
    """A broker whose number another process has by now."""

    @property
    def pid(self) -> int:
        return os.getpid()

    def restart(self) -> None:
        self.addresses["was"] = "started"


def test_a_broker_that_ended_is_started_again_whoever_has_its_number(
    broker: SleepingBroker,
) -> None:
    """It was waited for, so the kernel may give its number to another."""
    broker.kill()
    ended = Renumbered(broker.process, broker.data_directory)

    restart_if_ended(ended)

    assert ended.addresses == {"was": "started"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("drive_gc", "broker 1 has no injected drive: name it in `lab.drive`"),
        ("drive_delay", "broker 1 has no injected drive"),
        ("drive_hang", "broker 1 has no injected drive"),
        ("drive_discard", "broker 1 has no injected drive"),
        ("cold_catch_up", "broker 1 has no injected drive"),
        ("consumer_slow", "no daemon `consume.0` runs"),
        ("disk_full", "broker 1 has no injected drive"),
        ("fsync_throttle", "broker 1 has no injected drive"),
        ("network_delay", "the lab has no relay: set `lab.relayed`"),
        ("network_loss", "the lab has no relay"),
        ("network_partition", "the lab has no relay"),
        ("leader_move", "needs a lab of several brokers"),
        ("compaction", "only a bookie compacts"),
    ],
)
def test_a_fault_says_what_it_lacks(name: str, message: str, tmp_path: Path) -> None:
    """Before anything is done to the broker, which has no process here."""
    broker = SleepingBroker(None, tmp_path)  # type: ignore[arg-type]  # it must not be touched
    bare = Target(broker, lambda _: None, SystemClock())

    with pytest.raises(LabError, match=message):
        inject(name, bare)


def test_a_drive_that_ages_gets_all_of_it(tmp_path: Path) -> None:
    """4096 pages and a quarter more, 2048 collected a second, thrice that if need be; then trimmed."""
    done: list[object] = []
    drive = SimpleNamespace(
        capacity_bytes=2**24, age=done.append, trim=lambda: done.append("trimmed")
    )
    broker = SleepingBroker(None, tmp_path)  # type: ignore[arg-type]  # it must not be touched
    drives: Any = {1: drive}
    target = Target(broker, lambda _: None, SystemClock(), drives)
    active = inject(
        "drive_gc",
        target,
        pool=2**22,
        collected_per_second=2**23,
        foreground=3.0,
        starved=SECOND_NS // 200,
    )

    active.lift()

    assert done == [
        Settings(
            0.25, collected_pages_per_second=2048, foreground_ratio=3.0, starved_seconds=0.005
        ),
        "trimmed",
    ]


def test_a_drive_too_slow_to_be_trimmed_is_as_new_afterwards(tmp_path: Path) -> None:
    """Else it would stay so for whatever comes next."""
    done: list[str] = []

    def trim() -> None:
        raise LabError("cannot run fstrim: it did not end")

    drive = SimpleNamespace(
        capacity_bytes=2**24, age=lambda _: None, trim=trim, renew=lambda: done.append("renewed")
    )
    broker = SleepingBroker(None, tmp_path)  # type: ignore[arg-type]  # it must not be touched
    drives: Any = {1: drive}
    active = inject("drive_gc", Target(broker, lambda _: None, SystemClock(), drives))

    active.lift()

    assert done == ["renewed"]


@pytest.mark.parametrize("name", all_faults())
def test_every_fault_says_what_it_needs(name: str) -> None:
    """In the docstring of its configuration: root, a drive, a relay, several brokers, or nothing."""
    assert "Needs: " in str(find_fault(name).config.__doc__)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("drive_gc", {"pool": 0}),
        ("drive_gc", {"starved": -1}),
        ("drive_gc", {"foreground": 0.5}),
        ("drive_gc", {"foreground": float("inf")}),
        ("drive_delay", {"delay": 0}),
        ("drive_discard", {"kept": 1.1}),
        ("drive_discard", {"per_mib": 0}),
        ("cold_catch_up", {"per_mib": 0}),
        ("consumer_slow", {"pause": 10, "every": 10}),
        ("consumer_slow", {"pause": 0}),
        ("clock_step", {"by": 10**8}),
        ("disk_full", {"left": -1}),
        ("noisy_neighbour", {"writers": 0}),
        ("broker_pause", {"pause": 10, "every": 10}),
        ("network_delay", {"delay": 0}),
        ("network_loss", {"ratio": 1.0}),
        ("cpu_hog", {"hogs": 0}),
        ("fsync_throttle", {"writes_per_second": 0}),
        ("retention_limit", {"bytes": 0}),
        ("segment_roll", {"every": 0}),
        ("gc_pause", {"every": 0}),
        ("compaction", {"every": 0}),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(name: str, settings: dict[str, object]) -> None:
    """By its configuration, before a run begins."""
    with pytest.raises(ValueError, match="|".join(settings)):
        find_fault(name).config(**settings)


def test_a_lowered_limit_that_deletes_nothing_is_no_fault(target: Target) -> None:
    """A drill of it would prove nothing; a segment that is renamed for deletion is what it waits for."""
    waiting = Target(target.broker, target.record, FakeClock())

    with pytest.raises(LabError, match="nothing was deleted"):
        await_deletion(waiting, "soak-*")
    (target.broker.data_directory / "soak-x-0" / "00.log.deleted").touch()

    assert await_deletion(waiting, "soak-*") == 1


@dataclass
class Partition:
    leader: int
    replicas: list[int] = field(default_factory=list)


STRIPED = [Partition(2, [2, 3, 1]), Partition(3, [3, 1, 2]), Partition(1, [1, 2, 3])]


@pytest.mark.parametrize(("onto", "leader"), [(1, 3), (2, 1), (3, 2), (4, None)])
def test_the_next_copy_says_who_takes_over(onto: int, leader: int | None) -> None:
    """The first of a partition's brokers that is alive leads it."""
    assert leader_before(onto, STRIPED) == leader


def test_a_partition_that_another_leads_already_is_passed_over() -> None:
    """Its first broker is not the one to end."""
    assert leader_before(1, [Partition(2, [3, 1, 2]), *STRIPED[1:]]) == 3
    assert leader_before(1, [Partition(2, [3, 1, 2])]) is None
