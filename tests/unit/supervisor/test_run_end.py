"""When a run is over: nothing is cut off, and no daemon is waited for without a limit."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.app.lifecycle import close_run
from soak.cli.service import finish
from soak.core.journal_format import End, encode
from soak.core.plan import text as plan_text
from soak.core.plan.phases import Phase, decision_line, latest_end_k, planned_phases
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.service.files import file_lock
from soak.store.plan_home import PlanHome
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.supervisor.run import DETECT_LIMIT_NS
from soak.supervisor.run_end import OVERDUE_NS, UNDECIDED_NS, RunEnd
from soak.supervisor.run_end import run as finish_run
from tests.support.fakes import FakeClock

PLAN = "name: p\nbroker: {kafka: {}}\n"


class World:
    def __init__(self, path: Path) -> None:
        self.folder, self.clock = RunFolder(path), FakeClock()
        plan = plan_text.load(PLAN, "p").plan
        self.run_end = RunEnd(self.folder, plan, self.clock)
        self.folder.spark.mkdir()
        self._sources = plan.measuring

    def decide_end(self) -> None:
        self.folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 10))

    def end_sources(self) -> None:
        for name in self._sources:
            source = self.folder.journal / f"{name}@{host_name()}"
            source.mkdir(parents=True)
            (source / "000000.jsonl").write_bytes(encode(End(1)))

    def detect(self, *, is_running: bool) -> None:
        (self.folder.spark / "progress.json").write_text(json.dumps({"is_running": is_running}))

    def is_over(self) -> bool:
        return self.run_end.is_over(10)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_run_is_over_when_conductor_daemons_and_detector_have_finished(world: World) -> None:
    """In this order."""
    seen = [world.is_over()]
    world.decide_end()
    seen.append(world.is_over())
    world.end_sources()
    seen.append(world.is_over())
    world.detect(is_running=False)
    seen.append(world.is_over())

    assert seen == [False, False, False, True]


def test_the_last_second_must_have_passed(world: World) -> None:
    world.decide_end()
    world.end_sources()
    world.detect(is_running=False)

    assert not world.run_end.is_over(9)


def test_a_restarted_detector_is_waited_for(world: World, tmp_path: Path) -> None:
    """The progress that it stored before it was stopped is not the last one."""
    world.decide_end()
    world.end_sources()
    world.detect(is_running=False)
    with file_lock(tmp_path / "spark" / "lock", "test"):
        meanwhile = world.is_over()

    assert not meanwhile
    assert world.is_over()


def test_daemons_that_never_end_are_waited_for_within_limits(world: World) -> None:
    """A producer that hangs, then a detector that keeps dying."""
    world.decide_end()
    world.detect(is_running=True)
    seen = [world.is_over()]
    for _ in range(2):
        world.clock.advance(max(OVERDUE_NS, DETECT_LIMIT_NS) / 1e9 + 1)
        seen.append(world.is_over())

    assert seen == [False, False, True]


def test_a_run_without_a_conductor_ends_by_the_plan(world: World) -> None:
    """Only long after the latest end that the plan allows."""
    plan = world.run_end.plan
    world.folder.phases.write_text(
        "".join(one.to_line() for one in planned_phases(plan.phases).decisions)
    )
    world.end_sources()
    world.detect(is_running=False)
    last_k = latest_end_k(world.run_end.phase_file.poll(), plan.phases, plan.load.backlog)
    seen = []
    for k, seconds in ((last_k - 1, 0.0), (last_k, UNDECIDED_NS / SECOND_NS), (last_k, 1.0)):
        world.clock.advance(seconds)
        seen.append(world.run_end.is_over(k))
    world.clock.advance(UNDECIDED_NS / SECOND_NS)

    assert seen == [False, False, False]
    assert world.run_end.is_over(last_k)


def test_a_suspend_counts_as_time_of_the_run(world: World, tmp_path: Path) -> None:
    world.decide_end()
    world.end_sources()
    world.detect(is_running=False)
    (tmp_path / "plan.yaml").write_text(PLAN)
    write_run(world.folder, Run("r1", world.clock.wall_ns(), "h", {}, "running", "p"))

    class Asleep(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            world.clock.suspend(11.0 * (timeout or 1.0))
            return world.clock.boot_ns() > 60 * SECOND_NS

    assert finish_run(world.folder, Asleep(), world.clock)
    assert world.clock.mono_ns() == 0


def test_a_ramp_may_take_one_more_step() -> None:
    """While it is undecided, a step or a rest may be longer than all planned phases."""
    text = PLAN + "phases: {warm_up: 0s, ramp: {step: 1h}, soak: 20s, drain: 30s}\n"
    plan = plan_text.load(text, "p").plan

    assert (
        latest_end_k(planned_phases(plan.phases), plan.phases, plan.load.backlog) >= 3600 + 20 + 30
    )


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(10)
        yield found


def test_a_restarted_finish_completes_a_run_that_is_closed_already(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager is notified that all is well, and no daemon is wanted any more."""
    home = PlanHome(tmp_path / "p")
    folder = RunFolder(home.path / "p-r1")
    folder.path.mkdir(parents=True)
    write_run(folder, Run("r1", 0, "h", {}, "ended", "p"))
    home.set_current(folder)
    home.set_daemons(["conduct"])
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.getsockname()))

    finish(home.path)

    assert manager.recv(100) == b"READY=1"
    assert not home.daemons_folder.exists()


@pytest.mark.parametrize(
    ("decided", "asked", "state"),
    [("end", "", "ended"), ("end", "stop", "interrupted"), ("drain", "", "failed")],
)
def test_a_closed_run_records_how_it_ended(
    tmp_path: Path, decided: Phase, asked: str, state: str
) -> None:
    """By its plan, by a person, or without a decision."""
    home = PlanHome(tmp_path)
    folder = RunFolder(home.path / "p-r1")
    folder.path.mkdir()
    folder.plan.write_text(PLAN)
    folder.phases.write_text(decision_line(decided, 3))
    write_run(folder, Run("r1", 0, "h", {}, "running", "p"))
    home.set_daemons(["conduct"])
    if asked:
        (folder.path / asked).touch()

    close_run(home, folder)

    assert read_run(folder).state == state
    assert not home.daemons_folder.exists()
