"""The online panel: known answers and known nothings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.level_shift import Config
from soak.core.model import Column
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from tests.support.detection.panel_world import (
    BASELINE,
    confirmed,
    latencies,
    run,
    run_beside_each_other,
)

HOUR = 3600 * SECOND_NS


@pytest.mark.long
def test_a_step_is_confirmed_soon_dated_well_and_told_once() -> None:
    """35 s of 4 ms, then 60 ms: of 100 seeds nearly all within 25 s and 2 s of the onset."""
    values = np.column_stack([latencies(seed, 150, onset=35) for seed in range(100)])
    ups = confirmed(run_beside_each_other(values))

    assert sorted(change.series for _, change in ups) == sorted(
        {change.series for _, change in ups}
    )
    assert {change.direction for _, change in ups} == {"up"}
    assert sum(k - 35 <= 25 for k, _ in ups) >= 95
    assert sum(abs(change.onset_k - 35) <= 2 for _, change in ups) >= 95


def test_before_and_after_are_medians_in_seconds() -> None:
    ((_, change),) = confirmed(run(latencies(1, 150, onset=60)))

    assert change.before == pytest.approx(0.004, rel=0.15)
    assert change.after == pytest.approx(0.06, rel=0.15)
    assert change.interval[0] <= 60 <= change.interval[1]


def test_no_step_is_confirmed_where_there_is_none() -> None:
    """300 seeds of 150 s with pauses."""
    values = np.column_stack([latencies(seed, 150) for seed in range(300)])

    assert confirmed(run_beside_each_other(values)) == []


def noise(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    normal = rng.normal(size=shape)
    if kind == "student-t":
        return rng.standard_t(3, size=shape)
    if kind == "spikes":
        return normal + (rng.random(shape) < 0.05) * rng.lognormal(1.5, 0.8, shape)
    if kind == "rounded":
        return np.asarray(np.round(0.7 * normal))
    if kind == "autocorrelated":
        for row in range(1, shape[0]):
            normal[row] = 0.6 * normal[row - 1] + 0.8 * normal[row]
    return normal


QUIET = Config(
    false_alarms=HOUR, panel_size=1, smallest_step_ratio=1.0001, smallest_step_seconds=0.0
)


@pytest.mark.long
def test_false_alarms_stay_at_the_set_rate() -> None:
    """100 series of a kind, half an hour each, at one alarm an hour and series: 50 are allowed, not 100."""
    kinds = ["independent", "autocorrelated", "student-t", "spikes", "rounded"]
    shape = (1800 + 120, 100)
    values = np.hstack([noise(kind, shape, np.random.default_rng(5)) for kind in kinds])
    alarms = confirmed(run_beside_each_other(100.0 + values, QUIET, unit=""))

    told = Counter(kinds[int(parse_series(c.series).labels[0][1]) // 100] for _, c in alarms)
    assert {kind: count for kind, count in told.items() if count > 100} == {}


@pytest.mark.long
@pytest.mark.parametrize(("correlation", "most"), [(0.8, 1), (0.95, 8)])
def test_correlated_noise_is_soon_known_for_what_it_is(correlation: float, most: int) -> None:
    """40 series of 10 minutes, at one alarm in 30 days over 100 series; and one alarm draws no others."""
    values = np.random.default_rng(3).standard_normal((600, 40))
    for k in range(1, 600):
        values[k] = correlation * values[k - 1] + np.sqrt(1.0 - correlation**2) * values[k]
    config = replace(QUIET, false_alarms=30 * 24 * HOUR, panel_size=100)

    assert len(confirmed(run_beside_each_other(1000.0 + values, config, unit=""))) <= most


@pytest.mark.long
def test_half_a_standard_deviation_is_seen_in_minutes() -> None:
    """After half an hour of independent noise, at one alarm in 30 days: nearly all within 250 s."""
    values = 1000.0 + noise("independent", (2100, 40), np.random.default_rng(6))
    values[1800:] += 0.5
    config = replace(QUIET, false_alarms=30 * 24 * HOUR)
    found = confirmed(run_beside_each_other(values, config, unit=""))

    assert [k for k, _ in found if k < 1800] == []
    assert sum(k < 2050 for k, _ in found) >= 34


@pytest.mark.long
def test_a_step_of_rows_that_hang_together_is_seen_however_many_of_their_sd_it_has() -> None:
    """An AR(1) of 0.9: 8 sd of a row are less than 2 of what means of minutes go by."""
    rng = np.random.default_rng(8)
    values = rng.standard_normal((760, 40))
    for k in range(1, 760):
        values[k] = 0.9 * values[k - 1] + np.sqrt(1.0 - 0.9**2) * values[k]
    values[700:] += 8.0
    config = replace(QUIET, false_alarms=30 * 24 * HOUR)
    found = confirmed(run_beside_each_other(1000.0 + values, config, unit=""))

    assert len({change.series for k, change in found if k >= 700}) >= 36


@pytest.mark.long
@pytest.mark.parametrize("rounded", [0, 1])
def test_a_cluster_that_acknowledges_nothing_any_more_is_told_while_it_lasts(rounded: int) -> None:
    """The wait of the oldest message, in whole seconds; some are a second late before."""
    waits = np.zeros(400)
    waits[100:300:47] = rounded
    waits[330:] = np.minimum(np.arange(70) + 1.0, 10.0)
    found = run(waits, column=Column("publish_waiting_seconds", (), "seconds"))
    ((k, change),) = confirmed(found)

    assert (change.before, change.direction, change.onset_k) == (0.0, "up", 330)
    assert k <= 330 + 20


def test_one_slow_second_or_a_stall_of_five_is_no_step() -> None:
    """Of 200 seeds, each with both."""
    values = np.column_stack([latencies(seed, 150) for seed in range(200)])
    values[60] = 3.0
    values[90:95] = 1.0

    assert confirmed(run_beside_each_other(values)) == []


def test_a_step_below_the_smallest_is_not_reported() -> None:
    rng = np.random.default_rng(2)
    values = 10.0 ** (np.log10(0.004) + rng.normal(0.0, 0.02, 600))
    values[300:] *= 1.3

    assert run(values) == []


def test_a_change_of_less_than_a_millisecond_is_not_reported() -> None:
    rng = np.random.default_rng(2)
    values = 10.0 ** (np.log10(0.0001) + rng.normal(0.0, 0.02, 600))
    values[300:] *= 5.0

    assert run(values) == []


def test_a_step_that_goes_away_is_gone_under_the_same_raise() -> None:
    values = latencies(3, 400)
    values[100:200] = latencies(4, 100, onset=0)
    found = run(values)
    up = next(change for _, change in confirmed(found) if change.direction == "up")
    k, gone = next((k, change) for k, change in found if change.state == "gone")

    assert (gone.series, gone.raised_k, gone.onset_k) == (up.series, up.raised_k, up.onset_k)
    assert 200 < k <= 230
    assert gone.resolved_k == k


def test_both_steps_of_a_stair_are_gone_once_the_level_lies_below_the_first() -> None:
    """A latency that grows under an overload is told in steps; the second began far above where all ends."""
    values = latencies(3, 400)
    values[100:130] *= 100.0
    values[130:200] *= 1000.0
    found = run(values)
    ups = [change.raised_k for _, change in confirmed(found) if change.direction == "up"]
    gone = [change.raised_k for _, change in found if change.state == "gone"]

    assert len(ups) == 2
    assert sorted(gone) == ups


@pytest.mark.long
def test_all_steps_of_a_long_stair_are_gone_once_the_level_is_back() -> None:
    """Six up by 1.7, 150 s each, and back at once."""
    levels = np.repeat([*(0.01 * 1.7 ** np.arange(7)), 0.01], 150)
    found = run(levels * 10.0 ** np.random.default_rng(0).normal(0.0, 0.03, levels.size))
    ups = [change.raised_k for _, change in confirmed(found) if change.direction == "up"]
    gone = [change.raised_k for _, change in found if change.state == "gone"]

    assert len(ups) == 6
    assert sorted(gone) == ups


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "left", "expected"),
    [(100.0, 2.0, ["gone"]), (100.0, 4.0, []), (20.0, 2.3, []), (10_000.0, 3.5, [])],
)
def test_a_large_step_is_gone_though_a_little_is_left_of_it(
    step: float, left: float, expected: list[str]
) -> None:
    """A fifth of its logarithm may be left, and never more than 2.5 times the old level."""
    values = latencies(3, 400)
    values[100:150] *= step
    values[150:] *= left
    found = [change for _, change in run(values) if change.direction == "up"]

    assert [change.state for change in found[2:]] == expected


@pytest.mark.long
def test_a_step_that_stays_is_never_gone() -> None:
    states = [change.state for _, change in run(latencies(3, 900, onset=100))]

    assert states == ["warning", "confirmed"]


def test_missing_values_are_no_values() -> None:
    values = latencies(9, 300, onset=120)
    values[np.random.default_rng(1).random(300) < 0.3] = np.nan
    ((_, change),) = confirmed(run(values))

    assert abs(change.onset_k - 120) <= 3


@pytest.mark.long
@pytest.mark.parametrize("unit", ["", "ratio", "messages", "bytes"])
def test_other_units_are_judged_as_they_are(unit: str) -> None:
    rng = np.random.default_rng(3)
    values = 1000.0 + rng.normal(0.0, 50.0, 200)
    values[100:] += 1000.0
    ((_, change),) = confirmed(run(values, column=Column("x", unit=unit)))

    assert abs(change.onset_k - 100) <= 1


def test_the_scale_of_a_series_without_least_change_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    values = 1000.0 + rng.normal(0.0, 50.0, 200)
    values[100:] += 1000.0
    found = [
        [(k, c.state, c.onset_k, c.interval) for k, c in run(scale * values, column=Column("x"))]
        for scale in (1.0, 2.0**20, 2.0**-20)
    ]

    assert found[0] == found[1] == found[2]


def test_series_that_never_move_raise_nothing_until_they_do() -> None:
    values = np.zeros(200)
    values[100:] = 3.0
    ((_, change),) = confirmed(run(values, column=Column("retention_deletions")))

    assert (change.onset_k, change.before, change.after) == (100, 0.0, 3.0)


def test_counts_above_thresholds_and_maxima_are_not_followed() -> None:
    values = latencies(1, 150, onset=60)
    above = Column("publish_latency_above_messages", (("threshold", "0.001"),), "messages")
    largest = Column("publish_latency_seconds", (("quantile", "max"),), "seconds")

    assert run(values, column=above) == []
    assert run(values, column=largest) == []


def test_a_warning_that_does_not_come_true_is_withdrawn() -> None:
    """A stall of 18 s where 30 s are asked for: every warning gets its last word."""
    values = np.column_stack([latencies(seed, 200) for seed in range(20)])
    values[90:108] = 1.0
    config = Config(baseline=BASELINE, confirm=30 * SECOND_NS)
    found = [change for _, change in run_beside_each_other(values, config)]
    warned = [(c.series, c.raised_k) for c in found if c.state == "warning"]
    ended = [(c.series, c.raised_k) for c in found if c.state in {"withdrawn", "confirmed"}]

    assert len(warned) >= 10
    assert sorted(warned) == sorted(ended)
    assert any(c.state == "withdrawn" for c in found)


def test_a_stall_of_nine_seconds_does_not_even_warn() -> None:
    values = np.column_stack([latencies(seed, 150) for seed in range(20)])
    values[90:99] = 1.0

    assert run_beside_each_other(values) == []


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
