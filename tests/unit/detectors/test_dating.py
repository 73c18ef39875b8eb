"""What dating a step is computed from, against the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors import _dating
from detectors._dating import middle

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(values=st.lists(FINITE, min_size=1, max_size=60))
def test_the_middle_is_the_median_bit_for_bit(values: list[float]) -> None:
    given_values = np.array(values)
    kept = given_values.copy()

    assert middle(given_values) == float(np.median(kept))
    assert (given_values == kept).all()


@pytest.mark.parametrize("rows", [3, 5, 12, 100])
def test_the_long_run_variance_is_that_of_its_autocovariances(rows: int) -> None:
    """Bartlett's weights over ten lags, after an AR(1) is taken out, with and without correlation."""
    for seed in range(20):
        rest = np.random.default_rng(seed).normal(0.0, 1.0, rows)
        rest = np.cumsum(rest) if seed % 2 else rest
        rest -= rest.mean()

        assert _dating._long_run_variance(rest) == pytest.approx(_by_lags(rest), rel=1e-9)


def _by_lags(rest: NDArray[np.float64]) -> float:
    n = rest.size
    raw = float(rest[1:] @ rest[:-1]) / float(rest @ rest)
    correlation = min(max(raw + (1.0 + 3.0 * raw) / n, 0.0), 0.97)
    left = rest[1:] - correlation * rest[:-1]
    own = found = float(left @ left)
    for lag in range(1, min(10, left.size - 1) + 1):
        found += 2.0 * (1.0 - lag / 11.0) * float(left[lag:] @ left[:-lag])
    return max(found, own / 2.0) / left.size / (1.0 - correlation) ** 2
