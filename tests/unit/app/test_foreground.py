"""A run in the foreground: its side task, and how the run ends when that fails."""

from __future__ import annotations

import dataclasses
import errno
import io
import logging
import os
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
from soak.core.errors import LabError, NotNowError, PlanError, RunFolderError
from soak.core.plan import text
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.supervisor.run import GaveUpError, Role, Supervisor
from tests.support.paths import DATA
from tests.support.vanishing import PLAN as VANISHING
from tests.support.vanishing import VanishingCluster, vanishing_cluster

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


def test_a_run_whose_cluster_never_answers_stores_and_shows_nothing(tmp_path: Path) -> None:
    """The error names the address; there is no folder that looks like a run."""
    broker = "broker: {kafka: {bootstrap_servers: '127.0.0.1:1', timeout: 1s}}\n"
    plan = text.load(f"name: x\n{broker}free_space_floor: 1MiB\n", "p.yaml")
    terminal = io.StringIO()

    with pytest.raises(
        NotNowError, match=r"^p\.yaml:2: broker\.kafka\.bootstrap_servers: .*127\.0\.0\.1:1"
    ):
        foreground.run_plan(plan, tmp_path / "runs" / "x", Console(file=terminal))

    assert (list(tmp_path.iterdir()), terminal.getvalue()) == ([], "")


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VanishingCluster]:
    """Return a cluster that vanishes; the log, which a run sends to its folder, is back where it was then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield vanishing_cluster(tmp_path_factory.mktemp("plugin"), monkeypatch)
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def start_in(path: Path) -> str:
    """Start a run whose cluster vanishes, and return what the terminal shows."""
    terminal = io.StringIO()
    with pytest.raises(
        NotNowError,
        match=r"^p\.yaml:3: topic: .* timed out; the cluster does not answer now: 127\.0\.0\.1:1 does",
    ):
        foreground.run_plan(text.load(VANISHING, "p.yaml"), path, Console(file=terminal, width=300))
    return terminal.getvalue()


@pytest.mark.parametrize("created", [0, 1])
def test_a_start_whose_cluster_is_gone_after_the_check_is_stored_as_failed(
    tmp_path: Path, cluster: VanishingCluster, created: int
) -> None:
    """Nothing else knows which topics it has created: they are named, with the command that deletes them."""
    folder = RunFolder(tmp_path / "x")
    cluster.created = created

    shown = start_in(folder.path)

    stay = [f"the empty topic {one} stays: `soak clean {folder.path}`" for one in cluster.topics]
    assert read_run(folder).state == "failed"
    assert len(stay) == created
    assert all(one in shown for one in stay)
    assert ("stays" in shown) == bool(created)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_start_that_fails_before_it_asks_for_topics_leaves_nothing_in_its_folder(
    tmp_path: Path, cluster: VanishingCluster, *, is_there: bool
) -> None:
    """The same command can be given again; an empty folder that was there before stays."""
    path, table = tmp_path / "x", tmp_path / "rates.csv"
    if is_there:
        path.mkdir()
    table.write_text("seconds,rate\n0,500\n")
    plan_file = text.load(
        VANISHING + "load: {profile: {file: rates.csv}}\n", str(tmp_path / "p.yaml")
    )
    cluster.after_check = table.unlink
    terminal = io.StringIO()

    with pytest.raises(PlanError, match="cannot read the load profile"):
        foreground.run_plan(plan_file, path, Console(file=terminal, width=300))

    assert path.exists() == is_there
    assert list(path.glob("*")) == []
    assert f"nothing of this start stays in {path}" in terminal.getvalue()


def test_a_folder_in_which_a_start_failed_is_refused_with_what_to_do(
    tmp_path: Path, cluster: VanishingCluster
) -> None:
    """Topics of it may be there: only the folder knows which."""
    start_in(tmp_path / "x")
    cluster.come_back()

    with pytest.raises(
        PlanError,
        match=rf"not empty: the start of run \S+ failed; `soak clean {tmp_path}/x` deletes",
    ):
        foreground.run_plan(
            text.load(VANISHING, "p.yaml"), tmp_path / "x", Console(file=io.StringIO())
        )


def test_a_folder_that_may_not_be_written_any_more_is_named(
    tmp_path: Path, cluster: VanishingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights of the folder above it change between the check and the start."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    cluster.after_check = lambda: monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(RunFolderError, match=r"cannot write .*x/logs: permission denied"):
        foreground.run_plan(
            text.load(VANISHING, "p.yaml"), tmp_path / "x", Console(file=io.StringIO())
        )

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
def test_a_run_whose_daemon_keeps_dying_is_stored_and_shown_as_failed(tmp_path: Path) -> None:
    """The folder has no plan, so its conductor ends each time that it is started."""
    folder, terminal = RunFolder(tmp_path), io.StringIO()
    run = Run("r", SystemClock().wall_ns(), "here", {}, "running")
    write_run(folder, run)
    did: list[str] = []
    task = SimpleNamespace(
        poll=lambda: None, undo=lambda: did.append("undone"), end=lambda _: did.append("ended")
    )

    roles = (Role("conduct", ("conduct",)),)
    part = SimpleNamespace(roles=lambda _: roles, only=("conduct",))
    view = PlainView(Console(file=terminal, width=300), "run")

    with ExitStack() as stack:
        current = current_run(folder, run, stack, lambda *_: cast("SideTask", task))
        current = dataclasses.replace(current, part=cast("Part", part), view=view)
        with pytest.raises(GaveUpError, match="conduct died"):
            foreground.supervise(current)

    assert (read_run(folder).state, did) == ("failed", ["undone", "ended"])
    assert "conduct died (exit 1), restarted" in terminal.getvalue()
    assert "aborting the run; the report covers what was recorded" in terminal.getvalue()


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
