"""Kills a broker as kill -9 does, and starts it again when lifted; what the kernel holds is kept.

Needs: nothing.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults._undoing import Undoing, node_of, revive, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # which, from 1


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: there is no such broker.
    """
    with undoing(target) as active:
        node = node_of(target, config.node)
        active.on_lift(revive, node)
        node.kill()
        active.did(killed=config.node)
    return active
