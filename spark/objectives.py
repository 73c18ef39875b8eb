"""The objectives of a whole run, by the rules of the stream: how each stands, and which were missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.objectives import Objectives, Standing, settings_of
from soak.core import wording
from soak.core.model import Change
from spark.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the objectives of a run stand, in the order of the plan, and the breaches among them."""

    standings: Sequence[Standing] = ()
    breaches: Sequence[Change] = ()


def judge(timeline: Timeline) -> Judgement:
    """Return how the objectives stand; a soak that is over has the length that it had."""
    soak_seconds = None if timeline.is_running else int(timeline.soak_seconds.size)
    objectives = Objectives(settings_of(timeline.plan, soak_seconds))
    for minutes in timeline.minutes:
        objectives.merge(minutes)
    breaches = objectives.conclude()
    return Judgement(objectives.standings(), breaches)


def objective_json(timeline: Timeline, one: Standing) -> dict[str, object]:
    """Return an objective as `summary.json` has it."""
    objective, quantile = one.objective, one.objective.quantile
    return {
        "objective": str(objective),
        "latency": objective.latency,
        "quantile": None if quantile is None else float(quantile),
        "limit_seconds": objective.limit_seconds,
        "target_ratio": float(objective.target),
        "unit": objective.unit,
        "bad": one.bad,
        "judged": one.judged,
        "whole": one.whole,
        "budget": round(one.budget, 6),
        "budget_left": round(one.left, 6),
        "state": state_of(one),
        "missed_at": None if one.missed_k is None else wording.iso(timeline.wall_ns(one.missed_k)),
    }


def state_of(one: Standing) -> str:
    """Return "missed", "kept", or "not judged" when nothing counted."""
    if one.missed_k is not None:
        return "missed"
    return "kept" if one.judged else "not judged"
