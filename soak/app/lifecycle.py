"""Start, resume and close a run: its id, its plan with every address filled in, its topics, its state."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import shlex
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from soak.app import guarantees, host, plan_files, topics
from soak.app.multi_host import WHOLE, Part
from soak.app.plan_files import copy_profile, profile_table
from soak.app.preflight.cluster import broker_errors_at_address, check_cluster
from soak.app.preflight.host import check_host, check_limits, check_run_folder
from soak.conductor.free_space import broker_folders
from soak.core import wording
from soak.core.clock import SystemClock
from soak.core.cluster.drives import Moment
from soak.core.errors import (
    BrokerError,
    NotAvailableError,
    NotNowError,
    PlanError,
    RunFolderError,
    SoakError,
)
from soak.core.plan import text
from soak.core.plan.plan import (
    Plan,
    with_measured_cluster,
    with_plugin_values,
    with_ship_target,
    with_store_client,
)
from soak.core.plan.text import PlanFile
from soak.core.ports import Broker, Clock
from soak.core.units import SECOND_NS, format_duration
from soak.lab.lab import Lab
from soak.load.consumer.start_offsets import store_start_offsets
from soak.runtime.context import PhaseFile, connect
from soak.runtime.grid import has_grid, host_name
from soak.service.files import file_lock
from soak.service.java import full_version_of, java_home
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
    run_topic,
    write_plan,
    write_run,
)
from soak.supervisor import run_end

LOG = logging.getLogger(__name__)

_MAX_ANSWER = 300  # characters of an address or version
CLOSED_STATES = ("ended", "interrupted", "failed")
SERVICE_LEAD_NS = 30 * SECOND_NS
"""The first message is due this long after a run starts: units start one after another, including Spark."""
MAX_DRIVE_CHECK_NS = 600 * SECOND_NS
"""Limit for measuring all drives: systemd stops soak-start@ and soak-finish@ soon after."""
CLOCK_TIMEOUT_NS = 600 * SECOND_NS
"""Limit for the clock to be corrected; systemd stops soak-start@ some minutes later."""
START_SPACE = "to start, a run needs the `free_space_floor` of its plan; to resume, a few KiB"
CLOSE_SPACE = "to be closed, a run needs a few KiB"


def new_run(plan: Plan, part: Part, clock: SystemClock) -> Run:
    """Return a new run; its id, which is part of its topic names and folder, is new unless hosts share it."""
    now = datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC)
    run_id = part.run_id or f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    own_brokers = host.own_addresses(",".join(plan.broker_config.addresses.values()))
    return Run(
        run_id,
        part.start_wall_ns,
        host_name(),
        {**own_versions(), **spark_versions()},
        "running",
        plan.name,
        part.only,
        own_brokers,
    )


def resolve_plan(plan: Plan, lab: Lab | None, run: Run) -> Plan:
    """Return the plan that the daemons read, with every name and address filled in."""
    topic = plan.topic.name or run_topic(run.id)
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, name=topic))
    if lab is not None:
        plan = with_plugin_values(plan, "broker", lab.broker.addresses)
        folders = ",".join(map(str, lab.broker.data_directories))
        plan = with_plugin_values(plan, "probes", {"directory": folders})
        first = lab.broker.log_path
        others = [node.log_path for node in lab.broker.nodes if node.log_path != first]
        pauses = [path.with_name("gc.log") for path in (first, *others)]
        more = tuple(str(path) for path in (*others, *pauses) if path.exists())
        plan = with_plugin_values(plan, "probes", {"log": str(first), "more_logs": more})
        if lab.mailbox is not None:
            server = {"host": lab.mailbox.host, "port": lab.mailbox.port}
            plan = with_plugin_values(plan, "sinks", server)
    return with_store_client(with_ship_target(with_measured_cluster(plan)))


def prepare_cluster(
    plan_file: PlanFile,
    plan: Plan,
    folder: RunFolder,
    part: Part,
    run: Run,
) -> Run:
    """Create the topics, and record durability, forecast and start offsets before the load begins.

    Return the run with the brokers of the cluster, and with the versions of these and of the client.

    Raises:
        PlanError: the cluster rejects a request of the plan.
        NotNowError: it does not answer any more.
        SoakError: another host did not create the topics in time.
    """
    clock = SystemClock()
    if part.is_first:
        if not plan.topic.use_existing:
            has_own_names = not (plan_file.plan.topic.name or part.run_id)
            broker = connect(plan, clock)
            topics.create_topics(plan_file, plan, folder, broker, has_own_names=has_own_names)
        guarantees.record_durability(folder, plan, plan_file.document)
        guarantees.record_forecast(folder, plan, profile_table(plan_file))
    else:
        with broker_errors_at_address(plan_file):
            _await_topics(plan, run, clock)
    broker = connect(plan, clock)
    with broker_errors_at_address(plan_file):
        store_start_offsets(folder, run, plan, broker)
    return with_brokers(run, broker, plan.broker_kind)


def with_brokers(run: Run, broker: Broker, kind: str) -> Run:
    """Return the run with the addresses of the cluster's brokers and the versions of these and of the client.

    The run continues if the cluster does not answer.
    """
    try:
        found = broker.broker_versions()
    except BrokerError as error:
        LOG.warning("broker_versions_unknown error=%s", error)
        found = {}
    versions = {**run.versions, **broker.client_versions()}
    if any(found.values()):
        versions[kind] = _kept(", ".join(sorted({one for one in found.values() if one})))
    return dataclasses.replace(run, versions=versions, brokers=tuple(sorted(map(_kept, found))))


def _kept(text: str) -> str:
    """Return what a cluster answered as `run.json` keeps it: a cluster may answer anything."""
    return wording.shortened(wording.printable(text), _MAX_ANSWER)


def spark_versions() -> dict[str, str]:
    """Return the versions of Spark and of its Java on this host, if they are installed."""
    found = {}
    with suppress(metadata.PackageNotFoundError):
        found["pyspark"] = metadata.version("pyspark")
    with suppress(NotAvailableError):
        found["java"] = full_version_of(java_home())
    return {name: version for name, version in found.items() if version}


def check_run_drives(
    plan: Plan,
    lab: Lab | None,
    folder: RunFolder,
    part: Part,
    moment: Moment,
    note: Callable[[str], None],
) -> None:
    """Measure the drives of the brokers if the plan asks for it and this host runs the probes."""
    if not plan.drive_check or (part.only and "probe" not in part.only):
        return
    nodes = lab.broker.nodes if lab else ()
    folders = [str(node.data_directory) for node in nodes] or broker_folders(plan)
    injected = [drive.mount_point for drive in lab.drives.values()] if lab else []
    host.record_drives(folder, plan, folders, moment, plan.drive_check, note, injected)


def _await_topics(plan: Plan, run: Run, clock: SystemClock) -> None:
    """Wait until the first host has created the topics.

    Raises:
        SoakError: they do not exist when the load is due to begin.
    """
    broker = connect(plan, clock)
    while len(broker.existing(plan.topic.names)) < plan.topic.count:
        if clock.wall_ns() > run.start_wall_ns:
            raise SoakError(
                f"the host with conduct did not create {plan.topic.names[0]} before the start"
            )
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 4)


def await_clock(folder: RunFolder, own: Collection[str], clock: Clock) -> None:
    """Wait until the clock of this host is past the last record of its own sources.

    A boot may set the clock wrong, and the daemons compute the current interval from it once per boot.

    Raises:
        SoakError: the clock is still behind after ten minutes.
    """
    recorded_ns = _last_record_ns(folder, own)
    deadline_ns = clock.mono_ns() + CLOCK_TIMEOUT_NS
    if clock.wall_ns() < recorded_ns:
        print(f"waiting for the clock of this host, which is behind {wording.iso(recorded_ns)}")
    while clock.wall_ns() < recorded_ns:
        if clock.mono_ns() >= deadline_ns:
            raise SoakError(
                f"{folder.path}: the clock of this host is at {wording.iso(clock.wall_ns())}, behind the "
                f"last record of the run at {wording.iso(recorded_ns)}, and was not corrected within "
                f"{format_duration(CLOCK_TIMEOUT_NS)}: set the clock and start again"
            )
        clock.sleep_until(clock.mono_ns() + SECOND_NS)


def _last_record_ns(folder: RunFolder, own: Collection[str]) -> int:
    """Return the time of the newest record of these sources; 0 if there is none."""
    there = [name for name in sources(folder.journal) if name in own]
    newest = [found[0].at_ns for name in there if (found := last_record(folder.journal, name))]
    return max(newest, default=0)


def find_interrupted_run(plan: Plan, run_dir: Path | None, run_id: str = "") -> RunFolder:
    """Return the folder of the plan's newest interrupted run, which `soak run --resume` resumes.

    Raises:
        PlanError: there is none, or the given folder is not such a run.
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
            continue  # a damaged folder matters only if it is named
        if _is_interrupted(folder, run) and run.name == plan.name and run_id in ("", run.id):
            found.append((run.start_wall_ns, folder))
    if not found:
        which = f"run {run_id}" if run_id else f"run of the plan {plan.name}"
        raise PlanError(
            f"--resume: no interrupted {which} below {runs}; name its folder with --run-dir"
        )
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
            f"--run-dir {folder.path}: run {run.id} cannot be resumed: it is {run.state}"
        )
    if is_service_run(folder):
        raise PlanError(
            f"--run-dir {folder.path}: run {run.id} belongs to systemd; resume it with `systemctl start "
            f"soak@{folder.path.parent.name}.target`"
        )
    return folder


def _is_interrupted(folder: RunFolder, run: Run) -> bool:
    return run.state == "running" and not is_in_use(folder)


def start_run(path: Path, home: PlanHome, clock: SystemClock) -> None:
    """Start a run whose daemons systemd starts, or resume the current run of the plan.

    Raises:
        PlanError: before the first side effect, or when the cluster rejects a request of the plan.
        SoakError: there is no space, the cluster does not answer, or the current run cannot be resumed, for
            example because the clock of this host is behind its records.
    """
    try:
        with host.full_drive_errors(home.path, START_SPACE):
            _start_or_resume(path, home, clock)
    except NotNowError as error:  # a timer may have started it: then people need a message
        raise SoakError(str(error)) from error


def _start_or_resume(path: Path, home: PlanHome, clock: SystemClock) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    with file_lock(home.path / "begin.lock", "this folder of runs"):
        over, folder = home.current_in(*CLOSED_STATES), home.current_in("running")
        if over is not None and home.daemons_folder.exists():
            home.set_daemons(())  # `soak service finish` closes it, and its report is created
            print(f"run {read_run(over).id} is over and is being closed; start again for a new run")
            return
        if folder is None:
            home.remove_daemons()  # even if this fails, no daemon may start on the previous run
            folder = _start_new(plan_files.load_plan(path), home, clock)
            print(f"run {read_run(folder).id} starts in {folder.path}")
        else:
            plan, run = _read_started_plan(folder), read_run(folder)
            if not has_grid(folder, run):
                own = [
                    f"{name}@{host_name()}" for name in plan.measuring
                ]  # clocks of other hosts may be ahead
                await_clock(folder, own, clock)
            topics.check_same_topics(folder, plan, connect(plan, clock))
            print(f"run {run.id} resumes in {folder.path}, with its own plan.yaml")
        home.set_daemons(service_units(_read_started_plan(folder)))


def _read_started_plan(folder: RunFolder) -> Plan:
    """Return the plan of a run that was started before.

    Raises:
        SoakError: it is damaged. Not a PlanError: the caller did not cause it, and people need a message.
    """
    try:
        return read_plan(folder)
    except PlanError as error:
        raise RunFolderError(f"the run cannot be resumed: {error}") from error


def _start_new(plan_file: PlanFile, home: PlanHome, clock: SystemClock) -> RunFolder:
    """Start a run, or complete an interrupted start: the plan is on disk before topics are created."""
    if plan_file.plan.lab is not None:
        raise plan_file.error("lab", "only `soak run` can start a lab")
    if plan_file.plan.name != home.path.name:
        raise plan_file.error("name", f"must be {home.path.name}, the instance name of the units")
    measured_ns = plan_file.plan.drive_check * len(broker_folders(plan_file.plan))
    if measured_ns > MAX_DRIVE_CHECK_NS:
        most = format_duration(MAX_DRIVE_CHECK_NS)
        raise plan_file.error("drive_check", f"takes longer than {most}, the limit of the units")
    check_host(plan_file, home.path)
    check_limits(plan_file)
    partial = find_partly_started_run(plan_file.plan, home)
    check_cluster(plan_file, partial)
    run = read_run(partial) if partial else new_run(plan_file.plan, WHOLE, clock)
    run = dataclasses.replace(run, state="beginning")
    plan = resolve_plan(plan_file.plan, None, run)
    folder = partial or check_run_folder(plan_file, home.path / f"{run.name}-{run.id}")
    folder.logs.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    copy_profile(plan_file, folder)
    write_run(folder, run)
    home.set_current(folder)
    check_run_drives(plan, None, folder, WHOLE, "before", print)
    run = prepare_cluster(plan_file, plan, folder, WHOLE, run)
    start_wall_ns = clock.wall_ns() + SERVICE_LEAD_NS
    write_run(folder, dataclasses.replace(run, start_wall_ns=start_wall_ns, state="running"))
    return folder


def find_partly_started_run(plan: Plan, home: PlanHome) -> RunFolder | None:
    """Return the run whose start was interrupted, unless the plan has changed since then."""
    folder = home.current_in("beginning")
    if folder is None:
        return None
    plan_now = text.dump(resolve_plan(plan, None, read_run(folder)))
    try:
        plan_then = text.dump(read_plan(folder))  # an older version may have written other keys
    except PlanError:
        return None
    return folder if plan_now == plan_then else None


def finish_run(home: PlanHome, stop: threading.Event, clock: SystemClock) -> None:
    """Wait until the current run of a plan is over, and mark it as ended.

    Raises:
        RunFolderError: there is no space; another call completes it.
    """
    folder = home.current_in("running")
    if folder is None:  # killed after all but the last step was done
        notifier().ready()
        home.remove_daemons()
        print(f"no run in {home.path} is running")
        return
    if run_end.run(folder, stop, clock):
        close_run(home, folder)


def close_run(home: PlanHome, folder: RunFolder) -> None:
    """Mark a run as over after its daemons have ended, so that none starts again.

    Raises:
        RunFolderError: there is no space; another call completes it.
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
        print(
            f"the topics of the run stay: `soak clean {shlex.quote(str(folder.path))}` deletes them"
        )
    home.remove_daemons()


def request_stop(folder: RunFolder) -> str:
    """Ask the conductor of a run to end the load, and return a message for the terminal.

    Raises:
        RunFolderError: no run folder, or it cannot be written.
    """
    run = read_run(folder)
    if run.state != "running":
        return f"run {run.id} is not running: it is {run.state}"
    try:
        folder.stop_request.touch()
    except OSError as error:
        raise RunFolderError(f"cannot write {folder.stop_request}: {error.strerror}") from error
    message = f"run {run.id} ends after every message that was sent is received"
    if not run.only:
        return message
    return (
        f"{message}\nthis host runs only {', '.join(run.only)}: stop the run on the other hosts too"
    )
