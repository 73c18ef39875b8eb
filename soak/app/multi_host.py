"""A run over several hosts: the part that this host does, and hosts that only run probes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from soak.app import host
from soak.app.preflight import check_probe_folders, check_probe_settings
from soak.core import plugins
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.core.plan import text as plan_text
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import AnyPlan, ProbePlan, Ship
from soak.core.plan.text import Document, PlanFile, parse_yaml
from soak.core.plugins import nearest
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import RESTART_CODE
from soak.runtime.grid import host_name
from soak.sampling import daemon
from soak.service.files import file_lock, write_atomically
from soak.service.metrics import remove_metrics_targets
from soak.service.systemd import is_journal_stream, notifier
from soak.shipping.announcements import AnnouncementListener
from soak.shipping.discovery import JoinedRuns, wait_for_run
from soak.shipping.sender import has_unsent
from soak.store.plan_home import PlanHome
from soak.store.run_announcements import RUN_ID, AnnouncementReader
from soak.store.run_folder import (
    Run,
    RunFolder,
    own_versions,
    read_any_plan,
    read_run,
    write_plan,
    write_run,
)
from soak.supervisor.run import Role, roles_of
from soak.supervisor.sidecar import Sidecar

LEADING_DAEMONS = ("conduct", "receive", "detect-stream", "alert")
"""Daemons of the first host, which makes the topics and judges."""

_LATEST_NS = 2**63 - 1  # of a stamp: in the year 2262


@dataclass(frozen=True, slots=True)
class Part:
    """What this host does of a run. Without anything said it does all, at once, under an id of its own."""

    run_id: str = ""
    start_wall_ns: int = 0
    only: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """True on the host that makes the topics, detects and reports."""
        return not self.only or "conduct" in self.only

    def roles(self, plan_file: PlanFile) -> tuple[Role, ...]:
        """Return the daemons of this host; one that joins has a conductor for itself.

        Raises:
            PlanError: a daemon that the plan does not have.
        """
        every = roles_of(plan_file.plan)
        known = [role.name for role in every]
        for name in self.only:
            if name not in known:
                raise PlanError(f"--only: the plan has no daemon {name!r}{nearest(name, known)}")
        if not self.only:
            return every
        wanted = {*self.only, "conduct", "ship", *(("receive",) if self.is_first else ())}
        return tuple(role for role in every if role.name in wanted)


WHOLE = Part()


def part_of(run_id: str, start: str, only: str) -> Part:
    """Return a part from the options of a command line.

    Raises:
        PlanError: an option that cannot be, or one without those that it needs.
    """
    if not (run_id or start or only):
        return WHOLE
    if not (run_id and start):
        raise PlanError("a run over several hosts needs --run-id and --start, the same on each")
    if not RUN_ID.fullmatch(run_id):
        raise PlanError(f"--run-id {run_id!r}: letters, digits, '-', '_' and '.', at most 100")
    try:
        at = datetime.fromisoformat(start)
    except ValueError as error:
        raise PlanError(f"--start {start!r} is no time; write 2026-01-31T12:00:00Z") from error
    if at.tzinfo is None:
        raise PlanError(f"--start {start!r} has no time zone; write {at.isoformat()}Z for UTC")
    names = daemon_names(only)
    strays = sorted(set(LEADING_DAEMONS) & set(names)) if "conduct" not in names else []
    if strays:
        raise PlanError(f"--only: {strays[0]} belongs to the host that has conduct")
    since_epoch = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since_epoch.days * 86_400 + since_epoch.seconds) * 10**6 + since_epoch.microseconds
    start_wall_ns = micros * (SECOND_NS // 10**6)
    if not 0 < start_wall_ns <= _LATEST_NS:
        raise PlanError(f"--start {start!r} lies outside the years 1970 to 2262")
    return Part(run_id, start_wall_ns, names)


def resumed_part(run: Run, only: tuple[str, ...]) -> Part:
    """Return what this host does of a run that goes on: what is named now, or else what it did before.

    Raises:
        PlanError: it did all of it: the rest would end without a report.
    """
    if only and not run.only:
        raise PlanError(
            f"--only: run {run.id} has all its daemons on this host: go on with it without"
        )
    return Part(run.id, run.start_wall_ns, only or run.only)


def daemon_names(only: str) -> tuple[str, ...]:
    """Return the daemons that a command line names."""
    return tuple(name.strip() for name in only.split(",") if name.strip())


def check_lead_time(part: Part, now_wall_ns: int, lead_ns: int) -> None:
    """Check, once the topics are there, that the daemons will be ready for the first message.

    Raises:
        SoakError: to make the topics took too long: what was due by then would be missed.
    """
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        raise SoakError(
            f"the topics were not there {lead_ns // SECOND_NS} s before --start, which the daemons need "
            "to be ready; begin anew with a later --start and another --run-id"
        )


def check_part(part: Part, plan_file: PlanFile, now_wall_ns: int, lead_ns: int) -> None:
    """Check what only the plan and the time can tell.

    Raises:
        PlanError: it starts too soon, or the plan decides by data that this host does not see.
    """
    part.roles(plan_file)
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        least = lead_ns // SECOND_NS
        raise PlanError(f"--start is less than {least} s from now: the daemons would not be ready")
    plan = plan_file.plan
    if plan.lab is not None and part.only:
        raise plan_file.error("lab", "a lab's broker is on loopback: no other host reaches it")
    for key in ("ramp", "catch_up", "windows"):
        if part.only and getattr(plan.phases, key):
            raise plan_file.error(f"phases.{key}", "is decided by data, which one host alone sees")


# --- The run folder of a host that only probes: made or gone on in, recorded into, and shipped.


def new_probe_run(run_id: str, start_wall_ns: int, plan: ProbePlan) -> Run:
    return Run(run_id, start_wall_ns, host_name(), own_versions(), "running", plan.name)


def probe_into(
    folder: RunFolder,
    plan: ProbePlan,
    run: Run,
    stop: threading.Event,
    clock: Clock,
    *,
    is_joining: bool,
    ship_options: Sequence[str] = (),
    state_when_stopped: str = "ended",
) -> int:
    """Probe until told to stop, or until the folder's phases end it; return the exit code.

    Raises:
        PlanError: the folder is something else, or that of another run.
        SoakError: another process works in the folder.
    """
    with file_lock(_make_run_folder(folder) / "run.lock", "this run folder"):
        run = _enter_run(folder, plan, run, is_joining=is_joining)
        print(f"probing into {folder.path}, run {run.id}; SIGTERM ends it", flush=True)
        with ship_sidecar(folder, plan, ship_options, clock) as beside:
            code = RESTART_CODE
            while code == RESTART_CODE and not stop.is_set():  # after a suspend: a new incarnation
                code = daemon.run(folder.path, stop, clock, beside.poll if beside else lambda: None)
        remove_metrics_targets(folder.path)
        state = "failed" if code == daemon.FAILED_CODE else "ended"
        if state == "ended" and stop.is_set():
            state = state_when_stopped
        write_run(folder, dataclasses.replace(run, state=state))
    return code


def _make_run_folder(folder: RunFolder) -> Path:
    """Make the folder; one that is there must be empty, a run's, or the home of runs that were joined.

    Raises:
        PlanError: it is something else, or cannot be made.
    """
    path = folder.path
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = [entry for entry in path.iterdir() if not _is_of_runs(entry)]
    except OSError as error:
        raise PlanError(f"--run-dir {path} cannot be used: {error.strerror}") from error
    if inside and not folder.run_json.exists():
        raise PlanError(f"--run-dir {path} holds something, and no run")
    return path


def _is_of_runs(entry: Path) -> bool:
    return entry.suffix == ".lock" or (entry / "run.json").exists()


def _enter_run(folder: RunFolder, plan: ProbePlan, run: Run, *, is_joining: bool) -> Run:
    """Write down which run this is; in a folder of its own go on with the run that it holds.

    Raises:
        PlanError: the folder holds another run.
    """
    if folder.run_json.exists():
        before = read_run(folder)
        is_same = not is_joining or (before.id, before.start_wall_ns) == (
            run.id,
            run.start_wall_ns,
        )
        if before.name != plan.name or not is_same:
            raise PlanError(f"--run-dir {folder.path} holds run {before.id} of plan {before.name}")
        run = dataclasses.replace(before, state="running")
    write_plan(folder, plan)
    write_run(folder, run)
    return run


@contextlib.contextmanager
def ship_sidecar(
    folder: RunFolder, plan: ProbePlan, options: Sequence[str], clock: Clock
) -> Iterator[Sidecar | None]:
    """Have the records shipped meanwhile, in a process of its own, if the plan says where to."""
    if plan.ship is None:
        yield None
        return
    arguments = ("ship", "--run-dir", str(folder.path), *options)
    log = None if is_journal_stream() else folder.logs / "ship.log"
    beside = Sidecar(arguments, log, clock)
    try:
        yield beside
    finally:
        beside.close()


# --- A host that only probes and was told no run: it waits until one of its plan is announced, and joins it.
# It ends with that run. Who starts it again, as its unit does, has it wait for the next.

PROBE_SPACE = "a few MiB"


def run_announced(
    plan: ProbePlan, ship: Ship, home: Path, stop: threading.Event, clock: Clock
) -> int:
    """Go on with the run that was cut short here, or join the next; return the exit code.

    Raises:
        SoakError: another process probes by this plan here, the folder cannot be made, or there is no room.
    """
    runs = JoinedRuns(home.absolute(), plan.name)
    _make_home(runs.home)
    with (
        host.full_drive_errors(runs.home, PROBE_SPACE),
        file_lock(runs.home / f"{plan.name}.lock", "this plan's probing"),
    ):
        run = runs.unfinished(clock.wall_ns()) or _await_announced_run(
            plan, ship, runs, stop, clock
        )
        if run is None:
            return 0
        runs.trim(ship.buffer, keep=run.id)
        folder = runs.folder_of(run.id)
        PlanHome(runs.home).set_current(folder)  # where a Prometheus finds the page
        notifier().status(f"run {run.id}")
        return probe_into(
            folder,
            plan,
            run,
            stop,
            clock,
            is_joining=True,
            ship_options=("--follow",),
            state_when_stopped="interrupted",
        )


def _make_home(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"--run-dir {home} cannot be used: {error.strerror}") from error


def _await_announced_run(
    plan: ProbePlan, ship: Ship, runs: JoinedRuns, stop: threading.Event, clock: Clock
) -> Run | None:
    """Return the run that was joined, its folder made; None when told to stop before."""
    where = f"topic {ship.topic} at {ship.bootstrap_servers}"
    print(f"waiting until a run of plan {plan.name} is announced on {where}", flush=True)
    manager = notifier()
    manager.ready()
    manager.status(f"waits for a run of plan {plan.name} on {where}")
    listening = AnnouncementListener(AnnouncementReader(ship, clock), plan.name, clock)
    with _sending_unsent(runs, clock) as poll:
        found = wait_for_run(listening, runs.may_join, stop, manager, clock, poll)
        listening.close()
    if found is None:
        return None
    folder = runs.folder_of(found.run_id)
    run = new_probe_run(found.run_id, found.start_wall_ns, plan)
    end = "" if found.end_k is None else decision_line("end", found.end_k, "announced")
    write_run(folder, run)
    write_atomically(folder.phases, end)
    return run


@contextlib.contextmanager
def _sending_unsent(runs: JoinedRuns, clock: Clock) -> Iterator[Callable[[], None]]:
    """Have sent meanwhile what the cluster did not take before the last run was over."""
    left = [folder for folder, _ in runs.joined()[-1:] if has_unsent(folder, host_name())]
    if not left:
        yield lambda: None
        return
    arguments = ("ship", "--run-dir", str(left[0].path))
    log = None if is_journal_stream() else left[0].logs / "ship.log"
    beside = Sidecar(arguments, log, clock)
    try:
        yield beside.poll
    finally:
        beside.close()


# --- A host that only probes: by the id and the start of a run, by those that are announced, or on its own.

_RUN_SECTIONS = frozenset({"broker", "lab", "topic", "load", "consumers", "phases"})
"""Sections by which the text is meant as the plan of a run, whatever is wrong with it."""


def load_any_plan(path: Path) -> AnyPlan:
    """Return a plan, of a run or of a host that only probes.

    Raises:
        PlanError: it cannot be read, or something in it is wrong.
    """
    return _load(path)[0]


def load_probe_plan(path: Path) -> tuple[ProbePlan, Document] | None:
    """Return the plan of a host that only probes, and its text; None where the text is that of a run's plan.

    Raises:
        PlanError: it is of such a host, and something in it is wrong.
    """
    text = _read_text(path)
    value = parse_yaml(text, str(path)).value
    if not isinstance(value, dict) or "probes" not in value or value.keys() & _RUN_SECTIONS:
        return None
    plan, document = plan_text.load_any(text, str(path))
    return (plan, document) if isinstance(plan, ProbePlan) else None


def run_probe_host(
    path: Path,
    run_dir: Path | None,
    run_id: str,
    start: str,
    stop: threading.Event,
    clock: Clock,
) -> int:
    """Probe until told to stop; return the exit code.

    Raises:
        PlanError: before the first side effect.
        SoakError: another process works in the folder.
    """
    plan, document = _load(path)
    if not isinstance(plan, ProbePlan):
        raise document.error(
            ("broker",), "makes it the plan of a run: `soak run --only probe` does its part of it"
        )
    check_probe_folders(plan, document)
    check_probe_settings(plan, document)
    part = part_of(run_id, start, "")
    if plan.ship is not None and not part.run_id:
        return run_announced(plan, plan.ship, run_dir or Path(plan.run_directory), stop, clock)
    run = new_probe_run(
        part.run_id or f"{datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC):%Y%m%dT%H%M%SZ}",
        part.start_wall_ns or clock.wall_ns(),
        plan,
    )
    folder = RunFolder((run_dir or Path(plan.run_directory) / f"{plan.name}-{run.id}").absolute())
    return probe_into(folder, plan, run, stop, clock, is_joining=bool(part.run_id))


def _load(path: Path) -> tuple[AnyPlan, Document]:
    return plan_text.load_any(_read_text(path), str(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error


def print_readings(plan: Path | None, run_dir: Path | None, directory: Path, clock: Clock) -> None:
    """Read every probe of a plan, of a run, or else all there are with their defaults, and print the result."""
    if plan is None and run_dir is None:
        configs = _default_configs(directory)
    else:
        found = load_any_plan(plan) if plan else read_any_plan(RunFolder(run_dir or Path()))
        configs = found.probes
    host.print_probes(host.read_probes(daemon.build(configs, clock), clock), host.plain_console())


def _default_configs(directory: Path) -> dict[str, Any]:
    """Return the default configuration of every probe, with this directory where one is needed."""
    found = {}
    for name in plugins.names("probes"):
        kind = plugins.load("probes", name).Config
        wants = "directory" in kind.__dataclass_fields__
        found[name] = kind(directory=str(directory.absolute())) if wants else kind()
    return found
