"""What holds for every fault that stops a process: it always lets it go again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.faults import broker_process, retention
from soak.lab.ports import Target
from tests.support.sleeping_broker import SleepingBroker, Witness, asleep, is_stopped

every_fault = pytest.mark.parametrize(
    "fault", [retention, broker_process], ids=["deletion_stall", "slow_node"]
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SleepingBroker]:
    """A broker with a segment under deletion, so that none of the faults has to wait."""
    broker = asleep(tmp_path)
    (broker.data_directory / "soak-x-0" / "00.log.deleted").touch()
    yield broker
    broker.kill()


@every_fault
def test_lifting_in_the_middle_of_a_stop_lets_the_broker_go(
    fault: ModuleType, broker: SleepingBroker
) -> None:
    """The stop would last five seconds; it ends with the fault."""
    witness = Witness(enough=1)
    config = fault.Config(stall=5 * SECOND_NS, every=10 * SECOND_NS)
    active = fault.inject(Target(broker, witness.record, SystemClock()), config)
    os.waitid(os.P_PID, broker.pid, os.WSTOPPED | os.WNOWAIT)

    active.lift()

    assert not is_stopped(broker.pid)
    assert int(str(witness.lines[0]["stalled_ns"])) < 5 * SECOND_NS


@every_fault
def test_a_broker_that_died_is_no_error_of_the_fault(
    fault: ModuleType, broker: SleepingBroker
) -> None:
    """Somebody killed it; there is nothing to stop and nothing to let go."""
    broker.kill()
    active = fault.inject(Target(broker, lambda _: None, SystemClock()), fault.Config())

    active.lift()

    assert broker.process.returncode == -signal.SIGKILL


@every_fault
def test_what_goes_wrong_in_the_thread_is_raised_when_the_fault_is_lifted(
    fault: ModuleType, broker: SleepingBroker
) -> None:
    """Once, and the broker runs all the same."""
    reached = threading.Event()

    def fail(_: Mapping[str, object]) -> None:
        reached.set()
        raise OSError(28, "No space left on device")

    active = fault.inject(Target(broker, fail, SystemClock()), fault.Config())
    assert reached.wait(20)

    with pytest.raises(LabError, match=f"{fault.__name__.rpartition('.')[2]} .*No space left"):
        active.lift()

    active.lift()
    assert not is_stopped(broker.pid)
