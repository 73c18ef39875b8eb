"""A drill: a plan, a fault that is put into its run, and what must be found without being told."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan_base import STRICT
from soak.core.plan_text import typed
from soak.core.units import SECOND_NS, Duration, format_duration
from soak.core.yaml_text import Document, parse

_FAULTS = "soak.lab.faults"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Expectation:
    cause: str
    state: Literal["confirmed", "gone"] = "confirmed"
    onset_within: Duration = 5 * SECOND_NS  # of the first deletion, before or after it
    lost: int = 0
    duplicated: int = 0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _File:
    plan: str
    fault: dict[str, Any]
    expect: Expectation
    description: str = field(default="")


@dataclass(frozen=True)
class Drill:
    """A drill file as loaded; `plan` is a path that exists."""

    name: str
    description: str
    plan: Path
    fault_kind: str
    fault: Any  # the fault's own Config
    expect: Expectation


@dataclass(frozen=True)
class Check:
    """One line of the verdict on a drill, as text for a table."""

    subject: str
    expected: str
    found: str
    is_met: bool


def load(path: Path) -> Drill:
    """Return the drill of a file; its plan is looked for beside it.

    Raises:
        PlanError: with file, line and key of the first fault.
    """
    try:
        document = parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise PlanError(f"cannot read the drill {path}: {error.strerror}") from error
    if not isinstance(document.value, dict):
        raise document.error((), "a drill is a mapping with the keys plan, fault and expect")
    file: _File = typed(_File, document.value, document, ())
    plan = path.parent / file.plan
    if not plan.is_file():
        raise document.error(("plan",), f"there is no file {plan}")
    kind, config = _fault(file.fault, document)
    return Drill(path.stem, file.description, plan, kind, config, file.expect)


def declaration(drill: Drill, *, at_wall_ns: int) -> dict[str, object]:
    """Return the first line of the fault log: what is done to the run, in full."""
    config = TypeAdapter(type(drill.fault)).dump_python(drill.fault, mode="json")
    return {
        "drill": drill.name,
        "fault": drill.fault_kind,
        "config": config,
        "at_wall_ns": at_wall_ns,
    }


def judge(
    expect: Expectation, summary: Mapping[str, Any], first_deletion_wall_ns: int | None
) -> list[Check]:
    """Compare a run's `summary.json` with what the drill must bring out; passed when all are met."""
    findings: Sequence[Mapping[str, Any]] = summary.get("findings", [])
    found = _nearest(expect, findings, first_deletion_wall_ns)
    causes = ", ".join(sorted({str(one.get("cause")) for one in findings})) or "no finding"
    state = str(found.get("state")) if found else "no finding"
    audit = summary.get("audit", {})
    return [
        Check(
            "cause",
            expect.cause,
            causes if found is None else str(found["cause"]),
            found is not None,
        ),
        Check("state", expect.state, state, state == expect.state),
        _onset(expect, found, first_deletion_wall_ns),
        _count("lost", expect.lost, audit.get("lost")),
        _count("duplicated", expect.duplicated, audit.get("duplicated")),
    ]


def _fault(section: dict[str, Any], document: Document) -> tuple[str, Any]:
    known = plugins.names(_FAULTS)
    kind = section.get("kind")
    if kind not in known:
        raise document.error(("fault", "kind"), f"unknown fault{plugins.nearest(str(kind), known)}")
    rest = {key: value for key, value in section.items() if key != "kind"}
    return str(kind), typed(plugins.load(_FAULTS, str(kind)).Config, rest, document, ("fault",))


def _nearest(
    expect: Expectation, findings: Sequence[Mapping[str, Any]], first_wall_ns: int | None
) -> Mapping[str, Any] | None:
    """Return the finding of the expected cause whose onset lies nearest to the first deletion."""
    named = [one for one in findings if one.get("cause") == expect.cause]

    def distance(one: Mapping[str, Any]) -> float:
        away = None if first_wall_ns is None else _away_seconds(one, first_wall_ns)
        return math.inf if away is None else abs(away)

    return min(named, key=distance, default=None)


def _onset(
    expect: Expectation, found: Mapping[str, Any] | None, first_wall_ns: int | None
) -> Check:
    expected = f"within {format_duration(expect.onset_within)} of the first deletion"
    if first_wall_ns is None:
        return Check("onset", expected, "nothing was deleted", is_met=False)
    away = None if found is None else _away_seconds(found, first_wall_ns)
    if away is None:
        return Check("onset", expected, "no onset", is_met=False)
    text = f"{abs(away):.1f} s {'after' if away >= 0 else 'before'} it"
    return Check("onset", expected, text, abs(away) * SECOND_NS <= expect.onset_within)


def _count(subject: str, expected: int, found: object) -> Check:
    return Check(
        subject, str(expected), "unknown" if found is None else str(found), found == expected
    )


def _away_seconds(finding: Mapping[str, Any], first_wall_ns: int) -> float | None:
    """Return onset minus first deletion; None when the finding says no time."""
    try:
        at = dt.datetime.fromisoformat(str(finding.get("at")))
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=dt.UTC)
    return at.timestamp() - first_wall_ns / SECOND_NS
