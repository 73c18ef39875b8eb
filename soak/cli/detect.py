"""`soak detect`: the change points of any series in a CSV file."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from soak.core.model import Change, Kind

if TYPE_CHECKING:
    from detectors.drift import Config as Worth
    from soak.cli._csv_series import CsvSeries

_LATENCY = re.compile(r"latency|duration|(^|_)(seconds|ms|us|ns|s|rtt)$", re.IGNORECASE)
_FALSE_ALARMS_SECONDS = 30 * 86_400
_SMALLEST_COURSE = 1.05  # of drift, spikes and tails
_SMALLEST_STEP = 1.005  # a series of its own, without a duty to wake anyone
_SMALLEST_STEP_ONLINE = 1.007  # also the least noise that a score is made with
_CONFIRM_SECONDS, _CONFIRM_ROWS = 10.0, 7.0  # whichever is longer

_KINDS = {"step": "", "drift": "drift ", "spikes": "spikes ", "tail": "tail "}


class Mode(StrEnum):
    """Whether the search may look ahead."""

    offline = "offline"
    online = "online"


class Format(StrEnum):
    """One object a line, or one sentence a line."""

    jsonl = "jsonl"
    text = "text"


def detect(
    file: Annotated[Path, typer.Argument(help="CSV with a header, time in seconds first.")],
    value: Annotated[str | None, typer.Option(help="Value column; default the second.")] = None,
    mode: Annotated[Mode, typer.Option(help="Online never looks ahead.")] = Mode.offline,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
) -> None:
    """Print the steps, drifts, spikes and tails of a series, one a line.

    An empty value is a missing one; its row counts. Columns named as latencies are judged on log10.
    """
    from soak.cli import _csv_series

    series = _csv_series.read(file, value)
    changes = offline(series) if mode is Mode.offline else online(series)
    for change, raised in changes:
        print(_line(change, raised, series, output))
    if not changes and output is Format.text:
        print(f"{series.name}: no change in {series.values.size} rows")


def offline(series: CsvSeries) -> list[tuple[Change, int | None]]:
    """Return the changes of the whole series; a row number stands for the second."""
    import numpy as np

    from detectors import kinds, segmentation
    from soak.core.model import Series

    here = np.flatnonzero(np.isfinite(series.values))
    config = segmentation.Config(
        scale="log" if _is_latency(series) else "linear",
        smallest_step_ratio=_SMALLEST_STEP,
        smallest_step_seconds=0.0,
    )
    whole = Series(series.name, here.astype(np.int64), series.values[here])
    steps = segmentation.detect(whole, config)
    return [(change, None) for change in kinds.told(whole, steps, _worth(series))]


def online(series: CsvSeries) -> list[tuple[Change, int | None]]:
    """Return the confirmed changes, each with the row that confirmed it."""
    from detectors.level_shift import Config
    from detectors.panel import Panel
    from soak.core.model import Column
    from soak.core.units import SECOND_NS

    confirm_rows = min(60.0, max(_CONFIRM_ROWS, _CONFIRM_SECONDS / series.spacing_seconds))
    config = Config(
        false_alarms=int(_rows_between(series) * SECOND_NS),
        panel_size=1,
        smallest_step_ratio=_SMALLEST_STEP_ONLINE,
        smallest_step_seconds=0.0,
        confirm=int(confirm_rows * SECOND_NS),
    )
    columns = [Column(series.name, unit="seconds" if _is_latency(series) else "")]
    panel = Panel(config, watched=lambda _: True, worth=_worth(series))
    found: dict[tuple[Kind, int], tuple[Change, int | None]] = {}
    for row in range(series.values.size):
        changes = panel.update("csv", columns, row, series.values[row : row + 1], True, "soak")
        for change in changes:
            if change.state == "confirmed":  # a drift that goes on is said again
                found.setdefault((change.kind, change.raised_k), (change, row))
    return list(found.values())


def _rows_between(series: CsvSeries) -> float:
    """Return the rows between two false alarms."""
    return max(60.0, _FALSE_ALARMS_SECONDS / series.spacing_seconds)


def _worth(series: CsvSeries) -> Worth:
    """Return what drift, spikes and tails must clear."""
    from math import log

    from detectors.drift import Config

    return Config(
        scale="log" if _is_latency(series) else "linear",
        threshold=log(_rows_between(series)) + 0.3,
        smallest_step_ratio=_SMALLEST_COURSE,
        smallest_step_seconds=0.0,
    )


def _is_latency(series: CsvSeries) -> bool:
    return _LATENCY.search(series.name) is not None


def _line(change: Change, raised: int | None, series: CsvSeries, output: Format) -> str:
    if output is Format.text:
        low, high = (series.seconds[k] for k in change.interval)
        return (
            f"{series.name}: {_KINDS[change.kind]}{change.before:.6g} to {change.after:.6g} at "
            f"{series.seconds[change.onset_k]:.10g} s (between {low:.10g} and {high:.10g} s), "
            f"row {change.onset_k}{_period(change, series)}"
        )
    fields: dict[str, object] = {"index": change.onset_k}
    if raised is not None:
        fields["raised_index"] = raised
    fields |= {
        "before": change.before,
        "after": change.after,
        "kind": change.kind,
        "interval": list(change.interval),
        "confidence": round(change.confidence, 4),
    }
    if change.period_seconds is not None:
        fields["period_seconds"] = round(change.period_seconds * series.spacing_seconds, 3)
    return json.dumps(fields)


def _period(change: Change, series: CsvSeries) -> str:
    """Return how often spikes come, in words; a row stands for a second in the change."""
    if change.period_seconds is None:
        return ""
    return f", every {change.period_seconds * series.spacing_seconds:.4g} s"


command = detect
