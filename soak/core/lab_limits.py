"""What a plan may ask of the lab: one made for a large cluster is not started on this machine by accident."""

from __future__ import annotations

from soak.core.plan_text import PlanFile
from soak.core.units import format_rate, format_size

MOST_BYTES_PER_SECOND = 128 * 2**20


def refuse_too_much(plan_file: PlanFile) -> None:
    """Refuse a plan whose rate or number of copies no lab can give; one without a lab passes.

    Raises:
        PlanError: with file, line and key.
    """
    plan = plan_file.plan
    if plan.lab is None:
        return
    if plan.load.rate * plan.load.mean_size > MOST_BYTES_PER_SECOND:
        key = next(iter(plan.broker_config.addresses))
        raise plan_file.error(
            "load.rate",
            f"{format_rate(plan.load.rate)} of {format_size(round(plan.load.mean_size))} is more than "
            f"the {format_size(MOST_BYTES_PER_SECOND)} a second that a lab is for; name your cluster in "
            f"broker.{plan.broker_kind}.{key}, or take a part of it, such as --scale 0.01",
        )
    if plan.topic.replication > plan.lab.nodes:
        raise plan_file.error(
            "topic.replication",
            f"{plan.topic.replication} copies need as many nodes, and lab.nodes is {plan.lab.nodes}",
        )
