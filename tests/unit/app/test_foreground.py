"""A run in the foreground: what goes on beside it, and how it ends when that goes wrong."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from rich.console import Console

from soak.alerting.heartbeat import read_notices
from soak.app import foreground
from soak.app.foreground import SideTask, SideTaskFactory, StartedRun
from soak.app.live_view import PlainView, View, Watcher
from soak.app.multi_host import Part
from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.plan import text
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.supervisor.run import GaveUpError, Role, Supervisor
from tests.support.paths import DATA

LIMIT_SECONDS = 30.0
PLAN = DATA / "plans" / "short.yaml"


@pytest.fixture
def as_before() -> Iterator[None]:
    """A run takes the signals of its process; the tests want them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def environment_of(pid: int) -> dict[str, str]:
    """Return a process's environment: while it becomes another program the kernel shows none."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := psutil.Process(pid).environ()):
        assert time.monotonic() < deadline
    return found


@pytest.mark.usefixtures("as_before")
def test_a_run_beside_which_something_failed_does_not_stay_running(tmp_path: Path) -> None:
    """A fault that cannot be put in ends the run as failed, and the error comes out."""
    folder = RunFolder(tmp_path)
    run = Run("r", SystemClock().wall_ns(), "here", {}, "running")
    write_run(folder, run)
    nobody = cast("Part", SimpleNamespace(roles=lambda _: (), only=()))
    view = PlainView(Console(file=io.StringIO()), "run")

    def begin(_started: StartedRun, _stack: ExitStack) -> SideTask:
        raise LabError("the lab has no relay")

    plan_file = text.load(PLAN.read_text(), str(PLAN))
    company = SideTaskFactory(begin, {})
    with ExitStack() as stack, pytest.raises(LabError, match="no relay"):
        foreground._run_to_end(plan_file, folder, run, None, view, stack, company, nobody)

    assert read_run(folder).state == "failed"


@pytest.mark.parametrize("how", ["interrupted", "overdue"])
def test_a_fault_is_lifted_before_the_daemons_of_a_run_cut_short_are_stopped(how: str) -> None:
    """Who waits for a drive that answers nothing, or for a network that is cut, cannot end."""
    did: list[str] = []
    stop = threading.Event()
    if how == "interrupted":
        stop.set()
    supervisor = SimpleNamespace(poll=lambda: False, stop=lambda: did.append("stopped"))
    beside = SimpleNamespace(poll=lambda: None, lift=lambda: did.append("lifted"))
    watcher = SimpleNamespace(look=lambda: SimpleNamespace(k=1000, end_k=23))
    view = SimpleNamespace(note=lambda _: None, show=lambda _: None)

    is_interrupted = foreground._watch_until_over(
        cast("Supervisor", supervisor),
        cast("Watcher", watcher),
        cast("View", view),
        stop,
        SystemClock(),
        cast("SideTask", beside),
    )

    assert is_interrupted == (how == "interrupted")
    assert did == ["lifted", "stopped"]


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
def test_that_a_run_is_given_up_is_owed_to_every_sink(tmp_path: Path) -> None:
    """Its alert daemon is the last to end, and tells it; slow: a run that ends lets what is out come in."""
    folder = RunFolder(tmp_path)
    run = Run("r", SystemClock().wall_ns(), "here", {}, "running")
    write_run(folder, run)
    part = cast("Part", SimpleNamespace(roles=lambda _: (), only=("consume.0",)))
    view = PlainView(Console(file=io.StringIO()), "run")

    def begin(_started: StartedRun, _stack: ExitStack) -> SideTask:
        raise GaveUpError("consume.0 died 6 times in a minute (exit 1); its log ends:\nTraceback")

    plan_file = text.load(PLAN.read_text(), str(PLAN))
    with ExitStack() as stack, pytest.raises(GaveUpError):
        foreground._run_to_end(
            plan_file, folder, run, None, view, stack, SideTaskFactory(begin, {}), part
        )

    (told,) = read_notices(folder)
    with FindingsStore(folder.findings) as store:
        (row,) = store.due(SystemClock().wall_ns())
    assert told.why == "consume.0 died 6 times in a minute (exit 1)"
    assert (row.subject, row.sink) == (told.key, "mail")


def test_only_daemons_that_measure_get_what_a_fault_needs(tmp_path: Path) -> None:
    """The detector must not find it in its environment."""
    names = {"produce.0": True, "detect-stream": False}
    supervisor = Supervisor(
        RunFolder(tmp_path),
        SystemClock(),
        roles=[Role(name, (name,), is_measuring=is_it) for name, is_it in names.items()],
        on_death=lambda *_: None,
        measuring_environment={"SOAK_TEST_CLOCK": "wrong"},
        program=("sh", "-c", "sleep 600"),
    )
    try:
        supervisor.start()
        found = {
            name: environment_of(pid).get("SOAK_TEST_CLOCK")
            for name, pid in supervisor.pids().items()
        }
    finally:
        supervisor.close()

    assert found == {"produce.0": "wrong", "detect-stream": None}
