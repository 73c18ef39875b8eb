"""Drift: found for what it is, not from steps, not from noise."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.drift import Config, detect
from soak.core.model import Series

HOUR = 3600
ANY = Config(smallest_step_ratio=1.05, smallest_step_seconds=0.0)


def series_of(y: NDArray[np.float64], unit: float = 1.0) -> Series:
    """Return latencies about 10 ms whose log10 varies by `y`."""
    return Series("p99", np.arange(y.size), unit * 0.01 * 10.0**y)


def noise(seed: int, rows: int, correlation: float = 0.0) -> NDArray[np.float64]:
    y = np.random.default_rng(seed).normal(0.0, 0.05, rows)
    for row in range(1, rows if correlation else 0):
        y[row] += correlation * y[row - 1]
    return y


def test_a_slow_rise_is_one_drift() -> None:
    """Two hours from 10 to 25 ms, with calm before and after."""
    y = noise(1, 5 * HOUR)
    y += 0.4 * np.clip((np.arange(y.size) - 1.2 * HOUR) / (2 * HOUR), 0.0, 1.0)
    (found,) = detect(series_of(y), Config())

    assert found.kind == "drift"
    assert found.interval[0] <= 1.2 * HOUR <= found.interval[1]
    assert abs(found.before - 0.010) < 0.0015
    assert abs(found.after - 0.025) < 0.0025


def test_a_step_is_no_drift() -> None:
    y = noise(2, 4 * HOUR)
    y[2 * HOUR :] += 0.4

    assert detect(series_of(y), ANY) == []


def test_two_hundred_quiet_series_hold_no_drift() -> None:
    """A tenth of them with a correlation of neighbours of 0.6; any rise of 5 % would count."""
    found = [
        detect(series_of(noise(seed, HOUR, 0.6 if seed % 10 == 0 else 0.0)), ANY)
        for seed in range(200)
    ]

    assert not any(found)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), unit=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_unit_changes_nothing(seed: int, unit: float) -> None:
    y = noise(seed, HOUR) + np.linspace(0.0, 0.3, HOUR)
    found = detect(series_of(y), ANY)  # the rise, but for some three seeds in a thousand
    scaled = detect(series_of(y, unit), ANY)

    assert [(one.onset_k, one.interval) for one in scaled] == [
        (one.onset_k, one.interval) for one in found
    ]
    assert np.allclose([one.after for one in scaled], [unit * one.after for one in found])
