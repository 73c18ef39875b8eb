"""What a matrix of drills must come to, or the detector is not good enough: a gate, not a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from soak.lab.drill import CLIENT, NOTHING, UNKNOWN
from soak.lab.drill_result import NONE, Result
from soak.lab.step_tables import StepTable, step_tables

DETECTED_RATIO, RIGHT_RATIO, WRONG_RATIO = 0.95, 0.90, 0.05
QUIET = "quiet"
"""The fault that is none."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One of them, and what it was held against; `holds` is None where no run says anything of it."""

    text: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        says = {None: "no run", True: "holds", False: "DOES NOT HOLD"}[self.holds]
        return f"{self.text}: {self.found}, {says}"


def limits(results: Sequence[Result]) -> list[Limit]:
    """Return each limit; runs that prove nothing count for none of them."""
    judged = [one for one in results if one.is_judged]
    faults = [one for one in judged if one.expected != NOTHING]
    found = [one for one in faults if one.is_detected]
    none = [one for one in judged if one.expected == NOTHING]
    quiet = [one for one in none if one.fault == QUIET]
    others = [one for one in none if one.fault != QUIET]
    return [
        _at_least("detected", DETECTED_RATIO, faults, lambda one: one.is_detected),
        _at_least("cause right", RIGHT_RATIO, found, is_right),
        _at_most("cause wrong", WRONG_RATIO, faults, is_wrong),
        _at_most("quiet, with a finding", 0.0, quiet, lambda one: one.is_detected),
        _at_most(
            "others where nothing may be found, with a finding",
            0.0,
            others,
            lambda one: one.is_detected,
        ),
        *map(_growing, step_tables(judged)),
    ]


def is_kept(results: Sequence[Result]) -> bool:
    """Return whether no limit is broken, and at least one run says something."""
    held = [one.holds for one in limits(results)]
    return False not in held and True in held


def is_right(one: Result) -> bool:
    return one.cause == one.expected


def is_wrong(one: Result) -> bool:
    """True where something else is blamed; `unknown` holds the client's doing against the cluster."""
    harmless = {one.expected, NONE} if one.expected == CLIENT else {one.expected, UNKNOWN, NONE}
    return one.cause not in harmless


def _growing(table: StepTable) -> Limit:
    text = f"{table.name}, the step grows along each row and column"
    return Limit(
        text, f"{len(table.middle)} of {len(table.rows) * len(table.columns)} cells", table.grows
    )


def _at_least(
    subject: str, ratio: float, runs: Sequence[Result], does: Callable[[Result], bool]
) -> Limit:
    count = sum(map(does, runs))
    holds = count / len(runs) >= ratio if runs else None
    return Limit(f"{subject}, at least {ratio:.0%}", f"{count} of {len(runs)}", holds)


def _at_most(
    subject: str, ratio: float, runs: Sequence[Result], does: Callable[[Result], bool]
) -> Limit:
    count = sum(map(does, runs))
    holds = count / len(runs) <= ratio if runs else None
    return Limit(f"{subject}, at most {ratio:.0%}", f"{count} of {len(runs)}", holds)
