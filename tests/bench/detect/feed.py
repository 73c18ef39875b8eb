"""Feeds columns of numbers to a panel, as one source of many series, and keeps what it said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.level_shift import Config, Panel
from soak.core.model import Change, Column
from soak.core.series import series_name
from soak.core.units import SECOND_NS

FAR = 1000.0
"""The level that generated noise is put on: relative to it every step of a bench is tiny."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a panel said about one series, and in which row."""

    row: int
    series: int
    change: Change


def config(false_alarms_seconds: float, panel_size: int = 1) -> Config:
    """Return a configuration in which nothing but the threshold holds an alarm back."""
    return Config(
        false_alarms=int(false_alarms_seconds * SECOND_NS),
        panel_size=panel_size,
        smallest_step_ratio=1.000001,
        smallest_step_seconds=0.0,
    )


def feed(values: NDArray[np.float64], config: Config, unit: str = "") -> list[Said]:
    """Return everything said about `values`, shape (rows, series); a row is a second."""
    columns = [Column("x", (("i", str(i)),), unit) for i in range(values.shape[1])]
    place = {series_name("s", column.name): i for i, column in enumerate(columns)}
    panel = Panel(config)
    return [
        Said(k, place[change.series], change)
        for k, row in enumerate(values)
        for change in panel.update("s", columns, k, row, True, "soak")
    ]


def count(said: list[Said], state: str) -> int:
    return sum(one.change.state == state for one in said)
