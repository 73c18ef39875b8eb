"""The small plan of a host that only probes: no broker, no load, no phases."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from soak.core.plan import Journal, Plan, check_name
from soak.core.plan_base import STRICT, PluginConfigs
from soak.core.plan_records import Metrics, Sampling, Ship
from soak.core.units import Size


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ProbePlan:
    """Sections mean what they mean in a `Plan`."""

    name: str
    probes: PluginConfigs
    sampling: dict[str, Sampling] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    ship: Ship | None = None
    metrics: Metrics | None = None
    run_directory: str = "runs"
    free_space_floor: Size = 2**30  # with less free there nothing is recorded

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.probes:
            raise ValueError("probes must name at least one probe")
        if self.ship is not None and not self.ship.bootstrap_servers:
            raise ValueError("ship.bootstrap_servers names no cluster, and this plan measures none")

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return the daemons of such a host, in the order in which they start."""
        return ("probe", *(("ship",) if self.ship else ()))


AnyPlan = Plan | ProbePlan
"""What the probe daemon reads: it needs no more than both have."""
