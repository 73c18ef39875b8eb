"""A run in the foreground: its side task, and how the run ends when that fails."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from rich.console import Console

from soak.alerting.heartbeat import read_notices
from soak.app import foreground
from soak.app.foreground import ForegroundRun, SideTask, SideTaskFactory, StartedRun
from soak.app.live.run import LiveRun
from soak.app.live.terminal import PlainView, View
from soak.app.multi_host import Part
from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.plan import text
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.supervisor.run import GaveUpError, Role, Supervisor
from tests.support.alerting.daemon import DELIVERED, AlertWorld
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


def current_run(
    folder: RunFolder,
    run: Run,
    stack: ExitStack,
    begin: Callable[[StartedRun, ExitStack], SideTask],
    only: tuple[str, ...] = (),
) -> ForegroundRun:
    """Return a run without daemons."""
    return ForegroundRun(
        plan_file=text.load(PLAN.read_text(), str(PLAN)),
        folder=folder,
        run=run,
        part=cast("Part", SimpleNamespace(roles=lambda _: (), only=only)),
        view=PlainView(Console(file=io.StringIO()), "run"),
        stack=stack,
        side_task=SideTaskFactory(begin, {}),
    )


@pytest.mark.usefixtures("as_before")
def test_a_run_whose_side_task_fails_is_marked_as_failed(tmp_path: Path) -> None:
    """A fault that cannot be injected fails the run, and the error is raised."""
    folder = RunFolder(tmp_path)
    run = Run("r", SystemClock().wall_ns(), "here", {}, "running")
    write_run(folder, run)

    def begin(_started: StartedRun, _stack: ExitStack) -> SideTask:
        raise LabError("the lab has no relay")

    with ExitStack() as stack, pytest.raises(LabError, match="no relay"):
        foreground.supervise(current_run(folder, run, stack, begin))

    assert read_run(folder).state == "failed"


@pytest.mark.parametrize("how", ["interrupted", "overdue"])
def test_a_fault_is_undone_before_the_daemons_of_a_stopped_run_end(how: str) -> None:
    """A daemon that waits for a hanging drive or a broken network cannot end."""
    did: list[str] = []
    stop = threading.Event()
    if how == "interrupted":
        stop.set()
    supervisor = SimpleNamespace(poll=lambda: False, stop=lambda: did.append("stopped"))
    task = SimpleNamespace(poll=lambda: None, undo=lambda: did.append("undone"))
    live = SimpleNamespace(look=lambda _: SimpleNamespace(now_k=1000, end_k=23))
    view = SimpleNamespace(note=lambda _: None, show=lambda _: None)

    is_interrupted = foreground.watch_load(
        cast("Supervisor", supervisor),
        cast("LiveRun", live),
        cast("View", view),
        stop,
        SystemClock(),
        cast("SideTask", task),
    )

    assert is_interrupted == (how == "interrupted")
    assert did == ["undone", "stopped"]


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
def test_an_aborted_run_is_notified_to_every_sink(tmp_path: Path) -> None:
    """Its alert daemon sends it; slow, because a run waits for all messages."""
    folder = RunFolder(tmp_path)
    run = Run("r", SystemClock().wall_ns(), "here", {}, "running")
    write_run(folder, run)

    def begin(_started: StartedRun, _stack: ExitStack) -> SideTask:
        raise GaveUpError("consume.0 died 6 times in a minute (exit 1); its log ends:\nTraceback")

    with ExitStack() as stack, pytest.raises(GaveUpError):
        foreground.supervise(current_run(folder, run, stack, begin, ("consume.0",)))

    (notice,) = read_notices(FindingsFile(folder.findings))
    with FindingsStore(folder.findings) as store:
        (row,) = store.due(SystemClock().wall_ns())
    assert notice.why == "consume.0 died 6 times in a minute (exit 1)"
    assert (row.subject, row.sink) == (notice.key, "mail")


def test_messages_that_were_not_sent_at_the_end_are_counted_and_the_command_is_named(
    tmp_path: Path,
) -> None:
    """No daemon of the run is left to send them."""
    world = AlertWorld(tmp_path, DELIVERED).without_charts()
    world.change_plan("sinks: {mail: {to: [a@example.org], host: 127.0.0.1, port: 9}}")
    notes: list[str] = []

    foreground.send_pending(world.folder, threading.Event(), notes.append)

    assert notes == [
        f"1 message not sent yet: `soak alert --pending {tmp_path}` tries again for a day"
    ]
    assert world.states() == [("opened", "deferred")]


def test_only_daemons_that_measure_get_the_environment_of_a_fault(tmp_path: Path) -> None:
    """The detector must not see it."""
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


def test_lines_of_progress_are_taken_from_the_log_of_a_report_once(tmp_path: Path) -> None:
    """What an earlier report, Java or a warning printed is left there, as is a line that is not whole."""
    log = tmp_path / "report.log"
    log.write_text("report: writing the page\n")
    from_byte = log.stat().st_size
    with log.open("a") as file:
        file.write("WARNING: Java\nreport: starting Spark\nreport: reading the jour")
    first, from_byte = foreground.read_progress(log, from_byte)
    with log.open("a") as file:
        file.write("nals\n")
    second, _ = foreground.read_progress(log, from_byte)

    assert first == ["report: starting Spark"]
    assert second == ["report: reading the journals"]
