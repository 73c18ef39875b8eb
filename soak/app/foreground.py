"""Run a plan in the foreground, from the checks to the verdict: lab, topics, daemons, live view, report."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console

from soak.alerting.heartbeat import queue_run_aborted
from soak.app import host, topics
from soak.app.check import without_client_logs
from soak.app.lifecycle import check_run_drives, new_run, prepare_cluster, resolve_plan
from soak.app.live.run import LiveRun
from soak.app.live.terminal import View, open_view
from soak.app.multi_host import WHOLE, Part, check_lead_time, check_part, resumed_part
from soak.app.outcome import EXIT_INTERRUPTED, print_line, run_report_process, send_pending
from soak.app.plan_files import copy_profile
from soak.app.preflight.cluster import check_cluster, check_cluster_answers
from soak.app.preflight.host import check_host, check_run_folder, soak_warnings
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, SoakError
from soak.core.plan.plan import Plan
from soak.core.plan.text import PlanFile
from soak.core.ports import Note
from soak.core.units import SECOND_NS
from soak.lab.lab import Lab, fetch, start_lab
from soak.lab.mailbox import render
from soak.runtime.context import connect
from soak.service.files import file_lock, reporting_permission_errors
from soak.service.metrics import remove_metrics_targets
from soak.service.signals import stop_event
from soak.service.systemd import START_LIMIT_NS, ChildWatchdog
from soak.store.run_folder import (
    Run,
    RunFolder,
    read_created_topics,
    read_plan_file,
    read_run,
    write_plan,
    write_run,
)
from soak.supervisor.run import GaveUpError, Supervisor

LOG = logging.getLogger(__name__)
DAEMON_END_TIMEOUT_SECONDS = 60
LEAD_NS = 7 * SECOND_NS
"""The first message is due this long after the daemons start: by then all of them are ready, and most of
Spark's start, which takes a whole core, is over."""
POLL_NS = SECOND_NS
OLDER_BYTES = 2**20
"""So much of the older journals of a resumed run is read a second: the load needs the processor."""


class SideTask(Protocol):
    """A task that accompanies a run in the main thread, such as the fault of a drill."""

    def poll(self) -> None:
        """Do what is due; called about once a second during the load."""
        ...

    def undo(self) -> None:
        """Undo every change to the cluster, because the run is stopped early."""
        ...

    def end(self, folder: RunFolder) -> None:
        """Complete the task after the detector has ended."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class StartedRun:
    """A run whose daemons are started and whose load is about to begin."""

    run: Run
    lab: Lab | None
    pids: Callable[[], Mapping[str, int]]  # of its daemons, by name


@dataclasses.dataclass(frozen=True, slots=True)
class SideTaskFactory:
    """How to begin a side task, and the extra environment of the daemons that measure."""

    begin: Callable[[StartedRun, ExitStack], SideTask]
    environment: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedRun:
    """The exit code of a run, as its report gives it, and its folder."""

    code: int
    folder: RunFolder
    is_part: bool = False  # of a run over several hosts, which has no report here


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundRun:
    """A run that this process supervises; `stack` stops what was started for it."""

    plan_file: PlanFile
    folder: RunFolder
    run: Run
    part: Part
    view: View
    stack: ExitStack
    lab: Lab | None = None
    side_task: SideTaskFactory | None = None


def run_plan(
    plan_file: PlanFile,
    run_dir: Path | None,
    console: Console,
    side_task: SideTaskFactory | None = None,
    part: Part = WHOLE,
) -> FinishedRun:
    """Run a plan, or the part of this host, until its end or SIGINT or SIGTERM, and report on it.

    Before the load begins an interrupt stops everything at once; during the load it ends the run in order and
    the report is created; during the report it stops the report.

    Raises:
        PlanError: before the first side effect, or when the cluster rejects a request of the plan.
        SoakError: the lab, a daemon or the report failed.
    """
    clock = SystemClock()
    check_part(part, plan_file, clock.wall_ns(), LEAD_NS)
    run = new_run(plan_file.plan, part, clock)
    runs = run_dir.parent if run_dir else Path(plan_file.plan.run_directory)
    check_host(plan_file, runs)
    with without_client_logs():
        if plan_file.plan.lab is None and part.is_first:
            check_cluster(plan_file)
        elif plan_file.plan.lab is None:
            check_cluster_answers(plan_file)
    folder = check_run_folder(plan_file, run_dir or runs / f"{run.name}-{run.id}")
    is_new = not folder.path.exists()
    with _claimed_folder(folder, run.name, console) as (view, stack):
        undo = stack.enter_context(ExitStack())  # it ends after the lab, whose files are there, too
        undo.callback(_remove_failed_start, folder, view.note, is_new=is_new)
        for warning in soak_warnings(plan_file.plan):
            view.note(f"Warning: {warning}")
        lab = _started_lab(plan_file.plan, folder, view, stack)
        plan = resolve_plan(plan_file.plan, lab, run)
        with _failure_noted(folder, run), topics.remaining_topics_named(folder, view.note):
            write_plan(folder, plan)
            copy_profile(plan_file, folder)
            # before topics are created
            write_run(folder, dataclasses.replace(run, state="beginning"))
            check_run_drives(plan, lab, folder, part, "before", view.note)
            run = prepare_cluster(plan_file, plan, folder, part, run)
            check_lead_time(part, clock.wall_ns(), LEAD_NS)
        start_wall_ns = part.start_wall_ns or clock.wall_ns() + LEAD_NS
        run = dataclasses.replace(run, start_wall_ns=start_wall_ns)
        write_run(folder, run)
        undo.pop_all()
        return supervise(
            ForegroundRun(
                plan_file=dataclasses.replace(plan_file, plan=plan),
                folder=folder,
                run=run,
                part=part,
                view=view,
                stack=stack,
                lab=lab,
                side_task=side_task,
            )
        )


def resume_run(folder: RunFolder, console: Console, only: tuple[str, ...] = ()) -> FinishedRun:
    """Resume an interrupted run with its own plan and schedule, and follow it as `run_plan` does.

    Raises:
        PlanError: the plan has no such daemon, the run used a lab, or `only` was given for a whole run.
        SoakError: another process runs it, it is over, or a daemon or the report failed.
    """
    run, plan_file = read_run(folder), read_plan_file(folder)
    part = resumed_part(run, only)
    part.roles(plan_file)
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "the lab's broker stopped with its run: start a new run")
    with _claimed_folder(folder, run.name, console) as (view, stack):
        if read_run(folder).state != "running":
            raise SoakError(f"{folder.path}: run {run.id} cannot be resumed: it is {run.state}")
        topics.check_same_topics(folder, plan_file.plan, connect(plan_file.plan, SystemClock()))
        if part.only != run.only:
            run = dataclasses.replace(run, only=part.only)
            write_run(folder, run)
        daemons = f"{', '.join(part.only)} of " if part.only else ""
        view.note(f"resuming {daemons}run {run.id}")
        return supervise(
            ForegroundRun(
                plan_file=plan_file, folder=folder, run=run, part=part, view=view, stack=stack
            )
        )


@contextmanager
def _failure_noted(folder: RunFolder, run: Run) -> Iterator[None]:
    """Store that a run failed if it cannot be prepared: else it would be for ever about to begin."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            write_run(folder, dataclasses.replace(run, state="failed"))
        raise


def _remove_failed_start(folder: RunFolder, note: Note, *, is_new: bool) -> None:
    """Remove what a start left that failed, so that the next one can use its folder, which was empty.

    The folder stays if the cluster was asked for topics: it knows which of them `soak clean` deletes.
    """
    if folder.topics.exists():
        return
    with suppress(OSError):  # the failure of the start is raised
        for path in [folder.path] if is_new else list(folder.path.iterdir()):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
    note(f"nothing was recorded: nothing of this start stays in {folder.path}")


@contextmanager
def _claimed_folder(
    folder: RunFolder, name: str, console: Console
) -> Iterator[tuple[View, ExitStack]]:
    """Lock a run folder, send the log there, and show the view on the terminal."""
    with ExitStack() as stack:
        stack.enter_context(
            host.full_drive_errors(folder.path, "a run needs its `free_space_floor`")
        )
        with reporting_permission_errors(folder.logs):
            folder.logs.mkdir(parents=True, exist_ok=True)
        stack.enter_context(file_lock(folder.path / "run.lock", "this run folder"))
        logging.basicConfig(
            filename=folder.logs / "run.log",
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
            level=logging.INFO,
            force=True,  # the terminal belongs to the view
        )
        print_line(console, f"run: {folder.path}")
        view = open_view(console, f"soak {name}  {folder.path}")
        stack.callback(view.close)
        yield view, stack


def _started_lab(plan: Plan, folder: RunFolder, view: View, stack: ExitStack) -> Lab | None:
    """Start the lab of a plan, if it has one; the stack stops it."""
    if plan.lab is None:
        return None
    fetch(plan.lab.broker, view.note)
    view.note(f"starting a {plan.lab.broker} broker below {folder.lab}")
    folder.lab.mkdir(exist_ok=True)
    lab = start_lab(
        folder.lab,
        plan.lab.settings,
        kind=plan.lab.broker,
        nodes=plan.lab.nodes,
        partitions=plan.topic.total_partitions * plan.topic.replication,
        drive=plan.lab.drive,
        relayed=plan.lab.relayed,
        with_mailbox=plan.lab.mailbox,
        on_mail=lambda raw: view.note(f"mail arrived:\n{render(raw)}"),
    )
    stack.callback(lab.stop)
    return lab


def supervise(current: ForegroundRun) -> FinishedRun:
    """Start the daemons of a run, follow it to its end, and report on it.

    Raises:
        SoakError: the side task, a daemon or the report failed.
    """
    clock, folder, view = SystemClock(), current.folder, current.view
    supervisor = _supervisor(current, clock)
    current.stack.callback(remove_metrics_targets, folder.path)
    current.stack.callback(supervisor.close)
    stop = stop_event()
    supervisor.start()
    live = LiveRun(folder, current.run, current.plan_file.plan, clock)
    state, failure = _follow_load(current, supervisor, live, stop, clock)
    if state == "ended":
        check_run_drives(
            current.plan_file.plan, current.lab, folder, current.part, "after", view.note
        )
    if current.lab is not None:
        current.lab.stop_cluster()  # the report needs the memory, and its message the mail server
    write_run(folder, dataclasses.replace(current.run, state=state))
    if current.lab is None and read_created_topics(folder).asked:
        view.note(
            f"the topics of the run stay: `soak clean {shlex.quote(str(folder.path))}` deletes them"
        )
    view.show(live.look_at_all())
    return _conclude(current, state, failure, stop)


def _supervisor(current: ForegroundRun, clock: SystemClock) -> Supervisor:
    view, side_task = current.view, current.side_task
    # The fault of a drill may stop daemons for longer than a watchdog allows.
    watchdog = (
        current.stack.enter_context(ChildWatchdog(clock, START_LIMIT_NS))
        if side_task is None
        else None
    )
    return Supervisor(
        current.folder,
        clock,
        roles=current.part.roles(current.plan_file),
        on_death=lambda name, how: view.note(f"{name} died ({how}), restarted"),
        measuring_environment=None if side_task is None else side_task.environment,
        watchdog=watchdog,
        load_from_wall_ns=current.run.start_wall_ns,
    )


def _follow_load(
    current: ForegroundRun,
    supervisor: Supervisor,
    live: LiveRun,
    stop: threading.Event,
    clock: SystemClock,
) -> tuple[str, GaveUpError | None]:
    """Follow a run until its daemons have ended; return its final state, and why it was aborted, if so."""
    side_task: SideTask | None = None
    failure: GaveUpError | None = None
    state = "ended"
    try:
        with _failed_on_error(current):
            if current.side_task is not None:
                started = StartedRun(current.run, current.lab, supervisor.pids)
                side_task = current.side_task.begin(started, current.stack)
            if watch_load(supervisor, live, current.view, stop, clock, side_task):
                state = "interrupted"
    except GaveUpError as error:
        failure, state = error, "failed"
        current.view.note("aborting the run; the report covers what was recorded")
        _stop_early(supervisor, side_task)
        _queue_abort(current, str(error).partition(";")[0])
    current.view.note("the load has ended; the detector reads the remaining records")
    supervisor.finish()
    supervisor.close()
    if side_task is not None:
        side_task.end(current.folder)
    return state, failure


def watch_load(
    supervisor: Supervisor,
    live: LiveRun,
    view: View,
    stop: threading.Event,
    clock: SystemClock,
    side_task: SideTask | None,
) -> bool:
    """Watch the daemons until the load is over; return whether it was stopped early."""
    while not stop.is_set():
        if supervisor.poll():
            return False
        if side_task is not None:
            side_task.poll()
        seen = live.look(OLDER_BYTES)
        view.show(seen)
        if seen.end_k is not None and seen.now_k > seen.end_k + DAEMON_END_TIMEOUT_SECONDS:
            view.note("a daemon does not end; stopping it")
            _stop_early(supervisor, side_task)
            return False
        stop.wait((POLL_NS - clock.mono_ns() % POLL_NS) / SECOND_NS)
    view.note("stopping; the report covers what was recorded")
    _stop_early(supervisor, side_task)
    return True


def _stop_early(supervisor: Supervisor, side_task: SideTask | None) -> None:
    """End the load; first undo what would block a daemon, such as a drive that hangs."""
    if side_task is not None:
        side_task.undo()
    supervisor.stop()


def _queue_abort(current: ForegroundRun, why: str) -> None:
    """Queue a notification for people who are not at this terminal."""
    try:
        queue_run_aborted(current.folder, current.plan_file.plan, current.run, SystemClock(), why)
    except FindingsError as error:
        LOG.warning("notification_not_queued why=%r error=%s", why, error)


@contextmanager
def _failed_on_error(current: ForegroundRun) -> Iterator[None]:
    """Mark a run as failed when it cannot continue, so that it does not look like a running one."""
    try:
        yield
    except SoakError:
        write_run(current.folder, dataclasses.replace(current.run, state="failed"))
        raise


def _conclude(
    current: ForegroundRun, state: str, failure: GaveUpError | None, stop: threading.Event
) -> FinishedRun:
    """Create the report of a whole run, and return how the run finished.

    Raises:
        SoakError: the run was aborted, or the report failed.
    """
    folder, view = current.folder, current.view
    if current.part.only:
        if failure is not None:
            raise failure
        view.note(f"this is a part of run {current.run.id}: next `soak merge`, then `soak report`")
        return FinishedRun(EXIT_INTERRUPTED if state == "interrupted" else 0, folder, is_part=True)
    view.note("creating the report")
    stop.clear()  # the first interrupt ended the load, the next one ends the report
    code = run_report_process(folder, stop, view.note)
    send_pending(folder, stop, view.note)
    if failure is not None:
        raise failure
    return FinishedRun(EXIT_INTERRUPTED if state == "interrupted" else code, folder)
