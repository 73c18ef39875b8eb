"""Steps of one series and of many: known answers and known nothings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.level_shift import Config
from soak.core.model import Change, Column
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from tests.support.detection.panel_world import (
    confirmed,
    latencies,
    run,
    run_beside_each_other,
)

HOUR = 3600 * SECOND_NS
AT_ONCE_AN_HOUR = Config(
    false_alarms=HOUR, panel_size=1, smallest_step_ratio=1.0001, smallest_step_seconds=0.0
)
AT_ONCE_A_MONTH = replace(AT_ONCE_AN_HOUR, false_alarms=30 * 24 * HOUR)


def autocorrelated(correlation: float, rows: int, series: int, seed: int) -> NDArray[np.float64]:
    values = np.random.default_rng(seed).standard_normal((rows, series))
    for k in range(1, rows):
        values[k] = correlation * values[k - 1] + np.sqrt(1.0 - correlation**2) * values[k]
    return values


@pytest.mark.long
def test_a_step_after_the_baseline_is_confirmed_soon_dated_well_and_once() -> None:
    """Two minutes of 4 ms, then 60 ms: of 100 seeds nearly all within 25 s and 2 s of the onset."""
    values = np.column_stack([latencies(seed, 240, onset=130) for seed in range(100)])
    ups = confirmed(run_beside_each_other(values, Config()))

    assert Counter(change.series for _, change in ups).most_common(1)[0][1] == 1
    assert {change.direction for _, change in ups} == {"up"}
    assert sum(k - 130 <= 25 for k, _ in ups) >= 95
    assert sum(abs(change.onset_k - 130) <= 2 for _, change in ups) >= 95
    assert sum(c.interval[0] <= 130 <= c.interval[1] for _, c in ups) >= 95


@pytest.mark.long
def test_a_large_step_within_the_first_two_minutes_is_found_too() -> None:
    """With a baseline of 25 s, a step at 64 s: nearly all within a minute."""
    values = np.column_stack([latencies(seed, 130, onset=64) for seed in range(60)])

    assert len({change.series for _, change in confirmed(run_beside_each_other(values))}) >= 48


def test_before_and_after_are_medians_in_seconds() -> None:
    ((_, change),) = confirmed(run(latencies(1, 240, onset=150)))

    assert change.before == pytest.approx(0.004, rel=0.15)
    assert change.after == pytest.approx(0.06, rel=0.15)
    assert change.interval[0] <= 150 <= change.interval[1]


@pytest.mark.long
def test_no_step_is_confirmed_where_there_is_none() -> None:
    """300 seeds of 150 s with pauses."""
    values = np.column_stack([latencies(seed, 150) for seed in range(300)])

    assert confirmed(run_beside_each_other(values)) == []


def noise(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    if kind == "student-t":
        return rng.standard_t(3, size=shape)
    normal = rng.normal(size=shape)
    if kind == "spikes":
        return normal + (rng.random(shape) < 0.05) * rng.lognormal(1.5, 0.8, shape)
    if kind == "rounded":
        return np.asarray(np.round(0.7 * normal))
    if kind == "autocorrelated":
        return autocorrelated(0.6, *shape, seed=5)
    return normal


@pytest.mark.long
def test_false_alarms_stay_at_the_set_rate() -> None:
    """100 series of a kind, half an hour each, at one alarm an hour and series: 50 are allowed, not 100."""
    kinds = ["independent", "autocorrelated", "student-t", "spikes", "rounded"]
    shape = (1800 + 120, 100)
    values = np.hstack([noise(kind, shape, np.random.default_rng(5)) for kind in kinds])
    alarms = confirmed(run_beside_each_other(100.0 + values, AT_ONCE_AN_HOUR, unit=""))

    found = Counter(kinds[int(parse_series(c.series).labels[0][1]) // 100] for _, c in alarms)
    assert {kind: count for kind, count in found.items() if count > 100} == {}


@pytest.mark.long
@pytest.mark.parametrize("correlation", [0.8, 0.95])
def test_autocorrelation_raises_hardly_any_alarm_in_the_first_minutes(correlation: float) -> None:
    """40 series of 10 minutes, at one alarm in 30 days over 100 series."""
    values = autocorrelated(correlation, 600, 40, seed=3)
    config = replace(AT_ONCE_A_MONTH, panel_size=100)

    assert len(confirmed(run_beside_each_other(1000.0 + values, config, unit=""))) <= 2


@pytest.mark.long
@pytest.mark.parametrize(("correlation", "size"), [(0.0, 2.0), (0.6, 4.0), (0.9, 8.7)])
def test_a_step_is_judged_in_long_run_standard_deviations(correlation: float, size: float) -> None:
    """Two of them are seen within a minute, whatever the autocorrelation."""
    values = autocorrelated(correlation, 1260, 40, seed=8)
    values[1200:] += size
    found = confirmed(run_beside_each_other(1000.0 + values, AT_ONCE_A_MONTH, unit=""))

    assert len([k for k, _ in found if k < 1200]) <= 3
    assert len({change.series for k, change in found if k >= 1200}) >= 36


@pytest.mark.long
def test_half_a_standard_deviation_is_seen_in_minutes() -> None:
    """After half an hour of independent noise, at one alarm in 30 days: half within 250 s."""
    values = 1000.0 + noise("independent", (2100, 40), np.random.default_rng(6))
    values[1800:] += 0.5
    found = confirmed(run_beside_each_other(values, AT_ONCE_A_MONTH, unit=""))

    assert [k for k, _ in found if k < 1800] == []
    assert sum(k < 2050 for k, _ in found) >= 14


@pytest.mark.long
@pytest.mark.parametrize("rounded", [0, 1])
def test_a_cluster_that_stops_acknowledging_is_found_while_it_lasts(rounded: int) -> None:
    """The wait of the oldest message, in whole seconds; some are a second late before."""
    waits = np.zeros(400)
    waits[100:300:47] = rounded
    waits[330:] = np.minimum(np.arange(70) + 1.0, 10.0)
    ((k, change),) = confirmed(run(waits, column=Column("publish_waiting_seconds", (), "seconds")))

    assert (change.before, change.direction) == (0.0, "up")
    assert abs(change.onset_k - 330) <= 2
    assert k <= 330 + 25


@pytest.mark.long
def test_one_slow_second_or_a_stall_of_five_is_no_step() -> None:
    """Of 200 seeds, each with both."""
    values = np.column_stack([latencies(seed, 150) for seed in range(200)])
    values[60] = 3.0
    values[90:95] = 1.0

    assert confirmed(run_beside_each_other(values)) == []


@pytest.mark.long
def test_a_stall_of_six_rows_is_confirmed_in_at_most_three_percent() -> None:
    """30 standard deviations high, in independent noise that is well known."""
    values = np.random.default_rng(5).standard_normal((700, 400))
    values[600:606] += 30.0
    found = confirmed(run_beside_each_other(1000.0 + values, AT_ONCE_A_MONTH, unit=""))

    assert len(found) <= 12


@pytest.mark.long
def test_two_slow_seconds_after_a_slight_rise_rarely_make_it_a_step() -> None:
    """Eight rows 1.5 standard deviations high, then two far off: most of 400 are not confirmed."""
    values = np.random.default_rng(5).standard_normal((700, 400))
    values[592:600] += 1.5
    values[600:602] += 30.0
    found = confirmed(run_beside_each_other(1000.0 + values, AT_ONCE_A_MONTH, unit=""))

    assert len({change.series for _, change in found}) <= 80


@pytest.mark.long
def test_a_step_below_the_smallest_is_not_reported() -> None:
    values = 10.0 ** (np.log10(0.004) + np.random.default_rng(2).normal(0.0, 0.02, 600))
    values[300:] *= 1.3

    assert run(values) == []


@pytest.mark.long
def test_a_change_of_less_than_a_millisecond_is_not_reported() -> None:
    values = 10.0 ** (np.log10(0.0001) + np.random.default_rng(2).normal(0.0, 0.02, 600))
    values[300:] *= 5.0

    assert run(values) == []


def test_missing_values_are_no_values() -> None:
    values = latencies(9, 360, onset=180)
    values[np.random.default_rng(1).random(360) < 0.3] = np.nan
    ((_, change),) = confirmed(run(values))

    assert abs(change.onset_k - 180) <= 3


@pytest.mark.parametrize("unit", ["", "ratio", "messages", "bytes"])
def test_other_units_are_judged_on_a_linear_scale(unit: str) -> None:
    values = 1000.0 + np.random.default_rng(3).normal(0.0, 50.0, 250)
    values[150:] += 1000.0
    ((_, change),) = confirmed(run(values, column=Column("x", unit=unit)))

    assert abs(change.onset_k - 150) <= 1


@settings(max_examples=8, deadline=None, derandomize=True)
@given(exponent=st.integers(-20, 20), seed=st.integers(0, 3))
@pytest.mark.long
def test_the_unit_of_a_series_does_not_matter(exponent: int, seed: int) -> None:
    """Powers of two change no digit of a float."""
    values = 1000.0 + np.random.default_rng(seed).normal(0.0, 50.0, 220)
    values[150:] += 1000.0

    def found(scale: float) -> list[tuple[int, str, int, tuple[int, int]]]:
        said = run(scale * values, column=Column("x"))
        return [(k, one.state, one.onset_k, one.interval) for k, one in said]

    assert found(2.0**exponent) == found(1.0) != []


@settings(max_examples=6, deadline=None, derandomize=True)
@given(seed=st.integers(0, 5), factor=st.sampled_from([0.1, 3.0, 100.0]))
@pytest.mark.long
def test_on_log10_a_factor_moves_the_levels_only(seed: int, factor: float) -> None:
    values = latencies(seed, 240, onset=150)
    config = Config(smallest_step_seconds=0.0)

    def found(scale: float) -> list[Change]:
        return [one for _, one in confirmed(run(scale * values, config))]

    ((plain,), (scaled,)) = found(1.0), found(factor)
    assert abs(plain.onset_k - scaled.onset_k) <= 1
    assert scaled.after / plain.after == pytest.approx(factor, rel=1e-3)


def test_series_that_never_change_raise_nothing_until_they_do() -> None:
    values = np.zeros(260)
    values[160:] = 3.0
    ((_, change),) = confirmed(run(values, column=Column("retention_deletions")))

    assert (change.onset_k, change.before, change.after) == (160, 0.0, 3.0)


@pytest.mark.long
def test_latencies_below_zero_are_judged_on_a_linear_scale() -> None:
    """A clock that is 2 ms ahead makes latencies negative; 8 ms more are found."""
    values = np.random.default_rng(4).normal(-0.002, 0.0005, 300)
    values[200:] += 0.008
    ((_, change),) = confirmed(run(values))

    assert change.onset_k == 200
    assert change.before == pytest.approx(-0.002, abs=2e-4)
    assert change.after == pytest.approx(0.006, abs=2e-4)


@pytest.mark.long
def test_a_single_zero_among_latencies_neither_alarms_nor_hides_a_step() -> None:
    values = latencies(5, 400, onset=300)
    values[200] = 0.0
    ((_, change),) = confirmed(run(values))

    assert abs(change.onset_k - 300) <= 2
    assert change.before == pytest.approx(0.004, rel=0.2)


@pytest.mark.long
def test_values_on_a_grid_do_not_alarm_by_their_rounding() -> None:
    """Whole milliseconds around 4.5 ms, without a minimum effect: 20 series of two hours."""
    rng = np.random.default_rng(7)
    values = np.round(4.5 + 0.3 * rng.standard_normal((7200, 20))) / 1000.0
    config = replace(AT_ONCE_A_MONTH, panel_size=20)

    assert len(confirmed(run_beside_each_other(values, config))) <= 1


def test_counts_above_thresholds_and_maxima_are_not_followed() -> None:
    values = latencies(1, 150, onset=60)
    above = Column("publish_latency_above_messages", (("threshold", "0.001"),), "messages")
    largest = Column("publish_latency_seconds", (("quantile", "max"),), "seconds")

    assert run(values, column=above) == []
    assert run(values, column=largest) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"false_alarms": SECOND_NS},
        {"panel_size": 0},
        {"smallest_step_ratio": 1.0},
        {"smallest_step_seconds": -1.0},
        {"baseline": 5 * SECOND_NS},
        {"confirm": 0},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)
