"""What a series teaches of its noise, and what is assumed before it has."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.online import noise
from detectors.online.panel import Panel
from detectors.online.state import CELL, ROWS, SeriesArrays, decode
from detectors.online.window import AGES
from soak.core.model import Column
from soak.core.units import SECOND_NS
from tests.bench.detect.noises import autocorrelated

pytestmark = pytest.mark.long
HOUR = 3600


def learnt(values: NDArray[np.float64]) -> SeriesArrays:
    """Return what a panel has learnt from these rows, at one alarm an hour."""
    config = Config(
        false_alarms=HOUR * SECOND_NS,
        panel_size=1,
        smallest_step_ratio=1.000001,
        smallest_step_seconds=0.0,
    )
    columns = [Column("x", (("i", str(i)),)) for i in range(values.shape[1])]
    panel = Panel(config)
    for k, row in enumerate(1000.0 + values):
        panel.update("s", columns, k, row, True, "soak")
    return decode(panel.to_bytes())["s"].arrays


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_the_variance_of_contrasts_is_that_of_the_noise(phi: float) -> None:
    """Two hours of an AR(1): at 40 rows (1 + phi) / (1 - phi), less what 40 rows do not show."""
    arrays = learnt(autocorrelated(phi)(np.random.default_rng(1), 2 * HOUR, 20))
    judged = noise.judge(arrays, np.full(20, 1e-3))
    at = int(np.searchsorted(AGES, 40))
    own = np.median(judged.variance[at] * judged.unit**2)
    m = float(AGES[at])
    expected = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**m) / (m * (1 - phi) ** 2)

    assert own == pytest.approx(expected, rel=0.25)


def test_the_scale_is_not_enlarged_by_steps_or_a_drift() -> None:
    rng = np.random.default_rng(2)
    steady = rng.standard_normal((1200, 10))
    moving = steady + 0.05 * np.arange(1200)[:, None] + 8.0 * (np.arange(1200)[:, None] // 300 % 2)

    assert np.median(learnt(moving).scale) == pytest.approx(
        np.median(learnt(steady).scale), rel=0.1
    )


def test_noise_that_doubles_is_followed_within_minutes() -> None:
    values = np.random.default_rng(3).standard_normal((1500, 10))
    values[1000:] *= 2.0

    assert np.median(learnt(values).scale) == pytest.approx(2.0, rel=0.2)


def test_bursts_narrow_the_bound_of_scores() -> None:
    rng = np.random.default_rng(4)
    quiet = rng.standard_normal((1800, 10))
    bursting = quiet + (rng.random(quiet.shape) < 0.05) * rng.lognormal(1.5, 0.8, quiet.shape)

    assert np.median(learnt(bursting).clip) < 0.85 * np.median(learnt(quiet).clip)


def test_a_random_walk_is_known_from_its_long_windows_within_two_hours() -> None:
    """Rows hardly show it: one standard deviation in 1,100 rows, behind independent noise."""
    independent = np.random.default_rng(5).standard_normal((2 * HOUR, 10))
    walk = independent + 0.03 * np.cumsum(
        np.random.default_rng(6).standard_normal((2 * HOUR, 10)), 0
    )
    still, moving = (
        noise.judge(learnt(values), np.full(10, 1e-3)).variance for values in (independent, walk)
    )

    assert np.median(moving[0]) == pytest.approx(np.median(still[0]), rel=0.2)
    assert np.median(moving[-1]) > 5.0 * np.median(still[-1])


def test_the_distance_of_the_values_of_a_grid_is_known_and_half_of_it_is_the_least_noise() -> None:
    values = np.round(np.random.default_rng(6).standard_normal((300, 10)))
    arrays = learnt(values)
    still = learnt(np.round(0.3 * np.random.default_rng(6).standard_normal((300, 10))))

    assert np.allclose(arrays.grid, 1.0)
    assert (noise.judge(still, np.zeros(10)).unit >= 0.5 * still.grid).all()


def test_noise_below_the_minimum_effect_counts_as_large_as_the_effect() -> None:
    arrays = learnt(0.01 * np.random.default_rng(7).standard_normal((600, 5)))
    judged = noise.judge(arrays, np.ones(5))

    assert np.allclose(judged.unit, 1.0)
    assert (judged.variance >= 1.0).all()


def test_the_ratio_is_that_of_students_t_and_normal_for_many_degrees_of_freedom() -> None:
    squared, variance = np.array([[4.0, 50.0], [1.0, 2.0]], np.float32)
    many, few = np.full((2, 2), [[3e3], [10.0]], np.float32)

    assert noise.log_ratio(squared, variance * many, many) == pytest.approx(
        squared / variance / 2.0, rel=1e-2
    )
    assert (noise.log_ratio(squared, variance * few, few) < squared / variance / 2.0).all()


def test_rows_of_the_window_and_cells_fit_together() -> None:
    assert ROWS % CELL == 0
    assert (np.diff(AGES) > 0).all()
