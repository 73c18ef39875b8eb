"""What a matrix of drills must come to, or the detector is not good enough: a gate, not a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from soak.lab.drill import CLIENT, NOTHING, UNKNOWN
from soak.lab.drill_result import NONE, Result
from soak.lab.step_tables import StepTable, step_tables

DETECTED_RATIO, RIGHT_RATIO, WRONG_RATIO = 0.95, 0.90, 0.05
IN_TIME_RATIOS = {"onset": 0.95, "told": 0.95, "gone": 0.90}
"""By the checks that have a limit of time: of the runs named right in which it came or had to."""


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
    counted = [one for one in results if one.counts]
    faults = [one for one in counted if one.expected != NOTHING]
    found = [one for one in faults if one.is_detected]
    named = [one for one in found if is_right(one)]
    with_name = [one for one in found if one.expected != UNKNOWN]
    watched = [one for one in faults if one.false_alarms is not None]
    none = [one for one in counted if one.expected == NOTHING]
    return [
        _at_least("detected", DETECTED_RATIO, faults, lambda one: one.is_detected),
        _at_least("cause right, of what has a name", RIGHT_RATIO, with_name, is_right),
        _at_most("cause wrong", WRONG_RATIO, faults, is_wrong),
        *(
            _at_least(
                f"{subject} in time", ratio, _asked(named, subject), partial(_is_met, subject)
            )
            for subject, ratio in IN_TIME_RATIOS.items()
        ),
        _at_most("an alarm before the fault", 0.0, watched, lambda one: bool(one.false_alarms)),
        _at_least(
            "as it should be where nothing may be found", 1.0, none, lambda one: one.is_passed
        ),
        *map(_growing, step_tables(counted)),
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


def _asked(runs: Sequence[Result], subject: str) -> list[Result]:
    """Return the runs in which something came that must come in time, or was waited for."""
    return [
        one
        for one in runs
        if subject in one.missed or getattr(one, f"{subject}_seconds") is not None
    ]


def _is_met(subject: str, one: Result) -> bool:
    return subject not in one.missed


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
