"""The threshold follows how often and how far a series exceeds a lower level."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.online import threshold
from detectors.online.constants import CONSTANTS
from detectors.online.state import SeriesArrays

HOUR = 3600.0
EVERY = np.ones(1, np.bool_)


def seen(clusters: float, hours: float, excess: float = 1.1) -> SeriesArrays:
    """Return a series with so many clusters in so many hours, each so far above the level."""
    arrays = SeriesArrays.empty(1)
    arrays.clusters[:], arrays.excess[:] = clusters, clusters * excess
    arrays.rows[:] = hours * HOUR
    return arrays


def threshold_of(arrays: SeriesArrays, rows: float = 30 * 24 * HOUR) -> float:
    threshold.set_thresholds(arrays, log(rows))
    return float(arrays.threshold[0])


@given(rows=st.floats(3600.0, 1e12))
def test_the_threshold_of_an_unknown_series_grows_with_the_log_of_the_set_time(rows: float) -> None:
    lower, higher = threshold_of(seen(0, 0), rows), threshold_of(seen(0, 0), 10.0 * rows)

    assert higher - lower == pytest.approx(log(10.0), abs=0.01)


def test_a_series_that_exceeds_the_level_more_often_gets_a_higher_threshold() -> None:
    rare, expected, often = (threshold_of(seen(count, 5.0)) for count in (0, 45, 200))

    assert rare < expected < often


def test_excesses_that_are_larger_get_a_steeper_threshold() -> None:
    assert threshold_of(seen(45, 5.0, 2.0)) > threshold_of(seen(45, 5.0)) + 2.0


def test_no_threshold_falls_below_the_level() -> None:
    assert threshold_of(seen(0, 10.0), rows=60.0) > CONSTANTS.level


@pytest.mark.parametrize(("again", "clusters"), [(150, 1), (161, 2)])
def test_exceedances_a_minute_apart_are_two_clusters(again: int, clusters: int) -> None:
    arrays = SeriesArrays.empty(1)
    for row in range(300):
        ratio = 7.0 if row in {98, 100, again} else 1.0
        threshold.learn(arrays, np.array([ratio], np.float32), EVERY)

    assert arrays.clusters[0] == clusters
    assert arrays.excess[0] == pytest.approx(2.0 * clusters)


def test_rows_that_could_not_alarm_teach_nothing() -> None:
    arrays = SeriesArrays.empty(1)
    for ratio in (99.0, *[1.0] * 200):
        threshold.learn(arrays, np.array([ratio], np.float32), ~EVERY)

    assert (arrays.clusters[0], arrays.rows[0]) == (0, 0)


def test_short_troubles_raise_the_threshold_within_bounds() -> None:
    """However far each goes: they do not blind the series to the next."""
    few, many = seen(0, 1.0), seen(60, 3.0, 40.0)

    assert threshold_of(few) < threshold_of(many) < 1.7 * threshold_of(few)


@pytest.mark.long
@pytest.mark.parametrize("apart", [1, 30, 59])
@pytest.mark.parametrize("below", [99.0, 0.0])
def test_exceedances_that_never_cease_raise_the_threshold(apart: int, below: float) -> None:
    """They were one cluster that never ended, and taught nothing; also where a level was just learnt anew."""
    quiet, busy = SeriesArrays.empty(1), SeriesArrays.empty(1)
    busy.below[:] = below
    for row in range(7200):
        threshold.learn(quiet, np.array([1.0], np.float32), EVERY)
        threshold.learn(busy, np.array([9.0 if row % apart == 0 else 1.0], np.float32), EVERY)

    most = 7200 / threshold.LONGEST_ROWS
    assert 0.75 * most <= busy.clusters[0] <= most
    assert threshold_of(busy) > threshold_of(quiet) + 5.0
