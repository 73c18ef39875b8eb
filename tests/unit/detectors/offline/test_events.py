"""Several series: what they did at one time is one step, and what one of them did alone is its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.kinds import changes_of_many
from detectors.minimum_effect import Config as MinimumEffect
from detectors.offline.steps import Config, detect, detect_mixed, detect_together
from soak.core.model import Change, Series

ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
ROWS = 600
K = np.arange(ROWS)
Floats = NDArray[np.float64]


def latency(name: str, seed: int, *jumps: tuple[int, float]) -> Series:
    """Return 4 ms with 12 % of noise, times 10 ** (jump / 20) from each row on."""
    y = np.random.default_rng(seed).normal(0.0, 1.0, ROWS)
    for at, jump in jumps:
        y[at:] += jump
    return Series(name, K, 0.004 * 10.0 ** (y / 20.0))


def missing(series: Series, first: int, stop: int) -> Series:
    here = (series.k < first) | (series.k >= stop)
    return Series(series.name, series.k[here], series.values[here])


def steps_of(found: list[tuple[Change, ...]]) -> list[tuple[int, set[str]]]:
    return [(step[0].onset_k, {one.series for one in step}) for step in found]


def test_one_step_of_several_series_is_one_with_the_onset_of_the_clearest() -> None:
    many = [latency("faint", 1, (200, 3.0)), latency("still", 2), latency("clear", 3, (200, 20.0))]
    ((first, second),) = detect_together(many, ANY_STEP)

    assert (first.series, second.series) == ("clear", "faint")
    assert first.onset_k == second.onset_k == 200
    assert first.interval == second.interval
    assert first.after / first.before == pytest.approx(10.0, rel=0.05)
    assert second.after / second.before == pytest.approx(10**0.15, rel=0.05)


def test_what_is_one_event_in_both_latencies_and_what_one_does_alone_are_two_steps() -> None:
    publish = latency("publish", 4, (200, 12.0))
    end_to_end = latency("end_to_end", 5, (200, 9.0), (420, 15.0))

    assert steps_of(detect_together([end_to_end, publish], ANY_STEP)) == [
        (200, {"publish", "end_to_end"}),
        (420, {"end_to_end"}),
    ]


def test_each_series_keeps_the_onset_that_it_has_alone() -> None:
    many = [latency("first", 1, (200, 20.0)), latency("later", 2, (203, 20.0))]
    (step,) = detect_together(many, ANY_STEP)

    assert {one.series: one.raised_k for one in step} == {"first": 200, "later": 203}
    assert len({(one.onset_k, one.interval) for one in step}) == 1


def test_steps_a_minute_apart_are_two() -> None:
    many = [latency("first", 1, (200, 20.0)), latency("later", 2, (260, 20.0))]

    assert steps_of(detect_together(many, ANY_STEP)) == [(200, {"first"}), (260, {"later"})]


def test_a_rise_and_a_fall_at_one_time_are_two_steps() -> None:
    many = [latency("rising", 1, (200, 20.0)), latency("falling", 2, (200, -20.0))]

    assert sorted(
        (step[0].direction, step[0].series) for step in detect_together(many, ANY_STEP)
    ) == [("down", "falling"), ("up", "rising")]


def test_two_steps_of_a_series_are_never_one() -> None:
    """The level of a minute lies within the interval of the other's onset."""
    twice = latency("twice", 1, (300, 20.0), (330, 20.0))
    vague = latency("vague", 2, (315, 2.0))
    found = detect_together([twice, vague], ANY_STEP)

    assert [step[0].onset_k for step in found if step[0].series == "twice"] == [300, 330]
    assert all([one.series for one in step].count("twice") <= 1 for step in found)


def test_a_constant_series_next_to_others_changes_nothing_but_the_rate() -> None:
    still = Series("still", K, np.full(ROWS, 0.002))
    stepping = latency("stepping", 3, (250, 20.0))
    alone = detect(stepping, ANY_STEP)
    ((one,),) = detect_together([stepping, still], ANY_STEP)

    assert [(c.onset_k, c.interval, c.before, c.after) for c in alone] == [
        (one.onset_k, one.interval, one.before, one.after)
    ]


def test_a_series_may_have_a_scale_of_its_own() -> None:
    share = Series("share", K, np.random.default_rng(1).normal(0.0, 1.0, ROWS) + 20.0 * (K >= 300))
    linear = Config(scale="linear", smallest_step_ratio=1.005, smallest_step_seconds=0.0)
    (step,) = detect_mixed([(share, linear), (latency("p99", 2, (300, 20.0)), ANY_STEP)])

    assert {one.series: one.after for one in step} == {
        "share": pytest.approx(20.0, abs=0.5),
        "p99": pytest.approx(0.04, rel=0.1),
    }


def test_a_step_in_a_gap_of_one_series_is_dated_by_another() -> None:
    gappy = missing(latency("gappy", 1, (310, 20.0)), 280, 340)
    (step,) = detect_together([gappy, latency("whole", 2, (310, 20.0))], ANY_STEP)

    assert {one.series for one in step} == {"gappy", "whole"}
    assert (step[0].onset_k, step[0].interval) == (310, (310, 310))


def test_a_step_in_a_gap_of_its_series_may_have_been_anywhere_in_it() -> None:
    gappy = missing(latency("gappy", 1, (310, 20.0)), 280, 340)
    ((step,),) = detect_together([gappy, latency("still", 2)], ANY_STEP)

    assert (step.onset_k, step.interval) == (340, (280, 340))


def test_series_that_end_early_do_not_stop_the_others() -> None:
    short = missing(latency("short", 1), 100, ROWS)

    assert steps_of(detect_together([short, latency("long", 2, (400, 20.0))], ANY_STEP)) == [
        (400, {"long"})
    ]


@pytest.mark.long
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(3)))
def test_the_order_of_series_changes_nothing(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    many = [
        latency(name, int(rng.integers(2**32)), *((at, rng.normal(0.0, 8.0)) for at in (180, 400)))
        for name in "abc"
    ]

    assert detect_together([many[at] for at in order], ANY_STEP) == detect_together(many, ANY_STEP)


@pytest.mark.long
def test_sixty_series_of_noise_have_no_step_together() -> None:
    """The set rate is that of all series together; half of the rows of each are missing at random."""
    found = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        many = []
        for at in range(60):
            k = np.flatnonzero(rng.random(1000) < 0.5)
            many.append(Series(f"s{at}", k, 0.01 * np.exp(rng.normal(0.0, 0.05, k.size))))
        found += bool(detect_together(many, ANY_STEP))

    assert found <= 1


@pytest.mark.long
def test_a_series_whose_step_is_a_drift_leaves_the_step_to_the_others() -> None:
    """A clear step of one series lies within the rise of another, which is no staircase."""
    rise = 0.5 * np.clip((np.arange(7200) - 1800) / 3600, 0.0, 1.0)
    y = [np.random.default_rng(seed).normal(0.0, 0.03, 7200) for seed in (6, 5)]
    stepping, rising = 0.01 * 10.0 ** y[0], 0.01 * 10.0 ** (y[1] + rise)
    stepping[3600:] *= 3.0
    many = [Series("a", np.arange(7200), stepping), Series("b", np.arange(7200), rising)]
    least = MinimumEffect(smallest_step_ratio=1.05, smallest_step_seconds=0.0)
    steps = detect_together(many, Config(smallest_step_ratio=1.05, smallest_step_seconds=0.0))
    found = changes_of_many([(series, least) for series in many], steps)

    assert [[(one.kind, one.series) for one in event] for event in found] == [
        [("drift", "b")],
        [("step", "a")],
    ]
