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
    key = f"broker.{plan.broker_kind}.{next(iter(plan.broker_config.addresses))}"
    advice = f"name your cluster in {key}, or run a part of it here with --scale 0.01"
    if plan.load.rate * plan.load.mean_size > MOST_BYTES_PER_SECOND:
        rate, size = format_rate(plan.load.rate), format_size(round(plan.load.mean_size))
        most = format_size(MOST_BYTES_PER_SECOND)
        raise plan_file.error(
            "load.rate",
            f"{rate} of {size} is more than the {most} a second that a lab is for; {advice}",
        )
    copies, nodes = plan.topic.replication, plan.lab.nodes
    if copies > nodes:
        raise plan_file.error(
            "topic.replication",
            f"{copies} copies need as many nodes, and lab.nodes is {nodes}; {advice}",
        )
