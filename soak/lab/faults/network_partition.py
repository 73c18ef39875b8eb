"""Cuts clients off the brokers: nothing passes, and nothing is refused.

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
    """There is nothing to set."""


lacks = lacking_relay
sole = _sole.relay


def inject(target: Target, config: Config) -> Undoing:  # noqa: ARG001  # the seam
    """Begin at once.

    Raises:
        LabError: the lab has no relay.
    """
    with undoing(target) as active:
        relay = relay_of(target)
        active.on_lift(relay.tell, Network())
        relay.tell(Network(is_cut=True))
        active.did(is_cut=True)
    return active
