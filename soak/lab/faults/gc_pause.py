"""Has a broker's JVM collect all its garbage again and again, as one does whose heap is too small.

Needs: nothing. While it collects, none of its threads runs.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Duration, duration_ns
from soak.lab.attach import collect_garbage, let_go
from soak.lab.faults._stopped import Stopping
from soak.lab.faults._undoing import node_of
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # which broker, from 1
    every: Duration = duration_ns("250ms")  # from the end of one collection to the next

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")


def inject(target: Target, config: Config) -> Stopping:
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
