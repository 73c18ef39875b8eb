"""Loses a part of what passes between clients and brokers; what is lost is sent again later.

Needs: a relay before the brokers (`lab.relayed`).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_relay
from soak.lab.faults._undoing import Undoing, relay_of, undoing
from soak.lab.ports import Target
from soak.lab.relay import Network


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    ratio: float = 0.02  # of the pieces that pass

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise ValueError("ratio must lie between 0 and 1")


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
        relay.tell(Network(lost_ratio=config.ratio))
        active.did(lost_ratio=config.ratio)
    return active
