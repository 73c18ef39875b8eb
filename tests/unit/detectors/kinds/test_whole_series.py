"""One change, one kind: what a drift or spikes tell better is no row of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors import level_shift
from detectors.kinds import changes_of_series
from detectors.kinds.tail import detect
from detectors.minimum_effect import Config
from detectors.offline import steps as offline_steps
from detectors.panel import Panel
from soak.core.model import Change, Column, Series
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from spark.batch.offline_analysis import changes_together

ANY = Config(smallest_step_ratio=1.05, smallest_step_seconds=0.0)
STEPS = offline_steps.Config(smallest_step_ratio=1.05, smallest_step_seconds=0.0)


def series_of(y: NDArray[np.float64]) -> Series:
    return Series("p99", np.arange(y.size), 0.01 * 10.0**y)


def noise(rows: int, seed: int = 5, sd: float = 0.03) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0.0, sd, rows)


def all_of(y: NDArray[np.float64]) -> list[Change]:
    series = series_of(y)
    return changes_of_series(series, offline_steps.detect(series, STEPS), ANY)


def test_a_drift_is_no_staircase() -> None:
    y = noise(7200) + 0.5 * np.clip((np.arange(7200) - 1800) / 3600, 0.0, 1.0)

    assert [change.kind for change in all_of(y)] == ["drift"]


def test_a_step_upon_a_drift_is_a_change_of_its_own() -> None:
    y = noise(7200) + np.linspace(0.0, 0.4, 7200)
    y[4000:] += 0.5
    found = all_of(y)

    assert sorted(change.kind for change in found) == ["drift", "step"]
    assert any(change.kind == "step" and abs(change.onset_k - 4000) <= 2 for change in found)


@pytest.mark.long
def test_a_drift_after_a_step_has_the_levels_of_the_file() -> None:
    """And they must differ by the smallest step, not those that it had without the step before it."""
    y = noise(9000) + 0.3 * np.clip((np.arange(9000) - 4000) / 3600, 0.0, 1.0)
    y[1000:] += 1.0
    series = series_of(y)
    steps = offline_steps.detect(series, STEPS)
    (drift,) = [one for one in changes_of_series(series, steps, ANY) if one.kind == "drift"]
    apart = drift.after - drift.before
    least = [
        Config(smallest_step_ratio=1.05, smallest_step_seconds=times * apart)
        for times in (0.9, 1.1)
    ]

    assert (drift.before, drift.after) == pytest.approx((0.1, 0.2), rel=0.1)
    assert [
        "drift" in {one.kind for one in changes_of_series(series, steps, each)} for each in least
    ] == [
        True,
        False,
    ]


def test_a_drift_down_after_a_fall_of_a_count_is_judged_at_its_own_level() -> None:
    """It ends at half of where it began, and falls by a tenth of the level before the fall."""
    rng = np.random.default_rng(5)
    y = rng.normal(1000.0, 5.0, 9000)
    y[1000:] -= 800.0
    y -= 100.0 * np.clip((np.arange(9000) - 4000) / 3600, 0.0, 1.0)
    series = Series("n", np.arange(y.size), y)
    cut = offline_steps.Config(scale="linear", smallest_step_seconds=0.0)
    judged = Config(scale="linear", smallest_step_seconds=0.0)
    steps = offline_steps.detect(series, cut)
    (drift,) = [one for one in changes_of_series(series, steps, judged) if one.kind == "drift"]

    assert (drift.before, drift.after) == pytest.approx((200.0, 100.0), rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("jump", [0.0, 1.0])
def test_a_tail_below_the_smallest_step_is_none_beside_a_step_and_alone(jump: float) -> None:
    """Three times the spread, which p99 knows by 15 %."""
    y = np.concatenate([noise(4000), noise(3000, 6, 0.09)])
    y[1000:] += jump
    series = series_of(y)
    steps = offline_steps.detect(series, STEPS)
    kinds = [
        {
            one.kind
            for one in changes_of_series(series, steps, replace(ANY, smallest_step_ratio=ratio))
        }
        for ratio in (1.05, 2.0)
    ]

    assert ["tail" in found for found in kinds] == [True, False]


def test_a_step_of_other_series_behind_the_last_row_is_none_of_this_one() -> None:
    """Their onset is that of all: a series may have ended before it."""
    y = noise(400)
    y[200:] += 0.5
    series = series_of(y)
    (step,) = offline_steps.detect(series, STEPS)
    late = replace(step, onset_k=400, interval=(399, 400), before=step.after, after=2 * step.after)

    assert late in changes_of_series(series, [step, late], ANY)


def test_a_row_of_true_steps_is_no_drift() -> None:
    y = noise(7200) + 0.2 * (np.arange(7200) // 1200)
    found = all_of(y)

    assert [change.kind for change in found] == ["step"] * 5


@pytest.mark.long
def test_a_pulse_train_neither_makes_steps_nor_hides_one() -> None:
    y = noise(3600)
    for tick in range(300, 3590, 52):
        y[tick : tick + 3] += 0.4
    y[2000:] += 0.3
    found = all_of(y)

    assert [(c.kind, c.onset_k) for c in found if c.kind == "spikes"] == [("spikes", 300)]
    (step,) = [change for change in found if change.kind != "spikes"]
    assert step.kind == "step"
    assert abs(step.onset_k - 2000) <= 2


def test_a_spread_that_grows_about_the_same_level_is_a_tail() -> None:
    y = np.concatenate([noise(3000), noise(3000, 6, 0.09)])
    (found,) = detect(series_of(y), ANY)

    assert (found.kind, found.direction) == ("tail", "up")
    assert found.interval[0] <= 3000 <= found.interval[1]


@pytest.mark.long
def test_two_hundred_series_of_one_spread_hold_no_tail() -> None:
    assert not any(detect(series_of(noise(1800, seed)), ANY) for seed in range(200))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.long
def test_online_and_offline_take_the_same_spikes_for_periodic(seed: int) -> None:
    """Bursts that keep their period badly lie near the threshold: both analyses decide alike."""
    rng, y = np.random.default_rng(seed), noise(1500, seed)
    for tick in range(300, 1490, 60):
        first = tick + int(rng.normal(0, 2.0))
        y[first : first + 3] += 0.5
    column = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
    series = Series(series_name("s", column.name), np.arange(y.size), 0.01 * 10.0**y)
    plan = level_shift.Config(baseline=60 * SECOND_NS)
    panel = Panel(plan)
    online = [
        change
        for k, value in enumerate(series.values)
        for change in panel.update("s", [column], k, np.array([value]), True, "soak")
    ]

    offline = [one for (one,) in changes_together([series], plan) if one.kind == "spikes"]

    assert [one.raised_k for one in offline] == sorted(
        {one.raised_k for one in online if one.kind == "spikes"}
    )
