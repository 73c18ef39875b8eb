"""Faults of the network between clients and brokers, made by the lab's relay: delay, loss, partition."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT
from soak.core.plan.plan import Lab
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults.active import (
    NO_RELAY,
    ActiveFault,
    ExclusiveSetting,
    Fault,
    activating,
    relay_of,
)
from soak.lab.ports import Target
from soak.lab.relay import Network


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkDelayConfig:
    """Delay what passes between clients and brokers, or one of the brokers, in both directions.

    Needs: a relay before the brokers (`lab.relayed`).
    """

    delay: Duration = duration_ns("20ms")  # in each direction
    node: int = 0  # the broker, from 1; 0: all of them

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")
        if self.node < 0:
            raise ValueError("node must not be below 0")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkLossConfig:
    """Lose a part of what passes between clients and brokers; it is sent again later.

    Needs: a relay before the brokers (`lab.relayed`).
    """

    ratio: float = 0.02  # of the pieces that pass

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise ValueError("ratio must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetworkPartitionConfig:
    """Cut clients off from the brokers: nothing passes, and no connection is refused.

    Needs: a relay before the brokers (`lab.relayed`).
    """


def _inject_delay(target: Target, config: NetworkDelayConfig) -> ActiveFault:
    network = Network(delay_seconds=config.delay / SECOND_NS, only=config.node)
    return _inject(target, network, delay_ns=config.delay)


def _inject_loss(target: Target, config: NetworkLossConfig) -> ActiveFault:
    return _inject(target, Network(lost_ratio=config.ratio), lost_ratio=config.ratio)


def _inject_partition(target: Target, _config: NetworkPartitionConfig) -> ActiveFault:
    return _inject(target, Network(is_cut=True), is_cut=True)


def _inject(target: Target, network: Network, **details: object) -> ActiveFault:
    """Set the network of the lab's relay.

    Raises:
        LabError: the lab has no relay.
    """
    with activating(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.apply, Network())
        relay.apply(network)
        active.record(**details)
    return active


def _missing_relay(lab: Lab, _config: object) -> str:
    return "" if lab.relayed else NO_RELAY


def _relay_setting(_config: object) -> ExclusiveSetting:
    return "what the relay does", 0


FAULTS = {
    name: Fault(
        config=config,
        inject=inject,
        missing_from_lab=_missing_relay,
        exclusive_setting=_relay_setting,
    )
    for name, config, inject in (
        ("network_delay", NetworkDelayConfig, _inject_delay),
        ("network_loss", NetworkLossConfig, _inject_loss),
        ("network_partition", NetworkPartitionConfig, _inject_partition),
    )
}
