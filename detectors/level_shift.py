"""The settings of the step detector, as the section `level_shift` of a plan gives them.

A plan names a detector by its module. The detector itself is the package `detectors.online`.
"""

from __future__ import annotations

from math import inf, log

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from detectors import minimum_effect
from soak.core.units import SECOND_NS, Duration, PerDuration

_DAY = 86_400
_LEAST_BASELINE, _MOST_BASELINE = 20, 160


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """What a plan may set; the thresholds follow from the first two."""

    false_alarms: PerDuration = 30 * _DAY * SECOND_NS  # mean time between two, over the whole panel
    panel_size: int = 100  # series that share the false alarms
    smallest_step_ratio: float = 1.5  # larger level over smaller, least worth reporting
    smallest_step_seconds: float = 0.001  # and the least change of a latency
    baseline: Duration = 120 * SECOND_NS  # valid time of a series before its first alarm
    confirm: Duration = 10 * SECOND_NS  # for which a new level must have lasted

    def __post_init__(self) -> None:
        if self.false_alarms < 60 * SECOND_NS:
            raise ValueError("false_alarms: at most 1 per 1min")
        if self.panel_size < 1:
            raise ValueError("panel_size: at least 1")
        if not 1.0 < self.smallest_step_ratio < inf:
            raise ValueError("smallest_step_ratio must be a finite number above 1")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")
        if not _LEAST_BASELINE <= self.baseline // SECOND_NS <= _MOST_BASELINE:
            raise ValueError(f"baseline: 20s to {_MOST_BASELINE}s")
        if not 1 <= self.confirm // SECOND_NS <= 60:  # noqa: PLR2004 - the bound in the message
            raise ValueError("confirm: 1s to 60s")

    @property
    def log_rows(self) -> float:
        """Return ln of the rows between two false alarms of one series."""
        return log(self.false_alarms / SECOND_NS) + log(self.panel_size)

    @property
    def minimum_effect(self) -> minimum_effect.Config:
        """Return the minimum effect of kinds other than steps, the same online and offline."""
        return minimum_effect.Config(
            threshold=minimum_effect.threshold_of(self.false_alarms / SECOND_NS, self.panel_size),
            smallest_step_ratio=self.smallest_step_ratio,
            smallest_step_seconds=self.smallest_step_seconds,
        )
