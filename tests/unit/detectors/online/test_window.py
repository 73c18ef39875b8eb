"""Running sums against their definition: means of scores since each onset and before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.online import window
from detectors.online.state import CELL, CELLS, ROWS, SLOTS, SeriesArrays


def filled(seed: int, series: int, missing: float) -> SeriesArrays:
    """Return arrays of noise around 5, some values missing, with cells of every size."""
    rng = np.random.default_rng(seed)
    arrays = SeriesArrays.empty(series)
    arrays.y[:] = rng.normal(5.0, 1.0, (SLOTS, series))
    arrays.y[rng.random((SLOTS, series)) < missing] = np.nan
    arrays.cell[:] = rng.normal(5.0, 0.3, (CELLS, series))
    arrays.cell_count[:] = rng.integers(0, CELL + 1, (CELLS, series))
    arrays.far[:], arrays.far_rows[:] = 5.0 * 700.0, 700.0
    arrays.center[:], arrays.clip[:] = 5.0, 2.0
    return arrays


def items(arrays: SeriesArrays, i: int, used: int) -> list[tuple[int, float, float]]:
    """Return age of the oldest row, sum of scores and number of rows of all that is kept, newest first."""
    clip = float(arrays.clip[i])
    found = []
    for slot in range(used - 1, -1, -1):
        value = float(arrays.y[slot, i]) - float(arrays.center[i])
        is_here = np.isfinite(value)
        found.append(
            (used - slot, float(np.clip(value, -clip, clip)) if is_here else 0.0, float(is_here))
        )
    for at in range(CELLS):
        count = float(arrays.cell_count[at, i])
        value = float(np.clip(float(arrays.cell[at, i]) - float(arrays.center[i]), -clip, clip))
        found.append((used + CELL * (at + 1), value * count, count))
    return found


@pytest.mark.long
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    used=st.integers(ROWS, SLOTS),
    missing=st.sampled_from([0.0, 0.3]),
)
def test_contrasts_are_differences_of_two_means(seed: int, used: int, missing: float) -> None:
    arrays, unit = filled(seed, 3, missing), np.ones(3, np.float32)
    sums = window.Sums.empty(3)
    window.add_up(sums, arrays, unit, used, slice(None))
    (squared,), (known,) = window.contrasts(sums, np.array([used]))

    for g, age in enumerate(window.AGES):
        onset = int(age) if age < ROWS else used + int(age) - ROWS - CELL // 2
        kept = items(arrays, 1, used)
        oldest = used + CELL * int(sums.oldest_cell[g])
        since = [(z, n) for at, z, n in kept if at <= onset]
        before = [(z, n) for at, z, n in kept if onset < at <= oldest]
        if sums.uses_far[g]:
            before.append((0.0, 700.0))  # its level is the centre
        m, n = sum(one[1] for one in since), sum(one[1] for one in before)
        if not known[g, 1]:
            assert m < window.LEAST_AFTER or n < 16
            continue
        apart = sum(one[0] for one in since) / m - sum(one[0] for one in before) / n
        assert squared[g, 1] == pytest.approx(apart**2 * m * n / (m + n), rel=1e-3, abs=1e-4)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000), rows=st.integers(1, CELL))
def test_adding_row_by_row_gives_the_same_sums_bit_for_bit(seed: int, rows: int) -> None:
    arrays, unit = filled(seed, 5, 0.1), np.ones(5, np.float32)
    at_once, one_by_one = window.Sums.empty(5), window.Sums.empty(5)
    window.add_up(at_once, arrays, unit, ROWS + rows, slice(None))
    window.add_up(one_by_one, arrays, unit, ROWS, slice(None))
    for used in range(ROWS, ROWS + rows):
        z, here = window.scores(arrays.y[used], arrays.center, unit, arrays.clip)
        window.add_rows(one_by_one, z[np.newaxis], here[np.newaxis], used)

    last = ROWS + rows + 1
    assert np.array_equal(at_once.rows[:last], one_by_one.rows[:last])
    assert np.array_equal(at_once.row_counts[:last], one_by_one.row_counts[:last])


def test_all_onsets_of_one_series_contain_the_candidate_onsets() -> None:
    arrays, unit, used = filled(3, 4, 0.0), np.ones(4, np.float32), ROWS + 4
    sums = window.Sums.empty(4)
    window.add_up(sums, arrays, unit, used, slice(None))
    (squared,), _ = window.contrasts(sums, np.array([used]))
    age, _, every, _ = window.contrasts_of_one(sums, float(arrays.far_rows[2]), used, 2)

    shared = [
        (g, int(np.flatnonzero(age == at)[0])) for g, at in enumerate(window.AGES) if at in age
    ]
    assert len(shared) >= 20
    for g, place in shared:
        assert every[place] == pytest.approx(squared[g, 2], rel=1e-4)


def test_the_oldest_rows_become_a_cell_of_their_winsorised_mean() -> None:
    arrays, unit = SeriesArrays.empty(1), np.ones(1, np.float32)
    arrays.clip[:] = 2.0
    arrays.y[:, 0] = np.arange(SLOTS)
    arrays.y[:CELL, 0] = [1, 1, 1, 1, np.nan, 1, 1, 9]
    window.shift(arrays, unit)

    assert arrays.cell[0, 0] == pytest.approx((6 * 1.0 + 2.0) / 7)
    assert arrays.cell_count[0, 0] == 7
    assert arrays.y[0, 0] == CELL
    assert np.isnan(arrays.y[ROWS:, 0]).all()
