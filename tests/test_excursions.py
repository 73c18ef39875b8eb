"""How often noise comes near the threshold is measured, and moves it."""

from __future__ import annotations

import numpy as np
import pytest

from detectors._excursions import APART_ROWS, LEVEL, learn, spared
from detectors._memory import Memory
from detectors._spread import EXPECTED, Spread

DAY = 86_400.0
EVERY = np.ones(1, np.bool_)


def known(often: float, rows: float = DAY) -> Spread:
    """Return what is learnt after so many rows, the level being passed so many times as often as expected."""
    spread = Spread.empty(1)
    spread.seen[:], spread.passed[:] = rows, often * EXPECTED
    return spread


def spared_of(spread: Spread, memory: Memory, calm: float = 0.0) -> float:
    return float(spared(spread, memory, np.array([calm]))[0])


def tied(times: float) -> Memory:
    """Return the memory of scores whose long means vary about so many times as independent ones."""
    phi = (times - 1.0) / (times + 1.0)
    return Memory(np.zeros(1), np.ones(1), np.array([phi]), np.zeros(1))


def test_the_level_is_passed_again_once_the_ratio_was_below_it_for_a_minute() -> None:
    spread, passed = known(0.0), []
    for row in range(400):
        before = float(spread.passed[0])
        is_above = row in {100, 101, 130, 161, 300}
        learn(spread, np.array([LEVEL + 0.1 if is_above else 1.0]), EVERY)
        passed += [row] if spread.passed[0] > before else []

    assert passed == [100, 300]
    assert APART_ROWS == 60


def test_rows_that_could_not_alarm_teach_nothing() -> None:
    spread = known(0.0)
    for _ in range(100):
        learn(spread, np.array([99.0]), ~EVERY)

    assert (spread.passed[0], spread.below[0]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("often", "least", "most"),
    [(1.0, 1.9, 1.9), (0.6, 2.39, 2.43), (0.0, 2.6, 2.6), (1.5, 0.87, 0.9), (50.0, -1.0, -1.0)],
)
def test_the_threshold_follows_what_was_measured(often: float, least: float, most: float) -> None:
    """Down where noise passes the level more rarely than independent noise; faster up where more often."""
    assert least <= spared_of(known(often), Memory.independent(1.0)) <= most


def test_before_two_hours_it_goes_by_what_is_known_of_bursts() -> None:
    young = known(0.5, rows=7200.0)

    assert spared_of(young, Memory.independent(1.0), calm=1.0) == pytest.approx(1.9)
    assert spared_of(young, Memory.independent(1.0)) == 0.0
    assert 0.0 < spared_of(known(0.5, rows=9000.0), Memory.independent(1.0)) < 1.0


@pytest.mark.parametrize(("times", "is_known"), [(4.0, True), (9.0, True), (39.0, False)])
def test_the_more_rows_hang_together_the_longer_it_takes(times: float, is_known: bool) -> None:  # noqa: FBT001
    """A day is enough where means vary nine times as much as independent ones, and not where 39 times."""
    assert (spared_of(known(1.0), tied(times)) == pytest.approx(1.9)) is is_known
