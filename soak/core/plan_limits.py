"""How much of a cluster a run may take without a person's word: more of it costs, or harms others."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Rate, Size, rate_per_second


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """Above any of them a run begins only where it is told `--yes`."""

    rate: Rate = field(default_factory=lambda: rate_per_second("100k/s"))  # the highest of the plan
    bytes_per_day: Size = 10 * 2**40  # written at that rate, all copies together
    partitions: int = 1000  # of all topics that the run makes
    topics: int = 100

    def __post_init__(self) -> None:
        for key in ("partitions", "topics"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must not be below 0")
