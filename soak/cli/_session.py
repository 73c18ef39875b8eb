"""One run from the plan to the verdict: lab, topic, daemons, live view, report."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from rich.console import Console

from soak.cli import _checks, _no_room, _topics
from soak.cli._begin import check_drives, new_run, prepare, resolved
from soak.cli._load_checks import keep_load
from soak.cli._part import WHOLE, Part, check_in_time, check_part, part_again
from soak.cli._snapshot import Watcher
from soak.cli._view import View, open_view
from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, SoakError
from soak.core.plan import Plan
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS
from soak.daemons.alert_silence import give_up
from soak.daemons.context import connect, grid_of
from soak.daemons.supervise import START_LIMIT_NS, GaveUpError, Supervisor
from soak.lab.lab import Lab, fetch, start_lab
from soak.lab.mailbox import render
from soak.service import children
from soak.service.metrics import withdraw
from soak.service.signals import stop_event
from soak.service.watch import Watch
from soak.store.made_topics import read_made
from soak.store.run_folder import (
    Run,
    RunFolder,
    exclusive,
    read_plan_file,
    read_run,
    write_plan,
    write_run,
)

LOG = logging.getLogger("soak.cli.session")
EXIT_INTERRUPTED = 130
OVERDUE_SECONDS = 60
LEAD_NS = 7 * SECOND_NS
"""The first message is due this long after the daemons are started: all of them are ready by then, and most
of Spark's start, which takes a whole core, is over."""
POLL_NS = SECOND_NS
REPORT_LIMIT_NS = 900 * SECOND_NS
VERDICTS = (0, 3, 4)


class Beside(Protocol):
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
class Started:
    """A run whose load is about to begin."""

    run: Run
    lab: Lab | None
    pids: Callable[[], Mapping[str, int]]  # of its daemons, by name


@dataclasses.dataclass(frozen=True, slots=True)
class Company:
    """How what goes on beside a run begins, once the run's daemons are started."""

    begin: Callable[[Started, ExitStack], Beside]
    environment: Mapping[str, str]  # of the daemons that measure, beside ours


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a run went: `code` as the report says it, before any drill is judged."""

    code: int
    folder: RunFolder
    is_part: bool = False  # of a run over several hosts: it has no report here


def execute(
    plan_file: PlanFile,
    run_dir: Path | None,
    console: Console,
    company: Company | None = None,
    part: Part = WHOLE,
) -> Ended:
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
    _checks.check_here(plan_file, runs)
    if plan_file.plan.lab is None and part.is_first:
        _checks.check_cluster(plan_file)
    elif plan_file.plan.lab is None:
        _checks.check_answer(plan_file)
    folder = _checks.check_run_folder(plan_file, run_dir or runs / f"{run.name}-{run.id}")
    with _entered(folder, run.name, console) as (view, stack):
        return _execute(plan_file, folder, run, view, stack, company, part)


def go_on(folder: RunFolder, console: Console, only: tuple[str, ...] = ()) -> Ended:
    """Go on with a run that was cut short, by its own plan and on its own schedule, as `execute` does.

    Raises:
        PlanError: the plan has no such daemon, the run's broker went with it, or `only` is of a whole run.
        SoakError: another process runs it, it is over, or a daemon or the report failed.
    """
    run, plan_file = read_run(folder), read_plan_file(folder)
    part = part_again(run, only)
    part.roles(plan_file)
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "the lab's broker went down with its run: begin a new one")
    with _entered(folder, run.name, console) as (view, stack):
        if read_run(folder).state != "running":
            raise SoakError(f"{folder.path}: run {run.id} does not go on, its state is {run.state}")
        _topics.check_same(folder, plan_file.plan, connect(plan_file.plan, SystemClock()))
        if part.only != run.only:
            run = dataclasses.replace(run, only=part.only)
            write_run(folder, run)
        whose = f"{', '.join(part.only)} of " if part.only else ""
        view.note(f"going on with {whose}run {run.id}")
        return _carried_on(plan_file, folder, run, None, view, stack, None, part)


@contextmanager
def _entered(folder: RunFolder, name: str, console: Console) -> Iterator[tuple[View, ExitStack]]:
    """Have a run folder for ourselves, and the terminal for the view; the log goes into the folder."""
    with ExitStack() as stack:
        stack.enter_context(_no_room.told(folder.path, "a run needs its `free_space_floor`"))
        folder.logs.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive(folder.path / "run.lock", "this run folder"))
        logging.basicConfig(
            filename=folder.logs / "run.log",
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
            level=logging.INFO,
            force=True,  # the terminal belongs to the view
        )
        view = open_view(console, f"soak {name}  {folder.path}")
        stack.callback(view.close)
        yield view, stack


def _execute(
    plan_file: PlanFile,
    folder: RunFolder,
    run: Run,
    view: View,
    stack: ExitStack,
    company: Company | None,
    part: Part,
) -> Ended:
    clock = SystemClock()
    plan = plan_file.plan
    lab = _started_lab(plan, folder, view, stack)
    plan = resolved(plan, lab, run)
    write_plan(folder, plan)
    keep_load(plan_file, folder)
    write_run(folder, dataclasses.replace(run, state="beginning"))  # what is made is known as ours
    check_drives(plan, lab, folder, part, "before", view.note)
    prepare(plan_file, plan, folder, part, run)
    check_in_time(part, clock.wall_ns(), LEAD_NS)
    run = dataclasses.replace(run, start_wall_ns=part.start_wall_ns or clock.wall_ns() + LEAD_NS)
    write_run(folder, run)
    begun = dataclasses.replace(plan_file, plan=plan)
    return _carried_on(begun, folder, run, lab, view, stack, company, part)


def _carried_on(
    plan_file: PlanFile,
    folder: RunFolder,
    run: Run,
    lab: Lab | None,
    view: View,
    stack: ExitStack,
    company: Company | None,
    part: Part,
) -> Ended:
    """Start the daemons of a run that was begun, and see to its end."""
    clock, plan = SystemClock(), plan_file.plan
    # A drill stops daemons on purpose.
    watch = None if company else stack.enter_context(Watch(clock, START_LIMIT_NS))
    supervisor = Supervisor(
        folder,
        clock,
        roles=part.roles(plan_file),
        on_death=lambda name, how: view.note(f"{name} died ({how}), started again"),
        measuring_environment=None if company is None else company.environment,
        watch=watch,
        load_from_wall_ns=run.start_wall_ns,
    )
    stack.callback(withdraw, folder.path)
    stack.callback(supervisor.close)
    stop = stop_event()
    supervisor.start()
    watcher = Watcher(folder, plan, run.id, grid_of(folder, run, clock), clock)
    beside: Beside | None = None
    failure: GaveUpError | None = None
    state = "ended"
    try:
        with _failed_if_raised(folder, run):
            if company is not None:
                beside = company.begin(Started(run, lab, supervisor.pids), stack)
            if _until_over(supervisor, watcher, view, stop, clock, beside):
                state = "interrupted"
    except GaveUpError as error:
        failure, state = error, "failed"
        view.note("giving up; the report will tell what there is")
        _cut_short(supervisor, beside)
        _tell_given_up(plan, folder, run, str(error).partition(";")[0])
    view.note("the load has ended; the detector reads what is left")
    supervisor.finish()
    supervisor.close()
    if beside is not None:
        beside.end(folder)
    if state == "ended":
        check_drives(plan, lab, folder, part, "after", view.note)
    if lab is not None:
        lab.stop()
    write_run(folder, dataclasses.replace(run, state=state))
    _tell_topics(folder, lab, view)
    view.show(watcher.look())
    if part.only:
        if failure is not None:
            raise failure
        view.note(
            f"a part of run {run.id}: `soak collect` puts the parts together, then `soak report`"
        )
        return Ended(EXIT_INTERRUPTED if state == "interrupted" else 0, folder, is_part=True)
    view.note("making the report")
    stop.clear()  # the first interrupt ended the load, the next one ends the report
    code = _report(folder, stop)
    if failure is not None:
        raise failure
    return Ended(EXIT_INTERRUPTED if state == "interrupted" else code, folder)


def _tell_topics(folder: RunFolder, lab: Lab | None, view: View) -> None:
    if lab is None and read_made(folder).asked:
        view.note(f"the run's topics stay: `soak clean {folder.path}` deletes them")


def _tell_given_up(plan: Plan, folder: RunFolder, run: Run, why: str) -> None:
    """Have it told to those who are not at this terminal."""
    try:
        give_up(folder, plan, run, SystemClock(), why)
    except FindingsError as error:
        LOG.warning("not_told why=%r error=%s", why, error)


@contextmanager
def _failed_if_raised(folder: RunFolder, run: Run) -> Iterator[None]:
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


def _until_over(
    supervisor: Supervisor,
    watcher: Watcher,
    view: View,
    stop: threading.Event,
    clock: SystemClock,
    beside: Beside | None,
) -> bool:
    """Watch over the daemons until the load is over; return True when it was stopped early."""
    while not stop.is_set():
        if supervisor.poll():
            return False
        if beside is not None:
            beside.poll()
        seen = watcher.look()
        view.show(seen)
        if seen.end_k is not None and seen.k > seen.end_k + OVERDUE_SECONDS:
            view.note("a daemon does not end; stopping it")
            _cut_short(supervisor, beside)
            return False
        stop.wait((POLL_NS - clock.mono_ns() % POLL_NS) / SECOND_NS)
    view.note("stopping: the report will tell what there is")
    _cut_short(supervisor, beside)
    return True


def _cut_short(supervisor: Supervisor, beside: Beside | None) -> None:
    """End the load; first what keeps a daemon waiting is undone, such as a drive that answers nothing."""
    if beside is not None:
        beside.lift()
    supervisor.stop()


def _report(folder: RunFolder, stop: threading.Event) -> int:
    """Make the report in a process of its own; return its exit code, which is the verdict.

    Raises:
        SoakError: it failed, or took too long.
    """
    log = folder.logs / "report.log"
    command = [sys.executable, "-m", "soak.cli.main", "report", str(folder.path)]
    process = children.spawn(command, log_path=log)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + REPORT_LIMIT_NS
    try:
        while process.poll() is None and clock.mono_ns() < deadline_ns:
            if stop.wait(0.2):
                return EXIT_INTERRUPTED
    finally:
        children.kill(process)
    if process.returncode not in VERDICTS:
        again = f"see {log}; `soak report {folder.path}` makes it again"
        raise SoakError(f"the report failed with exit code {process.returncode}; {again}")
    return process.returncode
