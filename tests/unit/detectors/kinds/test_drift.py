"""Drift: found for what it is, not from steps, not from noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.kinds.drift import Watch, detect
from detectors.kinds.recent_rows import Recent
from detectors.minimum_effect import Config
from soak.core.model import Change, Series

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
    """Two hours from 10 to 25 ms, with quiet before and after."""
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


@pytest.mark.long
def test_two_hundred_quiet_series_hold_no_drift() -> None:
    """A tenth of them with a correlation of neighbours of 0.6; any rise of 5 % would count."""
    found = [
        detect(series_of(noise(seed, HOUR, 0.6 if seed % 10 == 0 else 0.0)), ANY)
        for seed in range(200)
    ]

    assert not any(found)


@pytest.mark.long
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


def watched(*legs: tuple[int, float]) -> list[Change]:
    """Return what is said of straight legs, each so many minutes to a level of log10 above 10 ms."""
    ends = np.cumsum([minutes for minutes, _ in legs])
    minutes = np.arange(ends[-1] + 1)
    level = np.interp(minutes, [0, *ends], [0.0, *(to for _, to in legs)]) - 2.0
    watch, recent, said = Watch(), Recent(), []
    rng = np.random.default_rng(1)
    for minute in minutes.tolist():
        for k in range(60 * minute, 60 * minute + 60, 2):
            if recent.take(k, float(level[minute] + rng.normal(0.0, 0.05))):
                said += watch.minute_ended("p99", k, recent, Config())
    return said


def turns(said: list[Change]) -> list[tuple[str, str]]:
    """Return direction and state of each word that is no going on."""
    words = [(one.raised_k, one.direction, one.state) for one in said]
    return [(way, state) for _, way, state in dict.fromkeys(words)]


@pytest.mark.long
@pytest.mark.parametrize(("there", "back"), [("down", "up"), ("up", "down")])
def test_a_drift_the_other_way_ends_the_one_that_stands(there: str, back: str) -> None:
    """A warm-up that improves fivefold stands for good; then it triples within 70 minutes."""
    sign = 1.0 if there == "up" else -1.0
    said = watched((70, 0.7 * sign), (120, 0.7 * sign), (70, 0.2 * sign), (60, 0.2 * sign))

    assert turns(said) == [(there, "confirmed"), (there, "gone"), (back, "confirmed")]


@pytest.mark.long
def test_hours_up_and_hours_down_are_reported_once_each() -> None:
    """Long windows still show the rise while short ones show the fall."""
    said = watched((300, 1.2), (180, 0.3))

    assert turns(said) == [("up", "confirmed"), ("up", "gone"), ("down", "confirmed")]


def test_a_level_beyond_where_a_drift_began_is_its_end() -> None:
    """From 10 to 40 ms, then at once to 5 ms."""
    said = watched((10, 0.0), (70, 0.6), (30, 0.6), (1, -0.3), (60, -0.3))

    assert turns(said) == [("up", "confirmed"), ("up", "gone")]


@pytest.mark.parametrize("sd", [0.0, 0.005, 0.1])
@pytest.mark.parametrize(
    "shape", [lambda t: 1.0 + 3.0 * t, lambda t: 4.0**t], ids=["linear", "exponential"]
)
def test_a_clean_drift_is_found_as_well_as_a_noisy_one(
    shape: Callable[[NDArray[np.float64]], NDArray[np.float64]], sd: float
) -> None:
    """From 10 to 40 ms within an hour: its bend on log10 is no correlated noise."""
    rng = np.random.default_rng(4)
    y = np.log10(shape(np.linspace(0.0, 1.0, HOUR))) + sd * rng.normal(size=HOUR)
    (found,) = detect(series_of(y), Config())

    assert found.kind == "drift"
    assert found.before < 0.015
    assert found.after > 0.035
