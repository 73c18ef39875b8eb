"""The retention forecast of a plan: its rates, partitions and phases against what the cluster keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from soak.core.arrivals import Arrivals
from soak.core.forecast import Forecast, Limits, Scene, Stored, forecast
from soak.core.load_rates import rates
from soak.core.phase_plan import drain_k, planned
from soak.core.plan import Plan
from soak.core.plan_load import Keys
from soak.core.profile import Point
from soak.core.units import SECOND_NS


def foreseen(plan: Plan, limits: Limits, stored: Stored, table: Sequence[Point] = ()) -> Forecast:
    """Return the forecast; `table` holds the rates of the profile's file.

    A ramp counts as over at once, as nobody knows how long it will search, and catch-ups as if they
    took as long as they may. See `doubts`.
    """
    lengths = dataclasses.replace(plan.phases, ramp=None)
    phases = planned(lengths)
    end = drain_k(phases, lengths)
    soak = phases.first_k("soak") or 0
    arrivals = Arrivals(
        [(second, float(rate)) for second, rate in rates(plan.load, phases, table, 0, end)]
    )
    scene = Scene(
        partitions=plan.topic.total_partitions,
        copies=limits.copies or plan.topic.replication,
        busiest_ratio=busiest_ratio(plan.load.keys, plan.topic.partitions),
        soak=(soak, soak + lengths.soak // SECOND_NS),
        end=end,
    )
    return forecast(arrivals, stored, limits, scene)


def doubts(plan: Plan, limits: Limits) -> list[str]:
    """Return why nobody can say when this plan's first deletion will come; none where one can."""
    found = []
    if plan.phases.ramp is not None and plan.phases.ramp.soak_share:
        found.append("the rate of the soak is what the ramp will find")
    if not limits.is_empty:
        found.append("the topics may hold messages already, and the first of them go at once")
    return found


def busiest_ratio(keys: Keys, partitions: int) -> float:
    """Return the rate of a topic's busiest partition over the mean, with the most frequent key on it.

    The other keys are taken to be spread evenly.
    """
    if keys.kind == "none":
        return 1.0
    top = 1 / keys.count
    if keys.kind == "zipf":
        top = 1 / sum(number**-keys.exponent for number in range(1, keys.count + 1))
    return partitions * top + 1 - top
