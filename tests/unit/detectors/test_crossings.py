"""What a series has risen to, and how often, in the hours before."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.kinds.spikes import HEIGHTS, Crossings


def taken(steps: list[float], first_k: int = 0) -> Crossings:
    crossings = Crossings()
    for k, height in enumerate(steps, first_k):
        crossings.take(k, height)
    return crossings


def rises(count: int, every: int, height: float) -> list[float]:
    """Return rows of which each n-th rises so high."""
    return [height if k % every == 0 else 0.0 for k in range(count)]


@pytest.mark.parametrize(
    ("height", "every", "were"),
    [
        (3.0, 20, True),
        (3.0, 9, True),
        (3.0, 7, False),
        (4.5, 20, True),
        (4.7, 20, False),
        (30.0, 20, False),
    ],
)
def test_what_rose_as_high_and_nearly_as_often_was_so_before(
    height: float, every: int, *, were: bool
) -> None:
    """Rises of 3 steps every 20 rows: a pulse train may be 2.5 times as frequent, half again as high."""
    crossings = taken(rises(3600, 20, 3.0))

    assert crossings.were_as_often(height, every, 3600) is were


def test_most_of_the_time_before_counts_and_nothing_of_what_came_after() -> None:
    quiet, often = [0.0] * 3600, rises(3600, 20, 3.0)

    assert not taken([*quiet, *often]).were_as_often(3.0, 20, 3600)
    assert not taken([*quiet, *often[:1200], *quiet[:1200]]).were_as_often(3.0, 20, 6000)
    assert taken([*often, *quiet[:1200]]).were_as_often(3.0, 20, 4800)


def test_higher_than_what_is_counted_was_never_so() -> None:
    """It would be taken for the highest that is."""
    assert not taken(rises(3600, 20, 60.0)).were_as_often(60.0, 20, 3600)


def test_what_is_forgotten_counts_for_nothing() -> None:
    """The blocks since a second, and the one that had not ended then."""
    crossings = taken([*[0.0] * 1200, *rises(3600, 20, 3.0)])
    crossings.forget(1200)

    assert not crossings.were_as_often(3.0, 20, 10_000)
    assert max(block.first_k + block.rows for block in crossings.blocks) <= 1200


def test_a_new_level_is_one_rise() -> None:
    """A minute of rows lies far above the level before."""
    assert not taken([0.0] * 300 + [5.0] * 60 + [0.0] * 300).were_as_often(5.0, 60, 660)


def test_nothing_is_known_before_the_first_block_ended() -> None:
    assert not taken(rises(100, 5, 3.0)).were_as_often(3.0, 5, 100)
    assert not Crossings().were_as_often(3.0, 5, 100)


def test_it_takes_room_for_two_hours_and_no_more() -> None:
    """Blocks of two minutes at first; each rise is counted once, however they are joined."""
    crossings = taken(rises(7000, 20, 100.0))

    assert len(crossings.blocks) <= 8
    assert crossings.seconds == 960
    assert sum(one.counts[HEIGHTS - 1] for one in crossings.blocks) == 350
    assert len(json.dumps(taken(rises(50_000, 2, 3.0)).to_state())) <= 450


@given(
    st.lists(st.floats(-1.0, 80.0) | st.just(float("nan")), max_size=60),
    st.integers(0, 60),
    st.integers(1, 60),
)
def test_a_state_that_was_stored_goes_on_as_if_it_had_not_been(
    steps: list[float], at: int, apart: int
) -> None:
    whole, stored = Crossings(), Crossings()
    for row, height in enumerate(steps):
        if row == at:
            stored = Crossings.of(json.loads(json.dumps(stored.to_state())))
        whole.take(row * apart, height)
        stored.take(row * apart, height)

    assert stored == whole
