"""Who leads which partition: asked again and again, whatever the cluster or its client says."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from soak.core.errors import BrokerError
from soak.core.ports import Topics
from soak.daemons.leaders import FORGOTTEN_AFTER, Leaders
from tests.fakes import FakeBroker

ALL = np.arange(6)


def asked(broker: FakeBroker) -> Leaders:
    leaders = Leaders(broker, Topics(("t",), 6))
    leaders.ask()
    return leaders


@pytest.mark.parametrize("error", [BrokerError("gone"), ValueError("nobody thought of this")])
def test_whatever_goes_wrong_is_said_once_and_the_next_answer_is_taken(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The thread that asks has nobody who would notice its end."""
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
    broker.error = error
    leaders.ask()
    leaders.ask()
    broker.error, broker.leader = None, [3, 2, 1]
    leaders.ask()

    assert leaders.of(ALL).tolist() == [3, 2, 1, 3, 2, 1]
    assert [one.getMessage() for one in caplog.records] == [f"no_leaders error={error}"]


def test_silence_that_comes_back_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
    for error in (BrokerError("gone"), None, BrokerError("gone")):
        broker.error = error
        leaders.ask()

    assert [one.levelno for one in caplog.records] == [logging.WARNING] * 2


def test_leaders_of_long_ago_are_leaders_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """A latency under the wrong name is worse than one under none."""
    broker = FakeBroker([1, 2, 3])
    leaders = asked(broker)
    broker.error = BrokerError("gone")
    for _ in range(FORGOTTEN_AFTER - 1):
        leaders.ask()
    kept = leaders.of(ALL).tolist()
    leaders.ask()

    assert kept == [1, 2, 3, 1, 2, 3]
    assert leaders.of(ALL).tolist() == [-1] * 6
    assert caplog.records[-1].getMessage() == f"leaders_forgotten unanswered={FORGOTTEN_AFTER}"
