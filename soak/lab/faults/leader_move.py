"""Ends a broker in order, so that others take over what it led; lifted, it comes back and leads it again.

Needs: a Kafka of several brokers, with topics of several copies.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Protocol

from confluent_kafka import ElectionType, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan import Lab
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS
from soak.lab.faults._undoing import Undoing, node_of, revive, undoing
from soak.lab.ports import Target

_TOPICS = "soak-*"
_ASK_SECONDS, _ELECTION_MS = 20.0, 20_000
_TOO_FEW = "leader_move needs a lab of several brokers: `lab.nodes` of the plan"
_PATIENCE_NS, _AGAIN_NS = 60 * SECOND_NS, SECOND_NS // 2


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
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


def lacks(lab: Lab, config: Config) -> str:  # noqa: ARG001  # the seam
    """Return what the lab of a plan lacks, or ""."""
    return _TOO_FEW if lab.nodes < 2 else ""  # noqa: PLR2004  # as below


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: there is no such broker, or none that could take over.
    """
    if len(target.broker.nodes) < 2:  # noqa: PLR2004  # one that goes and one that takes over
        raise LabError(_TOO_FEW)
    with undoing(target) as active:
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
