"""`soak detect`: the change points of any series in a CSV file, or of a run's latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from soak.core.model import Change, Kind

if TYPE_CHECKING:
    from detectors.drift import Config as Worth
    from soak.cli._csv_series import CsvSeries
    from soak.cli._detect_text import Rows

_FALSE_ALARMS_SECONDS = 30 * 86_400
_SMALLEST_COURSE = 1.05  # of drift, spikes and tails
_SMALLEST_STEP = 1.005  # a series of its own, without a duty to wake anyone
_SMALLEST_STEP_ONLINE = 1.007  # also the least noise that a score is made with
_CONFIRM_SECONDS, _CONFIRM_ROWS = 10.0, 7.0  # whichever is longer

Found = tuple[tuple[Change, ...], int | None]
"""Changes that are one, clearest first, and the row that confirmed them, unless that is looked back at."""


class Mode(StrEnum):
    """Whether the search may look ahead."""

    offline = "offline"
    online = "online"


class Format(StrEnum):
    """One object a line, or one sentence a line."""

    jsonl = "jsonl"
    text = "text"


def detect(
    target: Annotated[
        Path,
        typer.Argument(help="CSV with a header, time first; or the folder of a run."),
    ],
    value: Annotated[
        list[str] | None,
        typer.Option(
            help="Value column, once or more; default the second, and if it is a latency all that are."
        ),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Online never looks ahead.")] = Mode.offline,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
) -> None:
    """Print the steps, drifts, spikes and tails of series, one a line.

    Several columns are looked at together: what several did at one time is one step. Online each is
    followed by itself. An empty value is a missing one; its row counts. Columns named as latencies are judged
    on log10, no lower than a microsecond. They and the time are in seconds, unless the name of the column
    ends in _ms, _us or _ns.

    Of a run the latencies of its soak are looked back at as its report does, beyond two hours in rows of ten
    seconds; what is printed as a row is a second of the run.
    """
    from soak.cli import _detect_text

    many, rows, found = (
        _in_run(target, value, mode) if target.is_dir() else _in_file(target, value or [], mode)
    )
    for changes, raised in found:
        line = (
            _detect_text.text(changes, rows)
            if output is Format.text
            else _detect_text.jsonl(changes, raised, rows)
        )
        print(line)
    if not found and output is Format.text:
        print(_detect_text.nothing(", ".join(many) or str(target), rows))


def offline(many: Sequence[CsvSeries]) -> list[tuple[Change, ...]]:
    """Return the changes of whole series of the same rows; a row number stands for the second."""
    import numpy as np

    from detectors import kinds, segmentation
    from soak.core.model import Series

    whole, configs, worths = [], [], []
    for series in many:
        here = np.flatnonzero(np.isfinite(series.values))
        values = series.unit_seconds * series.values[here]
        whole.append(Series(series.name, here.astype(np.int64), values))
        configs.append(
            segmentation.Config(
                scale="log" if series.is_latency else "linear",
                smallest_step_ratio=_SMALLEST_STEP,
                smallest_step_seconds=0.0,
            )
        )
        worths.append(_worth(series))
    steps = segmentation.detect_mixed(list(zip(whole, configs, strict=True)))
    found = kinds.told_together(list(zip(whole, worths, strict=True)), steps)
    by_name = {series.name: series for series in many}
    return [tuple(_as_in(by_name[one.series], one) for one in changes) for changes in found]


def online(series: CsvSeries, panel_size: int = 1) -> list[tuple[Change, int | None]]:
    """Return the confirmed changes, each with the row that confirmed it."""
    from detectors.level_shift import Config
    from detectors.panel import Panel
    from soak.core.model import Column
    from soak.core.units import SECOND_NS

    confirm_rows = min(60.0, max(_CONFIRM_ROWS, _CONFIRM_SECONDS / series.spacing_seconds))
    config = Config(
        false_alarms=int(_rows_between(series) * SECOND_NS),
        panel_size=panel_size,
        smallest_step_ratio=_SMALLEST_STEP_ONLINE,
        smallest_step_seconds=0.0,
        confirm=int(confirm_rows * SECOND_NS),
    )
    columns = [Column(series.name, unit="seconds" if series.is_latency else "")]
    panel = Panel(config, watched=lambda _: True, worth=_worth(series, panel_size))
    found: dict[tuple[Kind, int], tuple[Change, int | None]] = {}
    values = series.unit_seconds * series.values
    for row in range(values.size):
        changes = panel.update("csv", columns, row, values[row : row + 1], True, "soak")
        for change in changes:
            if change.state == "confirmed":  # a drift that goes on is said again
                named = _as_in(series, replace(change, series=series.name))
                found.setdefault((change.kind, change.raised_k), (named, row))
    return list(found.values())


def _in_file(path: Path, names: Sequence[str], mode: Mode) -> tuple[list[str], Rows, list[Found]]:
    """Return the series that a file was searched for, their rows, and what was found in order of rows."""
    from soak.cli import _csv_series
    from soak.cli._detect_text import Rows

    many = _csv_series.read_together(path, names)
    found: list[Found]
    if mode is Mode.offline:
        found = [(changes, None) for changes in offline(many)]
    else:
        raised = [one for series in many for one in online(series, len(many))]
        found = [((change,), row) for change, row in sorted(raised, key=_row)]
    rows = Rows(many[0].seconds, many[0].spacing_seconds, len(many) > 1)
    return [series.name for series in many], rows, found


def _in_run(
    path: Path, names: Sequence[str] | None, mode: Mode
) -> tuple[list[str], Rows, list[Found]]:
    """Return the same of the soak of a run, looking back."""
    import numpy as np

    from soak.cli._detect_text import Rows
    from soak.core.errors import PlanError
    from soak.store.run_folder import RunFolder
    from spark.look_back import headlines, offline_changes
    from spark.timeline import assemble, digest_rows

    if names or mode is Mode.online:
        raise PlanError(f"{path} is a folder of a run: --value and --mode online are for files")
    timeline = assemble(RunFolder(path.absolute()), digest_rows)
    rows = Rows(np.arange(float(timeline.end_k)), 1.0, are_shared=True)
    return headlines(timeline), rows, [(one, None) for one in offline_changes(timeline)]


def _as_in(series: CsvSeries, change: Change) -> Change:
    """Return a change in the unit of its file."""
    unit = series.unit_seconds
    return replace(change, before=change.before / unit, after=change.after / unit)


def _row(one: tuple[Change, int | None]) -> int:
    return one[1] or 0


def _rows_between(series: CsvSeries) -> float:
    """Return the rows between two false alarms."""
    return max(60.0, _FALSE_ALARMS_SECONDS / series.spacing_seconds)


def _worth(series: CsvSeries, panel_size: int = 1) -> Worth:
    """Return what drift, spikes and tails must clear."""
    from math import log

    from detectors.drift import Config

    return Config(
        scale="log" if series.is_latency else "linear",
        threshold=log(_rows_between(series)) + log(panel_size) + 0.3,
        smallest_step_ratio=_SMALLEST_COURSE,
        smallest_step_seconds=0.0,
    )


command = detect
