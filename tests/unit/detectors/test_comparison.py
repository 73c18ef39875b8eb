from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.comparison import (
    BAND_RATIO,
    Difference,
    Distribution,
    Estimate,
    band_edge,
    band_of,
    block_length,
    difference,
    estimate,
    estimate_of_samples,
    least_level_runs,
    level_changes,
    overall,
)

SEEDS = st.integers(0, 2**32 - 1)


def of_run(
    seed: int, factor: float = 1.0, correlation: float = 0.7, seconds: int = 600
) -> Distribution:
    """A run of 200 messages a second whose latency follows an autoregression of the first order."""
    rng = np.random.default_rng(seed)
    level = np.zeros(seconds)
    for at in range(1, seconds):
        level[at] = correlation * level[at - 1] + rng.normal(0.0, 0.05)
    latencies = factor * 0.004 * np.exp(level[:, None] + rng.normal(0.0, 0.4, (seconds, 200)))
    bands = band_of(latencies)
    first = int(bands.min())
    counts = np.zeros((seconds, int(bands.max()) - first + 1))
    np.add.at(counts, (np.arange(seconds)[:, None], bands - first), 1)
    return Distribution(counts, first, 1)


def autoregressive(seed: int, correlation: float, size: int = 2000) -> np.ndarray:
    steps = np.random.default_rng(seed).normal(size=size)
    values = [steps[0]]
    for step in steps[1:]:
        values.append(correlation * values[-1] + step)
    return np.array(values)


ESTIMATES = st.builds(
    Estimate,
    st.uuids().map(str),
    st.floats(-8, 2),
    st.floats(1e-4, 0.3),
    st.floats(4, 500),
)
SIDES = st.lists(ESTIMATES, min_size=1, max_size=5)


def test_a_latency_lies_in_its_band() -> None:
    """The edges of a band are 1 % apart, and what is above an hour is in the last."""
    band = int(band_of(np.array([0.0123]))[0])

    assert band_edge(band) <= 0.0123 < band_edge(band + 1)
    assert band_edge(band + 1) / band_edge(band) == pytest.approx(BAND_RATIO)


def test_a_quantile_is_that_of_all_messages() -> None:
    """The p99 of the matrix is numpy's of the latencies, within a band."""
    latencies = np.random.default_rng(1).lognormal(-5, 0.7, 50_000)
    bands = band_of(latencies)
    counts = np.bincount(bands, minlength=int(bands.max()) + 1).astype(np.float64)[None, :]

    found = Distribution(counts, 0, 1).quantile(0.99)

    assert found == pytest.approx(float(np.quantile(latencies, 0.99)), rel=0.01)


def test_blocks_are_longer_where_neighbours_are_more_alike() -> None:
    """White noise needs the shortest blocks; lag-1 correlation of 0.9 some dozens of values."""
    lengths = [
        float(np.median([block_length(autoregressive(seed, rho)) for seed in range(20)]))
        for rho in (0.0, 0.5, 0.9)
    ]

    assert lengths[0] <= 4 < lengths[1] < lengths[2] < 150


@pytest.mark.long
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_error_of_a_quantile_is_that_between_equal_runs(correlation: float) -> None:
    """The bootstrap's error is within a third of the spread of 40 equal runs."""
    found = [estimate(str(seed), of_run(seed, correlation=correlation), 0.99) for seed in range(40)]

    between = float(np.std([one.log_value for one in found], ddof=1))
    assert float(np.mean([one.error for one in found])) == pytest.approx(between, rel=0.34)


def test_too_few_messages_beyond_a_quantile_say_nothing() -> None:
    """Of 1,000 messages one lies beyond the p99.9: no error, and no verdict."""
    found = estimate("a", of_run(1, seconds=5), 0.999)

    assert math.isnan(found.error)
    assert (
        difference([found], [estimate("b", of_run(2), 0.999)], 0.02).verdict(0.1) == "cannot tell"
    )


@given(SIDES, st.floats(0, 0.2), st.floats(0.01, 0.5))
def test_a_run_with_itself_is_the_same(
    side: list[Estimate], run_noise: float, margin: float
) -> None:
    """Whatever is known of its noise."""
    found = difference(side, side[::-1], run_noise)

    assert (found.verdict(margin), found.ratio) == ("same", 1.0)


@pytest.mark.long
@given(SIDES, SIDES, st.floats(0.001, 0.2), st.floats(0.01, 0.5))
def test_the_two_sides_are_treated_alike(
    before: list[Estimate], after: list[Estimate], run_noise: float, margin: float
) -> None:
    """What is worse one way round is better the other."""
    mirrored = {"worse": "better", "better": "worse"}
    one = difference(before, after, run_noise)
    other = difference(after, before, run_noise)

    assert other.log_ratio == pytest.approx(-one.log_ratio)
    found = one.verdict(margin)
    assert other.verdict(margin) == mirrored.get(found, found)


@pytest.mark.long
@given(SIDES, SIDES, st.floats(-5, 5), st.randoms())
def test_neither_unit_nor_order_of_runs_matters(
    before: list[Estimate], after: list[Estimate], shift: float, random: object
) -> None:
    """All latencies times one factor, runs in another order: the same ratio and error."""

    def moved(side: list[Estimate]) -> list[Estimate]:
        found = [
            Estimate(one.run, one.log_value + shift, one.error, one.degrees_of_freedom)
            for one in side
        ]
        random.shuffle(found)  # type: ignore[attr-defined]  # hypothesis' random
        return found

    one, other = difference(before, after, 0.02), difference(moved(before), moved(after), 0.02)

    assert other.log_ratio == pytest.approx(one.log_ratio, abs=1e-9)
    assert other.error == pytest.approx(one.error, rel=1e-6, abs=1e-9)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1.0 / 64, 8.0]))
def test_the_error_does_not_depend_on_the_scale(seed: int, factor: float) -> None:
    """Latencies that are all eight times as long have an error that differs by rounding."""
    one, other = (estimate("a", of_run(seed, scale), 0.99) for scale in (1.0, factor))

    assert other.value / one.value == pytest.approx(factor, rel=0.02)
    assert other.error == pytest.approx(one.error, rel=0.2)


def test_runs_of_one_side_state_the_noise_between_runs() -> None:
    """Of two runs a side, each known exactly and 10 % apart, 5 % cannot be shown."""
    before = [Estimate("a", 0.0, 1e-4, 100), Estimate("b", 0.1, 1e-4, 100)]
    after = [Estimate("c", 0.05, 1e-4, 100), Estimate("d", 0.15, 1e-4, 100)]

    found = difference(before, after, 0.0)

    assert found.is_noise_measured
    assert (found.degrees_of_freedom, found.verdict(0.05)) == (2.0, "cannot tell")


@pytest.mark.long
def test_what_is_detectable_is_detected_with_its_power() -> None:
    """Four in five differences of the size that is stated are called worse."""
    at = Difference(0.0, 0.02, 60.0, True)
    step = math.log(at.detectable(0.05))
    rng = np.random.default_rng(3)

    found = [
        Difference(step + 0.02 * float(noise), 0.02, 60.0, True).verdict(0.05)
        for noise in rng.standard_t(60.0, 2000)
    ]

    assert found.count("worse") / 2000 == pytest.approx(0.8, abs=0.03)


def test_samples_without_histograms_have_an_error_too() -> None:
    """A benchmark's result has quantiles of intervals only."""
    samples = np.exp(0.1 * autoregressive(1, 0.5, 200)) * 0.01

    found = estimate_of_samples("a", 0.011, samples, 10.0)

    assert found.value == pytest.approx(0.011)
    assert 0.005 < found.error < 0.03
    assert math.isnan(estimate_of_samples("a", 0.011, samples[:4], 10.0).error)


def test_the_power_at_what_is_detectable_is_four_in_five() -> None:
    """And that at no difference is half of the error rate."""
    found = Difference(0.0, 0.05, 60.0, True)

    assert found.power(found.detectable(0.05), 0.05) == pytest.approx(0.8, abs=1e-6)
    assert found.power(1.0, 0.05, 0.05) == pytest.approx(0.025, abs=1e-6)


@given(SEEDS, st.integers(5, 25), st.sampled_from([1.0, -1.0, 1e-6]))
def test_one_change_of_level_is_found_once_and_in_place(seed: int, at: int, scale: float) -> None:
    """Eight standard deviations at a known run, in any unit."""
    values = np.random.default_rng(seed).normal(0.0, 1.0, 30)
    values[at:] += 8.0

    found = level_changes((scale * values).tolist(), 4.0 * abs(scale))

    assert [place for place, _, _ in found] == [at]


@pytest.mark.long
def test_equal_runs_rarely_have_a_change_of_level() -> None:
    """At most one series of thirty runs in twenty, of 200."""
    several = [np.random.default_rng(seed).normal(size=30).tolist() for seed in range(200)]

    assert sum(bool(level_changes(values, 0.0)) for values in several) <= 16


@pytest.mark.parametrize("error_rate", [0.05, 0.05 / 6, 0.05 / 12])
def test_with_fewer_values_than_the_least_no_change_is_found_and_with_these_the_clearest_is(
    error_rate: float,
) -> None:
    least = least_level_runs(error_rate)

    for n, expected in ((least - 2, []), (least, [least // 2])):
        values = [0.0] * (n // 2) + [9.0] * (n - n // 2)
        assert [one[0] for one in level_changes(values, 1.0, error_rate)] == expected


def test_the_verdict_on_all_is_the_most_urgent() -> None:
    """Worse before what cannot be decided, and that before better."""
    assert overall(["same", "better", "cannot tell", "worse"]) == "worse"
    assert overall(["same", "better", "cannot tell"]) == "cannot tell"
    assert overall(["same", "better"]) == "better"
    assert overall(["same", "same"]) == "same"
    assert overall([]) == "cannot tell"
