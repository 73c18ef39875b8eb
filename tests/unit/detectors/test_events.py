"""What several series did at one time is one step, and what one of them did alone is its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors._cuts import Cut, Track
from detectors._events import Member, events, weights
from detectors.drift import Config as Worth
from detectors.kinds import told_together
from detectors.segmentation import Config, detect, detect_mixed, detect_together
from soak.core.model import Change, Series

SEEDS = st.integers(0, 2**32 - 1)
ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
ROWS = 240
K = np.arange(ROWS)


def rippled(name: str, *levels: tuple[int, float]) -> Series:
    """Return a series that goes to and fro by 1 % about each level, from its first row on."""
    values = np.empty(ROWS)
    for first, level in levels:
        values[first:] = level
    values[1::2] *= 1.01
    return Series(name, np.arange(ROWS), values)


def names(step: tuple[Change, ...]) -> list[str]:
    return [change.series for change in step]


def test_one_event_in_both_latencies_is_one_step_and_another_in_one_is_its_own() -> None:
    publish = rippled("publish", (0, 0.004), (80, 0.016))
    end_to_end = rippled("end_to_end", (0, 0.006), (80, 0.012), (160, 0.06))
    both, alone = detect_together([end_to_end, publish], Config())

    assert [(one.onset_k, one.interval) for one in both] == [(80, (80, 80))] * 2
    assert {one.series: round(one.after / one.before, 9) for one in both} == {
        "publish": 4.0,
        "end_to_end": 2.0,
    }
    assert [(one.series, one.onset_k, one.interval) for one in alone] == [
        ("end_to_end", 160, (160, 160))
    ]
    assert (alone[0].before, alone[0].after) == pytest.approx((0.01206, 0.0603))


def test_the_series_that_moved_most_clearly_is_named_first() -> None:
    rng = np.random.default_rng(3)
    quiet, loud = (0.004 * 10.0 ** rng.normal(0.0, sd, ROWS) for sd in (0.02, 0.2))
    for values in (quiet, loud):
        values[120:] *= 4.0
    k = np.arange(ROWS)
    (step,) = detect_together([Series("loud", k, loud), Series("quiet", k, quiet)], Config())

    assert names(step) == ["quiet", "loud"]
    assert {one.interval for one in step} == {(120, 120)}


@pytest.mark.parametrize("least_rows", [3, 10])
@pytest.mark.parametrize(
    ("spacing", "apart", "steps"),
    [(1, 0, 1), (1, 2, 1), (1, 3, 2), (1, 9, 2), (10, 1, 1), (10, 2, 2)],
)
def test_onsets_a_row_and_a_second_apart_are_one(
    spacing: int, apart: int, steps: int, least_rows: int
) -> None:
    """However long a level has to last."""
    first = rippled("a", (0, 0.004), (100, 0.016))
    second = rippled("b", (0, 0.004), (100 + apart, 0.016))
    many = [Series(one.name, spacing * one.k, one.values) for one in (first, second)]
    found = detect_together(many, Config(least_rows=least_rows))

    assert len(found) == steps
    assert sum(map(len, found)) == 2


def test_steps_on_either_side_of_a_hole_of_all_series_are_two() -> None:
    """An hour without a row lies between them, and one row; the second may have come within the hour."""
    before = rippled("before", (0, 0.004), (100, 0.016))
    behind = rippled("behind", (0, 0.004), (101, 0.016))
    k = np.where(before.k < 101, before.k, before.k + 3600)
    found = detect_together([Series(one.name, k, one.values) for one in (before, behind)], Config())

    assert [(names(step), step[0].interval) for step in found] == [
        (["before"], (100, 100)),
        (["behind"], (101, 3701)),
    ]


def test_a_step_in_a_gap_of_a_series_is_one_with_what_another_shows_there() -> None:
    """The first has no rows from 90 to 129, and the second says that it was at 110."""
    whole = rippled("whole", (0, 0.004), (110, 0.008))
    gappy = rippled("gappy", (0, 0.004), (110, 0.016))
    here = (gappy.k < 90) | (gappy.k >= 130)
    found = detect_together([Series("gappy", gappy.k[here], gappy.values[here]), whole], Config())

    assert [(names(step), step[0].interval) for step in found] == [(["gappy", "whole"], (110, 110))]


def test_a_gap_at_its_onset_leaves_a_step_in_doubt_though_no_other_shows_it() -> None:
    """The others have rows there, so that it might have been told."""
    gappy, still = rippled("gappy", (0, 0.004), (110, 0.016)), rippled("still", (0, 0.004))
    here = (gappy.k < 105) | (gappy.k >= 113)
    alone = Series("gappy", gappy.k[here], gappy.values[here])
    (step,) = detect_together([alone, still], Config())

    assert [(one.series, one.onset_k, one.interval) for one in step] == [("gappy", 113, (105, 113))]


@pytest.mark.parametrize("spacing", [1, 10])
def test_a_gap_of_all_series_is_in_the_interval_of_the_step_behind_it(spacing: int) -> None:
    """A load that is started anew: nobody knows of the ten minutes in between."""
    many = [rippled(name, (0, 0.004), (110, 0.016)) for name in ("publish", "end_to_end")]
    k = spacing * np.arange(ROWS) + 600 * (np.arange(ROWS) >= 110)
    (step,) = detect_together([Series(one.name, k, one.values) for one in many], Config())

    assert (step[0].onset_k, step[0].interval) == (k[110], (110 * spacing, k[110]))


def test_each_series_keeps_the_onset_that_it_has_alone() -> None:
    first = rippled("first", (0, 0.004), (100, 0.016))
    later = rippled("later", (0, 0.004), (102, 0.008))
    (step,) = detect_together([later, first], Config())

    assert [(one.series, one.onset_k, one.raised_k) for one in step] == [
        ("first", 100, 100),
        ("later", 100, 102),
    ]


def test_a_series_may_have_a_scale_of_its_own() -> None:
    share = Series(
        "share", np.arange(ROWS), np.arange(ROWS) % 2 + np.repeat([-3.0, 7.0], ROWS // 2)
    )
    linear = Config(scale="linear", smallest_step_ratio=1.005, smallest_step_seconds=0.0)
    latency = rippled("latency", (0, 0.004), (ROWS // 2, 0.016))
    (step,) = detect_mixed([(share, linear), (latency, ANY_STEP)])

    assert {one.series: (one.before, one.after) for one in step} == {
        "share": (-2.5, 7.5),
        "latency": (pytest.approx(0.00402), pytest.approx(0.01608)),
    }


def panel(seed: int) -> list[Series]:
    """Return three series of correlated noise with up to three steps, some of them in several."""
    rng = np.random.default_rng(seed)
    together = rng.normal(0.0, 0.04, ROWS)
    y = [together + rng.normal(0.0, 0.02, ROWS) for _ in range(3)]
    for onset in rng.integers(10, ROWS - 10, rng.integers(0, 4)):
        for at in np.flatnonzero(rng.random(3) < 0.6):
            y[at][onset:] += rng.normal(0.0, 0.3)
    return [
        Series(name, np.arange(ROWS), 0.01 * 10.0**one) for name, one in zip("abc", y, strict=True)
    ]


def onsets(found: list[tuple[Change, ...]]) -> list[tuple[int, tuple[int, int]]]:
    return [(step[0].onset_k, step[0].interval) for step in found]


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, order=st.permutations(range(3)))
def test_the_order_of_series_changes_nothing(seed: int, order: list[int]) -> None:
    many = panel(seed)

    assert detect_together([many[at] for at in order], ANY_STEP) == detect_together(many, ANY_STEP)


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, at=st.integers(0, 2), copies=st.integers(1, 3))
def test_a_copy_of_a_series_changes_no_onset_and_moves_with_it(
    seed: int, at: int, copies: int
) -> None:
    many = panel(seed)
    more = [Series(f"copy {n}", many[at].k, many[at].values) for n in range(copies)]
    alone, found = detect_together(many, ANY_STEP), detect_together([*more, *many], ANY_STEP)

    assert onsets(found) == onsets(alone)
    assert [copies * (many[at].name in names(step)) for step in found] == [
        sum(name.startswith("copy") for name in names(step)) for step in found
    ]


def test_what_none_pays_for_alone_all_pay_for_together() -> None:
    """Four series of noise of their own are up for six seconds; one of them alone tells nothing."""
    rng = np.random.default_rng(2)
    many = []
    for name in "abcd":
        y = rng.normal(0.0, 0.1, ROWS)
        y[100:106] += 0.5
        many.append(Series(name, np.arange(ROWS), 0.01 * 10.0**y))

    assert [detect(series, ANY_STEP) for series in many] == [[]] * 4
    assert [step[0].onset_k for step in detect_together(many, ANY_STEP)] == [100, 106]


def test_a_hundred_series_of_noise_pay_for_nothing_together() -> None:
    """What chance gives for a cut adds up over them to more than its price in one."""
    rng, k = np.random.default_rng(5), np.arange(200)
    many = 0.01 * np.exp(rng.normal(0.0, 0.05, (100, k.size)))
    config = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)

    assert detect_together([Series(f"s{i}", k, each) for i, each in enumerate(many)], config) == []


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.long
def test_nor_do_they_where_each_has_but_a_share_of_the_rows(share: float) -> None:
    """Every tenth at first, or each by chance: what stands for missing rows is no news each time."""
    config = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
    for seed in range(6):
        rng, k = np.random.default_rng(seed), np.arange(1000)
        many = []
        for i in range(60):
            rows = k[i % 10 :: 10] if share == 0.1 else k[rng.random(k.size) < share]
            noise = rng.normal(0.0, 0.05, rows.size)
            many.append(Series(f"s{i}", rows, 0.01 * np.exp(noise)))

        assert detect_together(many, config) == []


def test_copies_weigh_as_much_as_one_and_what_stands_still_nothing() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.normal(0.0, 1.0, (2, 5000))
    found = weights([one, other, one, np.ones(5000), one])

    assert found == pytest.approx([1 / 3, 1.0, 1 / 3, 0.0, 1 / 3], abs=1e-3)


def member(name: str, *cuts: Cut) -> Member:
    values = np.full(ROWS, 0.004)
    track = Track(np.log10(values), values, 0.001, 1.5, 0.01, least_rows=3, penalty=0.12)
    return Member(name, track, np.arange(ROWS), cuts)


def cut(at: int, strength: float, spread: int = 0) -> Cut:
    return Cut(at, at - spread, at + spread, 0.004, 0.008, strength, 30.0)


def test_a_vague_cut_joins_the_nearest_event_that_it_may_be() -> None:
    """Its interval holds both; the clearer of them is farther away."""
    clear = member("clear", cut(100, 9.0), cut(120, 5.0))
    vague = member("vague", cut(116, 2.0, spread=20))

    assert [
        [(one.member.name, one.at) for one in event.shown] for event in events([vague, clear], K)
    ] == [[("clear", 100)], [("clear", 120), ("vague", 116)]]


def test_two_cuts_of_a_series_are_never_one_event() -> None:
    clear, twice = member("clear", cut(100, 9.0)), member("twice", cut(99, 4.0), cut(101, 3.0))

    assert [[one.member.name for one in event.shown] for event in events([clear, twice], K)] == [
        ["clear", "twice"],
        ["twice"],
    ]


def test_an_event_is_left_to_the_nearer_cut_of_a_series() -> None:
    """The clearer cut of the second is ten rows before the nearer one: so is the level between them."""
    lead = member("lead", cut(110, 9.0))
    twice = member("twice", cut(101, 5.0, spread=8), cut(111, 3.0))

    assert [
        [(one.member.name, one.at) for one in event.shown] for event in events([lead, twice], K)
    ] == [[("twice", 101)], [("lead", 110), ("twice", 111)]]


def test_what_falls_and_what_rises_are_two_steps() -> None:
    """Also where the fall is too faint for a cut of its own."""
    rising = rippled("rising", (0, 0.004), (100, 0.016))
    falling = rippled("falling", (0, 0.016), (100, 0.004))
    faint = rippled("faint", (0, 0.00402), (100, 0.00398))
    found = detect_together([rising, falling, faint], ANY_STEP)

    assert [names(step) for step in found if step[0].direction == "up"] == [["rising"]]
    assert {name for step in found for name in names(step)} == {"rising", "falling", "faint"}


@pytest.mark.parametrize("at", [30_000, 47_500, 99_000])
@pytest.mark.long
def test_of_very_many_rows_all_pay_together_too(at: int) -> None:
    """A burst of six series, in twice as many rows as are searched at once, also where pieces meet."""
    rng = np.random.default_rng(2)
    many = []
    for name in "abcdef":
        y = rng.normal(0.0, 0.1, 100_000)
        y[at : at + 12] += 0.35
        many.append(Series(name, np.arange(y.size), 0.01 * 10.0**y))

    assert [step[0].onset_k for step in detect_together(many, ANY_STEP)] == [at, at + 12]


def drifting(rng: np.random.Generator, rise: float) -> NDArray[np.float64]:
    y = rng.normal(0.0, 0.03, 7200) + rise * np.clip((np.arange(7200) - 1800) / 3600, 0.0, 1.0)
    return np.asarray(0.01 * 10.0**y)


def test_a_series_whose_step_is_a_drift_leaves_the_step_to_the_others() -> None:
    """A clear step of one series lies within the rise of another, which is no staircase."""
    stepping = drifting(np.random.default_rng(6), 0.0)
    rising = drifting(np.random.default_rng(5), 0.5)
    stepping[3600:] *= 3.0
    many = [Series("a", np.arange(7200), stepping), Series("b", np.arange(7200), rising)]
    worth = Worth(smallest_step_ratio=1.05, smallest_step_seconds=0.0)
    steps = detect_together(many, Config(smallest_step_ratio=1.05, smallest_step_seconds=0.0))
    found = told_together([(series, worth) for series in many], steps)

    assert [[(one.kind, one.series) for one in event] for event in found] == [
        [("drift", "b")],
        [("step", "a")],
    ]
