"""Makes a consumer slower than its producers: its process runs for a part of the time only.

Needs: nothing. SIGSTOP and SIGCONT, to a child of this process that dies with it.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Duration, duration_ns
from soak.lab.faults._daemons import daemon_of
from soak.lab.faults._stopped import Stopping
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    daemon: str = "consume.0"
    pause: Duration = duration_ns("400ms")  # how long it is stopped at a time
    every: Duration = duration_ns("500ms")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the consumer never runs")


def inject(target: Target, config: Config) -> Stopping:
    """Begin at once.

    Raises:
        LabError: there is no such daemon.
    """
    daemon_of(target, config.daemon)

    def slow_down(active: Stopping) -> None:
        while True:
            pid = target.daemons().get(config.daemon)
            at_wall_ns = None if pid is None else active.stop(pid, config.pause)
            if at_wall_ns is not None:
                active.has_begun(at_wall_ns)
            if active.is_lifted_in(config.every - config.pause):
                return

    active = Stopping("consumer_slow", target, slow_down)
    active.begin()
    return active
