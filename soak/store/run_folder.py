"""A run folder: the paths in it, and its small files.

The small files are run.json, plan.yaml, phases.jsonl, the load profile, the created topics, the sender id,
drive checks and acknowledged incidents. Journals, findings and reports have modules of their own.
"""

from __future__ import annotations

import json
import platform
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from soak.core.cluster.drives import Measured, from_json, to_json
from soak.core.errors import PlanError, RunFolderError
from soak.core.plan import text as plan_text
from soak.core.plan.config import FormerNameWarning
from soak.core.plan.phases import Phases, parse_phases
from soak.core.plan.plan import AnyPlan, Plan
from soak.core.plan.rates import Point, parse_rate_table
from soak.core.plan.text import PlanFile
from soak.service.files import (
    read_json,
    read_small,
    read_small_text,
    reporting_permission_errors,
    write_atomically,
)


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
        """Return the durability that the target guaranteed when the load began."""
        return self.path / "durability.json"

    @property
    def forecast(self) -> Path:
        """Return the forecast of retention deletions and of the space that the run needs."""
        return self.path / "forecast.json"

    @property
    def anchors(self) -> Path:
        """Return the folder with the start of the run on the clocks of each host."""
        return self.path / "anchors"

    @property
    def begin(self) -> Path:
        """Return the start offsets by partition, in topics that the run did not create."""
        return self.path / "begin.json"

    @property
    def topics(self) -> Path:
        """Return the list of the topics that the run created."""
        return self.path / "topics.json"

    @property
    def acknowledged(self) -> Path:
        """Return the notes of incidents that are known changes."""
        return self.path / "acknowledged.json"

    @property
    def stop_request(self) -> Path:
        """Return the file that asks the conductor to stop the run in order."""
        return self.path / "stop"

    @property
    def drives(self) -> Path:
        """Return the folder of drive checks, a file a host."""
        return self.path / "drives"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def refused(self) -> Path:
        """Return the folder of what was refused, a file a daemon; see `soak.store.admission`."""
        return self.path / "refused"

    @property
    def findings(self) -> Path:
        return self.path / "findings.db"

    @property
    def spark(self) -> Path:
        return self.path / "spark"

    @property
    def checkpoint(self) -> Path:
        """Return the streaming checkpoint of the detector."""
        return self.spark / "checkpoint"

    @property
    def attribution(self) -> Path:
        """Return the file of what the detector has found and attribution has not come to."""
        return self.spark / "attribution.db"

    @property
    def report(self) -> Path:
        return self.path / "report" / "index.html"

    @property
    def summary(self) -> Path:
        return self.path / "report" / "summary.json"

    @property
    def overview(self) -> Path:
        """Return what the chart of the mail about the run's end shows."""
        return self.path / "report" / "overview.json"

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
    """The contents of `run.json`."""

    id: str
    start_wall_ns: int
    host: str
    versions: dict[str, str]
    state: str  # beginning, running, ended, interrupted, failed
    name: str = ""
    only: tuple[str, ...] = ()  # the daemons of this host; empty for all of them
    own_brokers: tuple[str, ...] = ()  # addresses of the measured cluster that are those of `host`
    brokers: tuple[str, ...] = ()  # addresses that the measured cluster listed at the start


_LISTS = ("only", "own_brokers", "brokers")


def write_run(folder: RunFolder, run: Run) -> None:
    """Replace `run.json`; a reader sees the old or the new file, never a part."""
    body = {slot: getattr(run, slot) for slot in Run.__slots__}
    for key in _LISTS:
        if not body[key]:  # older programs do not know these keys
            del body[key]
    write_atomically(folder.run_json, json.dumps(body, indent=2) + "\n")


def own_versions() -> dict[str, str]:
    """Return the versions of this program and of Python, for `Run.versions`."""
    return {"soakd": version("soakd"), "python": platform.python_version()}


def run_topic(run_id: str) -> str:
    """Return the name of a run's topic where its plan gives none."""
    return f"soak-{run_id}"


def read_run(folder: RunFolder) -> Run:
    """Return the contents of `run.json`.

    Raises:
        RunFolderError: this is no run folder, a newer version wrote it, or the file is damaged or unreadable.
    """
    try:
        body = read_json(folder.run_json)
        newer = sorted(set(body) - set(Run.__slots__))
        if newer:
            raise RunFolderError(
                f"{folder.run_json} has unknown keys: {', '.join(newer)}. It is damaged, or a "
                "newer version of soakd wrote it: use that version"
            )
        return _checked(Run(**body))
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder.path} is not a run folder: it has no run.json") from error
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.run_json}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{folder.run_json} is damaged: {error}") from error


def _checked(run: Run) -> Run:
    """Return what was read, if each value is what a run has; raises `ValueError` for one that is not."""
    texts = {name: getattr(run, name) for name in ("id", "host", "state", "name")}
    if not isinstance(run.versions, dict):
        raise ValueError("versions is no table")  # noqa: TRY004  # of a file, not a caller
    texts |= {f"versions.{key}": value for key, value in run.versions.items()}
    for name in _LISTS:
        several = getattr(run, name)
        if not isinstance(several, list | tuple):
            raise ValueError(f"{name} is no list")  # noqa: TRY004  # as above
        texts |= {f"{name}.{at}": value for at, value in enumerate(several)}
    for name, text in texts.items():
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            raise ValueError(f"{name} is no text of at most {_MAX_TEXT} characters")
    if type(run.start_wall_ns) is not int or not 0 <= run.start_wall_ns < _MAX_WALL_NS:
        raise ValueError("start_wall_ns is no time of this century or the last")
    only, own_brokers, brokers = map(tuple, (run.only, run.own_brokers, run.brokers))
    return replace(run, only=only, own_brokers=own_brokers, brokers=brokers)


def read_plan(folder: RunFolder) -> Plan:
    """Return the resolved plan of a run.

    Raises:
        RunFolderError: the folder has none, or it is unreadable.
        PlanError: it is damaged.
    """
    return read_plan_file(folder).plan


def read_plan_file(folder: RunFolder) -> PlanFile:
    """Return the resolved plan of a run with the lines of its keys; raises the errors of `read_plan`."""
    with _without_former_name_warnings():
        return plan_text.load(_plan_text(folder), str(folder.plan))


def read_any_plan(folder: RunFolder) -> AnyPlan:
    """Return the resolved plan of a run or of a probe host.

    Raises:
        RunFolderError: the folder has none, or it is unreadable.
        PlanError: it is damaged.
    """
    with _without_former_name_warnings():
        return plan_text.load_any(_plan_text(folder), str(folder.plan))[0]


def write_plan(folder: RunFolder, plan: AnyPlan) -> None:
    """Write `plan.yaml`. The group may read it, as all files of a run: it holds no secret."""
    write_atomically(folder.plan, plan_text.dump(plan))


@contextmanager
def _without_former_name_warnings() -> Iterator[None]:
    """Accept former keys silently: soakd wrote the plan of a run, so its user has nothing to change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormerNameWarning)
        yield


def _plan_text(folder: RunFolder) -> str:
    try:
        return read_small_text(folder.plan)
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder.path} is not a run folder: it has no plan.yaml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(f"cannot read {folder.plan}: {error}") from error


_MAX_TEXT = 1000
_MAX_WALL_NS = 4_102_444_800 * 10**9  # the year 2100
_PARSE_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


def read_phases(path: Path) -> Phases:
    """Return the decisions of the conductor so far; none where the file does not exist.

    Raises:
        RunFolderError: the file is damaged or unreadable.
    """
    with reporting_damage(path):
        return parse_phases(read_small_text(path)) if path.exists() else Phases()


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Turn any error of a parser within the block into one that names the file.

    Raises:
        RunFolderError: the file is damaged or unreadable.
    """
    try:
        yield
    except _PARSE_ERRORS as error:
        reason = error or type(error).__name__
        raise RunFolderError(f"{path} is damaged or unreadable: {reason}") from error


def read_profile(path: Path) -> tuple[Point, ...]:
    """Return the rates in the CSV file of a load profile.

    Raises:
        PlanError: the file is unreadable, or one of its lines is wrong.
    """
    return parse_rate_table(_profile_text(path), str(path))


def copy_profile(path: Path, folder: RunFolder) -> None:
    """Copy a load profile into the run folder, where the daemons read it even if the original changes.

    Raises:
        PlanError: the file is unreadable.
    """
    write_atomically(profile_path(folder), _profile_text(path))


def rate_table(plan: Plan, folder: RunFolder) -> tuple[Point, ...]:
    """Return the rates in the load profile of a run; none where its plan names no file.

    Raises:
        PlanError: the copy in the run folder is unreadable.
    """
    return read_profile(profile_path(folder)) if plan.load.profile.file else ()


def profile_path(folder: RunFolder) -> Path:
    return folder.path / "profile.csv"


def _profile_text(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the load profile: {error}") from error


def ensure_sender_id(folder: RunFolder) -> str:
    """Return the random id of the run folder; the first call creates it.

    It distinguishes two hosts of the same name. It survives reboots, and a recreated folder gets a new one.
    """
    known = read_sender_id(folder)
    if not known:
        known = secrets.token_hex(8)
        write_atomically(folder.path / "sender", known + "\n")
    return known


def read_sender_id(folder: RunFolder) -> str:
    """Return the random id of the run folder, or "" if nothing was shipped from it yet."""
    try:
        return read_small_text(folder.path / "sender").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True, slots=True)
class CreatedTopics:
    """The topics that a run requested and those that it created; written before and after creation.

    A name alone is no proof of ownership: another topic of that name may have been created since.
    """

    mark: str = ""  # stored in the topic where the cluster supports that
    asked: tuple[str, ...] = ()
    made: Mapping[str, str] = field(default_factory=dict)  # name to the id in the cluster, or ""
    has_own_names: bool = (
        False  # they contain the random id of the run, so no other program uses them
    )

    def is_own(self, name: str, identity: str) -> bool:
        """True when the topic that has this name and identity now was created by the run."""
        if name not in self.asked:
            return False
        known = self.made.get(name, "")
        if identity and known:
            return identity == known
        return self.has_own_names or (identity != "" and identity == self.mark)

    def with_made(self, identities: Mapping[str, str]) -> CreatedTopics:
        return replace(self, made={**self.made, **identities})


def read_created_topics(folder: RunFolder) -> CreatedTopics:
    """Return the topics that a run created; none where the file does not exist.

    Raises:
        RunFolderError: the file is damaged or cannot be read.
    """
    try:
        body = read_json(folder.topics)
        found = CreatedTopics(**{**body, "asked": tuple(body["asked"]), "made": dict(body["made"])})
        "".join((found.mark, *found.asked, *found.made, *found.made.values()))  # all are texts
    except FileNotFoundError:
        return CreatedTopics()
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.topics}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{folder.topics} is damaged: {error}") from error
    return found


def write_created_topics(folder: RunFolder, made: CreatedTopics) -> None:
    write_atomically(folder.topics, json.dumps(asdict(made), indent=2) + "\n")


def read_acknowledged(folder: RunFolder) -> dict[str, str]:
    """Return the notes of acknowledged incidents by key.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder.acknowledged
    try:
        body = read_json(path)
        return {str(one["incident"]): str(one["note"]) for one in body}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error


def counting_incidents(
    summary: Mapping[str, Any], notes: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return the incidents of a `summary.json` that count in its verdict, and are not acknowledged."""
    return [
        one
        for one in summary["findings"]
        if one.get("is_counted", one.get("is_about_cluster"))
        and one.get("state") != "warning"
        and one.get("key") not in notes
    ]


def counting_verdict(summary: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Return the verdict of a `summary.json` without its acknowledged incidents."""
    found = str(summary["verdict"])
    if counting_incidents(summary, notes) or dict(summary.get("audit") or {}).get("lost"):
        return found
    is_missed = any(
        one.get("kind") == "objective"
        and one.get("state") != "warning"
        and one.get("key") not in notes
        for one in summary["findings"]
    )
    is_known = any(one.get("key") in notes for one in summary["findings"])
    if not is_known or is_missed:
        return "inconclusive" if found == "regressed" else found
    return str(summary.get("verdict_without_incidents", "clean" if found == "regressed" else found))


def append_drive_checks(folder: RunFolder, several: list[Measured]) -> None:
    """Add drive checks to the files of their hosts, `drives/<host>.json`.

    Raises:
        RunFolderError: a file is damaged, or this user may not write it.
    """
    for host in dict.fromkeys(one.host for one in several):
        path = folder.drives / f"{host}.json"
        with reporting_permission_errors(path):
            kept = _read_drive_file(path) if path.exists() else []
            kept += [one for one in several if one.host == host]
            body = {"drives": [to_json(one) for one in kept]}
            write_atomically(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_drive_checks(folder: RunFolder) -> list[Measured]:
    """Return the drive checks of all hosts in order of time.

    Raises:
        RunFolderError: a file is damaged.
    """
    paths = sorted(folder.drives.glob("*.json"))
    found = [one for path in paths for one in _read_drive_file(path)]
    return sorted(found, key=lambda one: one.at_wall_ns)


def _read_drive_file(path: Path) -> list[Measured]:
    try:
        return [from_json(one) for one in read_json(path)["drives"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
