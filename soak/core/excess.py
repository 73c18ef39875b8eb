"""What of a plan is beyond its limits: a run of it begins only when a person has said so."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from soak.core.lab_limits import planned_rates
from soak.core.plan import Plan
from soak.core.profile import Point
from soak.core.units import format_rate, format_size
from soak.core.yaml_text import Place

DAY_SECONDS = 86_400


def excess(plan: Plan, table: Sequence[Point] = ()) -> list[tuple[Place, str]]:
    """Return the places of a plan for a cluster that ask for too much, and why; none for a lab.

    `table` holds the rates of the profile's file.
    """
    if plan.lab is not None:
        return []
    limits, topic, found = plan.limits, plan.topic, []
    place, rate = _highest_rate(plan, table)
    daily = round(rate * Fraction(plan.load.mean_size) * topic.replication * DAY_SECONDS)
    if rate > limits.rate:
        found.append((place, _beyond("rate", format_rate(rate), format_rate(limits.rate))))
    if daily > limits.bytes_per_day:
        shown, most = format_size(daily // 2**20 * 2**20), format_size(limits.bytes_per_day)
        found.append((place, _beyond("bytes_per_day", f"{shown} a day in all copies", most)))
    if topic.use_existing:
        return found
    if topic.total_partitions > limits.partitions:
        asked = f"{topic.total_partitions} partitions"
        found.append(
            (("topic", "partitions"), _beyond("partitions", asked, str(limits.partitions)))
        )
    if topic.count > limits.topics:
        found.append((("topic", "count"), _beyond("topics", f"{topic.count}", str(limits.topics))))
    return found


def _highest_rate(plan: Plan, table: Sequence[Point]) -> tuple[Place, Fraction]:
    rates = planned_rates(plan, table)
    if plan.phases.ramp is not None:
        rates.append((("phases", "ramp", "most"), plan.phases.ramp.most))
    return max(rates, key=lambda one: one[1])


def _beyond(key: str, asked: str, most: str) -> str:
    return f"{asked} is more than limits.{key}, {most}: set that higher"
