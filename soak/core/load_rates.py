"""Which rate all producers together have when: the phases say it, or the plan and its profile do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

from soak.core.phases import Phases
from soak.core.plan_load import Load
from soak.core.profile import Point, curve


def rates(
    load: Load, phases: Phases, table: Sequence[Point], first_k: int, last_k: int
) -> Iterator[tuple[int, Fraction]]:
    """Give (second, rate from it on) for the seconds `first_k` to `last_k`, in ascending order.

    A decision with a rate sets it until the next decision. The profile begins with the first second of the
    soak and runs on through whatever follows; a rate of the soak itself is the one that it varies.
    """
    soak_k = phases.first_k("soak")
    edges = [first_k, *(one.from_k for one in phases.after(first_k) if one.from_k < last_k), last_k]
    for begin, end in pairwise(edges):
        decision = phases.decision_at(begin)
        own = None if decision is None else decision.rate
        if soak_k is None or begin < soak_k:
            yield begin, load.rate if own is None else own
            continue
        base = _soak_rate(phases, soak_k)
        varied = curve(load.profile, base or load.rate, table)
        for second, rate in varied.between(begin - soak_k, end - soak_k):
            yield soak_k + second, rate


def _soak_rate(phases: Phases, soak_k: int) -> Fraction | None:
    decision = phases.decision_at(soak_k)
    return None if decision is None else decision.rate
