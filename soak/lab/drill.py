"""A drill: a plan, a fault that is put into its run, and what must be found without being told.

What a run came to is judged in `drill_verdict.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan_base import STRICT, check_between
from soak.core.plan_text import typed
from soak.core.units import SECOND_NS, Duration
from soak.core.yaml_text import Document, Place, parse

_FAULTS = "soak.lab.faults"
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
    document = parse(text, str(path))
    if not isinstance(document.value, dict):
        raise document.error((), "a drill is a mapping with the keys plan, fault and expect")
    file: _File = typed(_File, document.value, document, ())
    _check_cause(file.expect.cause, document)
    plan = path.parent / file.plan
    if not plan.is_file():
        raise document.error(("plan",), f"there is no file {plan}")
    kind, config = _fault(file.fault, document, ("fault",))
    given = tuple(_fault(one, document, ("given", at)) for at, one in enumerate(file.given))
    about = path.stem, file.description, plan, kind, config, file.expect
    return Drill(*about, file.begin, file.length, file.cell, given, document)


def form(drill: Drill) -> str:
    """Return a short digest of what a drill and its plan say; runs of two forms are no runs of one drill."""
    own = {key: value for key, value in drill.document.value.items() if key != "description"}
    plan = parse(drill.plan.read_text(encoding="utf-8"), str(drill.plan)).value
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


def _fault(section: dict[str, Any], document: Document, place: Place) -> tuple[str, Any]:
    known = plugins.names(_FAULTS)
    kind = section.get("kind")
    if kind not in known:
        raise document.error((*place, "kind"), f"unknown fault{plugins.nearest(str(kind), known)}")
    rest = {key: value for key, value in section.items() if key != "kind"}
    return str(kind), typed(plugins.load(_FAULTS, str(kind)).Config, rest, document, place)
