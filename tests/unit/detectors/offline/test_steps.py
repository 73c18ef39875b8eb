"""Steps of one complete series: found in place, in any unit, with gaps, and not where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.offline.steps import Config, detect
from soak.core.model import Change, Series

SEEDS = st.integers(0, 2**32 - 1)
ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
Floats = NDArray[np.float64]


def series_of(values: Floats, k: NDArray[np.int64] | None = None) -> Series:
    return Series("p99", np.arange(values.size) if k is None else k, values)


def latencies(y: Floats) -> Floats:
    """Return latencies about 4 ms whose log10 varies by a twentieth of `y`."""
    return np.asarray(0.004 * 10.0 ** (y / 20.0))


def noise(seed: int, rows: int) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 1.0, rows)


def onsets(found: list[Change]) -> list[int]:
    return [change.onset_k for change in found]


@pytest.mark.long
@settings(max_examples=25)
@given(seed=SEEDS, at=st.integers(120, 480), size=st.floats(6.0, 40.0), is_up=st.booleans())
def test_a_clear_step_is_found_once_and_in_place(
    seed: int, at: int, size: float, *, is_up: bool
) -> None:
    """Up or down, in independent noise, anywhere but near the ends."""
    y = noise(seed, 600)
    y[at:] += size if is_up else -size
    steps = [change for change in detect(series_of(latencies(y)), ANY_STEP) if _is_near(change, at)]

    assert len(steps) == 1
    assert steps[0].direction == ("up" if is_up else "down")
    assert steps[0].interval[0] <= steps[0].onset_k <= steps[0].interval[1]
    assert steps[0].confidence > 0.95


def _is_near(change: Change, at: int) -> bool:
    return abs(change.onset_k - at) <= 3


@pytest.mark.long
@settings(max_examples=25)
@given(seed=SEEDS, unit=st.sampled_from([1e-6, 1e-3, 1e3]))
def test_the_unit_of_a_latency_changes_nothing(seed: int, unit: float) -> None:
    y = noise(seed, 400)
    y[170:] += 8.0
    here, there = (detect(series_of(scale * latencies(y)), ANY_STEP) for scale in (1.0, unit))

    assert [(one.onset_k, one.interval) for one in here] == [
        (one.onset_k, one.interval) for one in there
    ]
    assert [one.after for one in there] == pytest.approx([unit * one.after for one in here])


@pytest.mark.long
@settings(max_examples=25)
@given(seed=SEEDS, unit=st.sampled_from([1e-3, 1.0, 1e3]), shift=st.sampled_from([-20.0, 0.0, 1e4]))
def test_a_linear_series_may_have_any_unit_and_lie_anywhere(
    seed: int, unit: float, shift: float
) -> None:
    values = noise(seed, 300)
    values[130:] += 9.0
    smallest = Config(scale="linear", smallest_step_ratio=1.0001, smallest_step_seconds=0.0)
    found = detect(series_of(unit * (values + shift)), smallest)

    assert [change for change in found if _is_near(change, 130)]
    assert found[0].after - found[0].before == pytest.approx(9.0 * unit, rel=0.1)


def test_values_of_zero_and_below_are_kept_on_a_linear_scale() -> None:
    """A latency below zero is a clock apart: no value is lifted, and the step has its true levels."""
    values = 0.001 * noise(3, 600)
    values[300:] += 0.02
    (step,) = detect(series_of(values), ANY_STEP)

    assert step.onset_k == 300
    assert (step.before, step.after) == pytest.approx((0.0, 0.02), abs=0.001)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0] * 500, [0.0] * 500])
def test_a_series_that_is_short_or_constant_has_no_step(values: list[float]) -> None:
    assert detect(series_of(np.array(values)), ANY_STEP) == []


@pytest.mark.parametrize(("before", "after"), [(1.0, 2.0), (3.0, 2.0), (0.0, 8.0), (5.0, 60_000.0)])
def test_a_step_of_a_series_without_noise_is_found_to_the_row(before: float, after: float) -> None:
    """A p50 in whole milliseconds, or a count."""
    values = np.repeat([before, after], [2000, 1600])
    (step,) = detect(series_of(values), ANY_STEP)

    assert (step.onset_k, step.interval) == (2000, (2000, 2000))
    assert (step.before, step.after) == (before, after)


@settings(max_examples=25)
@given(seed=SEEDS, share=st.sampled_from([0.01, 0.05, 0.25, 0.5]))
def test_whole_milliseconds_at_random_are_no_step(seed: int, share: float) -> None:
    """2 ms in some seconds at random, else 1 ms, for ten minutes: each fourth row or each hundredth."""
    is_slow = np.random.default_rng(seed).random(600) < share
    values = np.where(is_slow, 0.002, 0.001)
    found = detect(series_of(values), ANY_STEP)

    assert [change for change in found if change.confidence > 0.999] == []


def test_a_step_within_whole_milliseconds_has_levels_that_differ() -> None:
    """2 ms in a tenth of the rows, then in four tenths: most values are 1 ms before and after."""
    share = np.where(np.arange(14_400) < 7200, 0.1, 0.4)
    values = np.where(np.random.default_rng(4).random(share.size) < share, 0.002, 0.001)
    (step,) = detect(series_of(values), ANY_STEP)

    assert step.direction == "up"
    assert step.interval[0] <= 7200 <= step.interval[1]


@pytest.mark.parametrize("missing", [5, 50, 5000])
def test_a_gap_is_no_step(missing: int) -> None:
    k = np.concatenate([np.arange(300), np.arange(300 + missing, 600 + missing)])

    assert detect(series_of(latencies(noise(11, 600)), k), ANY_STEP) == []


def test_a_step_behind_a_gap_may_have_begun_in_it() -> None:
    y = noise(1, 400)
    y[200:] += 12.0
    k = np.where(np.arange(400) < 200, np.arange(400), np.arange(400) + 800)
    (step,) = detect(series_of(latencies(y), k), ANY_STEP)

    assert (step.onset_k, step.interval) == (1000, (200, 1000))


def test_a_tenth_of_the_rows_may_be_missing() -> None:
    rng = np.random.default_rng(5)
    k = np.flatnonzero(rng.random(2000) > 0.1)
    y = rng.normal(0.0, 1.0, k.size) + 6.0 * (k >= 900)
    (step,) = detect(series_of(latencies(y), k), ANY_STEP)

    assert abs(step.onset_k - 900) <= 2


def test_a_step_below_the_smallest_is_left_out_and_its_rows_belong_to_one_level() -> None:
    values = latencies(noise(1, 900))
    values[300:] *= 4.0
    values[600:] *= 1.3
    (step,) = detect(series_of(values), Config())

    assert step.onset_k == 300
    assert step.after / step.before == pytest.approx(4.0 * 1.3**0.5, rel=0.1)


def test_a_step_must_be_as_large_as_both_bounds_ask_for() -> None:
    """Twice 4 ms is 4 ms more."""
    values = latencies(noise(1, 600))
    values[300:] *= 2.0
    found = [
        detect(series_of(values), Config(smallest_step_ratio=ratio, smallest_step_seconds=seconds))
        for ratio, seconds in ((1.8, 0.003), (2.3, 0.003), (1.8, 0.006))
    ]

    assert [len(one) for one in found] == [1, 0, 0]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_stall_of_some_seconds_is_no_level(rows: int) -> None:
    """Fifty standard deviations up, in an hour of seconds."""
    y = noise(2, 3600)
    y[1700 : 1700 + rows] += 50.0

    assert detect(series_of(latencies(y)), ANY_STEP) == []


@pytest.mark.parametrize("spacing", [1, 10, 60])
def test_a_level_of_a_minute_of_rows_is_found_at_any_spacing(spacing: int) -> None:
    """At least a minute, and as many as six rows."""
    rows = max(6, 60 // spacing)
    y = noise(6, 600)
    y[300 : 300 + rows] += 15.0
    config = Config(
        smallest_step_ratio=1.005, smallest_step_seconds=0.0, unit_seconds=float(spacing)
    )
    found = detect(series_of(latencies(y)), config)

    assert onsets(found) == pytest.approx([300, 300 + rows], abs=1)


@pytest.mark.parametrize("rows", [30, 60, 400])
def test_a_short_benchmark_result_is_searched_too(rows: int) -> None:
    """Samples of ten seconds: latency is fifty times as high in a third of them."""
    y = noise(7, rows)
    y[rows // 3 : 2 * rows // 3] += 34.0
    found = detect(series_of(latencies(y)), Config(unit_seconds=10.0))

    assert onsets(found) == pytest.approx([rows // 3, 2 * rows // 3], abs=1)


def test_a_series_of_many_steps_shows_all_of_them() -> None:
    """Every minute another level: most windows of any length hold a step."""
    y = noise(8, 1200) + 10.0 * (np.arange(1200) // 60 % 2)

    assert onsets(detect(series_of(latencies(y)), ANY_STEP)) == pytest.approx(
        list(range(60, 1200, 60)), abs=2
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"smallest_step_ratio": 1.0},
        {"smallest_step_seconds": -1.0},
        {"false_step_rate": 0.0},
        {"unit_seconds": 0.0},
    ],
)
def test_a_setting_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)  # type: ignore[arg-type]  # each value is a float
