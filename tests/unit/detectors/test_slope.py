"""A level that moves over hours is known to move, and makes no step."""

from __future__ import annotations

import numpy as np
import pytest

from detectors._windows import SLOW, Slope
from tests.bench.detect import feed as feeding

ROWS = 40  # in a mean that teaches
EVERY = np.ones(1, np.bool_)


def learnt(levels: list[float]) -> Slope:
    """Return what these means of one series teach."""
    slope = Slope.empty(1)
    for level in levels:
        slope.learn(np.array([level]), ROWS, EVERY)
    return slope


def test_a_steady_rise_is_known_after_hours() -> None:
    rise = [0.25 * ROWS * i for i in range(800)]

    assert learnt(rise).a_row()[0] == pytest.approx(0.25, rel=1e-3)


def test_nothing_is_taken_for_a_slope_within_the_first_minutes() -> None:
    """25, of seconds."""
    rise = [float(i) for i in range(60)]

    assert learnt(rise[:37]).a_row()[0] == 0.0
    assert learnt(rise[:38]).a_row()[0] > 0.0


def test_a_new_level_is_no_slope() -> None:
    slope = learnt([0.0] * 100)
    slope.clear(np.arange(1))
    before = slope.a_row()[0]
    for _ in range(60):
        slope.learn(np.array([1000.0]), ROWS, EVERY)

    assert (before, slope.a_row()[0]) == (0.0, 0.0)


def test_a_mean_of_too_few_rows_teaches_nothing() -> None:
    slope = learnt([0.0] * 100)
    slope.learn(np.array([1000.0]), ROWS, ~EVERY)

    assert slope.a_row()[0] == 0.0


def test_noise_of_one_mean_hardly_moves_it() -> None:
    """A hundredth of it, of five minutes against half an hour before: their middles lie 1,000 rows apart."""
    quiet = learnt([0.0] * 200 + [1.0])

    assert 1000.0 * quiet.a_row()[0] == pytest.approx(0.0089, rel=0.01)


@pytest.mark.long
def test_a_day_s_slope_makes_no_steps() -> None:
    """At the steepest of a wave of two sd noise alarms hardly more often than at rest."""
    rows, series = 6000, 30
    at_rest = feeding.FAR + np.random.default_rng(3).standard_normal((rows, series))
    slope = 2.0 * 2.0 * np.pi / 86_400.0 * np.arange(rows)[:, np.newaxis]
    said = feeding.feed(np.hstack([at_rest, at_rest + slope]), feeding.config(300.0))
    late = [
        one.series < series
        for one in said
        if one.change.state == "confirmed" and one.row > SLOW  # by then it is known
    ]

    assert 0 < late.count(False) <= 1.5 * late.count(True)
