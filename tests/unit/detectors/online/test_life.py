"""The life of a change: raised, confirmed or withdrawn, open, gone."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.level_shift import Config
from soak.core.units import SECOND_NS
from tests.support.detection.panel_world import (
    BASELINE,
    confirmed,
    latencies,
    run,
    run_beside_each_other,
)


@pytest.mark.long
def test_a_step_that_stays_is_warned_of_then_confirmed_and_never_gone() -> None:
    found = [change for _, change in run(latencies(3, 900, onset=150))]

    assert [change.state for change in found] == ["warning", "confirmed"]
    assert len({change.raised_k for change in found}) == 1


@pytest.mark.long
def test_a_step_that_goes_away_is_gone_under_the_same_raise() -> None:
    values = latencies(3, 450)
    values[150:250] = latencies(4, 100, onset=0)
    found = run(values)
    up = next(change for _, change in confirmed(found) if change.direction == "up")
    k, gone = next((k, change) for k, change in found if change.state == "gone")

    assert (gone.series, gone.raised_k, gone.onset_k) == (up.series, up.raised_k, up.onset_k)
    assert 250 < k <= 280
    assert 250 <= (gone.resolved_k or 0) <= 255, "the return, not when it was found"


@pytest.mark.long
@pytest.mark.parametrize(("left", "is_gone"), [(1.0, True), (1.3, True), (0.2, True), (2.0, False)])
def test_a_change_is_gone_within_the_minimum_effect_of_the_level_before(
    left: float, *, is_gone: bool
) -> None:
    """Or beyond it; after a hundredfold step twice the old level is not the old level."""
    values = latencies(3, 500)
    values[150:230] *= 100.0
    values[230:] *= left
    found = [change for _, change in run(values) if change.direction == "up"]

    assert ("gone" in {change.state for change in found}) == is_gone


@pytest.mark.long
def test_all_steps_of_a_stair_are_gone_once_the_level_is_back() -> None:
    """Four up by 2, 150 s each, and back at once: the last may have begun far above the end."""
    levels = np.repeat([*(0.01 * 2.0 ** np.arange(5)), 0.01], 150)
    found = run(levels * 10.0 ** np.random.default_rng(0).normal(0.0, 0.03, levels.size))
    ups = [change.raised_k for _, change in confirmed(found) if change.direction == "up"]
    gone = [change.raised_k for _, change in found if change.state == "gone"]

    assert len(ups) == 4
    assert sorted(gone) == ups


@pytest.mark.long
def test_each_step_of_a_stair_of_fifteen_ends_once() -> None:
    """A series keeps at most twelve open changes; one that it has no room for ends then, and is not lost."""
    levels = np.repeat([*(0.001 * 2.0 ** np.arange(16)), 0.001], 100)
    found = run(levels * 10.0 ** np.random.default_rng(0).normal(0.0, 0.01, levels.size))
    ups = [change.raised_k for _, change in confirmed(found) if change.direction == "up"]
    gone = [change.raised_k for _, change in found if change.state == "gone"]

    assert len(ups) == 15
    assert sorted(gone) == ups


@pytest.mark.long
def test_every_warning_is_confirmed_or_withdrawn() -> None:
    """A stall of 18 s where a level must last 30 s."""
    values = np.column_stack([latencies(seed, 300) for seed in range(20)])
    values[190:208] = 1.0
    config = Config(baseline=BASELINE, confirm=30 * SECOND_NS)
    found = [change for _, change in run_beside_each_other(values, config)]
    warned = [(c.series, c.raised_k) for c in found if c.state == "warning"]
    ended = [(c.series, c.raised_k) for c in found if c.state in {"withdrawn", "confirmed"}]

    assert len(warned) >= 10
    assert sorted(warned) == sorted(ended)
    assert any(c.state == "withdrawn" for c in found)


def test_a_stall_of_five_seconds_does_not_even_warn() -> None:
    values = np.column_stack([latencies(seed, 260) for seed in range(20)])
    values[190:195] = 1.0

    assert run_beside_each_other(values) == []


def test_no_two_changes_of_a_series_are_raised_in_one_second() -> None:
    """Series and second identify a change: independent noise at one alarm in a minute."""
    config = Config(
        false_alarms=60 * SECOND_NS,
        panel_size=1,
        smallest_step_ratio=1.0001,
        smallest_step_seconds=0.0,
        baseline=BASELINE,
        confirm=4 * SECOND_NS,
    )
    values = 1000.0 + np.random.default_rng(5).standard_normal((400, 30))
    found = [one for _, one in run_beside_each_other(values, config, unit="")]
    raised = [(one.series, one.raised_k) for one in found if one.state == "warning"]

    assert raised
    assert len(raised) == len(set(raised))


@pytest.mark.long
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_series_with_a_value_in_every_few_seconds_has_noise_and_an_end_all_the_same(
    every: int,
) -> None:
    """Correlated noise raises no alarm, and a step that goes away is gone."""
    rng, walk = np.random.default_rng(5), np.zeros(1500)
    for row in range(1, walk.size):
        walk[row] = 0.9 * walk[row - 1] + 0.04 * rng.normal()
    values = 0.01 * 10.0**walk
    values[900:1100] *= 20.0
    values[np.arange(values.size) % every > 0] = np.nan
    found = run(values)
    up = [change for _, change in found if change.direction == "up"]

    assert [change.state for change in up if change.state != "warning"] == ["confirmed", "gone"]
    assert [change.onset_k for _, change in confirmed(found) if change.onset_k < 890] == []
