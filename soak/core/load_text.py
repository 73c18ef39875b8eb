"""What a load is in words: how many messages a second, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from soak.core.load_rates import rates
from soak.core.phase_plan import from_soak
from soak.core.phases import Phases
from soak.core.plan import Plan
from soak.core.plan_load import Load
from soak.core.profile import Point
from soak.core.units import SECOND_NS, format_rate, format_size
from soak.core.wording import amount


def rate_text(found: Iterable[Fraction]) -> str:
    """Return the rate, or from which to which it goes: `20k/s to 80k/s`."""
    different = sorted(set(found))
    ends = dict.fromkeys((different[0], different[-1]))
    return " to ".join(format_rate(rate) for rate in ends)


def soak_rate_text(plan: Plan, table: Sequence[Point] = ()) -> str:
    """Return the rates that a plan has in its soak; `table` holds those of the profile's file."""
    ramp, seconds = plan.phases.ramp, plan.phases.soak // SECOND_NS
    if ramp is not None and ramp.soak_share:
        return f"{ramp.soak_share:.0%} of the rate that the ramp finds"
    phases = Phases(from_soak(plan.phases, 0))
    return rate_text(rate for _, rate in rates(plan.load, phases, table, 0, seconds))


def size_text(load: Load) -> str:
    """Return the size of a message as planned: `1KiB`; of a mixture the mean, the least and the largest."""
    sizes = [size for size, _ in load.sizes]
    if len(set(sizes)) == 1:
        return format_size(sizes[0])
    mean, least, most = (amount(size, "bytes") for size in (load.mean_size, min(sizes), max(sizes)))
    return f"{mean} on average ({least} to {most})"
