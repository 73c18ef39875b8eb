"""What a plan says of telling people: how much an hour, when not, and when a digest."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT, PluginConfigs, check_between
from soak.core.units import SECOND_NS, Duration, duration_ns


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Maintenance:
    """A window in which nobody is told anything; what is owed by then goes out after it."""

    cron: str  # when it begins, in UTC
    length: Duration

    def __post_init__(self) -> None:
        if not SECOND_NS <= self.length <= duration_ns("7d"):
            raise ValueError("length must lie between 1s and 7d")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Alerts:
    most_per_hour: int = 20  # messages on findings to each sink; more of them wait
    digest: str = ""  # when, as cron in UTC; empty: none
    maintenance: tuple[Maintenance, ...] = ()

    def __post_init__(self) -> None:
        check_between(self, "most_per_hour", 1, 10_000)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Telling:
    """The part of a plan that says whom to tell, and when: it may change while a run goes on."""

    name: str  # of the plan
    sinks: PluginConfigs = field(default_factory=dict)
    alerts: Alerts = field(default_factory=Alerts)
