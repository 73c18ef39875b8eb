"""Faults of the network between clients and brokers, made by the lab's relay: delay, loss, partition."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults import active as _sole
from soak.lab.faults.active import ActiveFault, activating, lacking_relay, relay_of
from soak.lab.ports import Target
from soak.lab.relay import Network


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkDelayConfig:
    delay: Duration = duration_ns("20ms")  # in each direction
    node: int = 0  # to which, from 1; 0: to all

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")
        if self.node < 0:
            raise ValueError("node must not be below 0")


network_delay_lacks = lacking_relay
network_delay_exclusion = _sole.relay_exclusion


def inject_network_delay(target: Target, config: NetworkDelayConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the lab has no relay.
    """
    with activating(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.tell, Network())
        relay.tell(Network(delay_seconds=config.delay / SECOND_NS, only=config.node))
        active.did(delay_ns=config.delay)
    return active


# --- Loses a part of what passes between clients and brokers; what is lost is sent again later.
# Needs: a relay before the brokers (`lab.relayed`).


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkLossConfig:
    ratio: float = 0.02  # of the pieces that pass

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise ValueError("ratio must lie between 0 and 1")


network_loss_lacks = lacking_relay
network_loss_exclusion = _sole.relay_exclusion


def inject_network_loss(target: Target, config: NetworkLossConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the lab has no relay.
    """
    with activating(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.tell, Network())
        relay.tell(Network(lost_ratio=config.ratio))
        active.did(lost_ratio=config.ratio)
    return active


# --- Cuts clients off the brokers: nothing passes, and nothing is refused.
# Needs: a relay before the brokers (`lab.relayed`).


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkPartitionConfig:
    """There is nothing to set."""


network_partition_lacks = lacking_relay
network_partition_exclusion = _sole.relay_exclusion


def inject_network_partition(target: Target, config: NetworkPartitionConfig) -> ActiveFault:  # noqa: ARG001  # the seam
    """Begin at once.

    Raises:
        LabError: the lab has no relay.
    """
    with activating(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.tell, Network())
        relay.tell(Network(is_cut=True))
        active.did(is_cut=True)
    return active
