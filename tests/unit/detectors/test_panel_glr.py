"""The likelihood ratio of the panel against its definition, written out slowly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors import _block, _learning, _rows, _scores
from detectors._block import Block
from detectors._measure import Step
from detectors._memory import SCALES, Memory, fit, of_contrast, of_mean
from detectors._onset import interval, scan
from detectors._scores import LEAST_BEFORE, PARTS
from detectors._windows import AFTER, CELL, CELLS, LONG, ROWS, SHORT, rows_compared
from soak.core.model import Column

STEP = Step(1.5, 0.001)


def memory_of(white: float, slow: float, phi: float) -> Memory:
    return Memory(np.array([white]), np.array([slow]), np.array([phi]), np.array([0.0]))


def correlation(white: float, slow: float, phi: float, lag: int) -> float:
    return slow * phi ** abs(lag) + (white if lag == 0 else 0.0)


def slow_variance(weights: NDArray[np.float64], white: float, slow: float, phi: float) -> float:
    """Sum the covariances of all pairs."""
    n = weights.size
    return sum(
        float(weights[i] * weights[j]) * correlation(white, slow, phi, i - j)
        for i in range(n)
        for j in range(n)
    )


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    white=st.floats(0.1, 2),
    slow=st.floats(0, 2),
    phi=st.floats(0.1, 0.95),
    after=st.integers(1, 20),
    before=st.integers(1, 20),
)
def test_the_variance_of_a_contrast_is_the_sum_of_its_covariances(
    white: float, slow: float, phi: float, after: int, before: int
) -> None:
    memory = memory_of(white, slow, phi)
    mean, weights = (
        np.full(after, 1.0 / after),
        np.append(np.full(before, -1.0 / before), np.full(after, 1.0 / after)),
    )
    m, n = np.array([float(after)]), np.array([float(before)])
    contrast = (1.0 / m + 1.0 / n) * of_contrast(memory, m, n)

    assert of_mean(memory, m)[0] / after == pytest.approx(slow_variance(mean, white, slow, phi))
    assert contrast[0] == pytest.approx(slow_variance(weights, white, slow, phi), rel=1e-6)


@pytest.mark.parametrize(
    ("white", "slow", "phi"), [(1.0, 0.0, 0.5), (0.0, 1.0, 0.6), (0.5, 0.5, 0.9), (0.0, 1.0, 0.95)]
)
def test_a_memory_is_found_from_how_neighbouring_means_vary(
    white: float, slow: float, phi: float
) -> None:
    memory = memory_of(white, slow, phi)
    scales = SCALES[:, np.newaxis]
    seen = of_contrast(memory, scales, scales) / scales
    found = fit(seen, np.full((4, 1), 1e6), np.zeros(1))
    far = np.array([200.0])

    assert of_mean(found, far) == pytest.approx(of_mean(memory, far), rel=0.05)
    assert found.variance == pytest.approx(memory.variance, rel=0.05)


@pytest.mark.parametrize("phi", [0.6, 0.8, 0.95])
def test_correlation_is_not_underrated_before_minutes_are_known(phi: float) -> None:
    """From what five minutes tell of an AR(1): nothing is known of means of 80 rows yet."""
    memory, scales = memory_of(0.0, 1.0, phi), SCALES[:, np.newaxis]
    seen = of_contrast(memory, scales, scales) / scales
    seen[-1] = 1.0 / SCALES[-1]
    found = fit(seen, np.array([[300.0], [295.0], [280.0], [0.0]]), np.zeros(1))
    minute = np.array([60.0])

    assert of_mean(found, minute)[0] >= 0.7 * of_mean(memory, minute)[0]


def test_what_varies_more_over_minutes_than_an_ar1_tells_is_wandering() -> None:
    seen = 1.0 / SCALES[:, np.newaxis]
    seen[-1] *= 4.0
    found = fit(seen, np.full((4, 1), 1e6), np.zeros(1))
    many = np.array([300.0])

    assert of_mean(found, many)[0] >= 3.0


def test_means_of_minutes_that_nobody_has_seen_are_thought_to_wander() -> None:
    """Independent as far as 16 rows, after two minutes and after hours."""
    seen, many = 1.0 / SCALES[:, np.newaxis], np.array([120.0])
    young = np.array([[120.0], [117.0], [105.0], [0.0]])

    assert of_mean(fit(seen, young, np.zeros(1), 120.0), many)[0] >= 2.0
    assert of_mean(fit(seen, young, np.zeros(1)), many)[0] <= 1.2
    assert of_mean(fit(seen, np.full((4, 1), 1e5), np.zeros(1), 120.0), many)[0] <= 1.2


@pytest.mark.parametrize(("white", "slow", "phi"), [(1.0, 0.0, 0.5), (0.0, 1.0, 0.6)])
def test_the_scan_is_the_ratio_of_each_start(white: float, slow: float, phi: float) -> None:
    z = np.random.default_rng(1).normal(size=60)
    first = np.maximum(np.arange(60) - 30, 0)
    ratio = scan(z, np.ones(60), first, memory_of(white, slow, phi).take(0), 10, 4)
    expected = np.zeros(60)
    for start in range(10, 57):
        after, before = z[start:], z[first[start] : start]
        weights = np.append(
            np.full(before.size, -1.0 / before.size), np.full(after.size, 1.0 / after.size)
        )
        noise = slow_variance(weights, white, slow, phi)
        expected[start] = (after.mean() - before.mean()) ** 2 / (2.0 * noise)

    assert ratio == pytest.approx(expected)


def full_block(n: int, rows: int, missing: float) -> tuple[Block, NDArray[np.float32]]:
    """Return a block that was fed `rows` rows, learnt once, and the rows."""
    columns = tuple(Column("x", (("i", str(i)),)) for i in range(n))
    block = _rows.adopt(_block.empty(columns), columns, STEP, 0)
    rng = np.random.default_rng(n)
    values = (100.0 * rng.normal(size=(rows, n))).astype(np.float32)
    values[rng.random((rows, n)) < missing] = np.nan
    for k in range(rows):
        _rows.push(block, k, values[k], STEP)
        if k == ROWS // 2:
            _learning.relearn(block, np.ones(n, np.bool_), STEP)
    return block, values


@pytest.mark.parametrize(("rows", "missing"), [(200, 0.0), (1000, 0.0), (1000, 0.3)])
def test_running_sums_are_the_sums_of_the_windows(rows: int, missing: float) -> None:
    block, _ = full_block(5, rows, missing)
    places = _block.ordered(block)
    kinds = [block.narrow] * (SHORT.size + 1) + [block.wide] * (LONG.size + 1)
    for at, (window, scores) in enumerate(zip([*SHORT, ROWS, *LONG, ROWS], kinds, strict=True)):
        assert (block.sums[at] == scores[places][-window:].sum(axis=0)).all()
        assert (block.counts[at] == block.here[places][-window:].sum(axis=0)).all()


@pytest.mark.long
@pytest.mark.parametrize(("rows", "missing"), [(168, 0.0), (1003, 0.2), (2500, 0.0)])
def test_cells_hold_what_left_the_ring(rows: int, missing: float) -> None:
    """The newest whole cell is the mean of the clipped rows just before the unfinished one."""
    block, values = full_block(3, rows, missing)
    whole = (rows - ROWS) // CELL
    level, count = block.cells.newest_first(np.arange(3))
    last = values[(whole - 1) * CELL : whole * CELL].astype(np.float64)

    assert block.cells.whole == whole
    assert (count[0] == np.isfinite(last).sum(axis=0)).all()
    if rows > 300:  # earlier ones were scored before anything was learnt
        spread = block.spread
        score = (last - spread.center) / np.where(last > spread.center, spread.up, spread.down)
        score = np.clip(score, -block.wide_limit, block.wide_limit)
        expected = spread.center + block.unit * np.nanmean(score, axis=0)
        assert level[0] == pytest.approx(expected, abs=0.2)


@pytest.mark.long
def test_the_windows_give_what_the_scan_gives_at_their_starts() -> None:
    rows = ROWS + CELL * (CELLS + 2) + 11
    block, _ = full_block(3, rows, 0.0)
    _learning.relearn(block, np.ones(3, np.bool_), STEP)
    best = _scores.ratios(block)
    for i in range(3):
        narrow, ones, ages = _items_newest_last(block, i, block.narrow)
        wide, _, _ = _items_newest_last(block, i, block.wide)
        in_ring = np.full(ages.size, np.flatnonzero(ages == ROWS)[-1])
        short = scan(narrow, ones, in_ring, block.narrow_memory.take(i), LEAST_BEFORE, 4)
        first = np.searchsorted(-ages, -rows_compared(ages))
        long = scan(wide, ones, first, block.wide_memory.take(i), LEAST_BEFORE, 4)
        exact = [short[ages == window][-1] for window in SHORT]
        exact += [long[ages == window][-1] for window in LONG]

        # the panel compares with whole cells, and what was learnt has an error
        assert best[: len(exact), i] == pytest.approx(exact, rel=0.35, abs=0.4)
        assert AFTER.size == best.shape[0]


def _items_newest_last(
    block: Block, i: int, scores: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    level, count = block.cells.newest_first(np.array([i]))
    z = (level[::-1, 0] - block.spread.center[i]) / block.unit[i] * count[::-1, 0]
    rest = block.cells.count[i] * (block.cells.mean()[i] - block.spread.center[i]) / block.unit[i]
    ring = scores[_block.ordered(block), i] / PARTS
    ages_ring = np.arange(ROWS, 0, -1)
    edge = ROWS + block.cells.rows
    ages = np.concatenate([edge + CELL * np.arange(CELLS, 0, -1), [edge], ages_ring])
    counts = np.concatenate([count[::-1, 0], [block.cells.count[i]], np.ones(ROWS)])
    return np.concatenate([z, [rest], ring]), counts.astype(np.float64), ages


def test_the_interval_holds_the_onset_as_often_as_it_says() -> None:
    """A step of 1.5 sd in independent noise, 400 seeds: at least 90 % of intervals hold it."""
    memory, first = memory_of(1.0, 0.0, 0.5).take(0), np.zeros(120, np.int64)
    held = 0
    for seed in range(400):
        z = np.random.default_rng(seed).normal(size=120)
        z[60:] += 1.5
        low, high = interval(scan(z, np.ones(120), first, memory, 10, 4))
        held += low <= 60 <= high

    assert held >= 360
