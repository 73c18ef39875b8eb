from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from soak.core.schedule import Schedule
from soak.daemons.pacing import Pacer

RATES = st.builds(Fraction, st.integers(1, 10**6), st.integers(1, 100))


def test_a_day_at_three_thousand_a_second_does_not_drift() -> None:
    schedule = Schedule(0, Fraction(3000))

    assert schedule.due_ns(3000 * 86_400) == 86_400 * 10**9


@given(rate=RATES, start=st.integers(0, 2**62), first=st.integers(0, 10**12))
def test_many_due_times_are_the_single_ones(rate: Fraction, start: int, first: int) -> None:
    schedule = Schedule(start // 4, rate)

    many = schedule.due_many_ns(first % 10**8, 5).tolist()

    assert many == [schedule.due_ns(first % 10**8 + at) for at in range(5)]


@given(rate=RATES, elapsed=st.integers(-(10**9), 10**15))
def test_the_first_due_at_an_instant_is_the_least_such_index(rate: Fraction, elapsed: int) -> None:
    schedule = Schedule(7, rate)

    index = schedule.first_at_or_after(7 + elapsed)

    assert schedule.due_ns(index) >= 7 + elapsed
    assert index == 0 or schedule.due_ns(index - 1) < 7 + elapsed


def _walk(pacer: Pacer, begin: int, end: int, step: int) -> tuple[int, int]:
    sent = missed = 0
    for now in range(begin, end, step):
        due = pacer.due(now)
        pacer.sent(due.count)
        sent += due.count
        missed += due.missed
    return sent, missed


def test_on_time_everything_due_goes_out() -> None:
    pacer = Pacer(Schedule(0, Fraction(2000)), 1.2, 10 * 10**9, 0)

    assert _walk(pacer, 0, 10**9 + 1, 500_000) == (2001, 0)


def test_after_a_stall_the_backlog_goes_out_at_the_catch_up_rate() -> None:
    """Three seconds behind at 1,000/s and 1.2 x: a second later 1,200 went out, plus 60 of credit."""
    pacer = Pacer(Schedule(0, Fraction(1000)), 1.2, 10 * 10**9, 0)
    begin = 3 * 10**9

    sent, missed = _walk(pacer, begin, begin + 10**9, 10**6)

    assert missed == 0
    assert 1200 <= sent <= 1261


def test_what_is_older_than_the_backlog_is_missed_and_counted() -> None:
    pacer = Pacer(Schedule(0, Fraction(1000)), 1.2, 2 * 10**9, 0)

    due = pacer.due(5 * 10**9)

    assert (due.missed, due.first) == (3000, 3000)
