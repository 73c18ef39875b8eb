"""What `conduct` decided: which phase each second belongs to. Daemons follow it by their own clock."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal, get_args

from soak.core.plan_phases import PhaseLengths
from soak.core.units import SECOND_NS

Phase = Literal["warm-up", "soak", "drain", "end"]
LOADED: frozenset[str] = frozenset({"warm-up", "soak"})
"""Phases in which the producer sends."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Decisions in ascending order of their first second; the seconds before the first have no phase."""

    from_k: tuple[int, ...] = ()
    names: tuple[Phase, ...] = ()

    def at(self, k: int) -> str:
        """Return the phase of second k, or "" where none is known."""
        index = bisect_right(self.from_k, k) - 1
        return self.names[index] if index >= 0 else ""

    def first_k(self, name: Phase) -> int | None:
        """Return the first second of a phase, or None while it is not decided."""
        return self.from_k[self.names.index(name)] if name in self.names else None

    @property
    def end_k(self) -> int | None:
        return self.first_k("end")


def planned(lengths: PhaseLengths) -> Phases:
    """Return what is known before the first second: all but the end, which the drain decides."""
    warm_up, soak = lengths.warm_up // SECOND_NS, lengths.soak // SECOND_NS
    steps: list[tuple[int, Phase]] = [(0, "warm-up")] if warm_up else []
    steps += [(warm_up, "soak"), (warm_up + soak, "drain")]
    return Phases(tuple(k for k, _ in steps), tuple(name for _, name in steps))


def to_line(name: Phase, from_k: int, reason: str = "planned") -> str:
    """Return one decision as a line; the reason is for people."""
    return json.dumps({"phase": name, "from_k": from_k, "reason": reason}) + "\n"


def parse(text: str) -> Phases:
    """Return the decisions of a file that may be growing: a torn last line is not there yet.

    A later line overrules earlier ones from its `from_k` on (a run that is stopped early).
    """
    steps: list[tuple[int, Phase]] = []
    for line in text.split("\n")[:-1]:
        try:
            body = json.loads(line)
        except ValueError:  # torn by a crash, and written on behind it
            continue
        if body["phase"] not in get_args(Phase):
            raise ValueError(f"unknown phase {body['phase']!r}")
        steps = [step for step in steps if step[0] < body["from_k"]]
        steps.append((int(body["from_k"]), body["phase"]))
    return Phases(tuple(k for k, _ in steps), tuple(name for _, name in steps))
