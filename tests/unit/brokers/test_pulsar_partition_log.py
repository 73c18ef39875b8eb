"""The log of a Pulsar partition when the cluster answers late, incompletely, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from soak.brokers.pulsar.partition_log import STALE_PERIODS, LogWatcher
from soak.clients.http import Access
from soak.clients.pulsar_admin import Admin
from soak.core.errors import BrokerError
from soak.core.ports import EARLIEST, Topics
from tests.support.fakes import FakeClock

TOPICS = Topics(("persistent://public/default/t",), 2)
BEGIN = {0: EARLIEST, 1: EARLIEST}
STATS = {
    "ledgers": [{"ledgerId": 5, "entries": 0}],
    "state": "LedgerOpened",
    "currentLedgerEntries": 23,
    "lastConfirmedEntry": "5:22",
}


class StubAdmin(Admin):
    """An admin interface with an answer set by the test; an error is raised."""

    def __init__(self, answer: object) -> None:
        super().__init__("http://nowhere", 1, Access())
        self.answer = answer

    def get(self, path: str) -> Any:
        del path
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def of_partitions(*stats: object) -> dict[str, object]:
    names = (f"{TOPICS.names[0]}-partition-{at}" for at in range(len(stats)))
    return {"partitions": dict(zip(names, stats, strict=True))}


def test_a_lag_is_unknown_when_the_last_answer_is_old() -> None:
    """The logs may have grown since then: an unknown lag is better than a constant one."""
    clock, admin = FakeClock(), StubAdmin(of_partitions(STATS, STATS))
    watcher = LogWatcher(admin, TOPICS, {}, clock)
    watcher.poll()
    admin.answer = BrokerError("gone")
    clock.advance(STALE_PERIODS)
    watcher.poll()
    fresh = watcher.entries_behind(BEGIN)
    clock.advance(0.1)

    assert fresh == 46
    assert watcher.entries_behind(BEGIN) is None


def test_a_lag_raises_when_the_polling_thread_has_died() -> None:
    watcher = LogWatcher(StubAdmin(RuntimeError("a bug")), TOPICS, {}, FakeClock())
    died = threading.Event()
    hook, threading.excepthook = threading.excepthook, lambda _: died.set()
    try:
        watcher.start()
        assert died.wait(10)
    finally:
        threading.excepthook = hook

    with pytest.raises(BrokerError, match="has died"):
        watcher.entries_behind(BEGIN)


@pytest.mark.parametrize(
    "answer",
    [
        of_partitions(STATS),
        of_partitions(STATS, None),
        of_partitions(STATS, {**STATS, "lastConfirmedEntry": None}),
        of_partitions(STATS, {}),
        {"partitions": None},
        "a page of something else",
    ],
)
@pytest.mark.parametrize(
    "ask", [lambda one: one.bounds([0, 1]), lambda one: one.bounds([1])], ids=["both", "one"]
)
def test_incomplete_bounds_are_a_broker_error(
    answer: object, ask: Callable[[LogWatcher], object]
) -> None:
    """Gaps stay open until the answer is complete, and the consumer goes on."""
    watcher = LogWatcher(StubAdmin(answer), TOPICS, {}, FakeClock())

    with pytest.raises(BrokerError):
        ask(watcher)


def test_an_invalid_answer_leaves_the_lag_unknown() -> None:
    watcher = LogWatcher(StubAdmin("a page of something else"), TOPICS, {}, FakeClock())

    watcher.poll()

    assert watcher.entries_behind(BEGIN) is None
