"""What a series did since the last look, against the definition: whatever its points are."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes._steps import Point, Step, Walk
from soak.core.model import Labels
from soak.core.units import SECOND_NS

LABELS: Labels = (("t", "x"),)
VALUES = st.sampled_from([*map(float, range(7)), math.nan])


def slow_step(before: Point | None, new: list[Point]) -> Step:
    """Add up what it rose by from each point to the next; with one fall or NaN it is not known."""
    seen = new if before is None else [before, *new]
    rises = [after.value - earlier.value for earlier, after in pairwise(seen)]
    is_known = bool(rises) and all(rise >= 0 for rise in rises)
    seconds = (seen[-1].at_ns - seen[0].at_ns) / SECOND_NS
    return Step(seen[-1].value, sum(rises) if is_known else None, seconds)


@given(st.lists(st.lists(VALUES, max_size=5), max_size=6))
def test_growth_is_what_all_points_since_the_last_look_rose_by(looks: list[list[float]]) -> None:
    """Of several points in one answer too, as of a server: one fall among them, and it is not known."""
    walk = Walk()
    before: Point | None = None
    at_ns = 0

    for look in looks:
        new = []
        for value in look:
            at_ns += SECOND_NS
            new.append(Point(value, at_ns))
        found = walk.take({"a": {LABELS: new}})
        wanted = {"a": {LABELS: slow_step(before, new)}} if new else {}
        assert repr(found) == repr(wanted)  # in which NaN is like NaN
        before = new[-1] if new else before


@pytest.mark.parametrize(
    ("values", "growth"),
    [((3.0, 7.0, 2.0, 9.0), None), ((3.0, 7.0, 5.0, 9.0), None), ((2.0, 2.0, 5.0, 9.0), 7.0)],
)
def test_a_counter_that_fell_within_one_answer_has_no_growth(
    values: tuple[float, ...], growth: float | None
) -> None:
    """It began anew: what it had before is lost, and its last point may well be above its first."""
    points = [Point(value, at * SECOND_NS) for at, value in enumerate(values)]

    assert Walk().take({"a": {LABELS: points}}) == {"a": {LABELS: Step(9.0, growth, 3.0)}}


def test_points_that_an_answer_repeats_are_passed_over() -> None:
    """A server is asked for some seconds again."""
    walk = Walk()
    old, new = Point(3.0, SECOND_NS), Point(26.0, 2 * SECOND_NS)
    walk.take({"a": {LABELS: [old]}})

    found = walk.take({"a": {LABELS: [old, new]}})
    again = walk.take({"a": {LABELS: [old, new]}})

    assert found == {"a": {LABELS: Step(26.0, 23.0, 1.0)}}
    assert again == {}
