"""Set rates hold: of steps in noise alone, of intervals without the onset, and the power that is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.offline.steps import Config, detect
from soak.core.model import Series

ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
TEN_SECONDS = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0, unit_seconds=10.0)
Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator, int], Floats]


def autocorrelated(correlation: float) -> Make:
    """Return AR(1) noise of unit variance; the first rows, which start at 0, are left out."""

    def make(rng: np.random.Generator, rows: int) -> Floats:
        fresh = rng.normal(0.0, (1.0 - correlation**2) ** 0.5, rows + 500)
        y = 0.0
        found = np.empty(fresh.size)
        for row, change in enumerate(fresh):
            found[row] = y = correlation * y + change
        return found[500:]

    return make


def white(rng: np.random.Generator, rows: int) -> Floats:
    return rng.normal(0.0, 1.0, rows)


def heavy(rng: np.random.Generator, rows: int) -> Floats:
    return np.asarray(rng.standard_t(4, rows) / 2.0**0.5)


def mixture(rng: np.random.Generator, rows: int) -> Floats:
    """One row in twenty has five times the spread."""
    return np.asarray(rng.normal(0.0, 1.0, rows) * np.where(rng.random(rows) < 0.05, 5.0, 1.0))


def daily(rng: np.random.Generator, rows: int) -> Floats:
    phase = 2.0 * np.pi * (np.arange(rows) / 86_400 + rng.random())
    return np.asarray(rng.normal(0.0, 1.0, rows) + 2.0 * np.sin(phase))


def rounded(rng: np.random.Generator, rows: int) -> Floats:
    return np.round(0.7 * autocorrelated(0.9)(rng, rows))


NOISES: Mapping[str, Make] = {
    "independent": white,
    "AR(1) 0.6": autocorrelated(0.6),
    "AR(1) 0.9": autocorrelated(0.9),
    "AR(1) 0.95": autocorrelated(0.95),
    "Student t, 4 degrees": heavy,
    "mixture": mixture,
    "daily wave": daily,
    "rounded": rounded,
}


def series_of(y: Floats) -> Series:
    """Return latencies about 4 ms whose log10 varies by a twentieth of `y`."""
    return Series("p99", np.arange(y.size), 0.004 * 10.0 ** (y / 20.0))


@pytest.mark.long
@pytest.mark.parametrize("name", NOISES)
def test_twelve_hours_of_seconds_without_a_change_have_no_step(name: str) -> None:
    """Five series of 43,200 rows at any size of step, at a rate of one in twenty series."""
    make = NOISES[name]

    assert [
        detect(series_of(make(np.random.default_rng(s), 43_200)), ANY_STEP) for s in range(5)
    ] == ([[]] * 5)


@pytest.mark.long
@pytest.mark.parametrize("rows", [90, 400])
def test_short_results_without_a_change_seldom_have_a_step(rows: int) -> None:
    """Samples of ten seconds: 20 series of each noise, of which about one in twenty may have one."""
    found = sum(
        bool(detect(series_of(make(np.random.default_rng(seed), rows)), TEN_SECONDS))
        for make in NOISES.values()
        for seed in range(20)
    )

    assert found <= 0.06 * 20 * len(NOISES)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "config"), [(500, ANY_STEP), (150, TEN_SECONDS)])
def test_intervals_hold_the_onset_as_often_as_they_say(rows: int, config: Config) -> None:
    """Steps of 1 to 5 long-run sd in three noises: 95 % or more are held, and half are dated exactly."""
    makes = ((white, 1.0), (autocorrelated(0.6), 2.0), (heavy, 1.0))
    held, apart, allowed = [], [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        make, long_run_sd = makes[seed % 3]
        y, onset, size = (
            make(rng, rows),
            int(rng.integers(3 * rows // 10, 7 * rows // 10)),
            rng.uniform(1, 5),
        )
        y[onset:] += size * long_run_sd
        found = detect(series_of(y), config)
        if found:
            best = min(found, key=lambda change: abs(change.onset_k - onset))
            held.append(best.interval[0] <= onset <= best.interval[1])
            apart.append(abs(best.onset_k - onset))
            allowed.append(1.0 / size**2 + 1.0)

    assert len(held) >= 0.85 * 300
    assert np.mean(held) >= 0.95
    assert np.median(np.array(apart) - np.array(allowed)) <= 0.0


@pytest.mark.long
@pytest.mark.parametrize(("ratio", "seconds"), [(1.5, 60), (1.2, 600), (1.1, 7200)])
def test_a_change_that_lasts_is_found_in_four_hours_of_noise(ratio: float, seconds: int) -> None:
    """AR(1) 0.6 with 12 % from second to second: 50 % for a minute, 20 % for ten, 10 % for two hours."""
    found = 0
    for seed in range(20):
        y = 20.0 * 0.05 * autocorrelated(0.6)(np.random.default_rng(seed), 14_400)
        values = 0.004 * 10.0 ** (y / 20.0)
        values[5000 : 5000 + seconds] *= ratio
        steps = detect(Series("p99", np.arange(values.size), values), ANY_STEP)
        found += any(abs(step.onset_k - 5000) <= 0.3 * seconds for step in steps)

    assert found >= 18
