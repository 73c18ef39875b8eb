"""The likelihood ratio of the panel against its definition, written out slowly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors import _block
from detectors._block import ROWS, Block
from detectors._glr import BLOCK, WINDOWS, Memory, fit, interval, mean_factor, scan
from detectors._measure import Step
from soak.core.model import Column

STEP = Step(1.5, 0.001)


def slow_factor(share: float, phi: float, n: int) -> float:
    """Sum the correlations of all pairs of n rows."""
    total = 0.0
    for i in range(n):
        for j in range(n):
            total += 1.0 if i == j else share * phi ** abs(i - j)
    return total / n


def slow_ratio(z: NDArray[np.float64], start: int, share: float, phi: float) -> float:
    before, after = z[:start], z[start:]
    noise = slow_factor(share, phi, before.size) / before.size
    noise += slow_factor(share, phi, after.size) / after.size
    return float((after.mean() - before.mean()) ** 2 / (2.0 * noise))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(share=st.floats(0, 1), phi=st.floats(0, 0.95), n=st.integers(1, 40))
def test_the_variance_of_a_mean_is_the_sum_of_its_correlations(
    share: float, phi: float, n: int
) -> None:
    memory = Memory(np.array(share), np.array(phi))

    assert float(mean_factor(memory, n)) == pytest.approx(slow_factor(share, phi, n))


@pytest.mark.parametrize(("share", "phi"), [(1.0, 0.0), (1.0, 0.6), (0.5, 0.9)])
def test_the_scan_is_the_ratio_of_each_start(share: float, phi: float) -> None:
    z = np.random.default_rng(1).normal(size=60)
    ratio = scan(z, 1.0, Memory(np.array([share]), np.array([phi])), 10, 4)
    expected = [slow_ratio(z, s, share, phi) if 10 <= s <= 56 else 0.0 for s in range(60)]

    assert ratio == pytest.approx(expected)


@pytest.mark.parametrize(("share", "phi"), [(1.0, 0.3), (0.5, 0.9), (0.8, 0.7)])
def test_a_memory_is_found_from_its_neighbours_and_blocks(share: float, phi: float) -> None:
    memory = Memory(np.array([share]), np.array([phi]))
    found = fit(np.array([share * phi]), mean_factor(memory, BLOCK))

    assert float(found.phi[0]) == pytest.approx(phi, abs=0.02)
    assert float(found.share[0]) == pytest.approx(share, rel=0.05)


def full_block(n: int, rows: int, missing: float) -> Block:
    columns = tuple(Column("x", (("i", str(i)),)) for i in range(n))
    block = _block.adopt(_block.empty(columns), columns, STEP, 0)
    rng = np.random.default_rng(n)
    for k in range(rows):
        y = rng.normal(size=n).astype(np.float32)
        y[rng.random(n) < missing] = np.nan
        _block.push(block, k, y, STEP)
        if k == ROWS // 2:
            _block.relearn(block, np.ones(n, np.bool_), STEP)
    return block


@pytest.mark.parametrize(("rows", "missing"), [(200, 0.0), (1000, 0.0), (1000, 0.3)])
def test_running_sums_are_the_sums_of_the_windows(rows: int, missing: float) -> None:
    block = full_block(5, rows, missing)
    places = _block.ordered(block)
    for at, window in enumerate([*WINDOWS, ROWS]):
        assert (block.sums[at] == block.q[places][-window:].sum(axis=0)).all()
        assert (block.counts[at] == block.here[places][-window:].sum(axis=0)).all()


def test_the_windows_give_what_the_scan_gives_at_their_starts() -> None:
    block = full_block(3, 1000, 0.0)
    best = _block.ratios(block, 20)
    places = _block.ordered(block)
    for i in range(3):
        memory = block.used.take(np.array([i])).memory()
        variance = float(block.used.variance[i])
        exact = scan(block.q[places, i] / _block.PARTS, variance, memory, 20, 4)

        # the windows take the factor of the whole ring for the rows before
        assert best[i] == pytest.approx(max(exact[ROWS - w] for w in WINDOWS), rel=0.05)


def test_the_windows_lose_little_against_all_starts() -> None:
    """A step of 1.5 sd at a random row: the windows reach the threshold at most 15 % later."""
    rng = np.random.default_rng(3)
    memory = Memory(np.array([1.0]), np.array([0.0]))
    late = []
    for _ in range(200):
        z = rng.normal(size=ROWS + 200)
        z[ROWS:] += 1.5
        sums = np.concatenate([[0.0], np.cumsum(z)])
        exact = windowed = 0
        for after in range(4, 200):
            end = ROWS + after
            ring = z[end - ROWS : end]
            if not exact and scan(ring, 1.0, memory, 20, 4).max() > 14.8:
                exact = after
            means = (sums[end] - sums[end - WINDOWS]) / WINDOWS
            rest = (sums[end - WINDOWS] - sums[end - ROWS]) / (ROWS - WINDOWS)
            ratio = (means - rest) ** 2 / 2.0 / (1.0 / WINDOWS + 1.0 / (ROWS - WINDOWS))
            if ratio.max() > 14.8:
                windowed = after
                break
        late.append(windowed / exact)

    assert np.mean(late) <= 1.15


def test_the_interval_holds_the_onset_as_often_as_it_says() -> None:
    """A step of 1.5 sd in independent noise, 400 seeds: at least 90 % of intervals hold it."""
    memory = Memory(np.array([1.0]), np.array([0.0]))
    held = 0
    for seed in range(400):
        z = np.random.default_rng(seed).normal(size=120)
        z[60:] += 1.5
        low, high = interval(scan(z, 1.0, memory, 20, 4))
        held += low <= 60 <= high

    assert held >= 360
