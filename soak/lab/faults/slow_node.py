"""Makes one node of a cluster slow: its process is stopped for a moment, again and again.

Needs no root, and is felt by whoever waits for this node: all that it leads, and with `acks=all` also what
others lead and it follows.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns, format_duration
from soak.lab.faults._stopped import Stopping
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # the number by which the cluster knows it
    after: Duration = 0  # from the injection to the first stop
    stall: Duration = duration_ns("60ms")  # how long it is stopped at a time
    every: Duration = duration_ns("200ms")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError("after must not be below 0s")
        if self.stall <= 0:
            raise ValueError("stall must be above 0s")
        if self.stall * 2 > self.every:
            raise ValueError("stall must be at most half of every, or the node hardly runs")
        if self.stall > 5 * SECOND_NS:
            raise ValueError(
                f"stall must be at most 5s, not {format_duration(self.stall)}: "
                "the cluster would take the node for dead"
            )


def inject(target: Target, config: Config) -> Stopping:
    """Begin to stop the node; ends with `lift`, or with this process.

    Raises:
        LabError: the cluster has no node of this number.
    """
    found = [node for node in target.broker.nodes if node.number == config.node]
    if not found:
        known = ", ".join(str(node.number) for node in target.broker.nodes)
        raise LabError(f"the lab's cluster has no node {config.node}; known: {known}")

    def slow_down(active: Stopping) -> None:
        clock = target.clock
        due_ns = clock.mono_ns() + config.after
        while not active.is_lifted_in(due_ns - clock.mono_ns()):
            begun_ns = clock.mono_ns()
            at_wall_ns = active.stop(found[0].pid, config.stall)
            if at_wall_ns is not None:
                active.has_begun(at_wall_ns)
            due_ns = max(due_ns, begun_ns) + config.every

    active = Stopping("slow_node", target, slow_down)
    active.begin()
    return active
