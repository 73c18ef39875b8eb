"""Causes are found beside the query: no batch waits for them, and no failure ends it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from soak.app import units
from soak.core.plan import text
from soak.core.units import SECOND_NS, duration_ns
from soak.supervisor.run import roles_of
from spark.streaming.attribution_thread import FINISH_SECONDS, AttributionThread
from spark.streaming.job import DRAIN_NS
from tests.support.paths import ROOT

PATIENCE_SECONDS = 10.0


@dataclass
class Judging:
    """An attribution whose judgements the test lets begin and end."""

    outcome: Callable[[int], bool] = lambda _: False
    is_slow: bool = False
    calls: int = 0
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_end: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def judge(self) -> bool:
        self.calls += 1
        self.begun.release()
        if self.is_slow:
            self.may_end.acquire(timeout=PATIENCE_SECONDS)
        return self.outcome(self.calls)


def started(judging: Judging) -> AttributionThread:
    thread = AttributionThread(judging, retry_seconds=0.0)
    thread.start()
    return thread


def test_batches_go_on_while_a_cause_is_looked_for_and_are_judged_once_together() -> None:
    judging = Judging(is_slow=True)
    thread = started(judging)
    thread.wake()
    judging.begun.acquire(timeout=PATIENCE_SECONDS)
    for _ in range(1000):
        thread.wake()  # would wait for ever, did it wait
    judging.may_end.release(2)
    judging.begun.acquire(timeout=PATIENCE_SECONDS)

    assert thread.finish()
    assert judging.calls == 2


def test_every_moment_that_is_due_is_judged_after_one_batch() -> None:
    """It is behind until none is left."""
    judging = Judging(outcome=lambda call: call < 23, is_slow=True)
    thread = started(judging)
    thread.wake()
    is_behind = []
    for _ in range(23):
        assert judging.begun.acquire(timeout=PATIENCE_SECONDS)
        is_behind.append(thread.is_behind)
        judging.may_end.release()

    assert thread.finish()
    assert all(is_behind)
    assert judging.calls == 23


def test_the_end_waits_for_the_judgement_that_runs() -> None:
    judging = Judging(is_slow=True)
    thread = started(judging)
    thread.wake()
    judging.begun.acquire(timeout=PATIENCE_SECONDS)
    ended: list[bool] = []
    ending = threading.Thread(target=lambda: ended.append(thread.finish()))
    ending.start()
    before = list(ended)
    judging.may_end.release()
    ending.join(PATIENCE_SECONDS)

    assert (before, ended) == ([], [True])


def test_a_judgement_that_failed_is_logged_and_done_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without another batch."""

    def once_wrong(call: int) -> bool:
        if call == 1:
            raise ZeroDivisionError
        return False

    judging = Judging(once_wrong)
    thread = started(judging)
    thread.wake()
    for _ in range(2):
        assert judging.begun.acquire(timeout=PATIENCE_SECONDS)

    assert thread.finish()
    assert thread.failures_total == 1
    assert [one.getMessage() for one in caplog.records] == ["attribution_failed failures=1"]


def test_a_thread_that_was_never_woken_ends() -> None:
    thread = started(Judging())

    assert thread.finish()


def test_the_last_word_has_time_wherever_the_detector_runs() -> None:
    """A terminal, systemd and Kubernetes wait equally long before they kill it."""
    plan = text.load("name: p\nbroker: {kafka: {}}\nprobes: {host: {}}\n", "p").plan
    grace_ns = {role.name: role.grace_ns for role in roles_of(plan)}["detect-stream"]
    unit = units.rendered_files()[units.UNITS / "soak-detect@.service"]
    pod = (ROOT / "configs" / "kubernetes" / "detect-stream.yaml").read_text()

    stops = re.findall(r"^TimeoutStopSec=(.+)$", unit, re.MULTILINE)
    pauses = re.findall(r"terminationGracePeriodSeconds: (\d+)", pod)

    assert [duration_ns(one) for one in stops] == [grace_ns]
    assert [int(one) * SECOND_NS for one in pauses] == [grace_ns]
    assert DRAIN_NS + round(FINISH_SECONDS * SECOND_NS) < grace_ns
