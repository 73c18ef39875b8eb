"""Run a plan in the foreground, from the checks to the verdict: lab, topics, daemons, live view, report."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.alerting.heartbeat import queue_run_aborted
from soak.app import host, preflight, topics
from soak.app.lifecycle import check_run_drives, new_run, prepare_cluster, resolve_plan
from soak.app.live_view import View, Watcher, open_view
from soak.app.multi_host import WHOLE, Part, check_lead_time, check_part, resumed_part
from soak.app.preflight import copy_profile
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, SoakError
from soak.core.plan.plan import Plan
from soak.core.plan.text import PlanFile
from soak.core.series import SeriesId
from soak.core.units import SECOND_NS
from soak.lab.lab import Lab, fetch, start_lab
from soak.lab.mailbox import render
from soak.runtime.context import connect, grid_of
from soak.service import children
from soak.service.files import file_lock
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

_VERDICT_STYLES = {"clean": "bold green", "regressed": "bold red", "inconclusive": "bold yellow"}


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return `summary.json`."""
    body: dict[str, Any] = json.loads(folder.summary.read_text())
    return body


def show_outcome(console: Console, folder: RunFolder) -> None:
    """Print the outcome, or how to have one; every line stands alone in a log."""
    if not folder.summary.exists():  # the report was interrupted too
        _print_line(
            console, f"there is no report of this run; `soak report {folder.path}` makes it"
        )
        return
    summary = read_summary(folder)
    verdict = str(summary["verdict"])
    console.print()
    console.print(f"verdict: {verdict}", style=_VERDICT_STYLES.get(verdict), highlight=False)
    _print_line(console, str(summary["headline"]))
    for found in summary["findings"]:
        _show_finding(console, found)
    audit = ", ".join(f"{key} {wording.known(value)}" for key, value in summary["audit"].items())
    _print_line(console, f"audit: {audit}")
    coverage = summary["coverage"]
    _print_line(
        console,
        f"coverage: {coverage['seconds']} s, {wording.counted(len(coverage['gaps']), 'gap')}, "
        f"{coverage['untrusted_seconds']} s untrusted",
    )
    _print_line(console, f"report: {folder.report}")


def show_checks(console: Console, title: str, rows: list[tuple[str, str, str, bool]]) -> None:
    """Print what a drill expected against what was found."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("", "expected", "found", ""):
        table.add_column(heading, overflow="fold")
    for subject, expected, found, is_met in rows:
        cells = (subject, expected, found, "ok" if is_met else "MISSED")
        table.add_row(*map(Text, cells))  # what failed may hold brackets, which are no markup
    console.print(table)


def _show_finding(console: Console, found: dict[str, Any]) -> None:
    labels = dict(found["labels"])
    source = labels.pop("source", "")
    series = str(SeriesId(source, found["metric"], tuple(labels.items())))
    before, after = _number(found["before"]), _number(found["after"])
    moved = wording.level_text(series, found["kind"], before, after)
    _print_line(
        console,
        f"finding: {wording.title_with_source(series)} {moved} at {found['at']}, "
        f"cause {found['cause']}, {found['state']}"
        + wording.not_counted_note(is_about_cluster=found["is_about_cluster"]),
    )
    for item in found["evidence"]:
        _print_line(console, f"  - {item['text'] if isinstance(item, dict) else item}")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _print_line(console: Console, text: str) -> None:
    console.print(wording.printable(text), markup=False, highlight=False, soft_wrap=True)


# --- The report of a folder whose run may end, or give way to another one, while it is made.

UNFINISHED_STATES = ("beginning", "running")


def make_report(run_dir: Path, make: Callable[[Path], int]) -> tuple[int, RunFolder]:
    """Make a report; return its exit code and whose it is.

    It is made once more where a run has ended meanwhile: who asked for that one's report has found this
    one under way, and asks no more.

    Raises:
        SoakError: this is no run folder, or the report cannot be made.
    """
    folder = RunFolder(run_dir.resolve())
    while True:
        state = read_run(folder).state
        code = make(folder.path)
        if read_run(folder).state != state:
            continue
        newest = RunFolder(run_dir.resolve())  # where a link such as `current` leads by now
        if newest == folder or read_run(newest).state in UNFINISHED_STATES:
            return code, folder
        folder = newest


# --- One run from the plan to the verdict: lab, topic, daemons, live view, report.

LOG = logging.getLogger("soak.cli.session")
EXIT_INTERRUPTED = 130
DAEMON_END_TIMEOUT_SECONDS = 60
LEAD_NS = 7 * SECOND_NS
"""The first message is due this long after the daemons are started: all of them are ready by then, and most
of Spark's start, which takes a whole core, is over."""
POLL_NS = SECOND_NS
REPORT_TIMEOUT_NS = 900 * SECOND_NS
VERDICT_CODES = (0, 3, 4)


class SideTask(Protocol):
    """What goes on beside a run, in the main thread."""

    def poll(self) -> None:
        """Do what is due; called about once a second while the load lasts."""
        ...

    def lift(self) -> None:
        """Undo what was done to the cluster, as the run is cut short; nothing is done to it any more."""
        ...

    def end(self, folder: RunFolder) -> None:
        """Do what is left, once the detector has ended."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class StartedRun:
    """A run whose load is about to begin."""

    run: Run
    lab: Lab | None
    pids: Callable[[], Mapping[str, int]]  # of its daemons, by name


@dataclasses.dataclass(frozen=True, slots=True)
class SideTaskFactory:
    """How what goes on beside a run begins, once the run's daemons are started."""

    begin: Callable[[StartedRun, ExitStack], SideTask]
    environment: Mapping[str, str]  # of the daemons that measure, beside ours


@dataclasses.dataclass(frozen=True, slots=True)
class FinishedRun:
    """How a run went: `code` as the report says it, before any drill is judged."""

    code: int
    folder: RunFolder
    is_part: bool = False  # of a run over several hosts: it has no report here


def run_plan(
    plan_file: PlanFile,
    run_dir: Path | None,
    console: Console,
    company: SideTaskFactory | None = None,
    part: Part = WHOLE,
) -> FinishedRun:
    """Run a plan, or this host's part of it, to its end, or to SIGINT or SIGTERM, and report on it.

    Until the load begins an interrupt ends everything at once; from then on it ends the run in order,
    with a report of what there is; while the report is made it ends that.

    Raises:
        PlanError: before the first side effect, or when the cluster refuses what the plan asks.
        SoakError: the lab, a daemon or the report failed.
    """
    clock = SystemClock()
    check_part(part, plan_file, clock.wall_ns(), LEAD_NS)
    run = new_run(plan_file.plan, part, clock)
    runs = run_dir.parent if run_dir else Path(plan_file.plan.run_directory)
    preflight.check_host(plan_file, runs)
    if plan_file.plan.lab is None and part.is_first:
        preflight.check_cluster(plan_file)
    elif plan_file.plan.lab is None:
        preflight.check_cluster_answers(plan_file)
    folder = preflight.check_run_folder(plan_file, run_dir or runs / f"{run.name}-{run.id}")
    with _claimed_folder(folder, run.name, console) as (view, stack):
        return _start_run(plan_file, folder, run, view, stack, company, part)


def resume_run(folder: RunFolder, console: Console, only: tuple[str, ...] = ()) -> FinishedRun:
    """Go on with a run that was cut short, by its own plan and on its own schedule, as `execute` does.

    Raises:
        PlanError: the plan has no such daemon, the run's broker went with it, or `only` is of a whole run.
        SoakError: another process runs it, it is over, or a daemon or the report failed.
    """
    run, plan_file = read_run(folder), read_plan_file(folder)
    part = resumed_part(run, only)
    part.roles(plan_file)
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "the lab's broker went down with its run: begin a new one")
    with _claimed_folder(folder, run.name, console) as (view, stack):
        if read_run(folder).state != "running":
            raise SoakError(f"{folder.path}: run {run.id} does not go on, its state is {run.state}")
        topics.check_same_topics(folder, plan_file.plan, connect(plan_file.plan, SystemClock()))
        if part.only != run.only:
            run = dataclasses.replace(run, only=part.only)
            write_run(folder, run)
        whose = f"{', '.join(part.only)} of " if part.only else ""
        view.note(f"going on with {whose}run {run.id}")
        return _run_to_end(plan_file, folder, run, None, view, stack, None, part)


@contextmanager
def _claimed_folder(
    folder: RunFolder, name: str, console: Console
) -> Iterator[tuple[View, ExitStack]]:
    """Have a run folder for ourselves, and the terminal for the view; the log goes into the folder."""
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
        view = open_view(console, f"soak {name}  {folder.path}")
        stack.callback(view.close)
        yield view, stack


def _start_run(
    plan_file: PlanFile,
    folder: RunFolder,
    run: Run,
    view: View,
    stack: ExitStack,
    company: SideTaskFactory | None,
    part: Part,
) -> FinishedRun:
    clock = SystemClock()
    plan = plan_file.plan
    lab = _started_lab(plan, folder, view, stack)
    plan = resolve_plan(plan, lab, run)
    write_plan(folder, plan)
    copy_profile(plan_file, folder)
    write_run(folder, dataclasses.replace(run, state="beginning"))  # what is made is known as ours
    check_run_drives(plan, lab, folder, part, "before", view.note)
    prepare_cluster(plan_file, plan, folder, part, run)
    check_lead_time(part, clock.wall_ns(), LEAD_NS)
    run = dataclasses.replace(run, start_wall_ns=part.start_wall_ns or clock.wall_ns() + LEAD_NS)
    write_run(folder, run)
    begun = dataclasses.replace(plan_file, plan=plan)
    return _run_to_end(begun, folder, run, lab, view, stack, company, part)


def _run_to_end(
    plan_file: PlanFile,
    folder: RunFolder,
    run: Run,
    lab: Lab | None,
    view: View,
    stack: ExitStack,
    company: SideTaskFactory | None,
    part: Part,
) -> FinishedRun:
    """Start the daemons of a run that was begun, and see to its end."""
    clock, plan = SystemClock(), plan_file.plan
    # A drill stops daemons on purpose.
    watch = None if company else stack.enter_context(ChildWatchdog(clock, START_LIMIT_NS))
    supervisor = Supervisor(
        folder,
        clock,
        roles=part.roles(plan_file),
        on_death=lambda name, how: view.note(f"{name} died ({how}), started again"),
        measuring_environment=None if company is None else company.environment,
        watchdog=watch,
        load_from_wall_ns=run.start_wall_ns,
    )
    stack.callback(remove_metrics_targets, folder.path)
    stack.callback(supervisor.close)
    stop = stop_event()
    supervisor.start()
    watcher = Watcher(folder, plan, run.id, grid_of(folder, run, clock), clock)
    beside: SideTask | None = None
    failure: GaveUpError | None = None
    state = "ended"
    try:
        with _failed_on_error(folder, run):
            if company is not None:
                beside = company.begin(StartedRun(run, lab, supervisor.pids), stack)
            if _watch_until_over(supervisor, watcher, view, stop, clock, beside):
                state = "interrupted"
    except GaveUpError as error:
        failure, state = error, "failed"
        view.note("giving up; the report will tell what there is")
        _stop_early(supervisor, beside)
        _notify_give_up(plan, folder, run, str(error).partition(";")[0])
    view.note("the load has ended; the detector reads what is left")
    supervisor.finish()
    supervisor.close()
    if beside is not None:
        beside.end(folder)
    if state == "ended":
        check_run_drives(plan, lab, folder, part, "after", view.note)
    if lab is not None:
        lab.stop()
    write_run(folder, dataclasses.replace(run, state=state))
    _note_kept_topics(folder, lab, view)
    view.show(watcher.look())
    if part.only:
        if failure is not None:
            raise failure
        view.note(
            f"a part of run {run.id}: `soak merge` puts the parts together, then `soak report`"
        )
        return FinishedRun(EXIT_INTERRUPTED if state == "interrupted" else 0, folder, is_part=True)
    view.note("making the report")
    stop.clear()  # the first interrupt ended the load, the next one ends the report
    code = _run_report_process(folder, stop)
    if failure is not None:
        raise failure
    return FinishedRun(EXIT_INTERRUPTED if state == "interrupted" else code, folder)


def _note_kept_topics(folder: RunFolder, lab: Lab | None, view: View) -> None:
    if lab is None and read_created_topics(folder).asked:
        view.note(f"the run's topics stay: `soak clean {folder.path}` deletes them")


def _notify_give_up(plan: Plan, folder: RunFolder, run: Run, why: str) -> None:
    """Have it told to those who are not at this terminal."""
    try:
        queue_run_aborted(folder, plan, run, SystemClock(), why)
    except FindingsError as error:
        LOG.warning("not_told why=%r error=%s", why, error)


@contextmanager
def _failed_on_error(folder: RunFolder, run: Run) -> Iterator[None]:
    """Let a run that cannot go on not be taken for one that does."""
    try:
        yield
    except SoakError:
        write_run(folder, dataclasses.replace(run, state="failed"))
        raise


def _started_lab(plan: Plan, folder: RunFolder, view: View, stack: ExitStack) -> Lab | None:
    """Start what the plan wants on this machine; the stack stops it."""
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


def _watch_until_over(
    supervisor: Supervisor,
    watcher: Watcher,
    view: View,
    stop: threading.Event,
    clock: SystemClock,
    beside: SideTask | None,
) -> bool:
    """Watch over the daemons until the load is over; return True when it was stopped early."""
    while not stop.is_set():
        if supervisor.poll():
            return False
        if beside is not None:
            beside.poll()
        seen = watcher.look()
        view.show(seen)
        if seen.end_k is not None and seen.k > seen.end_k + DAEMON_END_TIMEOUT_SECONDS:
            view.note("a daemon does not end; stopping it")
            _stop_early(supervisor, beside)
            return False
        stop.wait((POLL_NS - clock.mono_ns() % POLL_NS) / SECOND_NS)
    view.note("stopping: the report will tell what there is")
    _stop_early(supervisor, beside)
    return True


def _stop_early(supervisor: Supervisor, beside: SideTask | None) -> None:
    """End the load; first what keeps a daemon waiting is undone, such as a drive that answers nothing."""
    if beside is not None:
        beside.lift()
    supervisor.stop()


def _run_report_process(folder: RunFolder, stop: threading.Event) -> int:
    """Make the report in a process of its own; return its exit code, which is the verdict.

    Raises:
        SoakError: it failed, or took too long.
    """
    log = folder.logs / "report.log"
    command = [sys.executable, "-m", "soak.cli.main", "report", str(folder.path)]
    process = children.spawn(command, log_path=log)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + REPORT_TIMEOUT_NS
    try:
        while process.poll() is None and clock.mono_ns() < deadline_ns:
            if stop.wait(0.2):
                return EXIT_INTERRUPTED
    finally:
        children.kill(process)
    if process.returncode not in VERDICT_CODES:
        again = f"see {log}; `soak report {folder.path}` makes it again"
        raise SoakError(f"the report failed with exit code {process.returncode}; {again}")
    return process.returncode
