"""Real-time priority of a thread that must wake on time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from soak.service.scheduling import MAX_BUSY_RATIO, RESUME_BUSY_RATIO, RealTimePriority


def in_a_thread(body: Callable[[], None]) -> None:
    """Run a body in a thread of its own, so that the test runner keeps its priority."""
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


def policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def test_a_thread_gives_up_its_priority_while_it_is_busy() -> None:
    """Between both limits nothing changes."""

    def body() -> None:
        priority = RealTimePriority()
        if not priority.is_real_time:
            pytest.skip("real-time priority is for root, or where the user's limit allows it")
        policies = [policy()]
        between = (MAX_BUSY_RATIO + RESUME_BUSY_RATIO) / 2
        for busy in (between, 0.95, between, 0.1):
            priority.adapt(busy)
            policies.append(policy())
        assert policies == [
            os.SCHED_RR,
            os.SCHED_RR,
            os.SCHED_OTHER,
            os.SCHED_OTHER,
            os.SCHED_RR,
        ]

    in_a_thread(body)


def test_threads_that_it_starts_have_the_usual_priority() -> None:
    """As the threads of a client library."""
    found: list[int] = []

    def body() -> None:
        RealTimePriority()
        in_a_thread(lambda: found.append(policy()))

    in_a_thread(body)
    assert found == [os.SCHED_OTHER]


def test_without_permission_the_priority_stays_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The daemon goes on."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    priority = RealTimePriority()
    priority.adapt(0.1)

    assert not priority.is_real_time
