"""Ends a broker in order, so that others take over what it led; lifted, it comes back and leads it again.

Needs: a Kafka of several brokers, with topics of several copies.
"""

from __future__ import annotations

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient
from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.lab.faults._undoing import Undoing, node_of, revive, undoing
from soak.lab.ports import Target

_ELECTION_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # which, from 1


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: there is no such broker, or none that could take over.
    """
    if len(target.broker.nodes) < 2:  # noqa: PLR2004  # one that goes and one that takes over
        raise LabError("leader_move needs a lab of several brokers: `lab.nodes` of the plan")
    with undoing(target) as active:
        node = node_of(target, config.node)
        active.on_lift(_lead_again, target)
        active.on_lift(revive, node)
        node.stop()
        active.did(stopped=config.node)
    return active


def _lead_again(target: Target) -> None:
    """Have every partition led by the first of its brokers, as it was made."""
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    admin.elect_leaders(ElectionType.PREFERRED, None, request_timeout=_ELECTION_SECONDS).result()
