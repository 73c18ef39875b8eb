"""Rates that change over the soak: steps, a sine, or a table from a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from soak.core.errors import PlanError
from soak.core.plan_load import Profile
from soak.core.units import SECOND_NS, nearest_rate, planned_rate

MOST_POINTS = 1_000_000
SINE_STEP_SECONDS = 10
"""Longest time for which a sine holds a rate; a hundredth of its period where that is shorter."""

Point = tuple[int, Fraction]
"""A second, counted from the start of the soak, and the rate from then on."""


class Curve(Protocol):
    def between(self, first: int, last: int) -> Iterator[Point]:
        """Give the rate in second `first`, then every change of it before second `last`."""
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
    """A wave around `base` in stairs, each as high as the wave in its middle, to 1/10,000 of `base`."""

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
    """Return the rates of a soak; `table` is what `parse` made of the profile's file."""
    if profile.sine_period:
        return Sine(base, profile.sine_amplitude, profile.sine_period)
    steps = [(step.after // SECOND_NS, step.rate) for step in profile.steps]
    return Steps(base, steps or table)


def parse(text: str, name: str) -> tuple[Point, ...]:
    """Return the rates of a CSV file: a header, then `seconds,rate` a line, such as `3600,12.5k/s`.

    Raises:
        PlanError: with file, line and what is wrong.
    """
    points: list[Point] = []
    lines = text.splitlines()
    if not lines or [cell.strip() for cell in lines[0].split(",")] != ["seconds", "rate"]:
        raise PlanError(f"{name}:1: begins with {_shown(lines)}, not with the header seconds,rate")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            points.append(_point(line, points))
        except ValueError as error:
            raise PlanError(f"{name}:{number}: {error}") from error
    if not points:
        raise PlanError(f"{name}:{len(lines)}: there is no rate below the header")
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
    if len(before) == MOST_POINTS:
        raise ValueError(f"more than {MOST_POINTS} rates")
    text = cells[1] if cells[1].endswith("s") else f"{cells[1]}/s"
    return second, planned_rate(text)


def _shown(lines: Sequence[str]) -> str:
    return repr(lines[0][:60]) if lines else "nothing"
