"""Faults of a broker's process: killed, paused, slow, collecting garbage, or stopped to move its leaders."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.plan.plan import Lab
from soak.core.units import SECOND_NS, Duration, duration_ns, format_duration
from soak.lab.faults.active import (
    ActiveFault,
    Fault,
    ThreadedFault,
    activating,
    node_of,
    restart_if_ended,
    start_threaded,
)
from soak.lab.jvm_attach import collect_garbage, remove_socket
from soak.lab.ports import Target

_TOPICS = "soak-*"
_REQUEST_SECONDS, _ELECTION_MS = 20.0, 20_000
_TOO_FEW_BROKERS = "leader_move needs a lab of several brokers: `lab.nodes` of the plan"
_ELECTION_LIMIT_NS, _ELECTION_RETRY_NS = 60 * SECOND_NS, SECOND_NS // 2
MAX_STALL_NS = 5 * SECOND_NS
"""A cluster or its clients take a broker that is stopped for longer for dead."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BrokerKillConfig:
    """Kill a broker as `kill -9` does, and start it again when the fault is lifted.

    Its page cache survives, unlike after a power cut.

    Needs: nothing.
    """

    node: int = 1  # the broker, from 1


def _inject_kill(target: Target, config: BrokerKillConfig) -> ActiveFault:
    """Inject the fault; lift it from the main thread, because that starts the broker."""
    with activating(target) as active:
        node = node_of(target, config.node)
        active.on_lift(restart_if_ended, node)
        node.kill()
        active.record(killed=config.node)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BrokerPauseConfig:
    """Stop a broker's process for seconds at a time, like a virtual machine on a busy host.

    Needs: nothing. SIGSTOP and SIGCONT go to a child of this process that ends with it.
    """

    node: int = 1  # the broker, from 1
    pause: Duration = duration_ns("2s")  # length of each stop
    every: Duration = duration_ns("6s")  # from the start of a stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the broker never runs")


def _inject_pause(target: Target, config: BrokerPauseConfig) -> ThreadedFault:
    node = node_of(target, config.node)

    def pause(active: ThreadedFault) -> None:
        active.stop_process_every(config.every, config.pause, lambda: node.pid)

    return start_threaded("broker_pause", target, pause)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SlowNodeConfig:
    """Make one node of a cluster slow: stop its process for a moment, again and again.

    Every request to a partition that this node leads is affected and, with `acks=all`, also every write to
    a partition that it follows.

    Needs: nothing, not even root.
    """

    node: int = 1  # the number by which the cluster knows the node
    after: Duration = 0  # from the injection to the first stop
    stall: Duration = duration_ns("60ms")  # length of each stop
    every: Duration = duration_ns("200ms")  # from the start of a stop to the next

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("after must not be below 0s")
        check_stall(self.stall, self.every, "the cluster would take the node for dead")


def _inject_slow_node(target: Target, config: SlowNodeConfig) -> ThreadedFault:
    found = [node for node in target.broker.nodes if node.number == config.node]
    if not found:
        known = ", ".join(str(node.number) for node in target.broker.nodes)
        raise LabError(f"the lab's cluster has no node {config.node}; known: {known}")

    def slow_down(active: ThreadedFault) -> None:
        pid = lambda: found[0].pid  # noqa: E731  # another one after a restart
        active.stop_process_every(config.every, config.stall, pid, config.after)

    return start_threaded("slow_node", target, slow_down)


def check_stall(stall_ns: int, every_ns: int, consequence: str) -> None:
    """Refuse stops that leave the process no time to run, or that last too long.

    Raises:
        ValueError: as the loader of plans expects it.
    """
    if stall_ns <= 0:
        raise ValueError("stall must be above 0s")
    if stall_ns * 2 > every_ns:
        raise ValueError("stall must be at most half of every, or the broker hardly runs")
    if stall_ns > MAX_STALL_NS:
        longest, given = format_duration(MAX_STALL_NS), format_duration(stall_ns)
        raise ValueError(f"stall must be at most {longest}, not {given}: {consequence}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GcPauseConfig:
    """Make a broker's JVM collect all its garbage again and again, like one whose heap is too small.

    None of its threads runs during a collection.

    Needs: nothing.
    """

    node: int = 1  # the broker, from 1
    every: Duration = duration_ns("250ms")  # from the end of one collection to the next

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")


def _inject_gc_pause(target: Target, config: GcPauseConfig) -> ThreadedFault:
    """Inject the fault; the length of each collection is recorded."""
    node, clock = node_of(target, config.node), target.clock

    def collect(active: ThreadedFault) -> None:
        try:
            while not active.wait_for_lift(config.every):
                at_wall_ns, started_ns = clock.wall_ns(), clock.mono_ns()
                collect_garbage(node.pid)
                active.note_onset(at_wall_ns)
                target.record({"at_wall_ns": at_wall_ns, "took_ns": clock.mono_ns() - started_ns})
        finally:
            remove_socket(node.pid)

    return start_threaded("gc_pause", target, collect)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LeaderMoveConfig:
    """Stop a broker in order, so that others take over its leaderships; the lifting gives them back.

    Needs: a Kafka of several brokers, with topics of several replicas.
    """

    node: int = 1  # the broker to stop, from 1
    onto: int = (
        0  # or stop the leader of a partition that this broker would take over; 0: stop `node`
    )


class Partition(Protocol):
    """The part of a partition's metadata that the choice of a broker needs."""

    @property
    def leader(self) -> int: ...

    @property
    def replicas(self) -> list[int]:
        """Return its brokers; the first one that is alive and in sync becomes the leader."""
        ...


def _missing_brokers(lab: Lab, _config: object) -> str:
    return _TOO_FEW_BROKERS if lab.nodes < 2 else ""  # noqa: PLR2004  # as below


def _inject_leader_move(target: Target, config: LeaderMoveConfig) -> ActiveFault:
    """Inject the fault; lift it from the main thread, because that starts the broker.

    Raises:
        LabError: there is no such broker, or none that could take over.
    """
    if len(target.broker.nodes) < 2:  # noqa: PLR2004  # one that stops and one that takes over
        raise LabError(_TOO_FEW_BROKERS)
    with activating(target) as active:
        number = _find_leader_before(target, config.onto) if config.onto else config.node
        node = node_of(target, number)
        active.on_lift(elect_preferred_leaders, target)
        active.on_lift(restart_if_ended, node)
        active.record(stopping=number)  # leaders move while it stops
        node.stop()
    return active


def _find_leader_before(target: Target, onto: int) -> int:
    """Return the leader of a partition whose next replica is on broker `onto`.

    Raises:
        LabError: there is no such partition, or the cluster does not answer.
    """
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    try:
        topics = admin.list_topics(timeout=_REQUEST_SECONDS).topics
    except KafkaException as error:
        raise LabError(f"cannot read the leaders of {_TOPICS!r}: {error}") from error
    own = [topic for name, topic in topics.items() if fnmatch.fnmatchcase(name, _TOPICS)]
    leader = leader_before(onto, [one for topic in own for one in topic.partitions.values()])
    if leader is None:
        raise LabError(f"broker {onto} is the next to lead no partition of {_TOPICS!r}")
    return leader


def leader_before(onto: int, partitions: Iterable[Partition]) -> int | None:
    """Return the first leader whose partition has its next replica on broker `onto`, or None."""
    return next((one.leader for one in partitions if one.replicas[:2] == [one.leader, onto]), None)


def elect_preferred_leaders(target: Target) -> None:
    """Make the first replica of every partition its leader again.

    Raises:
        LabError: that failed within the time limit, because replicas of the broker are not in sync yet.
    """
    admin = AdminClient(
        {
            "bootstrap.servers": target.broker.bootstrap_servers,
            "socket.timeout.ms": _ELECTION_MS,  # `elect_leaders` ignores its own timeout
        }
    )
    clock = target.clock
    deadline_ns = clock.mono_ns() + _ELECTION_LIMIT_NS
    while remaining := _count_not_elected(admin):
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"{remaining} partitions are not led by their preferred broker again")
        clock.sleep_until(clock.mono_ns() + _ELECTION_RETRY_NS)


def _count_not_elected(admin: AdminClient) -> int:
    """Request an election; return how many partitions did not get their preferred leader."""
    try:
        found = admin.elect_leaders(ElectionType.PREFERRED, None).result()
    except KafkaException as error:
        raise LabError(f"cannot elect preferred leaders: {error}") from error
    codes = [error.code() for error in found.values() if error is not None]
    return sum(code != KafkaError.ELECTION_NOT_NEEDED for code in codes)


FAULTS = {
    "broker_kill": Fault(config=BrokerKillConfig, inject=_inject_kill),
    "broker_pause": Fault(config=BrokerPauseConfig, inject=_inject_pause),
    "slow_node": Fault(config=SlowNodeConfig, inject=_inject_slow_node),
    "gc_pause": Fault(config=GcPauseConfig, inject=_inject_gc_pause),
    "leader_move": Fault(
        config=LeaderMoveConfig, inject=_inject_leader_move, missing_from_lab=_missing_brokers
    ),
}
