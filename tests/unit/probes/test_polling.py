"""Polling threads: how they are stopped, when they work, and where their errors are raised."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import pytest

from probes.common.polling import AHEAD_NS, AT_ONCE, Prefetch, Stop, Worker
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

WATCHDOG_SECONDS = 30.0


def ended(*threads: threading.Thread) -> bool:
    """Join them all; return whether none of them hangs."""
    for thread in threads:
        thread.join(WATCHDOG_SECONDS)
    return not any(thread.is_alive() for thread in threads)


def waiter(stop: Stop, seconds: float, results: list[bool]) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(stop.wait(seconds)), daemon=True)
    thread.start()
    return thread


def test_all_waiting_threads_are_woken() -> None:
    """Each of them is results, and none keeps it from the next."""
    stop, results = Stop(), list[bool]()
    waiting = [waiter(stop, threading.TIMEOUT_MAX, results) for _ in range(3)]

    stop.set()

    assert ended(*waiting)
    assert results == [True] * 3


def test_a_wait_after_the_stop_returns_at_once() -> None:
    """Each time."""
    stop, results = Stop(), list[bool]()
    stop.set()

    assert ended(*(waiter(stop, threading.TIMEOUT_MAX, results) for _ in range(2)))
    assert results == [True] * 2


def test_it_may_be_set_twice() -> None:
    """A probe may be closed twice."""
    stop = Stop()
    stop.set()
    stop.set()

    assert stop.is_set()


@pytest.mark.parametrize("seconds", [0.0, -0.0, -1e-9, -1.0, -23.0, -math.inf])
def test_a_wait_for_a_past_instant_ends_at_once(seconds: float) -> None:
    """Its time limit is negative."""
    stop, results = Stop(), list[bool]()

    assert ended(waiter(stop, seconds, results))
    assert results == [False]


def test_work_starts_with_the_first_reading() -> None:
    """Nothing runs before."""
    done: queue.Queue[str] = queue.Queue()
    prefetch = Prefetch("t", lambda: done.put("once"), SystemClock())
    assert done.empty()

    prefetch.check()

    assert done.get(timeout=WATCHDOG_SECONDS) == "once"
    prefetch.close()


def test_an_error_is_raised_by_the_reading_and_the_work_goes_on() -> None:
    """The next round may succeed."""
    clock = SystemClock()
    rounds: queue.Queue[int] = queue.Queue()

    def work() -> None:
        rounds.put(0)
        raise ProbeError("not this time")

    prefetch = Prefetch("t", work, clock, period_ns=SECOND_NS // 100)
    prefetch.check()
    rounds.get(timeout=WATCHDOG_SECONDS)
    rounds.get(timeout=WATCHDOG_SECONDS)  # it has gone on

    with pytest.raises(ProbeError, match="not this time"):
        prefetch.check()
    prefetch.close()


def test_a_round_that_does_not_end_shows_its_age() -> None:
    """The reading is not blocked."""
    clock = FakeClock()
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        ended.wait(WATCHDOG_SECONDS)

    prefetch = Prefetch("t", work, clock)
    prefetch.check()
    assert begun.wait(WATCHDOG_SECONDS)
    clock.advance(23.0)

    assert prefetch.busy_seconds() == 23.0
    ended.set()
    prefetch.close()


def test_the_next_round_comes_before_the_next_reading() -> None:
    """Half a second before the next reading, which is expected after the same period."""
    clock = FakeClock(mono_ns=SECOND_NS)
    prefetch = Prefetch("t", lambda: None, clock)
    prefetch.close()  # no thread
    prefetch.check()
    clock.advance(15.0)

    prefetch.check()

    assert prefetch.next_ns == clock.mono_ns() + 15 * SECOND_NS - AHEAD_NS


def rounds_of(
    costs: list[float],
    seconds: int,
    max_busy_ratio: float,
    failing: Sequence[int] = (),
    backoff: Backoff = AT_ONCE,
) -> list[float]:
    """Return when rounds begin that cost so much in turn, with a reading every second; some fail."""
    clock = FakeClock(mono_ns=0)
    begun: list[float] = []

    def work() -> None:
        begun.append(clock.mono_ns() / SECOND_NS)
        clock.advance(costs[min(len(begun), len(costs)) - 1])
        if len(begun) - 1 in failing:
            raise ProbeError("not this time")

    prefetch = Prefetch("t", work, clock, max_busy_ratio=max_busy_ratio, backoff=backoff)
    prefetch.close()  # no thread: the rounds are done here, at the instants at which it would
    read_ns = 0
    while clock.mono_ns() < seconds * SECOND_NS:
        while read_ns <= clock.mono_ns():  # readings that came meanwhile
            with suppress(ProbeError):
                prefetch.check()
            read_ns += SECOND_NS
        wait_ns = min(prefetch.next_ns, read_ns) - clock.mono_ns()
        clock.advance(max(0, wait_ns) / SECOND_NS)
        if prefetch.next_ns <= clock.mono_ns() < read_ns:
            prefetch.work_once()
    return begun


def test_slow_work_is_done_at_most_that_part_of_the_time() -> None:
    """Work of 2 s at a quarter of the time is done every 8 s, that of 10 ms before every reading."""
    slow = rounds_of([2.0], 60, 0.25)
    quick = rounds_of([0.01], 60, 0.25)

    assert all(8.0 <= later - earlier <= 9.0 for earlier, later in pairwise(slow))
    assert len(quick) >= 59


def test_work_that_takes_longer_than_the_time_to_the_next_reading_goes_on() -> None:
    """Work of 0.8 s is done every second reading when it may take half of the time."""
    assert len(rounds_of([0.8], 60, 0.5)) >= 29


def test_one_slow_round_does_not_make_the_others_rare() -> None:
    """The shortest of the last rounds is what work costs: a longer one had to wait for something."""
    begun = rounds_of([0.01, 0.01, 0.01, 5.0, 0.01], 60, 0.25)

    assert len(begun) >= 50


@pytest.mark.parametrize("timeout", [2.0, 5.0])
def test_work_that_keeps_timing_out_is_tried_less_and_less_often(timeout: float) -> None:
    """Ever later up to a bound; once it succeeds it is done before each reading again."""
    backoff = Backoff(max_ns=30 * SECOND_NS)
    begun = rounds_of([timeout] * 12 + [0.01], 600, 0.25, failing=range(12), backoff=backoff)

    waits = [later - earlier - timeout for earlier, later in pairwise(begun[:13])]
    after = [later - earlier for earlier, later in pairwise(begun[13:])]
    assert waits == sorted(waits)
    assert waits[0] <= 2.0
    assert 30.0 <= waits[-1] <= 31.0
    assert max(after) <= 2.0


@pytest.mark.parametrize("first_cost", [0.01, 2.0])
def test_work_that_fails_at_once_is_tried_before_each_reading(first_cost: float) -> None:
    """A refused connection costs nothing; a round that timed out before it delays only the next one."""
    backoff = Backoff(max_ns=30 * SECOND_NS)
    begun = rounds_of([first_cost, 0.01], 60, 0.25, failing=range(60), backoff=backoff)

    assert len(begun) >= 55


def test_an_unexpected_error_in_a_thread_is_raised_by_the_reading() -> None:
    """It is not lost with the thread."""

    def body(_stop: Stop) -> None:
        raise ZeroDivisionError

    worker = Worker("test", body)
    assert worker.check()
    worker.wait(WATCHDOG_SECONDS)

    with pytest.raises(ZeroDivisionError):
        worker.check()


def test_a_thread_that_has_ended_is_started_again_until_it_is_closed() -> None:
    """Something that was missing may have appeared."""
    runs: list[int] = []
    worker = Worker("test", lambda _stop: runs.append(1))

    started = []
    for _ in range(2):
        started.append(worker.check())
        worker.wait(WATCHDOG_SECONDS)
    worker.close()
    started.append(worker.check())

    assert started == [True, True, False]
    assert len(runs) == 2
