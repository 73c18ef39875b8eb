"""Faults that stop a broker's process again and again: slow_node and deletion_stall."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.faults import find_fault
from soak.lab.faults.retention import DeletionStallConfig, DeletionStalls, deleted_segments
from soak.lab.ports import Target
from tests.support.lab.faults import inject
from tests.support.lab.sleeping_broker import SleepingBroker, Witness, asleep, is_stopped

MS = SECOND_NS // 1000
every_fault = pytest.mark.parametrize("fault", ["deletion_stall", "slow_node"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SleepingBroker]:
    broker = asleep(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture
def busy(broker: SleepingBroker) -> SleepingBroker:
    """A broker with a segment under deletion, so that neither fault has to wait."""
    (broker.data_directory / "soak-x-0" / "00.log.deleted").touch()
    return broker


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("slow_node", {"stall": 0}),
        ("slow_node", {"stall": 200 * MS, "every": 300 * MS}),
        ("slow_node", {"after": -1}),
        ("slow_node", {"typo": 1}),
        ("deletion_stall", {"stall": 0}),
        ("deletion_stall", {"stall": 200 * MS, "every": 300 * MS}),
        ("deletion_stall", {"poll": -1}),
    ],
)
def test_settings_that_make_no_sense_are_refused(fault: str, settings: dict[str, int]) -> None:
    """Before anything is stopped."""
    with pytest.raises(ValueError, match="|".join(settings)):
        find_fault(fault).config(**settings)


@every_fault
def test_lifting_in_the_middle_of_a_stop_lets_the_broker_go(
    fault: str, busy: SleepingBroker
) -> None:
    """The stop would last five seconds; it ends with the fault."""
    witness = Witness(enough=1)
    target = Target(busy, witness.record, SystemClock())
    active = inject(fault, target, stall=5 * SECOND_NS, every=10 * SECOND_NS)
    os.waitid(os.P_PID, busy.pid, os.WSTOPPED | os.WNOWAIT)

    active.lift()

    assert not is_stopped(busy.pid)
    assert int(str(witness.lines[0]["stalled_ns"])) < 5 * SECOND_NS


@every_fault
def test_a_broker_that_died_is_no_error_of_the_fault(fault: str, busy: SleepingBroker) -> None:
    """Somebody killed it; there is nothing to stop and nothing to let go."""
    busy.kill()
    active = inject(fault, Target(busy, lambda _: None, SystemClock()))

    active.lift()

    assert busy.process.returncode == -signal.SIGKILL


@every_fault
def test_what_goes_wrong_in_the_thread_is_raised_when_the_fault_is_lifted(
    fault: str, busy: SleepingBroker
) -> None:
    """Once, and the broker runs all the same."""
    reached = threading.Event()

    def fail(_: Mapping[str, object]) -> None:
        reached.set()
        raise OSError(28, "No space left on device")

    active = inject(fault, Target(busy, fail, SystemClock()))
    assert reached.wait(20)

    with pytest.raises(LabError, match=f"{fault} .*No space left"):
        active.lift()

    active.lift()
    assert not is_stopped(busy.pid)


def test_a_node_that_is_not_there_is_an_error_with_those_that_are(broker: SleepingBroker) -> None:
    """Nodes are named by the numbers of the cluster, from 1."""
    with pytest.raises(LabError, match="no node 0; known: 1"):
        inject("slow_node", Target(broker, lambda _: None, SystemClock()), node=0)


def test_the_node_is_stopped_again_and_again_and_runs_when_the_fault_is_lifted(
    broker: SleepingBroker,
) -> None:
    """Each stop is recorded with its length; the onset is the first of them."""
    witness = Witness(enough=3)
    active = inject(
        "slow_node", Target(broker, witness.record, SystemClock()), stall=20 * MS, every=40 * MS
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
    active = inject(
        "slow_node", Target(broker, witness.record, SystemClock()), after=60 * SECOND_NS
    )

    active.lift()

    assert witness.lines == []
    assert active.onset_wall_ns is None


def test_only_segments_under_deletion_in_the_topics_asked_for_are_seen(tmp_path: Path) -> None:
    """Indexes, living segments, other topics and stray files do not count."""
    for name in (
        "soak-x-0/1.log.deleted",
        "soak-x-0/1.index.deleted",
        "soak-x-0/2.log",
        "soak-x-1/7.log.deleted",
        "__consumer_offsets-3/1.log.deleted",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "meta.properties").touch()

    found = deleted_segments(tmp_path, "soak-*")

    assert found == {"soak-x-0/1.log.deleted", "soak-x-1/7.log.deleted"}


def test_a_deletion_makes_the_broker_stop_in_a_duty_cycle_for_as_long_as_it_is_recent() -> None:
    """One deletion, looked at every 20 ms for 3 s: stops at 0, 250, 500 and 750 ms."""
    stalls = DeletionStalls(DeletionStallConfig())
    stops = []
    for now_ns in range(0, 3 * SECOND_NS, 20 * MS):
        # The file exists for a second: it is one deletion all the time.
        stalls.count_new(now_ns, frozenset({"a"} if now_ns < SECOND_NS else set()))
        if stalls.is_due(now_ns):
            stops.append(now_ns // MS)

    assert stops == [0, 260, 520, 780]


def test_no_deletion_no_stop() -> None:
    """Whatever the time is."""
    stalls = DeletionStalls(DeletionStallConfig())

    assert [
        stalls.count_new(now, frozenset()) or stalls.is_due(now) for now in (0, MS, SECOND_NS)
    ] == [
        False,
        False,
        False,
    ]


def test_each_deletion_counts_once() -> None:
    """23 segments over time, seen in several looks."""
    stalls = DeletionStalls(DeletionStallConfig())
    names = [str(number) for number in range(23)]

    counts = [stalls.count_new(at, frozenset(names[max(0, at - 3) : at])) for at in range(24)]

    assert sum(counts) == 23


def test_deletions_stop_the_broker_and_lifting_leaves_it_running(broker: SleepingBroker) -> None:
    """It is recorded how long each stop took, and when the first deletion was seen."""
    witness = Witness(enough=2)
    active = inject("deletion_stall", Target(broker, witness.record, SystemClock()))
    assert active.onset_wall_ns is None
    (broker.data_directory / "soak-x-0" / "00.log.deleted").touch()
    assert witness.has_enough.wait(20)

    active.lift()
    active.lift()

    assert not is_stopped(broker.pid)
    assert int(str(witness.lines[0]["stalled_ns"])) >= 60 * MS
    assert witness.lines[0]["new_deletions"] == 1
    assert active.onset_wall_ns is not None
