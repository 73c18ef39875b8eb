"""Where a step began, and the interval that holds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.online.onset import interval
from soak.core.units import SECOND_NS
from tests.support.detection.panel_world import confirmed, run_beside_each_other


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(0.0, 40.0)))
def test_an_interval_holds_the_best_onset_and_95_percent(ratio: NDArray[np.float64]) -> None:
    if ratio.max() <= 0.0:
        return
    first, last = interval(ratio)
    weight = np.where(ratio > 0.0, np.exp(ratio - ratio.max()), 0.0)

    assert weight[first : last + 1].max() == weight.max()  # any of ratios that hardly differ
    assert weight[first : last + 1].sum() >= 0.95 * weight.sum() * (1.0 - 1e-9)


def test_a_clear_onset_has_an_interval_of_one_row() -> None:
    assert interval(np.array([0.0, 1.0, 30.0, 2.0])) == (2, 2)


@pytest.mark.long
@pytest.mark.parametrize("size", [1.0, 2.0, 4.0])
def test_the_interval_holds_the_onset_as_often_as_it_says(size: float) -> None:
    """Of 200 steps in independent noise at least nine in ten; 95 % are meant."""
    values = np.random.default_rng(9).standard_normal((900, 200))
    values[700:] += size
    config = Config(
        false_alarms=30 * 86_400 * SECOND_NS,
        panel_size=1,
        smallest_step_ratio=1.0001,
        smallest_step_seconds=0.0,
    )
    found = [c for _, c in confirmed(run_beside_each_other(1000.0 + values, config, unit=""))]
    steps = [change for change in found if change.direction == "up"]

    assert len(steps) >= 150
    held = sum(change.interval[0] <= 700 <= change.interval[1] for change in steps)
    assert held >= 0.9 * len(steps)
