"""Start, resume and close a run: its id, its plan with every address filled in, its topics, its state."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from soak.app import guarantees, host, preflight, topics
from soak.app.multi_host import WHOLE, Part
from soak.app.preflight import check_limits, copy_profile, profile_table
from soak.conductor.free_space import broker_folders
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.cluster.drives import Moment
from soak.core.errors import NotNowError, PlanError, RunFolderError, SoakError
from soak.core.plan import text
from soak.core.plan.plan import Plan, with_plugin_values, with_ship_target
from soak.core.plan.text import PlanFile
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, format_duration
from soak.lab.lab import Lab
from soak.load.consumer.start_offsets import store_start_offsets
from soak.runtime.context import PhaseFile, connect, has_grid, host_name
from soak.service.files import file_lock
from soak.service.systemd import notifier
from soak.store.journal.reader import last_record, sources
from soak.store.plan_home import PlanHome, is_in_use, is_service_run, service_units
from soak.store.run_folder import (
    Run,
    RunFolder,
    own_versions,
    read_created_topics,
    read_plan,
    read_run,
    write_plan,
    write_run,
)
from soak.supervisor import run_end


def new_run(plan: Plan, part: Part, clock: SystemClock) -> Run:
    """Return a run with an id, which its topics' names and its folder carry: its own unless it is shared."""
    now = datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC)
    run_id = part.run_id or f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    return Run(
        run_id, part.start_wall_ns, host_name(), own_versions(), "running", plan.name, part.only
    )


def resolve_plan(plan: Plan, lab: Lab | None, run: Run) -> Plan:
    """Return the plan as the daemons will read it: no name or address left open."""
    topic = plan.topic.name or f"soak-{run.id}"
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, name=topic))
    if lab is not None:
        plan = with_plugin_values(plan, "broker", lab.broker.addresses)
        plan = with_plugin_values(plan, "probes", {"directory": str(lab.broker.data_directory)})
        plan = with_plugin_values(plan, "probes", {"log": str(lab.broker.log_path)})
        pauses = lab.broker.log_path.with_name("gc.log")
        plan = with_plugin_values(
            plan, "probes", {"more_logs": (str(pauses),) if pauses.exists() else ()}
        )
        if lab.mailbox is not None:
            server = {"host": lab.mailbox.host, "port": lab.mailbox.port}
            plan = with_plugin_values(plan, "sinks", server)
    broker = plan.broker_config
    own: list[Mapping[str, object]] = [
        {"client": getattr(broker, "common", None) or getattr(broker, "client", {})},
        *({name: address} for name, address in broker.addresses.items()),
        {"namespace": getattr(broker, "namespace", "")},
        {"topics": plan.topic.names},
    ]
    for values in own:
        plan = with_plugin_values(plan, "probes", values)
    return with_ship_target(plan)


def prepare_cluster(
    plan_file: PlanFile,
    plan: Plan,
    folder: RunFolder,
    part: Part,
    run: Run,
) -> None:
    """Have the topics there, and keep what the target promises before the load begins."""
    clock = SystemClock()
    if part.is_first:
        if not plan.topic.use_existing:
            is_named_by_us = not (plan_file.plan.topic.name or part.run_id)
            broker = connect(plan, clock)
            topics.make_topics(plan_file, plan, folder, broker, has_own_names=is_named_by_us)
        guarantees.record_durability(folder, plan, plan_file.document)
        guarantees.record_forecast(folder, plan, profile_table(plan_file))
    else:
        _await_topics(plan, run, clock)
    store_start_offsets(folder, run, plan, connect(plan, clock))


def check_run_drives(
    plan: Plan,
    lab: Lab | None,
    folder: RunFolder,
    part: Part,
    moment: Moment,
    note: Callable[[str], None],
) -> None:
    """Measure the drives of this host's brokers, if the plan wants it: the host that probes has them."""
    if not plan.drive_check or (part.only and "probe" not in part.only):
        return
    nodes = lab.broker.nodes if lab else ()
    folders = [str(node.data_directory) for node in nodes] or broker_folders(plan)
    injected = [drive.mount_point for drive in lab.drives.values()] if lab else []
    host.record_drives(folder, plan, folders, moment, plan.drive_check, note, injected)


def _await_topics(plan: Plan, run: Run, clock: SystemClock) -> None:
    """Wait until the first host has made the topics.

    Raises:
        SoakError: they are not there when the load is due.
    """
    broker = connect(plan, clock)
    while len(broker.existing(plan.topic.names)) < plan.topic.count:
        if clock.wall_ns() > run.start_wall_ns:
            raise SoakError(f"no host with conduct has made {plan.topic.names[0]} before the start")
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 4)


# --- Waits for a clock that a boot set wrong: the daemons read once a boot which second of the run it is.

CLOCK_TIMEOUT_NS = 600 * SECOND_NS
"""So long somebody may take to set it; soak-start@ is stopped some minutes later."""


def await_clock(folder: RunFolder, own: Collection[str], clock: Clock) -> None:
    """Return once it is later than what these sources of this host recorded of the run last.

    Raises:
        SoakError: it has not become so in ten minutes.
    """
    recorded_ns = _last_record_ns(folder, own)
    deadline_ns = clock.mono_ns() + CLOCK_TIMEOUT_NS
    if clock.wall_ns() < recorded_ns:
        print(f"waiting for the clock of this host, which is behind {wording.iso(recorded_ns)}")
    while clock.wall_ns() < recorded_ns:
        if clock.mono_ns() >= deadline_ns:
            raise SoakError(
                f"{folder.path}: the clock of this host says {wording.iso(clock.wall_ns())}, and the run "
                f"has a record of {wording.iso(recorded_ns)}; nobody set it in {format_duration(CLOCK_TIMEOUT_NS)}"
            )
        clock.sleep_until(clock.mono_ns() + SECOND_NS)


def _last_record_ns(folder: RunFolder, own: Collection[str]) -> int:
    """Return when the newest record was written, 0 where there is none."""
    there = [name for name in sources(folder.journal) if name in own]
    newest = [found[0].at_ns for name in there if (found := last_record(folder.journal, name))]
    return max(newest, default=0)


# --- Which run `soak run --resume` goes on with.


def find_interrupted_run(plan: Plan, run_dir: Path | None, run_id: str = "") -> RunFolder:
    """Return the folder of the plan's run that nobody ended and nobody runs: of many the newest.

    Raises:
        PlanError: there is none, or the folder that was named is not such a run.
    """
    if run_dir is not None:
        return _check_resumable(plan, RunFolder(run_dir.absolute()))
    runs = Path(plan.run_directory).absolute()
    found = []
    for path in runs.glob(f"{plan.name}-*/run.json"):
        folder = RunFolder(path.parent)
        try:
            run = read_run(folder)
        except RunFolderError:
            continue  # a damaged one is not what is asked for, unless it is named
        if _is_interrupted(folder, run) and run.name == plan.name and run_id in ("", run.id):
            found.append((run.start_wall_ns, folder))
    if not found:
        which = f"run {run_id}" if run_id else f"run of the plan {plan.name}"
        raise PlanError(f"--resume: no {which} below {runs} was cut short; name it with --run-dir")
    return max(found, key=lambda one: one[0])[1]


def _check_resumable(plan: Plan, folder: RunFolder) -> RunFolder:
    try:
        run = read_run(folder)
    except RunFolderError as error:
        raise PlanError(f"--resume: {error}") from error
    if run.name != plan.name:
        raise PlanError(f"--run-dir {folder.path} holds run {run.id} of plan {run.name}")
    if run.state != "running":
        raise PlanError(
            f"--run-dir {folder.path}: run {run.id} does not go on, its state is {run.state}"
        )
    if is_service_run(folder):
        raise PlanError(
            f"--run-dir {folder.path}: run {run.id} is a service's, and goes on with `systemctl start "
            f"soak@{folder.path.parent.name}.target`"
        )
    return folder


def _is_interrupted(folder: RunFolder, run: Run) -> bool:
    return run.state == "running" and not is_in_use(folder)


# --- A run whose daemons a service manager starts: how it begins, and what is done when it is over.

CLOSED_STATES = ("ended", "interrupted", "failed")
SERVICE_LEAD_NS = 30 * SECOND_NS
"""The first message is due so long after the run began: units start one after the other, Spark among them."""
MAX_DRIVE_CHECK_NS = 600 * SECOND_NS
"""So long all drives together may be measured: soak-start@ and soak-finish@ are stopped soon after."""
START_SPACE = "a run begins with its plan's `free_space_floor` there and goes on with a few KiB"
CLOSE_SPACE = "a few KiB close the run"


def start_run(path: Path, home: PlanHome, clock: SystemClock) -> None:
    """Begin a run, unless one is there that is not over.

    Raises:
        PlanError: before the first side effect, or when the cluster refuses what the plan asks.
        SoakError: there is no room, the cluster does not answer, or the run that is there cannot go on, as
            when this host's clock is behind what it recorded.
    """
    try:
        with host.full_drive_errors(home.path, START_SPACE):
            _start_or_resume(path, home, clock)
    except NotNowError as error:  # who began it may be a timer: people are to be told
        raise SoakError(str(error)) from error


def _start_or_resume(path: Path, home: PlanHome, clock: SystemClock) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    with file_lock(home.path / "begin.lock", "this folder of runs"):
        over, folder = home.newest(*CLOSED_STATES), home.newest("running")
        if over is not None and home.wanted.exists():
            home.want(())  # `soak service finish` closes it, and its report is made
            print(f"run {read_run(over).id} is over and not yet closed; start again for a new one")
            return
        if folder is None:
            home.leave()  # whatever comes of this, no daemon is to start on the run before
            folder = _start_new(preflight.load_plan(path), home, clock)
            print(f"run {read_run(folder).id} begins in {folder.path}")
        else:
            plan, run = _read_started_plan(folder), read_run(folder)
            if not has_grid(folder, run):
                own = [f"{name}@{host_name()}" for name in plan.measuring]  # another's may be ahead
                await_clock(folder, own, clock)
            topics.check_same_topics(folder, plan, connect(plan, clock))
            print(f"run {run.id} goes on in {folder.path}, as its own plan.yaml says")
        home.want(service_units(_read_started_plan(folder)))


def _read_started_plan(folder: RunFolder) -> Plan:
    """Return the plan of a run that was begun.

    Raises:
        SoakError: it is damaged, which is no fault of who starts it: people are to be told.
    """
    try:
        return read_plan(folder)
    except PlanError as error:
        raise RunFolderError(f"the run does not go on: {error}") from error


def _start_new(plan_file: PlanFile, home: PlanHome, clock: SystemClock) -> RunFolder:
    """Begin a run, or go on with beginning it: what is on the cluster has its plan on disk before."""
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "a lab's broker lives and dies with `soak run`")
    if plan_file.plan.name != home.path.name:
        raise plan_file.error("name", f"is not {home.path.name}, by which the units know the plan")
    measured_ns = plan_file.plan.drive_check * len(broker_folders(plan_file.plan))
    if measured_ns > MAX_DRIVE_CHECK_NS:
        most = format_duration(MAX_DRIVE_CHECK_NS)
        raise plan_file.error("drive_check", f"takes more than the {most} that the units wait for")
    preflight.check_host(plan_file, home.path)
    check_limits(plan_file)
    half = _partly_started(plan_file.plan, home)
    preflight.check_cluster(plan_file, half)
    run = read_run(half) if half else new_run(plan_file.plan, WHOLE, clock)
    run = dataclasses.replace(run, state="beginning")
    plan = resolve_plan(plan_file.plan, None, run)
    folder = half or preflight.check_run_folder(plan_file, home.path / f"{run.name}-{run.id}")
    folder.logs.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    copy_profile(plan_file, folder)
    write_run(folder, run)
    home.point_to(folder)
    check_run_drives(plan, None, folder, WHOLE, "before", print)
    prepare_cluster(plan_file, plan, folder, WHOLE, run)
    start_wall_ns = clock.wall_ns() + SERVICE_LEAD_NS
    write_run(folder, dataclasses.replace(run, start_wall_ns=start_wall_ns, state="running"))
    return folder


def _partly_started(plan: Plan, home: PlanHome) -> RunFolder | None:
    """Return the run that was cut short while it was made, unless the plan has been changed since then."""
    folder = home.newest("beginning")
    if folder is None:
        return None
    would_be = text.dump(resolve_plan(plan, None, read_run(folder)))
    return folder if would_be == folder.plan.read_text() else None


def finish_run(home: PlanHome, stop: threading.Event, clock: SystemClock) -> None:
    """Wait until the current run of a plan is over, and mark it as ended.

    Raises:
        RunFolderError: there is no room for it; another call completes it.
    """
    folder = home.newest("running")
    if folder is None:  # killed after all but the last step was done
        notifier().ready()
        home.leave()
        print(f"no run goes on in {home.path}")
        return
    if run_end.run(folder, stop, clock):
        close_run(home, folder)


def close_run(home: PlanHome, folder: RunFolder) -> None:
    """Write down that a run is over: its daemons have ended, and none is to start again.

    Raises:
        RunFolderError: there is no room for it; another try goes on with it.
    """
    with host.full_drive_errors(folder.path, CLOSE_SPACE):
        _close_run(home, folder)


def _close_run(home: PlanHome, folder: RunFolder) -> None:
    run, plan = read_run(folder), read_plan(folder)
    is_decided = PhaseFile(folder.phases).poll().end_k is not None
    state = "interrupted" if folder.stop_request.exists() else "ended" if is_decided else "failed"
    if state == "ended":
        check_run_drives(plan, None, folder, WHOLE, "after", print)
    write_run(folder, dataclasses.replace(run, state=state))
    if read_created_topics(folder).asked:
        print(f"the run's topics stay where they are: `soak clean {folder.path}` deletes them")
    home.leave()


def request_stop(folder: RunFolder) -> str:
    """Ask the conductor of a run to end the load, and return what a person should know.

    Raises:
        RunFolderError: no run folder, or it cannot be written.
    """
    run = read_run(folder)
    if run.state != "running":
        return f"run {run.id} does not go on: its state is {run.state}"
    try:
        folder.stop_request.touch()
    except OSError as error:
        raise RunFolderError(f"cannot write {folder.stop_request}: {error.strerror}") from error
    told = f"run {run.id} ends; its conductor, once it runs, lets what was sent be received first"
    if not run.only:
        return told
    return f"{told}\nhere that is {', '.join(run.only)} alone: stop the run on its other hosts, too"
