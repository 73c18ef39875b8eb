"""A source waits for the interval of the plan while it keeps up, and goes on at once while it is behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from soak.core.units import SECOND_NS
from spark.sources.pacing import BATCH_NS, FIRST_BYTES, Pace
from tests.support.fakes import FakeClock

MOST_BYTES = 16 * 2**20


def pace(interval_seconds: int = 5) -> tuple[Pace, FakeClock]:
    clock = FakeClock(10**12)
    return Pace(clock, interval_seconds * SECOND_NS, MOST_BYTES), clock


def test_a_query_that_keeps_up_has_a_batch_an_interval() -> None:
    """Whatever the batches take, and however often Spark asks."""
    one, clock = pace()
    starts: list[int] = []
    while len(starts) < 4:
        if one.is_time():
            starts.append(clock.mono_ns() // SECOND_NS)
            one.plan(1000, is_limited=False)
            clock.advance(1.5)

    assert [second - starts[0] for second in starts] == [0, 5, 10, 15]


def test_an_answer_is_never_kept_waiting_for_long() -> None:
    """A query that is to stop waits for it."""
    one, clock = pace(180)
    one.is_time()
    one.plan(1000, is_limited=False)
    before = clock.mono_ns()

    assert not one.is_time()
    assert clock.mono_ns() - before <= SECOND_NS // 2


def test_a_query_without_records_is_asked_seldom_and_takes_them_at_once() -> None:
    one, clock = pace()
    one.is_time()
    one.plan(1000, is_limited=False)
    clock.advance(60.0)
    before = clock.mono_ns()
    answers = []
    for _ in range(5):
        answers.append(one.is_time())
        one.plan(0, is_limited=False)

    assert all(answers)
    assert clock.mono_ns() - before >= SECOND_NS // 2


def test_a_query_that_is_behind_goes_on_at_once() -> None:
    one, clock = pace(60)
    for _ in range(5):
        before = clock.mono_ns()
        assert one.is_time()
        assert clock.mono_ns() == before
        one.plan(1000, is_limited=True)
        clock.advance(1.0)


@given(
    bytes_per_second=st.integers(10_000, 20_000_000),
    start_seconds=st.floats(0.0, 60.0),
    overhead_seconds=st.floats(0.05, 1.0),
)
def test_batches_of_a_backlog_come_to_take_three_seconds(
    bytes_per_second: int, start_seconds: float, overhead_seconds: float
) -> None:
    """Or as many bytes as are allowed; the start of the workers in the first batch is no measure."""
    one, clock = pace()
    took = []
    for number in range(12):
        assert one.is_time()
        size = one.limit_bytes
        one.plan(size, is_limited=True)
        seconds = overhead_seconds + size / bytes_per_second + (0 if number else start_seconds)
        clock.advance(seconds)
        took.append(seconds)

    is_largest = one.limit_bytes == MOST_BYTES and took[-1] <= BATCH_NS / SECOND_NS
    assert is_largest or 2.0 <= took[-1] <= 5.0 or bytes_per_second * 3.0 < 2 * 2**16
    assert took[1] <= took[0]


def test_a_live_batch_that_takes_too_long_limits_the_next() -> None:
    """On a host that has become slow."""
    one, clock = pace()
    for _ in range(2):
        one.is_time()
        one.plan(400_000, is_limited=False)
        clock.advance(8.0)
    one.is_time()

    assert one.limit_bytes < 400_000 < FIRST_BYTES
