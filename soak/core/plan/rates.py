"""The rates of a plan over time, their text, and the limits that they must not exceed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from soak.core.errors import PlanError
from soak.core.plan.load import Load, Profile
from soak.core.plan.phases import Phases, decisions_from_soak
from soak.core.plan.plan import Plan
from soak.core.plan.text import KeyPath, PlanFile
from soak.core.units import SECOND_NS, format_rate, format_size, nearest_rate, planned_rate
from soak.core.wording import amount

MAX_POINTS = 1_000_000
SINE_STEP_SECONDS = 10
"""Longest step of a sine; a hundredth of its period if that is shorter."""

Point = tuple[int, Fraction]
"""A second, counted from the start of the soak, and the rate from then on."""


class Curve(Protocol):
    def between(self, first: int, last: int) -> Iterator[Point]:
        """Yield the rate in second `first`, then every change before second `last`."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """`base` until the first point; points in ascending order of their second."""

    base: Fraction
    points: Sequence[Point] = ()

    def between(self, first: int, last: int) -> Iterator[Point]:
        at = bisect_right(self.points, first, key=lambda point: point[0])
        yield first, self.points[at - 1][1] if at else self.base
        for point in self.points[at:]:
            if point[0] >= last:
                return
            yield point


@dataclass(frozen=True, slots=True)
class Sine:
    """A sine around `base` in steps, each at the value of its middle, rounded to 1/10,000 of `base`."""

    base: Fraction
    amplitude: float
    period_ns: int

    def between(self, first: int, last: int) -> Iterator[Point]:
        stair = max(1, min(SINE_STEP_SECONDS, self.period_ns // (100 * SECOND_NS)))
        yield first, self._rate(first // stair * stair, stair)
        for second in range((first // stair + 1) * stair, last, stair):
            yield second, self._rate(second, stair)

    def _rate(self, second: int, stair: int) -> Fraction:
        turns = (second + stair / 2) * SECOND_NS / self.period_ns
        factor = 1 + self.amplitude * math.sin(2 * math.pi * turns)
        return nearest_rate(self.base * Fraction(round(factor * 10_000), 10_000))


def curve(profile: Profile, base: Fraction, table: Sequence[Point] = ()) -> Curve:
    """Return the rates of a soak; `table` holds those of the profile's file."""
    if profile.sine_period:
        return Sine(base, profile.sine_amplitude, profile.sine_period)
    steps = [(step.after // SECOND_NS, step.rate) for step in profile.steps]
    return Steps(base, steps or table)


def parse_rate_table(text: str, name: str) -> tuple[Point, ...]:
    """Return the rates of a CSV file: a header, then `seconds,rate` a line, such as `3600,12.5k/s`.

    Raises:
        PlanError: with file, line and what is wrong.
    """
    points: list[Point] = []
    lines = text.splitlines()
    if not lines or [cell.strip() for cell in lines[0].split(",")] != ["seconds", "rate"]:
        raise PlanError(f"{name}:1: starts with {_shown(lines)}, not with the header seconds,rate")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            points.append(_point(line, points))
        except ValueError as error:
            raise PlanError(f"{name}:{number}: {error}") from error
    if not points:
        raise PlanError(f"{name}:{len(lines)}: there are no rates below the header")
    return tuple(points)


def _point(line: str, before: Sequence[Point]) -> Point:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 2:  # noqa: PLR2004  # seconds and rate
        raise ValueError(f"{len(cells)} columns instead of two: seconds,rate")
    if not (cells[0].isascii() and cells[0].isdigit()):
        raise ValueError(f"{cells[0]!r} is not a whole number of seconds")
    second = int(cells[0])
    if before and second <= before[-1][0]:
        raise ValueError(f"second {second} does not come after second {before[-1][0]}")
    if len(before) == MAX_POINTS:
        raise ValueError(f"more than {MAX_POINTS} rates")
    text = cells[1] if cells[1].endswith("s") else f"{cells[1]}/s"
    return second, planned_rate(text)


def _shown(lines: Sequence[str]) -> str:
    return repr(lines[0][:60]) if lines else "nothing"


def rates_between(
    load: Load, phases: Phases, table: Sequence[Point], first_k: int, last_k: int
) -> Iterator[tuple[int, Fraction]]:
    """Yield (interval, rate from then on) for the intervals `first_k` to `last_k`, in ascending order.

    A decision with a rate sets it until the next decision. The profile starts with the soak and continues in
    later phases; it varies the rate of the soak's decision, if there is one.
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


MAX_LAB_BYTES_PER_SECOND = 128 * 2**20


def lab_limit_faults(plan_file: PlanFile, table: Sequence[Point] = ()) -> list[PlanError]:
    """Return a fault for each rate of a plan that is too high for its lab, and for too many copies.

    `table` holds the rates of the profile's file.
    """
    plan, found = plan_file.plan, []
    if plan.lab is None:
        return []
    key = f"broker.{plan.broker_kind}.{next(iter(plan.broker_config.addresses))}"
    advice = f"name your cluster in {key}, or run a part of it here with --scale 0.01"
    copies, nodes = plan.topic.replication, plan.lab.nodes
    for place, rate in planned_rates(plan, table):
        if rate * plan.load.mean_size * min(copies, nodes) > MAX_LAB_BYTES_PER_SECOND:
            size, most = (
                format_size(round(plan.load.mean_size)),
                format_size(MAX_LAB_BYTES_PER_SECOND),
            )
            each = f" in {min(copies, nodes)} copies" if min(copies, nodes) > 1 else ""
            why = (
                f"{format_rate(rate)} of {size}{each} is more than the {most} a second "
                f"for which a lab is made; {advice}"
            )
            found.append(plan_file.document.error(place, why))
    if copies > nodes:
        why = f"{copies} copies need as many nodes, and lab.nodes is {nodes}; {advice}"
        found.append(plan_file.error("topic.replication", why))
    return found


def planned_rates(plan: Plan, table: Sequence[Point] = ()) -> list[tuple[KeyPath, Fraction]]:
    """Return every rate of the plan, of a sine the highest, with its key path.

    A ramp counts with its first rate, as it grows only as far as the cluster follows. `table` holds the rates
    of the profile's file, of which the highest counts.
    """
    load, profile = plan.load, plan.load.profile
    found: list[tuple[KeyPath, Fraction]] = [(("load", "rate"), load.rate)]
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


DAY_SECONDS = 86_400


def exceeded_limits(plan: Plan, table: Sequence[Point] = ()) -> list[tuple[KeyPath, str]]:
    """Return the key paths of a plan that exceed its limits, and why; none for a plan with a lab.

    `table` holds the rates of the profile's file.
    """
    if plan.lab is not None:
        return []
    limits, topic, found = plan.limits, plan.topic, []
    place, rate = _highest_rate(plan, table)
    daily = round(rate * Fraction(plan.load.mean_size) * topic.replication * DAY_SECONDS)
    if rate > limits.rate:
        found.append((place, _exceeds("rate", format_rate(rate), format_rate(limits.rate))))
    if daily > limits.bytes_per_day:
        shown, most = format_size(daily // 2**20 * 2**20), format_size(limits.bytes_per_day)
        found.append((place, _exceeds("bytes_per_day", f"{shown} a day in all copies", most)))
    if topic.use_existing:
        return found
    if topic.total_partitions > limits.partitions:
        asked = f"{topic.total_partitions} partitions"
        found.append(
            (("topic", "partitions"), _exceeds("partitions", asked, str(limits.partitions)))
        )
    if topic.count > limits.topics:
        found.append((("topic", "count"), _exceeds("topics", f"{topic.count}", str(limits.topics))))
    return found


def _highest_rate(plan: Plan, table: Sequence[Point]) -> tuple[KeyPath, Fraction]:
    rates = planned_rates(plan, table)
    if plan.phases.ramp is not None:
        rates.append((("phases", "ramp", "max_rate"), plan.phases.ramp.max_rate))
    return max(rates, key=lambda one: one[1])


def _exceeds(key: str, asked: str, most: str) -> str:
    return f"{asked} is more than limits.{key}, {most}: raise that limit"


def rate_text(found: Iterable[Fraction]) -> str:
    """Return the rate, or the lowest and the highest: `20k/s to 80k/s`."""
    different = sorted(set(found))
    ends = dict.fromkeys((different[0], different[-1]))
    return " to ".join(format_rate(rate) for rate in ends)


def soak_rate_text(plan: Plan, table: Sequence[Point] = ()) -> str:
    """Return the rates of a plan in its soak; `table` holds those of the profile's file."""
    ramp, seconds = plan.phases.ramp, plan.phases.soak // SECOND_NS
    if ramp is not None and ramp.soak_share:
        return f"{ramp.soak_share:.0%} of the rate that the ramp finds"
    phases = Phases(decisions_from_soak(plan.phases, 0))
    return rate_text(rate for _, rate in rates_between(plan.load, phases, table, 0, seconds))


def size_text(load: Load) -> str:
    """Return the planned message size: `1KiB`; of a mixture the mean, the smallest and the largest."""
    sizes = [size for size, _ in load.sizes]
    if len(set(sizes)) == 1:
        return format_size(sizes[0])
    mean, least, most = (amount(size, "bytes") for size in (load.mean_size, min(sizes), max(sizes)))
    return f"{mean} on average ({least} to {most})"
