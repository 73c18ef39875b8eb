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
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan import phases as phase_plan
from soak.core.plan.config import STRICT, check_between
from soak.core.plan.phases import Phases
from soak.core.plan.plan import Lab, Plan
from soak.core.plan.text import Document, KeyPath, PlanFile, parse_yaml, validated
from soak.core.units import SECOND_NS, Duration, format_duration
from soak.lab.faults.registry import all_faults, find_fault

_CAUSES = "detectors.causes"
_NO_FILE = Document("", None, {})
_FORM_LETTERS = 12


NOTHING = "nothing"
"""The cause that is expected of a quiet run: no confirmed finding about the cluster."""

UNKNOWN, CLIENT = "unknown", "client"
"""Who names the first blames nobody; the second is held against no cluster."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Expectation:
    cause: str
    state: Literal["confirmed", "gone"] = "confirmed"
    onset_within: Duration = 5 * SECOND_NS  # of the moment it was first felt, before or after it
    alert_within: Duration = 0  # of that moment, until people are told; 0s: not judged
    gone_within: Duration = 0  # of the lifting, until it is noticed to be gone; 0s: not judged
    lasts: bool = True  # until it is lifted: what is gone before is not gone in time
    pool_within: float = 0.0  # of the drive's pool, by what was written at the onset; 0: not judged
    metric: str = ""  # that must have stepped too; empty: not judged
    outcome: str = ""  # that a phase must have come to, such as `never drains`; empty: not judged
    event: str = ""  # kind of one that must be told, as soon as the onset; empty: not judged
    lost: int = 0
    duplicated: int = 0

    def __post_init__(self) -> None:
        check_between(self, "pool_within", 0, 1)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """Where the size of the drill's step stands, in a table of those of several drills."""

    table: str
    row: str
    column: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _File:
    plan: str
    fault: dict[str, Any]
    expect: Expectation
    begin: Duration = 0  # from the start of the run, its warm-up included; 0s: before the load
    length: Duration = 0  # 0s: to the end of the run
    description: str = dataclasses.field(default="")
    given: tuple[dict[str, Any], ...] = ()  # faults that are how the cluster is: all the time
    cell: Cell | None = None

    def __post_init__(self) -> None:
        if self.begin < 0 or self.length < 0:
            raise ValueError("begin and length must not be below 0s")
        if self.expect.gone_within and not self.length:
            raise ValueError("expect.gone_within needs a length: nothing goes that is never lifted")


@dataclasses.dataclass(frozen=True, slots=True)
class Drill:
    """A drill file as loaded; `plan` is a path that exists."""

    name: str
    description: str
    plan: Path
    fault_kind: str
    fault: Any  # the fault's own Config
    expect: Expectation
    begin_ns: int = 0
    length_ns: int = 0
    cell: Cell | None = None
    given: tuple[tuple[str, Any], ...] = ()  # kinds and Configs of what is there before the load
    document: Document = dataclasses.field(default=_NO_FILE, repr=False, compare=False)


def load(path: Path) -> Drill:
    """Return the drill of a file; its plan is looked for beside it.

    Raises:
        PlanError: with file, line and key of the first fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
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


def fingerprint(drill: Drill) -> str:
    """Return a short digest of what a drill and its plan say; runs of two forms are no runs of one drill."""
    own = {key: value for key, value in drill.document.value.items() if key != "description"}
    plan = parse_yaml(drill.plan.read_text(encoding="utf-8"), str(drill.plan)).value
    text = json.dumps([own, plan], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_FORM_LETTERS]


def declaration(drill: Drill, *, at_wall_ns: int) -> dict[str, object]:
    """Return the first line of the fault log: what is done to the run, in full."""
    return {
        "drill": drill.name,
        "fault": drill.fault_kind,
        "config": _written(drill.fault),
        "given": [{"fault": kind, "config": _written(config)} for kind, config in drill.given],
        "at_wall_ns": at_wall_ns,
    }


def _check_cause(cause: str, document: Document) -> None:
    known = [NOTHING, *plugins.names(_CAUSES)]
    if cause not in known:
        hint = plugins.nearest(cause, known)
        raise document.error(("expect", "cause"), f"unknown cause{hint}")


def _written(config: Any) -> object:  # noqa: ANN401  # a fault's own
    return TypeAdapter(type(config)).dump_python(config, mode="json")


def _fault(section: dict[str, Any], document: Document, place: KeyPath) -> tuple[str, Any]:
    kind, known = str(section.get("kind")), all_faults()
    if kind not in known:
        hint = plugins.nearest(kind, list(known))
        raise document.error((*place, "kind"), f"unknown fault{hint}")
    rest = {key: value for key, value in section.items() if key != "kind"}
    return kind, validated(known[kind].config, rest, document, place)


# --- Whether a drill fits its plan, told with file, line and key before anything is started for it.

_BROKERS = ("node", "onto")
"""Keys of faults that name a broker by its place from 1; where 0 is the default it means no certain one."""


def check_fit(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a drill for which its plan's lab or its length is not made.

    Raises:
        PlanError: with file, line and key: of the plan where that has no lab, else of the drill.
    """
    lab = plan_file.plan.lab
    if lab is None:
        raise plan_file.error(
            "lab", f"is missing: the drill {found.name} does harm to no cluster but a lab's own"
        )
    faults: list[tuple[KeyPath, str, Any]] = [(("fault",), found.fault_kind, found.fault)]
    faults += [(("given", at), kind, config) for at, (kind, config) in enumerate(found.given)]
    for place, kind, config in faults:
        _check_fault(found, place, kind, config, lab)
    _check_sole(found, faults)
    _check_pool(found, lab)
    _check_begin(found, plan_file)


def _check_fault(found: Drill, place: KeyPath, kind: str, config: Any, lab: Lab) -> None:  # noqa: ANN401  # its own
    """Refuse a fault whose brokers, drive or network the lab does not have."""
    usual = type(config)()
    for key in _BROKERS:
        number = getattr(config, key, None)
        if number is not None and not min(1, getattr(usual, key)) <= number <= lab.nodes:
            raise found.document.error(
                (*place, key),
                f"there is no broker {number}: `lab.nodes` of the plan is {lab.nodes}",
            )
    lack = find_fault(kind).missing_from_lab(lab, config)
    if lack:
        raise found.document.error((*place, "kind"), lack)


def _check_sole(found: Drill, faults: Sequence[tuple[KeyPath, str, Any]]) -> None:
    """Refuse two faults that set the same: what one does the other would undo."""
    set_by: dict[tuple[str, int], str] = {}
    for place, kind, config in faults:
        key = find_fault(kind).exclusive_setting(config)
        if key in set_by:
            text = f"{kind} and {set_by[key]} would both set {key[0]}"
            raise found.document.error((*place, "kind"), text)
        if key is not None:
            set_by[key] = kind


def _check_pool(found: Drill, lab: Lab) -> None:
    """Refuse to judge by the pool of a drive that is not there."""
    number = getattr(found.fault, "node", 0)
    is_there = lab.drive is not None and number in lab.drive.brokers
    if found.expect.pool_within and not is_there:
        raise found.document.error(
            ("expect", "pool_within"),
            "is of the injected drive under the fault's `node`: name it in `lab.drive` of the plan",
        )


def _check_begin(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a fault that begins when the load is over; how long a ramp takes is not known."""
    phases = plan_file.plan.phases
    end_ns = phase_plan.drain_k(Phases(), phases) * SECOND_NS
    if phases.ramp is None and found.begin_ns >= end_ns:
        raise found.document.error(
            ("begin",),
            f"{format_duration(found.begin_ns)} is too late: the load of {found.plan} ends after "
            f"{format_duration(end_ns)}",
        )


# --- Moves a drill's fault by some seconds, as a seed says, so that no two runs of it are alike.
# A fault that begins at a second begins later. One that is there before the load is felt from a limit on: the
# retention of the plan's topic, or the fault's own `after`; then that limit is moved.

JITTER_SECONDS = 15
_TIME, _SIZE = "retention.ms", "retentionSizeInMB"
"""Kafka's limit, and Pulsar's."""


def shifted(found: Drill, plan: Plan, seed: int) -> tuple[Drill, Plan]:
    """Have the fault felt at most `JITTER_SECONDS` later, and end the soak as much later.

    What follows has its time so. Seed 0 moves nothing, and a drill that has no such limit stays what it is.
    """
    if not seed:
        return found, plan
    later_ns = int(random.Random(seed).uniform(0, JITTER_SECONDS) * SECOND_NS)
    later = found, plan
    if found.begin_ns:
        later = replace(found, begin_ns=found.begin_ns + later_ns), plan
    elif getattr(found.fault, "after", 0):
        fault = replace(found.fault, after=found.fault.after + later_ns)
        later = replace(_lifted_later(found, later_ns), fault=fault), plan
    elif {_TIME, _SIZE} & plan.topic.settings.keys():
        later = _lifted_later(found, later_ns), _kept_longer(plan, later_ns)
    else:
        return later
    soak_ns = plan.phases.soak + math.ceil(later_ns / SECOND_NS) * SECOND_NS
    drill, changed = later
    return drill, replace(changed, phases=replace(plan.phases, soak=soak_ns))


def _lifted_later(found: Drill, later_ns: int) -> Drill:
    """Return a drill whose fault, there from the start of the run, is lifted later, if it is at all."""
    return replace(found, length_ns=found.length_ns + later_ns) if found.length_ns else found


def _kept_longer(plan: Plan, later_ns: int) -> Plan:
    """Return a plan whose topic keeps what is sent for so much longer."""
    settings = dict(plan.topic.settings)
    if _TIME in settings:
        settings[_TIME] = str(int(settings[_TIME]) + later_ns // 10**6)
    else:
        sent = float(plan.load.rate) * plan.load.mean_size * later_ns / SECOND_NS
        settings[_SIZE] = str(int(settings[_SIZE]) + math.ceil(sent / 2**20))
    return replace(plan, topic=replace(plan.topic, settings=settings))
