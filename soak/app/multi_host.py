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

from soak.app import host, plan_files
from soak.app.preflight.probes import probe_folder_faults, probe_setting_faults
from soak.core.errors import PlanError, RunFolderError, SoakError, combined, raise_combined
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import AnyPlan, ProbePlan, Ship
from soak.core.plan.plugins import nearest
from soak.core.plan.text import Document, PlanFile, parse_yaml
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
"""Daemons of the first host, which creates the topics, detects changes and reports."""
PROBE_SPACE = "a probe host needs a few MiB"
_LATEST_NS = 2**63 - 1  # of a timestamp: in the year 2262
_RUN_SECTIONS = frozenset({"broker", "lab", "topic", "load", "consumers", "phases"})
"""Sections that mark a text as the plan of a run, even if the text is wrong."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a run that this host does. By default it does everything, at once, with a new run id."""

    run_id: str = ""
    start_wall_ns: int = 0
    only: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """True on the host that creates the topics, detects changes and reports."""
        return not self.only or "conduct" in self.only

    def roles(self, plan_file: PlanFile) -> tuple[Role, ...]:
        """Return the daemons of this host; a host that joins a run has a conductor of its own.

        Raises:
            PlanError: `only` names a daemon that the plan does not have.
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
    """Return the part that the options of a command line describe.

    Raises:
        PlanError: an option is malformed, or an option that it needs is missing.
    """
    if not (run_id or start or only):
        return WHOLE
    if not (run_id and start):
        raise PlanError(
            "a run over several hosts needs --run-id and --start, with the same values on each host"
        )
    if not RUN_ID.fullmatch(run_id):
        raise PlanError(f"--run-id {run_id!r}: use at most 100 letters, digits, '-', '_' and '.'")
    try:
        at = datetime.fromisoformat(start)
    except ValueError as error:
        raise PlanError(f"--start {start!r} is not a time; write 2026-01-31T12:00:00Z") from error
    if at.tzinfo is None:
        raise PlanError(f"--start {start!r} has no time zone; write {at.isoformat()}Z for UTC")
    names = daemon_names(only)
    misplaced = sorted(set(LEADING_DAEMONS) & set(names)) if "conduct" not in names else []
    if misplaced:
        raise PlanError(f"--only: {misplaced[0]} must run on the host that has conduct")
    since_epoch = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since_epoch.days * 86_400 + since_epoch.seconds) * 10**6 + since_epoch.microseconds
    start_wall_ns = micros * (SECOND_NS // 10**6)
    if not 0 < start_wall_ns <= _LATEST_NS:
        raise PlanError(f"--start {start!r} is outside the years 1970 to 2262")
    return Part(run_id, start_wall_ns, names)


def resumed_part(run: Run, only: tuple[str, ...]) -> Part:
    """Return the part of a resumed run that this host does: `only`, or else what it did before.

    Raises:
        PlanError: this host did everything, and the remaining daemons would end without a report.
    """
    if only and not run.only:
        raise PlanError(
            f"--only: run {run.id} has all its daemons on this host: resume it without --only"
        )
    return Part(run.id, run.start_wall_ns, only or run.only)


def daemon_names(only: str) -> tuple[str, ...]:
    """Return the daemons that the option --only names."""
    return tuple(name.strip() for name in only.split(",") if name.strip())


def check_lead_time(part: Part, now_wall_ns: int, lead_ns: int) -> None:
    """Check, after the topics are created, that the daemons will be ready for the first message.

    Raises:
        SoakError: creating the topics took too long: the first messages would be skipped.
    """
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        raise SoakError(
            f"the topics did not exist {lead_ns // SECOND_NS} s before --start, which the daemons need to "
            "get ready; start again with a later --start and another --run-id"
        )


def check_part(part: Part, plan_file: PlanFile, now_wall_ns: int, lead_ns: int) -> None:
    """Check a part against its plan and the time.

    Raises:
        PlanError: it starts too soon, or the plan decides phases by data that only one host has.
    """
    part.roles(plan_file)
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        least = lead_ns // SECOND_NS
        raise PlanError(f"--start is less than {least} s from now: the daemons would not be ready")
    plan = plan_file.plan
    if plan.lab is not None and part.only:
        raise plan_file.error("lab", "the lab listens on loopback, which other hosts cannot reach")
    for key in ("ramp", "catch_up", "windows"):
        if part.only and getattr(plan.phases, key):
            raise plan_file.error(f"phases.{key}", "depends on data that only one host has")


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
    """Read probes until `stop` or the end of the run in its phases; return the exit code.

    Raises:
        PlanError: the folder is not a run folder, or belongs to another run.
        SoakError: another process works in the folder.
    """
    with file_lock(_make_run_folder(folder) / "run.lock", "this run folder"):
        run = _enter_run(folder, plan, run, is_joining=is_joining)
        print(f"probing into {folder.path}, run {run.id}; SIGTERM ends it", flush=True)
        with ship_sidecar(folder, plan, ship_options, clock) as sidecar:
            code = RESTART_CODE
            while code == RESTART_CODE and not stop.is_set():  # after a suspend: a new epoch
                code = daemon.run(
                    folder.path, stop, clock, sidecar.poll if sidecar else lambda: None
                )
        remove_metrics_targets(folder.path)
        state = "failed" if code == daemon.FAILED_CODE else "ended"
        if state == "ended" and stop.is_set():
            state = state_when_stopped
        write_run(folder, dataclasses.replace(run, state=state))
    return code


def _make_run_folder(folder: RunFolder) -> Path:
    """Create the folder; an existing one must be empty, a run folder, or contain the folders of joined runs.

    Raises:
        PlanError: it is another kind of folder, or cannot be created.
    """
    path = folder.path
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = [entry for entry in path.iterdir() if not _is_of_runs(entry)]
    except OSError as error:
        raise PlanError(f"--run-dir {path} cannot be used: {error.strerror}") from error
    if inside and not folder.run_json.exists():
        raise PlanError(f"--run-dir {path} is not empty and not a run folder")
    return path


def _is_of_runs(entry: Path) -> bool:
    return entry.suffix == ".lock" or (entry / "run.json").exists()


def _enter_run(folder: RunFolder, plan: ProbePlan, run: Run, *, is_joining: bool) -> Run:
    """Store plan and run in the folder; resume the run that is in it, unless another one is joined.

    Raises:
        PlanError: the folder belongs to another run.
    """
    if folder.run_json.exists():
        before = read_run(folder)
        is_same = not is_joining or (before.id, before.start_wall_ns) == (
            run.id,
            run.start_wall_ns,
        )
        if before.name != plan.name or not is_same:
            raise PlanError(
                f"--run-dir {folder.path} belongs to run {before.id} of plan {before.name}"
            )
        run = dataclasses.replace(before, state="running")
    write_plan(folder, plan)
    write_run(folder, run)
    return run


@contextlib.contextmanager
def ship_sidecar(
    folder: RunFolder, plan: ProbePlan, options: Sequence[str], clock: Clock
) -> Iterator[Sidecar | None]:
    """Ship the records in a process of its own, if the plan has a `ship` section."""
    if plan.ship is None:
        yield None
        return
    sidecar = _start_shipping(folder, options, clock)
    try:
        yield sidecar
    finally:
        sidecar.close()


def _start_shipping(folder: RunFolder, options: Sequence[str], clock: Clock) -> Sidecar:
    log = None if is_journal_stream() else folder.logs / "ship.log"
    return Sidecar(("ship", "--run-dir", str(folder.path), *options), log, clock)


def run_announced(
    plan: ProbePlan, ship: Ship, home: Path, stop: threading.Event, clock: Clock
) -> int:
    """Resume the interrupted run of this host, or join the next announced one; return the exit code.

    It ends with that run; its unit starts it again to wait for the next.

    Raises:
        SoakError: another process uses this plan here, the folder cannot be created, or there is no space.
    """
    runs = JoinedRuns(home.absolute(), plan.name)
    _make_home(runs.home)
    with (
        host.full_drive_errors(runs.home, PROBE_SPACE),
        file_lock(runs.home / f"{plan.name}.lock", "the probes of this plan"),
    ):
        run = runs.unfinished(clock.wall_ns()) or _await_announced_run(
            plan, ship, runs, stop, clock
        )
        if run is None:
            return 0
        runs.trim(ship.buffer, keep=run.id)
        folder = runs.folder_of(run.id)
        PlanHome(runs.home).set_current(folder)  # Prometheus finds the metrics page there
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
    """Wait for an announced run, create its folder and return it; None after `stop`."""
    where = f"topic {ship.topic} at {ship.bootstrap_servers}"
    print(f"waiting for an announced run of plan {plan.name} on {where}", flush=True)
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
    """Ship in the meantime the records of the last run that the cluster did not accept in time."""
    unsent = [folder for folder, _ in runs.joined()[-1:] if has_unsent(folder, host_name())]
    if not unsent:
        yield lambda: None
        return
    sidecar = _start_shipping(unsent[0], (), clock)
    try:
        yield sidecar.poll
    finally:
        sidecar.close()


def load_any_plan(path: Path) -> AnyPlan:
    """Return the plan of a run or of a probe host.

    Raises:
        PlanError: the file cannot be read, or the plan is wrong.
    """
    return _load(path)[0]


def load_probe_plan(path: Path) -> tuple[ProbePlan, Document] | None:
    """Return the plan of a probe host and its text; None if the file is the plan of a run.

    Raises:
        PlanError: the plan of a probe host is wrong.
    """
    path = plan_files.plan_path(path)
    text = plan_files.read_plan_text(path)
    value = parse_yaml(text, str(path)).value
    if not isinstance(value, dict) or "probes" not in value or value.keys() & _RUN_SECTIONS:
        return None
    plan, document = _parse_any_plan(text, str(path))
    return (plan, document) if isinstance(plan, ProbePlan) else None


def run_probe_host(
    path: Path,
    run_dir: Path | None,
    run_id: str,
    start: str,
    stop: threading.Event,
    clock: Clock,
) -> int:
    """Read the probes of a plan until `stop` or the end of the joined run; return the exit code.

    Raises:
        PlanError: before the first side effect.
        SoakError: another process works in the folder.
    """
    plan, document = _load(path)
    if not isinstance(plan, ProbePlan):
        raise document.error(
            ("broker",), "makes this the plan of a run: use `soak run --only probe` for its probes"
        )
    raise_combined([*probe_folder_faults(plan, document), *probe_setting_faults(plan, document)])
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
    path = plan_files.plan_path(path)
    return _parse_any_plan(plan_files.read_plan_text(path), str(path))


def _parse_any_plan(text: str, name: str) -> tuple[AnyPlan, Document]:
    """Return the plan of a run or of a probe host, and its document.

    Raises:
        PlanError: the plan is wrong; with every fault of the first section that has one.
    """
    try:
        return plan_text.load_any(text, name)
    except PlanError as error:
        raise combined((error, *error.others)) from None


def print_readings(plan: Path | None, run_dir: Path | None, directory: Path, clock: Clock) -> None:
    """Read and print the probes of a plan or of a run; without either, every probe with its defaults."""
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
