"""What tells a thread to end: who waits is woken, and whoever waits afterwards does not."""

from __future__ import annotations

import math
import threading

import pytest

from probes._worker import Stop

WATCHDOG_SECONDS = 30.0


def ended(*threads: threading.Thread) -> bool:
    """Join them all; return whether none of them hangs."""
    for thread in threads:
        thread.join(WATCHDOG_SECONDS)
    return not any(thread.is_alive() for thread in threads)


def waiter(stop: Stop, seconds: float, told: list[bool]) -> threading.Thread:
    thread = threading.Thread(target=lambda: told.append(stop.wait(seconds)), daemon=True)
    thread.start()
    return thread


def test_all_who_wait_are_woken() -> None:
    """Each of them is told, and none keeps it from the next."""
    stop, told = Stop(), list[bool]()
    waiting = [waiter(stop, threading.TIMEOUT_MAX, told) for _ in range(3)]

    stop.set()

    assert ended(*waiting)
    assert told == [True] * 3


def test_who_waits_after_it_was_set_goes_on_at_once_and_again() -> None:
    stop, told = Stop(), list[bool]()
    stop.set()

    assert ended(*(waiter(stop, threading.TIMEOUT_MAX, told) for _ in range(2)))
    assert told == [True] * 2


def test_it_may_be_set_twice() -> None:
    """A probe may be closed twice."""
    stop = Stop()
    stop.set()
    stop.set()

    assert stop.is_set()


@pytest.mark.parametrize("seconds", [0.0, -0.0, -1e-9, -1.0, -23.0, -math.inf])
def test_a_wait_for_an_instant_that_is_over_ends_at_once(seconds: float) -> None:
    """Who is late asks for less than nothing."""
    stop, told = Stop(), list[bool]()

    assert ended(waiter(stop, seconds, told))
    assert told == [False]
