"""How often noise comes near the threshold is measured, and moves it."""

from __future__ import annotations

import numpy as np
import pytest

from detectors import exceedance_rate
from detectors._memory import Memory
from detectors._spread import EXPECTED, Spread
from detectors.exceedance_rate import LEVEL, how_tied, learn, thresholds
from detectors.level_shift import Panel
from soak.core.model import Change, Column
from tests.bench.detect import feed as feeding

DAY = 86_400.0
EVERY = np.ones(1, np.bool_)


def known(often: float, rows: float = DAY) -> Spread:
    """Return what is learnt after so many rows, the level being passed so many times as often as expected."""
    spread = Spread.empty(1)
    spread.seen[:], spread.passed[:] = rows, often * EXPECTED
    return spread


def spared_of(spread: Spread, tied: float = 1.0, calm: float = 0.0, whole: float = 20.0) -> float:
    """Return by how much the threshold is lower than the one that holds for any noise."""
    found = thresholds(whole, spread, np.array([tied]), np.array([calm]), np.arange(1))
    return whole - float(found[0])


@pytest.mark.parametrize(("again", "passes"), [(160, 1), (161, 2), (162, 2)])
def test_the_level_is_passed_again_once_the_ratio_was_below_it_for_a_minute(
    again: int, passes: int
) -> None:
    spread, found = known(0.0), []
    for row in range(400):
        before = float(spread.passed[0])
        learn(spread, np.array([LEVEL + 0.1 if row in {98, 100, again} else 1.0]), EVERY)
        found += [row] if spread.passed[0] > before else []

    assert found == [98, again][:passes]


def test_rows_that_could_not_alarm_teach_nothing() -> None:
    spread = known(0.5)
    for ratio in (99.0, *[1.0] * 100):
        learn(spread, np.array([ratio]), ~EVERY)

    assert (spread.passed[0], spread.below[0]) == (0.5 * EXPECTED, np.inf)


@pytest.mark.parametrize(("phi", "times"), [(0.0, 1.0), (0.6, 3.95), (0.9, 16.8)])
def test_how_rows_hang_together_is_the_variance_of_their_long_means(
    phi: float, times: float
) -> None:
    """(1 + phi) / (1 - phi) of an AR(1), less what 80 rows do not show of it."""
    memory = Memory(np.zeros(1), np.ones(1), np.array([phi]), np.zeros(1))

    assert how_tied(memory)[0] == pytest.approx(times, abs=0.05)


@pytest.mark.parametrize(
    ("often", "least", "most"),
    [(1.0, 1.9, 1.9), (0.6, 2.39, 2.43), (0.0, 3.0, 3.0), (1.5, -0.04, -0.03), (50.0, -1.0, -1.0)],
)
def test_the_threshold_follows_what_was_measured(often: float, least: float, most: float) -> None:
    """Down where noise passes the level more rarely than independent noise; faster up where more often."""
    assert least - 1e-9 <= spared_of(known(often)) <= most + 1e-9


@pytest.mark.parametrize(("whole", "spared"), [(LEVEL + 1.9, 1.49), (LEVEL + 5.9, 0.99)])
def test_the_higher_the_threshold_the_more_counts_that_the_level_is_passed_more_often(
    whole: float, spared: float
) -> None:
    """By so much of it for each 1 up to the threshold, but for what ten hours leave to chance."""
    excess = np.log(1.5) - 1.0 / np.sqrt(36_000.0 * EXPECTED)

    assert spared == pytest.approx(
        1.9 - np.log(1.5) - 0.5 * (whole - 1.9 - LEVEL) * excess, abs=0.01
    )
    assert spared_of(known(1.5), calm=1.0, whole=whole) == pytest.approx(spared, abs=0.01)


def test_before_two_hours_it_goes_by_what_is_known_of_bursts() -> None:
    young = known(0.5, rows=7200.0)

    assert spared_of(young, calm=1.0) == pytest.approx(1.9)
    assert spared_of(young, tied=4.0, calm=1.0) == pytest.approx(1.9 / 4.0)
    assert spared_of(young) == 0.0
    assert 0.0 < spared_of(known(0.5, rows=9000.0)) < 1.0


@pytest.mark.parametrize(
    ("tied", "rows", "share"), [(1.0, 14_400, 1.0), (20.0, 10_800, 0.5), (40.0, 28_800, 0.5)]
)
def test_the_more_rows_hang_together_the_longer_it_takes(
    tied: float, rows: float, share: float
) -> None:
    """Two hours to four; where means vary 40 times as much as independent ones five hours to eleven."""
    late = spared_of(known(0.0, rows=40_000.0), tied)

    assert spared_of(known(0.0, rows), tied) == pytest.approx(share * late)


def test_the_more_rows_hang_together_the_less_is_spared() -> None:
    spared = [spared_of(known(0.0), tied) for tied in (1.0, 20.0, 40.0)]

    assert spared == pytest.approx([3.0, 3.0, 2.25])


@pytest.mark.parametrize(("calm", "lowest"), [(0.0, LEVEL), (1.0, 7.0 - 1.9)])
def test_no_threshold_falls_below_the_level_by_what_alarms_would_hide(
    calm: float, lowest: float
) -> None:
    """At one alarm in some minutes; what is known of bursts lowers it all the same."""
    assert 7.0 - spared_of(known(0.0), calm=calm, whole=7.0) == pytest.approx(lowest)


def said(*, every: int = 0, often: float | None = None) -> tuple[list[Change], bytes]:
    """Return what a panel says of independent noise at one alarm in half an hour, and its state at the end.

    It is stored and resumed `every` so many rows. From ten minutes on what is measured counts, as if there
    had been hours before. The level is taken to be passed so many times as `often`, whatever the noise does.
    """
    columns = [Column("x", (("i", str(i)),)) for i in range(30)]
    values = 1000.0 + np.random.default_rng(11).standard_normal((2400, 30))
    panel, config = Panel(feeding.config(1800.0)), feeding.config(1800.0)
    found = []
    for k, row in enumerate(values):
        if k == 600:
            panel._blocks["s"].spread.seen[-1] += 4 * exceedance_rate.LEAST_ROWS
        if k == 600 or (every and k % every == 0):
            panel = Panel.from_bytes(panel.to_bytes(), config)
        if often is not None and k:
            panel._blocks["s"].spread.passed[:] = often * EXPECTED
        found += panel.update("s", columns, k, row, True, "soak")
    return found, panel.to_bytes()


@pytest.mark.long
def test_a_panel_whose_threshold_measures_itself_resumes_bit_for_bit() -> None:
    assert said(every=7) == said()


@pytest.mark.long
def test_what_was_measured_moves_the_alarms() -> None:
    """Of noise that passed the level ten times as often fewer are told, and of one that never did more."""
    often, as_expected, never = (
        sum(change.state == "warning" for change in said(often=times)[0])
        for times in (10.0, 1.0, 0.0)
    )

    assert 2 * often < as_expected < never
