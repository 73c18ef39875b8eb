"""The measures of `make bench-detect` on what they must answer."""

from __future__ import annotations

import numpy as np
import pytest

from soak.app.analysis.series_files import CsvSeries
from tests.bench.detect import (
    coverage,
    delays,
    drains,
    false_alarms,
    injected,
    kinds_alarms,
    noises,
    traces,
)


@pytest.mark.parametrize("noise", noises.NOISES)
def test_every_noise_has_one_column_a_series_and_nothing_but_its_seed(noise: str) -> None:
    first, again = (noises.NOISES[noise](np.random.default_rng(1), 300, 7) for _ in range(2))

    assert first.shape == (300, 7)
    assert np.array_equal(first, again, equal_nan=True)


def test_a_bootstrap_is_made_of_whole_blocks() -> None:
    made = noises.bootstrap(np.random.default_rng(1), np.arange(1000.0), 500, 3, 120)

    inside = np.diff(made, axis=0)[np.arange(499) % 120 != 119]
    assert made.shape == (500, 3)
    assert (inside == 1.0).all()


def test_an_alarm_belongs_to_one_label_and_must_not_come_before_it() -> None:
    assert traces._delays([10, 50], [9, 12, 15, 81]) == [2]


def test_distances_take_each_point_once() -> None:
    assert traces._distances([10, 14], [12, 40]) == [2]


def test_scores_are_pooled_over_traces() -> None:
    one = traces.Score(1000, 4, 3, (1, 5))
    both = traces.together([one, traces.Score(1000, 0, 2, ())])

    assert (both.precision, both.recall, both.false_per_1000) == (0.4, 0.5, 1.5)
    assert both.delay == 3.0


def test_what_is_allowed_is_counted_after_the_baseline() -> None:
    values = np.zeros((420, 12))
    found = false_alarms.counted("none", values, 3600.0)

    assert (found.allowed, found.warned, found.confirmed) == (1.0, 0, 0)


@pytest.mark.long
def test_a_step_of_six_sd_is_confirmed_as_soon_as_it_may_be() -> None:
    delay = delays.measure(0.0, 6.0, series=10, history=300, seed=1)

    assert 10 <= delay.confirmed <= 20
    assert delay.missed == 0


def test_the_long_run_sd_counts_correlation() -> None:
    y = noises.autocorrelated(0.6)(np.random.default_rng(1), 60_000, 1)[:, 0]

    assert injected.long_run_sd(y) == pytest.approx(2.0, rel=0.15)


@pytest.mark.long
def test_steps_that_are_put_in_are_found_and_stalls_are_not() -> None:
    quiet = np.random.default_rng(2).normal(size=(3000,))
    drawn = injected.pieces([quiet], 20, 520, seed=1)

    assert injected.steps(drawn, 5.0).share == 1.0
    assert injected.confirmed_on_disturbances(drawn) == 0


def test_a_piece_with_a_level_of_its_own_for_a_minute_is_not_quiet() -> None:
    noise = np.random.default_rng(3).normal(size=(520, 3))
    noise[300:390, 1] += 1.5

    assert injected.is_quiet(noise).tolist() == [True, False, True]


def test_quiet_stretches_keep_away_from_labels() -> None:
    values = np.full(1000, 10.0)
    values[500:540] = np.nan
    trace = traces.Trace(CsvSeries("x", np.arange(1000.0), values), (300, 700))
    stretches = injected.quiet_stretches([trace], 200)

    assert [y.size for y in stretches] == [260, 280, 260]


@pytest.mark.long
def test_kinds_are_counted_beside_what_is_allowed_for_the_series_they_are_looked_for_in() -> None:
    found = kinds_alarms.measure(400, 2, seed=1, noises={"independent": noises.independent})

    assert {one.kind: one.allowed for one in found} == pytest.approx(
        {"drift": 2 / 3, "spikes": 2 / 3, "tail": 4 / 9}
    )
    assert sum(one.confirmed for one in found) <= 1


def test_clear_steps_are_found_and_their_onsets_lie_in_their_intervals() -> None:
    (found,) = coverage.measure(20, seed=1, noises={"independent": noises.independent})
    still = coverage.Coverage("still", 3, 0, (), ())
    whole = coverage.together([found, still])

    assert (len(found.errors), found.held >= 17) == (20, True)
    assert (whole.steps, whole.share) == (23, found.share)
    assert coverage.median_error(found)[0] <= coverage.median_error(found)[1]


@pytest.mark.long
def test_drains_are_counted_by_what_was_found_of_them() -> None:
    found = drains.measure(runs=6, seed=1)

    assert found == drains.measure(runs=6, seed=1)
    assert found.runs == 6 >= found.found >= found.named >= 5
    assert found.crowded == 0
