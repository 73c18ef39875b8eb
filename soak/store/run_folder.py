"""Where things lie in a run folder, and the small files that describe the run."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from soak.core import plan_text
from soak.core.errors import RunFolderError
from soak.core.plan import Plan
from soak.core.plan_probe import AnyPlan
from soak.core.plan_text import PlanFile


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


def write_atomically(path: Path, text: str, mode: int = 0o640) -> None:
    """Replace `path` by a file of this text, on disk before it takes the name.

    Raises:
        OSError: with the path; what was there is there still, and nothing beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a full drive would get one more with each try
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def permitted(path: Path) -> Iterator[None]:
    """Write `path` in the block, and tell where that is not ours to do.

    Raises:
        RunFolderError: instead of the system's refusal; other errors stay what they are.
    """
    try:
        yield
    except PermissionError as error:
        raise RunFolderError(f"cannot write {path}: permission denied") from error


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for as long as the block runs; the kernel frees it with the process.

    Raises:
        RunFolderError: another process holds it, or we may not write there.
    """
    with permitted(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "another process"
            raise RunFolderError(f"{what} is in use by process {holder} ({path})") from error
        with suppress(
            OSError
        ):  # who holds it is for the reader: on a full drive it holds all the same
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """Return the process that holds a lock file; None as long as it has not said so, or cannot."""
    try:
        said = path.read_text().strip()
    except FileNotFoundError:
        return None
    return int(said) if said.isdecimal() else None


def is_held(path: Path) -> bool:
    """True while a process holds the lock file `path`.

    Raises:
        RunFolderError: we may not ask, as we may not write there.
    """
    try:
        with permitted(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
