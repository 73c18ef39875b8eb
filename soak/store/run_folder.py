"""Paths of a run folder, and its small files: run.json, plan.yaml, phases.jsonl, the load profile, created topics and drive checks."""

from __future__ import annotations

import json
import platform
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from soak.core.cluster.drives import Measured, from_json, to_json
from soak.core.errors import PlanError, RunFolderError
from soak.core.phases import Phases, parse_phases
from soak.core.plan import text as plan_text
from soak.core.plan.plan import AnyPlan, Plan
from soak.core.plan.rates import Point, parse_rate_table
from soak.core.plan.text import PlanFile
from soak.service.files import reporting_permission_errors, write_atomically


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths only; nothing is created by looking."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.yaml"

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def phases(self) -> Path:
        return self.path / "phases.jsonl"

    @property
    def durability(self) -> Path:
        """Return what the target promised when the load began."""
        return self.path / "durability.json"

    @property
    def forecast(self) -> Path:
        """Return when retention was foreseen to delete, and how much was to be held."""
        return self.path / "forecast.json"

    @property
    def anchors(self) -> Path:
        """Return the folder of where the run's start lies on each host's clocks."""
        return self.path / "anchors"

    @property
    def begin(self) -> Path:
        """Return where reading begins, by partition, in topics that the run did not make."""
        return self.path / "begin.json"

    @property
    def topics(self) -> Path:
        """Return what is noted of the topics that the run made."""
        return self.path / "topics.json"

    @property
    def stop_request(self) -> Path:
        """Return the file that asks the conductor to end the run in order."""
        return self.path / "stop"

    @property
    def drives(self) -> Path:
        """Return the folder of what the brokers' drives could do, a file a host."""
        return self.path / "drives"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def findings(self) -> Path:
        return self.path / "findings.db"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    @property
    def checkpoint(self) -> Path:
        """Return where the detector's stream keeps how far it has come."""
        return self.spark / "checkpoint"

    @property
    def report(self) -> Path:
        return self.path / "report" / "index.html"

    @property
    def summary(self) -> Path:
        return self.path / "report" / "summary.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def lab(self) -> Path:
        return self.path / "lab"

    @property
    def faults(self) -> Path:
        return self.lab / "faults.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """What `run.json` says of a run."""

    id: str
    start_wall_ns: int
    host: str
    versions: dict[str, str]
    state: str  # beginning, running, ended, interrupted, failed
    name: str = ""
    only: tuple[str, ...] = ()  # the daemons of this host; empty: it does all of the run


def write_run(folder: RunFolder, run: Run) -> None:
    """Write `run.json` so that a reader sees the old or the new one, never a part."""
    body = {slot: getattr(run, slot) for slot in Run.__slots__}
    if not run.only:  # what a program reads that knows of no parts
        del body["only"]
    write_atomically(folder.run_json, json.dumps(body, indent=2) + "\n")


def own_versions() -> dict[str, str]:
    """Return what a run is begun with, as `Run.versions` has it."""
    return {"soakd": version("soakd"), "python": platform.python_version()}


def read_run(folder: RunFolder) -> Run:
    """Return what `run.json` says.

    Raises:
        RunFolderError: this is not a run folder, a newer program wrote it, or the file is damaged or cannot
            be read.
    """
    try:
        body = json.loads(folder.run_json.read_text())
        newer = sorted(set(body) - set(Run.__slots__))
        if newer:
            raise RunFolderError(
                f"{folder.run_json} says {', '.join(newer)}, which this program does not know: a newer one "
                "wrote it, or it is damaged"
            )
        run = Run(**body)
        return replace(run, only=tuple(map(str, run.only)))
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder.path} is not a run folder: it has no run.json") from error
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.run_json}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{folder.run_json} is damaged: {error}") from error


def read_plan(folder: RunFolder) -> Plan:
    """Return the resolved plan of a run.

    Raises:
        RunFolderError: there is none, or it cannot be read.
        PlanError: it is damaged.
    """
    return read_plan_file(folder).plan


def read_plan_file(folder: RunFolder) -> PlanFile:
    """Return the resolved plan of a run, with the places of its keys; raises as `read_plan`."""
    return plan_text.load(_plan_text(folder), str(folder.plan))


def read_any_plan(folder: RunFolder) -> AnyPlan:
    """Return the resolved plan of a run, or of a host that only probes.

    Raises:
        RunFolderError: there is none, or it cannot be read.
        PlanError: it is damaged.
    """
    return plan_text.load_any(_plan_text(folder), str(folder.plan))[0]


def write_plan(folder: RunFolder, plan: AnyPlan) -> None:
    """Write `plan.yaml`, readable for the group as all of a run, since it holds no secret."""
    write_atomically(folder.plan, plan_text.dump(plan))


def _plan_text(folder: RunFolder) -> str:
    try:
        return folder.plan.read_text()
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder.path} is not a run folder: it has no plan.yaml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"cannot read {folder.plan}: {error}") from error


# --- Reads what the conductor decided, whole; `soak.runtime.context.PhaseFile` follows it as it grows.

_PARSE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


def read_phases(path: Path) -> Phases:
    """Return the decisions so far; none where there is no file.

    Raises:
        RunFolderError: it is damaged, or cannot be read.
    """
    with reporting_damage(path):
        return parse_phases(path.read_text()) if path.is_file() else Phases()


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Turn what a file that is not ours makes of a parser for ours into an error that names it."""
    try:
        yield
    except _PARSE_ERRORS as error:
        reason = error or type(error).__name__
        raise RunFolderError(f"{path} is damaged or cannot be read: {reason}") from error


# --- The CSV file of a load profile: where the plan names it, and its copy in the run folder.


def read_profile(path: Path) -> tuple[Point, ...]:
    """Return the rates in a file.

    Raises:
        PlanError: it cannot be read, or a line of it is wrong.
    """
    return parse_rate_table(_profile_text(path), str(path))


def copy_profile(path: Path, folder: RunFolder) -> None:
    """Copy the file into the run folder: the run's daemons read it there, whatever becomes of the original.

    Raises:
        PlanError: it cannot be read.
    """
    write_atomically(profile_path(folder), _profile_text(path))


def rate_table(plan: Plan, folder: RunFolder) -> tuple[Point, ...]:
    """Return the rates of a run's copy of the load profile; none where the plan names no file.

    Raises:
        PlanError: the copy cannot be read.
    """
    return read_profile(profile_path(folder)) if plan.load.profile.file else ()


def profile_path(folder: RunFolder) -> Path:
    return folder.path / "profile.csv"


def _profile_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the load profile: {error}") from error


# --- Who sends: an id of a run folder's own, by which hosts that are called alike are told apart.
# It stays as long as the folder, whatever boots in between, and a folder that is made anew has another.


def ensure_sender_id(folder: RunFolder) -> str:
    """Return the folder's id; it gets one with the first call."""
    known = read_sender_id(folder)
    if not known:
        known = secrets.token_hex(8)
        write_atomically(folder.path / "sender", known + "\n")
    return known


def read_sender_id(folder: RunFolder) -> str:
    """Return the folder's id, or "" while nothing was sent from it."""
    try:
        return (folder.path / "sender").read_text().strip()
    except OSError:
        return ""


# --- Which topics a run made: noted before they are asked for, and once the cluster has said that it has
# them.
# A name alone proves nothing: somebody may have made a topic of it since.


@dataclass(frozen=True, slots=True)
class CreatedTopics:
    """What is known of them; `made` holds what the cluster told of each to know it by, or ""."""

    mark: str = ""  # what they bear where a cluster lets a topic bear something
    asked: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)
    has_own_names: bool = False  # they hold a run's random id, so nobody else gives them

    def is_own(self, name: str, identity: str) -> bool:
        """True when the topic that has this name and identity now is one that the run made."""
        if name not in self.asked:
            return False
        known = self.made.get(name, "")
        if identity and known:
            return identity == known
        return self.has_own_names or (identity != "" and identity == self.mark)

    def with_made(self, identities: Mapping[str, str]) -> CreatedTopics:
        return replace(self, made={**self.made, **identities})


def read_created_topics(folder: RunFolder) -> CreatedTopics:
    """Return what was noted; of a run that made none, or before there were notes, nothing.

    Raises:
        RunFolderError: the file is damaged or cannot be read.
    """
    try:
        body = json.loads(folder.topics.read_text())
        return CreatedTopics(**{**body, "asked": tuple(body["asked"]), "made": dict(body["made"])})
    except FileNotFoundError:
        return CreatedTopics()
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.topics}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{folder.topics} is damaged: {error}") from error


def write_created_topics(folder: RunFolder, made: CreatedTopics) -> None:
    write_atomically(folder.topics, json.dumps(asdict(made), indent=2) + "\n")


# --- The drive checks of a run: a file a host, `drives/<host>.json`, so that several hosts' can be joined.


def append_drive_checks(folder: RunFolder, several: list[Measured]) -> None:
    """Add what was measured on one host.

    Raises:
        RunFolderError: what is there is damaged, or we may not write there.
    """
    for host in dict.fromkeys(one.host for one in several):
        path = folder.drives / f"{host}.json"
        with reporting_permission_errors(path):
            kept = _read_drive_file(path) if path.exists() else []
            kept += [one for one in several if one.host == host]
            body = {"drives": [to_json(one) for one in kept]}
            write_atomically(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_drive_checks(folder: RunFolder) -> list[Measured]:
    """Return what was measured on all hosts, in order of time; empty where nobody looked.

    Raises:
        RunFolderError: a file is damaged.
    """
    paths = sorted(folder.drives.glob("*.json"))
    found = [one for path in paths for one in _read_drive_file(path)]
    return sorted(found, key=lambda one: one.at_wall_ns)


def _read_drive_file(path: Path) -> list[Measured]:
    try:
        return [from_json(one) for one in json.loads(path.read_text())["drives"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
