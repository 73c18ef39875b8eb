"""A drill file: a plan, a fault that is injected into its run, and what the detector is expected to find."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass

from detectors import attribution
from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan.config import STRICT, FormerName, check_between
from soak.core.plan.phases import Phases, drain_k
from soak.core.plan.plan import Lab, Plan
from soak.core.plan.text import (
    MAX_CHARACTERS,
    Document,
    KeyPath,
    PlanFile,
    parse_yaml,
    validated,
)
from soak.core.units import SECOND_NS, Duration, format_duration
from soak.core.wording import state_word
from soak.lab.faults import all_faults, find_fault

_BROKER_KEYS = ("node", "onto")
"""Keys of faults that name a broker by its place from 1; 0 means none in particular, if it is the default."""

_NO_FILE = Document("", None, {})
_FINGERPRINT_LETTERS = 12
JITTER_SECONDS = 15
_RETENTION_MS, _RETENTION_MIB = "retention.ms", "retentionSizeInMB"  # of Kafka, and of Pulsar
_FORMER_KEYS = {"resolved_within": "gone_within", "until_lifted": "lasts"}


NOTHING = "nothing"
"""The expected cause of a quiet run: no confirmed finding about the cluster."""

UNKNOWN, CLIENT = "unknown", "client"
"""Causes that do not blame the cluster: the first blames nothing, the second our own daemons."""

State = Literal["confirmed", "resolved"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Expectation:
    """What must be found; 0 and "" are not judged, except for `lost` and `duplicated`."""

    cause: str
    state: Annotated[State, BeforeValidator(state_word)] = "confirmed"
    onset_within: Duration = 5 * SECOND_NS  # of the onset of the fault, before or after it
    alert_within: Duration = 0  # of the onset of the fault, until people are notified
    # Of the lifting, until the finding is resolved.
    resolved_within: Annotated[Duration, FormerName("gone_within")] = 0
    # Whether the finding must not be resolved before the lifting.
    until_lifted: Annotated[bool, FormerName("lasts")] = True
    pool_within: float = 0.0  # share of the drive's pool: bytes written at the onset
    metric: str = ""  # that must have stepped too
    outcome: str = ""  # of a phase, such as `never drains`
    event: str = ""  # kind of an event that must come within `onset_within` of the fault
    lost: int = 0
    duplicated: int = 0

    def __post_init__(self) -> None:
        check_between(self, "pool_within", 0, 1)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """The place of the drill's step in a table of the steps of several drills."""

    table: str
    row: str
    column: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _File:
    plan: str
    fault: dict[str, Any]
    expect: Expectation
    begin: Duration = 0  # from the start of the run, including its warm-up; 0s: before the load
    length: Duration = 0  # 0s: to the end of the run
    description: str = dataclasses.field(default="")
    given: tuple[dict[str, Any], ...] = ()  # faults that are active during the whole run
    cell: Cell | None = None

    def __post_init__(self) -> None:
        if self.begin < 0 or self.length < 0:
            raise ValueError("begin and length must not be below 0s")
        if self.expect.resolved_within and not self.length:
            raise ValueError("expect.resolved_within needs a length: the fault is never lifted")


@dataclasses.dataclass(frozen=True, slots=True)
class Drill:
    """A drill file as loaded; the file `plan` exists."""

    name: str
    description: str
    plan: Path
    fault_kind: str
    fault: Any  # its configuration
    expect: Expectation
    begin_ns: int = 0
    length_ns: int = 0
    cell: Cell | None = None
    given: tuple[tuple[str, Any], ...] = ()  # kinds and configurations
    document: Document = dataclasses.field(default=_NO_FILE, repr=False, compare=False)


def load(path: Path) -> Drill:
    """Return the drill in a file; its plan is relative to it.

    Raises:
        PlanError: with file, line and key of the first error.
    """
    try:
        text = _read_start(path)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the drill: {error}") from error
    document = parse_yaml(text, str(path))
    if not isinstance(document.value, dict):
        raise document.error((), "a drill is a mapping with the keys plan, fault and expect")
    file: _File = validated(_File, document.value, document, ())
    _check_cause(file.expect.cause, document)
    plan = path.parent / file.plan
    if not plan.is_file():
        raise document.error(("plan",), f"there is no file {plan}")
    kind, config = _fault(file.fault, document, ("fault",))
    given = tuple(_fault(one, document, ("given", at)) for at, one in enumerate(file.given))
    about = path.stem, file.description, plan, kind, config, file.expect
    return Drill(*about, file.begin, file.length, file.cell, given, document)


def _read_start(path: Path) -> str:
    """Return the text of a file; of one that is larger than any drill or plan, enough to be refused."""
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_CHARACTERS + 1)


def fingerprint(drill: Drill) -> str:
    """Return a short digest of a drill and its plan; results with another one are of a different drill.

    Keys that were renamed count under their former names, so that earlier results stay comparable.
    """
    own = {key: value for key, value in drill.document.value.items() if key != "description"}
    own["expect"] = {
        _FORMER_KEYS.get(key, key): "gone" if value == "resolved" else value
        for key, value in own["expect"].items()
    }
    plan = parse_yaml(_read_start(drill.plan), str(drill.plan)).value
    text = json.dumps([own, plan], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_LETTERS]


def declaration(drill: Drill, *, at_wall_ns: int) -> dict[str, object]:
    """Return the first line of the fault log: the faults with their full configurations."""
    return {
        "drill": drill.name,
        "fault": drill.fault_kind,
        "config": _as_json(drill.fault),
        "given": [{"fault": kind, "config": _as_json(config)} for kind, config in drill.given],
        "at_wall_ns": at_wall_ns,
    }


def _check_cause(cause: str, document: Document) -> None:
    known = [NOTHING, *attribution.causes()]
    if cause not in known:
        hint = plugins.nearest(cause, known)
        raise document.error(("expect", "cause"), f"unknown cause{hint}")


def _as_json(config: Any) -> object:  # noqa: ANN401  # a fault's own
    return TypeAdapter(type(config)).dump_python(config, mode="json")


def _fault(section: dict[str, Any], document: Document, place: KeyPath) -> tuple[str, Any]:
    kind, known = str(section.get("kind")), all_faults()
    if kind not in known:
        hint = plugins.nearest(kind, list(known))
        raise document.error((*place, "kind"), f"unknown fault{hint}")
    rest = {key: value for key, value in section.items() if key != "kind"}
    return kind, validated(known[kind].config, rest, document, place)


def check_fit(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a drill that its plan's lab or length does not allow.

    Raises:
        PlanError: with file, line and key, of the plan if it has no lab, else of the drill.
    """
    lab = plan_file.plan.lab
    if lab is None:
        raise plan_file.error(
            "lab",
            f"is missing: the drill {found.name} injects its fault only into a lab's own cluster",
        )
    faults: list[tuple[KeyPath, str, Any]] = [(("fault",), found.fault_kind, found.fault)]
    faults += [(("given", at), kind, config) for at, (kind, config) in enumerate(found.given)]
    for place, kind, config in faults:
        _check_fault(found, place, kind, config, lab)
    _check_exclusive(found, faults)
    _check_pool(found, lab)
    _check_begin(found, plan_file)


def _check_fault(
    found: Drill,
    place: KeyPath,
    kind: str,
    config: Any,  # noqa: ANN401  # of any fault
    lab: Lab,
) -> None:
    """Refuse a fault whose broker, drive or relay the lab does not have."""
    usual = type(config)()
    for key in _BROKER_KEYS:
        number = getattr(config, key, None)
        if number is not None and not min(1, getattr(usual, key)) <= number <= lab.nodes:
            raise found.document.error(
                (*place, key),
                f"there is no broker {number}: `lab.nodes` of the plan is {lab.nodes}",
            )
    lack = find_fault(kind).missing_from_lab(lab, config)
    if lack:
        raise found.document.error((*place, "kind"), lack)


def _check_exclusive(found: Drill, faults: Sequence[tuple[KeyPath, str, Any]]) -> None:
    """Refuse two faults that change the same setting, because one would undo the other."""
    set_by: dict[tuple[str, int], str] = {}
    for place, kind, config in faults:
        key = find_fault(kind).exclusive_setting(config)
        if key in set_by:
            text = f"{kind} and {set_by[key]} would both set {key[0]}"
            raise found.document.error((*place, "kind"), text)
        if key is not None:
            set_by[key] = kind


def _check_pool(found: Drill, lab: Lab) -> None:
    """Refuse `pool_within` without an injected drive."""
    number = getattr(found.fault, "node", 0)
    is_there = lab.drive is not None and number in lab.drive.brokers
    if found.expect.pool_within and not is_there:
        raise found.document.error(
            ("expect", "pool_within"),
            "needs an injected drive for the fault's `node`: name it in `lab.drive` of the plan",
        )


def _check_begin(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a fault that begins after the load; the length of a ramp is unknown."""
    phases = plan_file.plan.phases
    end_ns = drain_k(Phases(), phases) * SECOND_NS
    if phases.ramp is None and found.begin_ns >= end_ns:
        raise found.document.error(
            ("begin",),
            f"{format_duration(found.begin_ns)} is too late: the load of {found.plan} ends after "
            f"{format_duration(end_ns)}",
        )


def shifted(found: Drill, plan: Plan, seed: int) -> tuple[Drill, Plan]:
    """Return a drill whose fault has its effect up to `JITTER_SECONDS` later, and a plan with a longer soak.

    A fault with a `begin` begins later. One that is injected before the load has its effect after a limit:
    its own `after`, or the retention of the plan's topic, and that limit is raised. Seed 0 changes nothing,
    nor does any seed if the drill has none of these.
    """
    if not seed:
        return found, plan
    later_ns = int(random.Random(seed).uniform(0, JITTER_SECONDS) * SECOND_NS)
    length_ns = found.length_ns and found.length_ns + later_ns
    if found.begin_ns:
        found = replace(found, begin_ns=found.begin_ns + later_ns)
    elif getattr(found.fault, "after", 0):
        fault = replace(found.fault, after=found.fault.after + later_ns)
        found = replace(found, length_ns=length_ns, fault=fault)
    elif {_RETENTION_MS, _RETENTION_MIB} & plan.topic.settings.keys():
        found, plan = replace(found, length_ns=length_ns), _with_longer_retention(plan, later_ns)
    else:
        return found, plan
    soak_ns = plan.phases.soak + math.ceil(later_ns / SECOND_NS) * SECOND_NS
    return found, replace(plan, phases=replace(plan.phases, soak=soak_ns))


def _with_longer_retention(plan: Plan, later_ns: int) -> Plan:
    """Return a plan whose topic keeps messages for this much longer."""
    settings = dict(plan.topic.settings)
    if _RETENTION_MS in settings:
        settings[_RETENTION_MS] = str(int(settings[_RETENTION_MS]) + later_ns // 10**6)
    else:
        sent = float(plan.load.rate) * plan.load.mean_size * later_ns / SECOND_NS
        settings[_RETENTION_MIB] = str(int(settings[_RETENTION_MIB]) + math.ceil(sent / 2**20))
    return replace(plan, topic=replace(plan.topic, settings=settings))
