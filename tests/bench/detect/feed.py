"""Feeds numbers to the detectors under test: the only module of the bench that imports from them.

Online, values are columns of one source, a row a second, and an alarm is a confirmed step. Offline, a series
is on log10 without missing rows, and a cut is the first row of a new level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from time import process_time

import numpy as np
from numpy.typing import NDArray

from detectors import panel as kinds_panel
from detectors.level_shift import Config
from detectors.offline import steps
from detectors.online import constants as online
from detectors.online.panel import Panel
from soak.app.analysis.detect import detect_offline, detect_online, online_config
from soak.app.analysis.omb import LatencyRise, latency_rises
from soak.app.analysis.series_files import CsvSeries
from soak.core.model import Change, Column, Series
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from soak.omb.result import Result

FAR = 1000.0
"""The level that generated noise is put on: relative to it every step of a bench is tiny."""
CONFIRM_SECONDS = 10
_ANY_STEP = 1.000001  # ratio: nothing but the threshold holds an alarm back
_LEVEL = 0.004  # seconds, of a series that is given on log10
_OFFLINE_RATIO = 1.005  # as `soak detect` has it

Constants = online.Constants
"""The table of constants of the online detector."""
Table = NDArray[np.float64]
"""Rows x series."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A new level of one series, and the row in which it was reported."""

    row: int
    series: int
    is_up: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """A change of one series, and the row in which the panel reported it."""

    row: int
    series: int
    change: Change


@dataclass(frozen=True, slots=True)
class Cut:
    """The first row of a new level, and the rows that hold it with 95 % confidence."""

    row: int
    first: int
    last: int
    is_up: bool


# ---- online


def constants() -> Constants:
    """Return a copy of the online detector's constants."""
    return replace(online.CONSTANTS)


def use(changed: Constants | None) -> None:
    """Let the online detector of this process have other constants; None leaves them as they are.

    They are changed in place, frozen or not, since every module of the detector holds the table itself.
    """
    if changed is not None:
        for field in fields(online.CONSTANTS):
            object.__setattr__(online.CONSTANTS, field.name, getattr(changed, field.name))


def config(false_alarms_seconds: float, panel_size: int = 1) -> Config:
    """Return a configuration in which nothing but the threshold holds an alarm back."""
    return Config(
        false_alarms=int(false_alarms_seconds * SECOND_NS),
        panel_size=panel_size,
        smallest_step_ratio=_ANY_STEP,
        smallest_step_seconds=0.0,
        confirm=CONFIRM_SECONDS * SECOND_NS,
    )


def plan_config() -> Config:
    """Return the configuration of a plan that says nothing about detection."""
    return Config()


def feed(values: Table, config: Config, unit: str = "") -> list[Reported]:
    """Return everything that a panel reports about `values`, shape (rows, series)."""
    return _feed(Panel(config), values, unit)


def alarms(values: Table, unit: str, every_seconds: float) -> list[Alarm]:
    """Return the confirmed steps at one false alarm in `every_seconds` of a series."""
    return confirmed(feed(values, config(every_seconds), unit))


def confirmed(found: Sequence[Reported]) -> list[Alarm]:
    return [
        Alarm(one.row, one.series, one.change.direction == "up")
        for one in found
        if one.change.state == "confirmed" and one.change.kind == "step"
    ]


def baseline_rows(every_seconds: float) -> int:
    """Return the rows of a series before its first alarm."""
    return config(every_seconds).baseline // SECOND_NS


def cost(values: Table, panel_size: int) -> tuple[float, float]:
    """Return microseconds of CPU a value, and bytes of stored state a series."""
    panel = Panel(config(30 * 86_400.0, panel_size))
    begin = process_time()
    _feed(panel, values, "")
    seconds = process_time() - begin
    return seconds / values.size * 1e6, len(panel.to_bytes()) / values.shape[1]


def kinds_confirmed(
    rows: Table, columns: Sequence[Column], every_seconds: float
) -> Mapping[str, int]:
    """Return how many changes of each kind are confirmed; one that goes on counts once."""
    panel = kinds_panel.Panel(config(every_seconds))
    found = {
        (change.kind, change.series, change.raised_k)
        for k, row in enumerate(rows)
        for change in panel.update("s", columns, k, row, True, "soak")
        if change.state == "confirmed"
    }
    return Counter(kind for kind, _, _ in found)


def trace_alarms(series: CsvSeries) -> list[int]:
    """Return the rows in which `soak detect --mode online` confirms a change."""
    return sorted(row for _, row in detect_online(series) if row is not None)


def step_alarms(many: Sequence[CsvSeries]) -> list[list[int]]:
    """Return the rows in which `soak detect` confirms a step, of each series; faster than one by one."""
    alarms: list[list[int]] = [[] for _ in many]
    kinds = {(online_config(series), series.is_latency) for series in many}
    for chosen, is_latency in kinds:
        at = [
            i
            for i, series in enumerate(many)
            if (online_config(series), series.is_latency) == (chosen, is_latency)
        ]
        values = np.full((max(many[i].values.size for i in at), len(at)), np.nan)
        for place, i in enumerate(at):
            values[: many[i].values.size, place] = many[i].unit_seconds * many[i].values
        for one in confirmed(feed(values, chosen, "seconds" if is_latency else "")):
            alarms[at[one.series]].append(one.row)
    return alarms


def _feed(panel: Panel, values: Table, unit: str) -> list[Reported]:
    columns = [Column("x", (("i", str(i)),), unit) for i in range(values.shape[1])]
    place = {series_name("s", column.name): i for i, column in enumerate(columns)}
    return [
        Reported(k, place[change.series], change)
        for k, row in enumerate(values)
        for change in panel.update("s", columns, k, row, True, "soak")
    ]


# ---- offline


def offline_cuts(y: NDArray[np.float64]) -> list[Cut]:
    """Return the cuts of a latency given on log10, a row a second, as `soak detect` looks for steps."""
    chosen = steps.Config(smallest_step_ratio=_OFFLINE_RATIO, smallest_step_seconds=0.0)
    series = Series("p99", np.arange(y.size), _LEVEL * 10.0 ** (y - np.median(y)))
    return [
        Cut(int(one.onset_k), int(one.interval[0]), int(one.interval[1]), one.direction == "up")
        for one in steps.detect(series, chosen)
    ]


def trace_cuts(series: CsvSeries) -> list[int]:
    """Return the first rows of the new levels that `soak detect --mode offline` finds."""
    return sorted({changes[0].onset_k for changes in detect_offline([series])})


def result_rises(result: Result) -> list[LatencyRise]:
    """Return the rises of latency that `soak omb analyse` finds in a benchmark result."""
    return latency_rises(result)
