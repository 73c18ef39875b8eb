"""Stops a broker's process for seconds at a time, as a virtual machine is when its host is busy.

Needs: nothing. SIGSTOP and SIGCONT, to a child of this process that dies with it.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Duration, duration_ns
from soak.lab.faults._stopped import Stopping
from soak.lab.faults._undoing import node_of
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # which, from 1
    pause: Duration = duration_ns("2s")  # how long it is stopped at a time
    every: Duration = duration_ns("6s")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the broker never runs")


def inject(target: Target, config: Config) -> Stopping:
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
