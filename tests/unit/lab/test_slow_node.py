"""A slow node: stopped in a duty cycle, and let go whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.faults.broker_process import SlowNodeConfig, inject_slow_node
from soak.lab.ports import Target
from tests.support.sleeping_broker import SleepingBroker, Witness, asleep, is_stopped

MS = SECOND_NS // 1000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SleepingBroker]:
    broker = asleep(tmp_path)
    yield broker
    broker.kill()


@pytest.mark.parametrize(
    "settings", [{"stall": 0}, {"stall": 200 * MS, "every": 300 * MS}, {"after": -1}, {"typo": 1}]
)
def test_a_fault_that_makes_no_sense_is_refused(settings: dict[str, int]) -> None:
    """Before anything is stopped."""
    with pytest.raises(ValueError, match=r"stall|after|typo"):
        SlowNodeConfig(**settings)


def test_a_node_that_is_not_there_is_an_error_with_those_that_are(broker: SleepingBroker) -> None:
    """Nodes are named by the numbers of the cluster, from 1."""
    with pytest.raises(LabError, match="no node 0; known: 1"):
        inject_slow_node(Target(broker, lambda _: None, SystemClock()), SlowNodeConfig(node=0))


def test_the_node_is_stopped_again_and_again_and_runs_when_the_fault_is_lifted(
    broker: SleepingBroker,
) -> None:
    """Each stop is recorded with its length; the onset is the first of them."""
    witness = Witness(enough=3)
    active = inject_slow_node(
        Target(broker, witness.record, SystemClock()), SlowNodeConfig(stall=20 * MS, every=40 * MS)
    )
    assert witness.has_enough.wait(20)

    active.lift()
    active.lift()

    assert not is_stopped(broker.pid)
    assert active.onset_wall_ns == witness.lines[0]["at_wall_ns"]
    assert all(int(str(line["stalled_ns"])) >= 20 * MS for line in witness.lines[:3])


def test_nothing_is_stopped_before_its_time(broker: SleepingBroker) -> None:
    """A fault that is to begin in a minute, lifted at once."""
    witness = Witness(enough=1)
    active = inject_slow_node(
        Target(broker, witness.record, SystemClock()), SlowNodeConfig(after=60 * SECOND_NS)
    )

    active.lift()

    assert witness.lines == []
    assert active.onset_wall_ns is None
