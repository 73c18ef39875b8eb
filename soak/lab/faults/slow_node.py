"""Makes one node of a cluster slow: its process is stopped for a moment, again and again.

Needs no root, and is felt by whoever waits for this node: all that it leads, and with `acks=all` also what
others lead and it follows.
"""

from __future__ import annotations

import threading

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns, format_duration
from soak.lab.faults._stopped import Process, Worker
from soak.lab.ports import Node, Target


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


def inject(target: Target, config: Config) -> SlowNode:
    """Begin to stop the node; ends with `lift`, or with this process.

    Raises:
        LabError: the cluster has no node of this number.
    """
    found = [node for node in target.broker.nodes if node.number == config.node]
    if not found:
        known = ", ".join(str(node.number) for node in target.broker.nodes)
        raise LabError(f"the lab's cluster has no node {config.node}; known: {known}")
    active = SlowNode(target, config, found[0])
    active.begin()
    return active


class SlowNode:
    """The fault at work; implements `soak.lab.ports.Active`."""

    def __init__(self, target: Target, config: Config, node: Node) -> None:
        self._target = target
        self._config = config
        self._node = node
        self._process = Process()
        self._worker = Worker("slow_node", self._slow_down, self.lift)
        self.onset_wall_ns: int | None = None

    def begin(self) -> None:
        self._worker.begin()

    def lift(self) -> None:
        self._worker.end()
        self._process.let_go()
        self._worker.raise_error()

    def _slow_down(self, lifted: threading.Event) -> None:
        clock = self._target.clock
        due_ns = clock.mono_ns() + self._config.after
        while not lifted.wait(max(0, due_ns - clock.mono_ns()) / SECOND_NS):
            self._process.follow(self._node.pid)
            stopped_ns, at_wall_ns = clock.mono_ns(), clock.wall_ns()
            if self._process.stop_for(self._config.stall, lifted):
                self.onset_wall_ns = self.onset_wall_ns or at_wall_ns
                stalled_ns = clock.mono_ns() - stopped_ns
                self._target.record({"at_wall_ns": at_wall_ns, "stalled_ns": stalled_ns})
            due_ns = max(due_ns, stopped_ns) + self._config.every
