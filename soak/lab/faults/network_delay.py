"""Makes the way to the brokers, or to one of them, long: what passes is under way longer, in both directions.

Needs: a relay before the brokers (`lab.relayed`).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_relay
from soak.lab.faults._undoing import Undoing, relay_of, undoing
from soak.lab.ports import Target
from soak.lab.relay import Network


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    delay: Duration = duration_ns("20ms")  # in each direction
    node: int = 0  # to which, from 1; 0: to all

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")
        if self.node < 0:
            raise ValueError("node must not be below 0")


lacks = lacking_relay
sole = _sole.relay


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the lab has no relay.
    """
    with undoing(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.tell, Network())
        relay.tell(Network(delay_seconds=config.delay / SECOND_NS, only=config.node))
        active.did(delay_ns=config.delay)
    return active
