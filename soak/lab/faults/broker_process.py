"""Faults of a broker's process: killed, paused, collecting garbage, slow, or stopped so that its leaders move."""

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
from soak.lab.faults.active import ActiveFault, activating, node_of, revive
from soak.lab.faults.stopping import Stopping
from soak.lab.jvm_attach import collect_garbage, let_go
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BrokerKillConfig:
    node: int = 1  # which, from 1


def inject_broker_kill(target: Target, config: BrokerKillConfig) -> ActiveFault:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: there is no such broker.
    """
    with activating(target) as active:
        node = node_of(target, config.node)
        active.on_lift(revive, node)
        node.kill()
        active.did(killed=config.node)
    return active


# --- Stops a broker's process for seconds at a time, as a virtual machine is when its host is busy.
# Needs: nothing. SIGSTOP and SIGCONT, to a child of this process that dies with it.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BrokerPauseConfig:
    node: int = 1  # which, from 1
    pause: Duration = duration_ns("2s")  # how long it is stopped at a time
    every: Duration = duration_ns("6s")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the broker never runs")


def inject_broker_pause(target: Target, config: BrokerPauseConfig) -> Stopping:
    """Begin at once.

    Raises:
        LabError: there is no such broker.
    """
    node = node_of(target, config.node)

    def pause(active: Stopping) -> None:
        due_ns = target.clock.mono_ns()
        while not active.is_lifted_in(due_ns - target.clock.mono_ns()):
            at_wall_ns = active.stop(node.pid, config.pause)
            if at_wall_ns is not None:
                active.has_begun(at_wall_ns)
            due_ns = max(due_ns + config.every, target.clock.mono_ns())

    active = Stopping("broker_pause", target, pause)
    active.begin()
    return active


# --- Has a broker's JVM collect all its garbage again and again, as one does whose heap is too small.
# Needs: nothing. While it collects, none of its threads runs.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GcPauseConfig:
    node: int = 1  # which broker, from 1
    every: Duration = duration_ns("250ms")  # from the end of one collection to the next

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")


def inject_gc_pause(target: Target, config: GcPauseConfig) -> Stopping:
    """Begin at once; what is recorded is how long each collection took.

    Raises:
        LabError: there is no such broker.
    """
    node, clock = node_of(target, config.node), target.clock

    def collect(active: Stopping) -> None:
        try:
            while not active.is_lifted_in(config.every):
                at_wall_ns, begun_ns = clock.wall_ns(), clock.mono_ns()
                collect_garbage(node.pid)
                active.has_begun(at_wall_ns)
                target.record({"at_wall_ns": at_wall_ns, "took_ns": clock.mono_ns() - begun_ns})
        finally:
            let_go(node.pid)

    active = Stopping("gc_pause", target, collect)
    active.begin()
    return active


# --- Makes one node of a cluster slow: its process is stopped for a moment, again and again.
# Needs no root, and is felt by whoever waits for this node: all that it leads, and with `acks=all` also what
# others lead and it follows.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SlowNodeConfig:
    node: int = 1  # the number by which the cluster knows it
    after: Duration = 0  # from the injection to the first stop
    stall: Duration = duration_ns("60ms")  # how long it is stopped at a time
    every: Duration = duration_ns("200ms")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("after must not be below 0s")
        if self.stall <= 0:
            raise ValueError("stall must be above 0s")
        if self.stall * 2 > self.every:
            raise ValueError("stall must be at most half of every, or the node hardly runs")
        if self.stall > 5 * SECOND_NS:
            raise ValueError(
                f"stall must be at most 5s, not {format_duration(self.stall)}: "
                "the cluster would take the node for dead"
            )


def inject_slow_node(target: Target, config: SlowNodeConfig) -> Stopping:
    """Begin to stop the node; ends with `lift`, or with this process.

    Raises:
        LabError: the cluster has no node of this number.
    """
    found = [node for node in target.broker.nodes if node.number == config.node]
    if not found:
        known = ", ".join(str(node.number) for node in target.broker.nodes)
        raise LabError(f"the lab's cluster has no node {config.node}; known: {known}")

    def slow_down(active: Stopping) -> None:
        clock = target.clock
        due_ns = clock.mono_ns() + config.after
        while not active.is_lifted_in(due_ns - clock.mono_ns()):
            begun_ns = clock.mono_ns()
            at_wall_ns = active.stop(found[0].pid, config.stall)
            if at_wall_ns is not None:
                active.has_begun(at_wall_ns)
            due_ns = max(due_ns, begun_ns) + config.every

    active = Stopping("slow_node", target, slow_down)
    active.begin()
    return active


# --- Ends a broker in order, so that others take over what it led; lifted, it comes back and leads it again.
# Needs: a Kafka of several brokers, with topics of several copies.

_TOPICS = "soak-*"
_ASK_SECONDS, _ELECTION_MS = 20.0, 20_000
_TOO_FEW = "leader_move needs a lab of several brokers: `lab.nodes` of the plan"
_PATIENCE_NS, _AGAIN_NS = 60 * SECOND_NS, SECOND_NS // 2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LeaderMoveConfig:
    node: int = 1  # which, from 1
    onto: int = 0  # or the one that leads a partition which this one takes over; 0: `node`


class Partition(Protocol):
    """What a cluster says of one."""

    @property
    def leader(self) -> int: ...

    @property
    def replicas(self) -> list[int]:
        """Return its brokers; the first of them that is alive and in step leads."""
        ...


def leader_move_lacks(lab: Lab, config: LeaderMoveConfig) -> str:  # noqa: ARG001  # the seam
    """Return what the lab of a plan lacks, or ""."""
    return _TOO_FEW if lab.nodes < 2 else ""  # noqa: PLR2004  # as below


def inject_leader_move(target: Target, config: LeaderMoveConfig) -> ActiveFault:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: there is no such broker, or none that could take over.
    """
    if len(target.broker.nodes) < 2:  # noqa: PLR2004  # one that goes and one that takes over
        raise LabError(_TOO_FEW)
    with activating(target) as active:
        ending = _led_before(target, config.onto) if config.onto else config.node
        node = node_of(target, ending)
        active.on_lift(lead_again, target)
        active.on_lift(revive, node)
        active.did(stopping=ending)  # leaders move while it ends
        node.stop()
    return active


def _led_before(target: Target, onto: int) -> int:
    """Return who leads a partition of which this broker has the next copy: the first alive takes over.

    Raises:
        LabError: there is no such partition, or the cluster does not say.
    """
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    try:
        topics = admin.list_topics(timeout=_ASK_SECONDS).topics
    except KafkaException as error:
        raise LabError(f"cannot ask who leads what: {error}") from error
    own = [topic for name, topic in topics.items() if fnmatch.fnmatchcase(name, _TOPICS)]
    leader = leader_before(onto, [one for topic in own for one in topic.partitions.values()])
    if leader is None:
        raise LabError(f"broker {onto} is the next to lead no partition of {_TOPICS!r}")
    return leader


def leader_before(onto: int, partitions: Iterable[Partition]) -> int | None:
    """Return the first leader whose partition has its next copy at this broker, or None."""
    return next((one.leader for one in partitions if one.replicas[:2] == [one.leader, onto]), None)


def lead_again(target: Target) -> None:
    """Have every partition led by the first of its brokers, as it was made.

    Raises:
        LabError: some are not within the time: the broker's copies are not in step yet.
    """
    admin = AdminClient(
        {
            "bootstrap.servers": target.broker.bootstrap_servers,
            "socket.timeout.ms": _ELECTION_MS,  # `elect_leaders` takes no other limit, whatever it says
        }
    )
    clock = target.clock
    deadline_ns = clock.mono_ns() + _PATIENCE_NS
    while left := _not_elected(admin):
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"{left} partitions are not led again by the first of their brokers")
        clock.sleep_until(clock.mono_ns() + _AGAIN_NS)


def _not_elected(admin: AdminClient) -> int:
    """Ask for an election; return how many partitions it left where they were wrong."""
    try:
        found = admin.elect_leaders(ElectionType.PREFERRED, None).result()
    except KafkaException as error:
        raise LabError(f"cannot have leaders elected: {error}") from error
    said = [error.code() for error in found.values() if error is not None]
    return sum(code != KafkaError.ELECTION_NOT_NEEDED for code in said)
