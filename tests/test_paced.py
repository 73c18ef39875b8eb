"""Work that is done before each reading, on a thread of its own."""

from __future__ import annotations

import queue
import threading

import pytest

from probes._paced import AHEAD_NS, Paced
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError
from soak.core.units import SECOND_NS
from tests.fakes import FakeClock

PATIENCE_SECONDS = 10.0


def test_work_begins_with_the_first_reading_and_ends_with_close() -> None:
    """Nothing is done before."""
    done: queue.Queue[str] = queue.Queue()
    paced = Paced("t", lambda: done.put("once"), SystemClock())
    assert done.empty()

    paced.check()

    assert done.get(timeout=PATIENCE_SECONDS) == "once"
    paced.close()


def test_an_error_is_raised_where_the_reading_is_made_and_the_work_goes_on() -> None:
    """The next round may do better."""
    clock = SystemClock()
    rounds: queue.Queue[int] = queue.Queue()

    def work() -> None:
        rounds.put(0)
        raise ProbeError("not this time")

    paced = Paced("t", work, clock)
    paced._period_ns = SECOND_NS // 100
    paced.check()
    rounds.get(timeout=PATIENCE_SECONDS)
    rounds.get(timeout=PATIENCE_SECONDS)  # it has gone on

    with pytest.raises(ProbeError, match="not this time"):
        paced.check()
    paced.close()


def test_a_round_that_does_not_end_shows_its_age() -> None:
    """Who reads says so, and is not held up."""
    clock = FakeClock()
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        ended.wait(PATIENCE_SECONDS)

    paced = Paced("t", work, clock)
    paced.check()
    assert begun.wait(PATIENCE_SECONDS)
    clock.advance(23.0)

    assert paced.busy_seconds() == 23.0
    ended.set()
    paced.close()


def test_the_next_round_comes_before_the_next_reading() -> None:
    """Half a second before one that is to be expected after as long as the last one."""
    clock = FakeClock(mono_ns=SECOND_NS)
    paced = Paced("t", lambda: None, clock)
    paced._worker.close()  # no thread
    paced.check()
    clock.advance(15.0)

    paced.check()

    assert paced._next_ns == clock.mono_ns() + 15 * SECOND_NS - AHEAD_NS
