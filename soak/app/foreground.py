"""Run a plan in the foreground, from the checks to the verdict: lab, topics, daemons, live view, report."""

from __future__ import annotations

import dataclasses
import logging
import math
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.alerting.daemon import AlertDaemon, build_sinks
from soak.alerting.heartbeat import queue_run_aborted
from soak.app import host, preflight, topics
from soak.app.check import without_client_logs
from soak.app.lifecycle import check_run_drives, new_run, prepare_cluster, resolve_plan
from soak.app.live.run import LiveRun
from soak.app.live.terminal import View, open_view
from soak.app.multi_host import WHOLE, Part, check_lead_time, check_part, resumed_part
from soak.app.plan_files import copy_profile
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, SoakError
from soak.core.plan.plan import Plan
from soak.core.plan.text import PlanFile
from soak.core.ports import Note
from soak.core.series import SeriesId
from soak.core.units import SECOND_NS
from soak.lab.lab import Lab, fetch, start_lab
from soak.lab.mailbox import render
from soak.runtime.context import connect
from soak.service import children
from soak.service.files import file_lock, read_json
from soak.service.metrics import remove_metrics_targets
from soak.service.signals import stop_event
from soak.service.systemd import START_LIMIT_NS, ChildWatchdog
from soak.store.run_folder import (
    Run,
    RunFolder,
    read_created_topics,
    read_plan,
    read_plan_file,
    read_run,
    reporting_damage,
    write_plan,
    write_run,
)
from soak.supervisor.run import GaveUpError, Supervisor

LOG = logging.getLogger(__name__)
EXIT_INTERRUPTED = 130
DAEMON_END_TIMEOUT_SECONDS = 60
LEAD_NS = 7 * SECOND_NS
"""The first message is due this long after the daemons start: by then all of them are ready, and most of
Spark's start, which takes a whole core, is over."""
POLL_NS = SECOND_NS
OLDER_BYTES = 2**20
"""So much of the older journals of a resumed run is read a second: the load needs the processor."""
REPORT_TIMEOUT_NS = 900 * SECOND_NS
REPORT_PROGRESS = "report: "
"""Begins the lines in which `soak report` says what it does now."""
VERDICT_CODES = (0, 3, 4)
UNFINISHED_STATES = ("beginning", "running")
_VERDICT_STYLES = {"clean": "bold green", "regressed": "bold red", "inconclusive": "bold yellow"}


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
    preflight.check_host(plan_file, runs)
    with without_client_logs():
        if plan_file.plan.lab is None and part.is_first:
            preflight.check_cluster(plan_file)
        elif plan_file.plan.lab is None:
            preflight.check_cluster_answers(plan_file)
    folder = preflight.check_run_folder(plan_file, run_dir or runs / f"{run.name}-{run.id}")
    with _claimed_folder(folder, run.name, console) as (view, stack):
        for warning in preflight.soak_warnings(plan_file.plan):
            view.note(f"Warning: {warning}")
        lab = _started_lab(plan_file.plan, folder, view, stack)
        plan = resolve_plan(plan_file.plan, lab, run)
        write_plan(folder, plan)
        copy_profile(plan_file, folder)
        write_run(folder, dataclasses.replace(run, state="beginning"))  # before topics are created
        with _failure_noted(folder, run), topics.remaining_topics_named(folder, view.note):
            check_run_drives(plan, lab, folder, part, "before", view.note)
            run = prepare_cluster(plan_file, plan, folder, part, run)
            check_lead_time(part, clock.wall_ns(), LEAD_NS)
        start_wall_ns = part.start_wall_ns or clock.wall_ns() + LEAD_NS
        run = dataclasses.replace(run, start_wall_ns=start_wall_ns)
        write_run(folder, run)
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


@contextmanager
def _claimed_folder(
    folder: RunFolder, name: str, console: Console
) -> Iterator[tuple[View, ExitStack]]:
    """Lock a run folder, send the log there, and show the view on the terminal."""
    with ExitStack() as stack:
        stack.enter_context(
            host.full_drive_errors(folder.path, "a run needs its `free_space_floor`")
        )
        folder.logs.mkdir(parents=True, exist_ok=True)
        stack.enter_context(file_lock(folder.path / "run.lock", "this run folder"))
        logging.basicConfig(
            filename=folder.logs / "run.log",
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
            level=logging.INFO,
            force=True,  # the terminal belongs to the view
        )
        _print_line(console, f"run: {folder.path}")
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
    code = _run_report_process(folder, stop, view.note)
    send_pending(folder, stop, view.note)
    if failure is not None:
        raise failure
    return FinishedRun(EXIT_INTERRUPTED if state == "interrupted" else code, folder)


def send_pending(folder: RunFolder, stop: threading.Event, note: Note) -> None:
    """Send what is due now that the report is there, such as the message about the end of the run.

    `note` takes a line about messages that wait: no daemon of this run follows to send them.
    """
    plan = read_plan(folder)
    if not plan.sinks or (plan.store is None and not folder.findings.exists()):
        return
    with file_lock(folder.path / "alert.lock", "the outbox"):
        daemon = AlertDaemon(folder, plan, read_run(folder), build_sinks(plan), SystemClock())
        daemon.deliver(stop.is_set)
        try:
            waiting = daemon.pending()
        except FindingsError as error:
            note(f"it is not known whether messages wait: {error}")
        else:
            if waiting and not (plan.lab and plan.lab.mailbox):  # that ends with this command
                runs = shlex.quote(str(folder.path.resolve().parent))
                messages = wording.counted(waiting, "message")
                note(
                    f"{messages} not sent yet: `soak alert --pending {runs}` tries again for a day"
                )
        daemon.close()


def _run_report_process(folder: RunFolder, stop: threading.Event, note: Note) -> int:
    """Create the report in its own process; return its exit code, which is the verdict.

    `note` takes its lines of progress.

    Raises:
        SoakError: it failed, or took too long.
    """
    log = folder.logs / "report.log"
    command = [sys.executable, "-m", "soak.cli.main", "report", str(folder.path)]
    seen_bytes = log.stat().st_size if log.exists() else 0
    process = children.spawn(command, log_path=log)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + REPORT_TIMEOUT_NS
    try:
        while process.poll() is None and clock.mono_ns() < deadline_ns:
            if stop.wait(0.2):
                return EXIT_INTERRUPTED
            lines, seen_bytes = read_progress(log, seen_bytes)
            for line in lines:
                note(line)
    finally:
        children.kill(process)
    if process.returncode not in VERDICT_CODES:
        retry = f"see {log}; `soak report {shlex.quote(str(folder.path))}` tries again"
        raise SoakError(f"the report failed with exit code {process.returncode}; {retry}")
    return process.returncode


def read_progress(path: Path, from_byte: int) -> tuple[list[str], int]:
    """Return the lines of progress in the log of a report from this byte on, and the byte after them."""
    with path.open("rb") as file:
        file.seek(from_byte)
        new = file.read()
    whole = new[: new.rfind(b"\n") + 1]
    lines = whole.decode(errors="replace").splitlines()
    return [one for one in lines if one.startswith(REPORT_PROGRESS)], from_byte + len(whole)


def make_report(run_dir: Path, make: Callable[[Path], int]) -> tuple[int, RunFolder]:
    """Create a report with `make`; return its exit code and the folder of its run.

    It is created again when the run ended meanwhile, or another run ended and `run_dir` now links to it:
    a caller who asked for that report found this one in progress and left.

    Raises:
        SoakError: no run folder, or the report cannot be created.
    """
    folder = RunFolder(run_dir.resolve())
    while True:
        state = read_run(folder).state
        code = make(folder.path)
        if read_run(folder).state != state:
            continue
        newest = RunFolder(run_dir.resolve())
        if newest == folder or read_run(newest).state in UNFINISHED_STATES:
            return code, folder
        folder = newest


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return `summary.json`; raises `RunFolderError` where it is damaged or unreadable."""
    with reporting_damage(folder.summary):
        return dict(read_json(folder.summary))


def show_outcome(console: Console, folder: RunFolder) -> None:
    """Print verdict, findings, audit and coverage of a run; every line stands alone in a log."""
    summary = read_summary(folder) if folder.summary.exists() else {}
    is_part = summary.get("is_running") and read_run(folder).state not in UNFINISHED_STATES
    if not summary or is_part:  # the report was interrupted too
        _print_line(
            console,
            f"this run has no report; `soak report {shlex.quote(str(folder.path))}` creates it",
        )
        return
    verdict = str(summary["verdict"])
    console.print()
    console.print(f"verdict: {verdict}", style=_VERDICT_STYLES.get(verdict), highlight=False)
    _print_line(console, str(summary["headline"]))
    for busy, used in summary.get("soak", {}).get("busy_hosts", {}).items():
        _print_line(console, wording.busy_host_text(busy, used))
    for one in summary.get("objectives", ()):
        left = wording.budget_left_text(one["budget_left"], one["unit"])
        _print_line(console, f"objective: {one['objective']}: {one['state']}, budget {left}")
    for found in summary["findings"]:
        _print_finding(console, found)
    counts = dict(summary["audit"])
    why = counts.pop("not_audited", "")
    audit = ", ".join(f"{key} {wording.known(value)}" for key, value in counts.items())
    _print_line(console, f"audit: {audit}")
    if why:
        _print_line(console, f"not audited: {why}")
    coverage = summary["coverage"]
    _print_line(
        console,
        f"coverage: {coverage['seconds']} s, {wording.counted(len(coverage['gaps']), 'gap')}, "
        f"{coverage['untrusted_seconds']} s invalid",
    )
    _print_line(console, f"report: {folder.report}")


def show_checks(console: Console, title: str, rows: list[tuple[str, str, str, bool]]) -> None:
    """Print a table of what a drill expected and what was found."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("", "expected", "found", ""):
        table.add_column(heading, overflow="fold")
    for subject, expected, found, is_met in rows:
        cells = (subject, expected, found, "ok" if is_met else "MISSED")
        table.add_row(*map(Text, cells))  # not markup: a cell may contain brackets
    console.print(table)


def _print_finding(console: Console, found: dict[str, Any]) -> None:
    labels = dict(found["labels"])
    source = labels.pop("source", "")
    series = str(SeriesId(source, found["metric"], tuple(labels.items())))
    before, after = (math.nan if found[at] is None else found[at] for at in ("before", "after"))
    if found["kind"] in wording.WHOLE_SENTENCES:
        what = f"{found['what']} ({source})"
    else:
        change = wording.level_text(series, found["kind"], before, after)
        what = f"{wording.title_with_source(series)} {change}"
    _print_line(
        console,
        f"finding: {what} at {found['at']}, "
        f"cause {found['cause']}, {wording.state_word(found['state'])}"
        + wording.not_counted_note(is_about_cluster=found["is_about_cluster"])
        + (f", acknowledged: {found['acknowledged']}" if found.get("acknowledged") else ""),
    )
    for item in found["evidence"]:
        _print_line(console, f"  - {item['text'] if isinstance(item, dict) else item}")


def _print_line(console: Console, text: str) -> None:
    console.print(wording.printable(text), markup=False, highlight=False, soft_wrap=True)
