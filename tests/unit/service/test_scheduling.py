from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from soak.service.scheduling import MAX_BUSY_RATIO, RESUME_BUSY_RATIO, RealTimePriority


def _in_a_thread(body: Callable[[], None]) -> None:
    """The priority is a thread's own: the test runner keeps its."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001  # raised again below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def test_a_thread_goes_first_and_gives_way_while_it_is_busy() -> None:
    def body() -> None:
        priority = RealTimePriority()
        if not priority.is_first:
            pytest.skip("real-time priority is for root, or where the user's limit allows it")
        policies = [_policy()]
        between = (MAX_BUSY_RATIO + RESUME_BUSY_RATIO) / 2
        for busy in (between, 0.95, between, 0.1):
            priority.adapt(busy)
            policies.append(_policy())
        assert policies == [
            os.SCHED_RR,
            os.SCHED_RR,
            os.SCHED_OTHER,
            os.SCHED_OTHER,
            os.SCHED_RR,
        ]

    _in_a_thread(body)


def test_threads_that_it_starts_are_as_others() -> None:
    found: list[int] = []

    def body() -> None:
        RealTimePriority()
        _in_a_thread(lambda: found.append(_policy()))

    _in_a_thread(body)
    assert found == [os.SCHED_OTHER]


def test_who_may_not_goes_on_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    priority = RealTimePriority()
    priority.adapt(0.1)

    assert not priority.is_first
