from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.schedule import NEVER_NS, Schedule
from soak.core.units import SECOND_NS
from soak.load.producer.pacing import Pacer

RATES = st.builds(Fraction, st.integers(1, 10**6), st.integers(1, 100))
LONG_RATES = st.builds(Fraction, st.integers(10**14, 10**15), st.just(10**6))
ANY_RATES = st.builds(Fraction, st.integers(0, 3000), st.integers(1, 100))
SEGMENTS = st.lists(st.tuples(st.integers(1, 3 * SECOND_NS), ANY_RATES), max_size=6)
"""Length of the segment before, rate of the next."""


def _schedule(
    first: Fraction, segments: list[tuple[int, Fraction]], index: int = 0, of: int = 1
) -> Schedule:
    schedule, at = Schedule(7, first, index, of), 7
    for length, rate in segments:
        at += length
        schedule.extend(at, rate)
    return schedule


def _due_by_definition(
    first: Fraction, segments: list[tuple[int, Fraction]], until_ns: int
) -> list[int]:
    """Return the due times before an instant, message by message from the rates alone."""
    due: list[int] = []
    expected, at, rate = Fraction(0), 7, first
    ends = [length for length, _ in segments]
    following = [rate for _, rate in segments]
    for length, after in zip([*ends, until_ns], [*following, Fraction(0)], strict=True):
        end = min(at + length, until_ns)
        reached = expected + rate * max(0, end - at) / SECOND_NS
        while len(due) < reached:
            due.append(at + int((len(due) - expected) * SECOND_NS / rate))
        expected, at, rate = reached, at + length, after
    return due


def test_a_day_at_three_thousand_a_second_does_not_drift() -> None:
    schedule = Schedule(0, Fraction(3000))

    assert schedule.due_ns(3000 * 86_400) == 86_400 * 10**9


@given(rate=RATES, start=st.integers(0, 2**62), index=st.integers(0, 10**12))
def test_one_rate_gives_the_plain_formula(rate: Fraction, start: int, index: int) -> None:
    expected = start + index * SECOND_NS * rate.denominator // rate.numerator

    assert Schedule(start, rate).due_ns(index) == expected


@given(rate=RATES, start=st.integers(0, 2**62), first=st.integers(0, 10**7))
def test_many_due_times_are_the_single_ones(rate: Fraction, start: int, first: int) -> None:
    schedule = Schedule(start // 4, rate)

    many = schedule.due_many_ns(first, 5).tolist()

    assert many == [schedule.due_ns(first + at) for at in range(5)]


@given(rate=LONG_RATES, first=st.integers(0, 10**9))
def test_rates_of_many_digits_are_exact_in_many_at_once(rate: Fraction, first: int) -> None:
    schedule = Schedule(0, rate)

    many = schedule.due_many_ns(first, 20_000)

    assert [many[at] for at in (0, 9_999, 19_999)] == [
        schedule.due_ns(first + at) for at in (0, 9_999, 19_999)
    ]


@given(rate=RATES, elapsed=st.integers(-(10**9), 10**15))
def test_the_first_due_at_an_instant_is_the_least_such_index(rate: Fraction, elapsed: int) -> None:
    schedule = Schedule(7, rate)

    index = schedule.first_at_or_after(7 + elapsed)

    assert schedule.due_ns(index) >= 7 + elapsed
    assert index == 0 or schedule.due_ns(index - 1) < 7 + elapsed


@pytest.mark.long
@given(first=ANY_RATES, segments=SEGMENTS, until=st.integers(8, 4 * SECOND_NS))
def test_changing_rates_give_what_the_definition_says(
    first: Fraction, segments: list[tuple[int, Fraction]], until: int
) -> None:
    """Slow twin: message i is due where the integral of the rate reaches i."""
    schedule = _schedule(first, segments)

    expected = _due_by_definition(first, segments, until)

    assert schedule.first_at_or_after(until) == len(expected)
    assert [schedule.due_ns(at) for at in range(len(expected))] == expected
    assert schedule.due_many_ns(0, len(expected)).tolist() == expected


@given(
    first=ANY_RATES,
    segments=SEGMENTS,
    of=st.integers(1, 7),
    ticks=st.lists(st.integers(1, SECOND_NS), min_size=1, max_size=8),
)
def test_processes_share_every_message_once_over_any_split_of_time(
    first: Fraction, segments: list[tuple[int, Fraction]], of: int, ticks: list[int]
) -> None:
    whole, end = _schedule(first, segments), 7 + sum(ticks)
    count = whole.first_at_or_after(end)
    sent: list[tuple[int, int]] = []
    for index in range(of):
        share, now = _schedule(first, segments, index, of), 7
        for tick in ticks:
            begin = share.first_at_or_after(now)
            now += tick
            due = share.due_many_ns(begin, share.first_at_or_after(now) - begin)
            sent += [((begin + at) * of + index, when) for at, when in enumerate(due.tolist())]

    assert sorted(sent) == [(number, whole.due_ns(number)) for number in range(count)]


@given(
    first=ANY_RATES,
    segments=SEGMENTS,
    index=st.integers(0, 3),
    of=st.integers(1, 4),
    clients=st.integers(1, 7),
)
def test_shares_have_each_message_once_and_follow_the_whole_schedule(
    first: Fraction, segments: list[tuple[int, Fraction]], index: int, of: int, clients: int
) -> None:
    whole, at = Schedule(7, first, min(index, of - 1), of), 7
    shares = [whole.share(number, clients) for number in range(clients)]
    for length, rate in segments:
        at += length
        whole.extend(at, rate)
    count = whole.first_at_or_after(at + SECOND_NS)

    for number, share in enumerate(shares):
        own = share.first_at_or_after(at + SECOND_NS)

        assert share.due_many_ns(0, own).tolist() == [
            whole.due_ns(one) for one in range(number, count, clients)
        ]
        assert share.rate_at(at) * clients == whole.rate_at(at)


@given(first=ANY_RATES, segments=SEGMENTS, at=st.integers(8, 10 * SECOND_NS), rate=ANY_RATES)
def test_an_extension_changes_nothing_before_it(
    first: Fraction, segments: list[tuple[int, Fraction]], at: int, rate: Fraction
) -> None:
    schedule, before = _schedule(first, segments), _schedule(first, segments)
    schedule.extend(at, rate)

    count = before.first_at_or_after(at)

    assert schedule.first_at_or_after(at) == count
    assert schedule.due_many_ns(0, count).tolist() == before.due_many_ns(0, count).tolist()


@given(rate=RATES, at=st.lists(st.integers(8, 10**12), max_size=4), index=st.integers(0, 10**6))
def test_splitting_a_segment_moves_no_message(rate: Fraction, at: list[int], index: int) -> None:
    split = Schedule(7, rate)
    for instant in sorted(at):
        split.extend(instant, rate + 1)
        split.extend(instant, rate)

    assert split.due_ns(index) == Schedule(7, rate).due_ns(index)
    assert split.segments == 1


@given(segments=SEGMENTS, index=st.integers(0, 2000))
def test_what_is_past_can_be_forgotten(segments: list[tuple[int, Fraction]], index: int) -> None:
    schedule, kept = _schedule(Fraction(500), segments), _schedule(Fraction(500), segments)
    instant = schedule.due_ns(index)

    kept.forget(instant)

    assert kept.due_ns(index) == instant
    assert kept.first_at_or_after(instant) == schedule.first_at_or_after(instant)
    assert kept.rate_at(instant) == schedule.rate_at(instant)


def test_a_schedule_that_ends_at_rate_zero_is_never_due_again() -> None:
    schedule = Schedule(0, Fraction(10))
    schedule.extend(SECOND_NS, Fraction(0))

    assert (schedule.due_ns(9), schedule.due_ns(10)) == (900_000_000, NEVER_NS)
    assert schedule.first_at_or_after(10**15) == 10


@given(st.integers(1, 1000), st.integers(0, 5000))
def test_what_is_due_in_centuries_is_never_due_and_nothing_wraps(of: int, first: int) -> None:
    """The least rate that a plan takes, shared by up to a thousand clients."""
    schedule = Schedule(0, Fraction(1, 10**6)).share(of - 1, of)

    due = schedule.due_many_ns(first, 4096)

    assert due.size == 4096
    assert (np.diff(due) >= 0).all()
    for at in range(0, 4096, 511):
        assert due[at] == min(schedule.due_ns(first + at), NEVER_NS)


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Schedule(0, Fraction(-1))
    with pytest.raises(ValueError, match="no rate"):
        Schedule(5, Fraction(1)).extend(4, Fraction(1))


def _walk(pacer: Pacer, begin: int, end: int, step: int) -> tuple[int, int]:
    sent = missed = 0
    for now in range(begin, end, step):
        due = pacer.due(now)
        pacer.sent(due.count)
        sent += due.count
        missed += due.skipped
    return sent, missed


def test_on_time_everything_due_goes_out() -> None:
    pacer = Pacer(Schedule(0, Fraction(2000)), 1.2, 10 * 10**9, 0)

    assert _walk(pacer, 0, 10**9 + 1, 500_000) == (2001, 0)


def test_on_time_everything_due_goes_out_through_changes_of_rate() -> None:
    """1,000/s, from 1 s on 50/s, from 3 s on nothing, from 4 s on 4,000/s: 1,000 + 100 + 0 + 4,000."""
    schedule = Schedule(0, Fraction(1000))
    pacer = Pacer(schedule, 1.2, 10 * 10**9, 0)
    for at, rate in ((1, 50), (3, 0), (4, 4000)):
        schedule.extend(at * SECOND_NS, Fraction(rate))

    assert _walk(pacer, 0, 5 * 10**9, 300_000) == (5100, 0)


@pytest.mark.parametrize(
    ("rate", "expected_us"), [(3000, 333), (5000, 400), (10_000, 300), (100_000, 270)]
)
def test_who_sends_wakes_with_the_last_message_that_may_be_waited_for(
    rate: int, expected_us: int
) -> None:
    pacer = Pacer(Schedule(0, Fraction(rate)), 1.2, 10 * 10**9, 0)
    pacer.sent(pacer.due(0).count)

    assert pacer.last_due_ns(pacer.next_due_ns() + 260_000) // 1000 == expected_us


def test_after_a_stall_the_backlog_goes_out_at_the_catch_up_rate() -> None:
    """Three seconds behind at 1,000/s and 1.2 x: a second later 1,200 went out, plus 60 of credit."""
    pacer = Pacer(Schedule(0, Fraction(1000)), 1.2, 10 * 10**9, 0)
    begin = 3 * 10**9

    sent, missed = _walk(pacer, begin, begin + 10**9, 10**6)

    assert missed == 0
    assert 1200 <= sent <= 1261


def test_who_is_late_by_a_little_each_time_stays_on_time_at_a_low_rate() -> None:
    """Ten a second, never faster than that, asked 0.2 ms after every other message is due."""
    pacer = Pacer(Schedule(0, Fraction(10)), 1.0, 10 * 10**9, 0)
    sent = []
    for number in range(100):
        due = pacer.due(number * 10**8 + number % 2 * 200_000)
        pacer.sent(due.count)
        sent.append(due.count)

    assert sent == [1] * 100


def test_what_a_stall_left_goes_out_at_the_rate_that_it_was_due_at() -> None:
    """Two seconds of 1,000/s are overdue when the rate falls to 0: at 1.2 x they are out 1.7 s later."""
    schedule = Schedule(0, Fraction(1000))
    pacer = Pacer(schedule, 1.2, 10 * 10**9, 0)
    schedule.extend(2 * SECOND_NS, Fraction(0))

    sent, missed = _walk(pacer, 2 * 10**9, 37 * 10**8, 10**6)

    assert (sent, missed) == (2000, 0)


def test_what_is_older_than_the_backlog_is_missed_and_counted() -> None:
    pacer = Pacer(Schedule(0, Fraction(1000)), 1.2, 2 * 10**9, 0)

    due = pacer.due(5 * 10**9)

    assert (due.skipped, pacer.next_index) == (3000, 3000)


def test_what_was_due_before_a_forgotten_pause_is_missed_and_holds_nothing_up() -> None:
    """Nobody asks from 0.5 s to 9 s; the load paused at 1 s, which is forgotten, and goes on at 10 s."""
    schedule = Schedule(0, Fraction(1000))
    pacer = Pacer(schedule, 1.2, 2 * 10**9, 0)
    _walk(pacer, 0, 5 * 10**8, 10**6)
    schedule.extend(SECOND_NS, Fraction(0))
    schedule.extend(10 * SECOND_NS, Fraction(1000))
    schedule.forget(7 * SECOND_NS)

    missed = pacer.due(9 * SECOND_NS).skipped
    sent, _ = _walk(pacer, 9 * 10**9, 11 * 10**9, 10**6)

    assert (missed, sent) == (500, 1000)
