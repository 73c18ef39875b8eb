"""What a plan may ask of the lab: one made for a large cluster is not started on this machine by accident."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from soak.core.plan import Plan
from soak.core.plan_text import PlanFile
from soak.core.profile import Point
from soak.core.units import format_rate, format_size, nearest_rate
from soak.core.yaml_text import Place

MOST_BYTES_PER_SECOND = 128 * 2**20


def refuse_too_much(plan_file: PlanFile, table: Sequence[Point] = ()) -> None:
    """Refuse a plan whose rates or number of copies no lab can give; one without a lab passes.

    `table` holds the rates of the profile's file.

    Raises:
        PlanError: with file, line and key.
    """
    plan = plan_file.plan
    if plan.lab is None:
        return
    key = f"broker.{plan.broker_kind}.{next(iter(plan.broker_config.addresses))}"
    advice = f"name your cluster in {key}, or run a part of it here with --scale 0.01"
    copies, nodes = plan.topic.replication, plan.lab.nodes
    for place, rate in planned_rates(plan, table):
        if rate * plan.load.mean_size * min(copies, nodes) > MOST_BYTES_PER_SECOND:
            size, most = format_size(round(plan.load.mean_size)), format_size(MOST_BYTES_PER_SECOND)
            each = f" in {min(copies, nodes)} copies" if min(copies, nodes) > 1 else ""
            raise plan_file.document.error(
                place,
                f"{format_rate(rate)} of {size}{each} is more than the {most} a second that a lab "
                f"is for; {advice}",
            )
    if copies > nodes:
        raise plan_file.error(
            "topic.replication",
            f"{copies} copies need as many nodes, and lab.nodes is {nodes}; {advice}",
        )


def planned_rates(plan: Plan, table: Sequence[Point] = ()) -> list[tuple[Place, Fraction]]:
    """Return every rate that the plan will send at, the highest of a wave, and where it stands.

    A ramp goes up from its first rate only as far as the cluster follows. `table` holds the rates of the
    profile's file; the highest of them counts.
    """
    load, profile = plan.load, plan.load.profile
    found: list[tuple[Place, Fraction]] = [(("load", "rate"), load.rate)]
    if profile.sine_period:
        peak = nearest_rate(load.rate * Fraction(1 + profile.sine_amplitude))
        found.append((("load", "profile", "sine_amplitude"), peak))
    for number, step in enumerate(profile.steps):
        found.append((("load", "profile", "steps", number, "rate"), step.rate))
    if plan.phases.ramp is not None:
        found.append((("phases", "ramp", "start"), plan.phases.ramp.start))
    if table:
        found.append((("load", "profile", "file"), max(rate for _, rate in table)))
    return found
