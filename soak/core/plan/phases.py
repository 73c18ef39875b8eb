"""The phases of a plan: warm-up, ramp, soak with its windows, cool-down, drain."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT, FormerName, check_between
from soak.core.units import SECOND_NS, Duration, Rate, Size, duration_ns, rate_per_second


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ramp:
    """The search for the highest sustained rate: grow until the cluster no longer follows, then bisect."""

    start: Rate = field(default_factory=lambda: rate_per_second("1k/s"))
    max_rate: Annotated[Rate, FormerName("most")] = field(
        default_factory=lambda: rate_per_second("10M/s")
    )
    growth: float = 2.0  # from one step to the next
    step: Duration = 30 * SECOND_NS  # each rate is held this long
    precision: float = 0.05  # bisect until the bounds are this close, as a share of the rate
    publish_p99: Duration = SECOND_NS  # a rate with a slower acknowledgement is not sustained
    soak_share: float = 0.0  # of the rate found, for the soak; 0: the soak keeps `load.rate`

    def __post_init__(self) -> None:
        if not 0 < self.start <= self.max_rate:
            raise ValueError("start must be above 0/s and not above max_rate")
        check_between(self, "growth", 1.05, 10)
        check_between(self, "precision", 0.001, 0.5)
        check_between(self, "soak_share", 0, 1)
        if self.step < 5 * SECOND_NS or self.step % SECOND_NS:
            raise ValueError("step must be whole seconds, at least 5s")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CatchUp:
    """Consumers pause until a backlog has grown, then read it while producers keep their rate."""

    backlog_size: Size = 0  # bytes not yet read; 0: by age alone
    backlog_age: Duration = 0  # how long the consumers pause; 0: by size alone
    drain_limit: Duration = duration_ns("30min")  # a backlog that is there longer never drains
    settle: Duration = duration_ns("60s")  # cool-down after it, before the soak is judged again

    def __post_init__(self) -> None:
        if not self.backlog_size and not self.backlog_age:
            raise ValueError("name backlog_size or backlog_age")
        for key in ("backlog_age", "drain_limit", "settle"):
            if getattr(self, key) % SECOND_NS:
                raise ValueError(f"{key} must be whole seconds")
        if self.drain_limit < 10 * SECOND_NS:
            raise ValueError("drain_limit must be at least 10s")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Window:
    """A catch-up that comes again during the soak: every so often from its start, or by the calendar."""

    catch_up: CatchUp
    every: Duration = 0
    cron: str = ""  # five fields, in UTC

    def __post_init__(self) -> None:
        if bool(self.every) == bool(self.cron):
            raise ValueError("name either every or cron")
        if self.every and self.every < 30 * SECOND_NS:
            raise ValueError("every must be at least 30s")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PhaseLengths:
    warm_up: Duration = duration_ns("60s")  # in the data, marked, and not judged
    ramp: Ramp | None = None  # between warm-up and soak
    soak: Duration = duration_ns("24h")
    windows: tuple[Window, ...] = ()  # catch-ups during the soak
    catch_up: CatchUp | None = None  # one after the soak
    cool_down: Duration = 0  # load goes on, not judged
    drain: Duration = duration_ns("30s")  # longest wait for the consumer after the last send

    def __post_init__(self) -> None:
        for key in ("warm_up", "soak", "cool_down", "drain"):
            value = getattr(self, key)
            if value % SECOND_NS or value < 0:
                raise ValueError(f"{key} must be whole seconds")
        if self.soak < 20 * SECOND_NS:
            raise ValueError("soak must be at least 20s: there is no level to judge before")
