"""`soak detect`: the change points of series in a CSV file, or of the latencies of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detectors import kinds, level_shift, minimum_effect
from detectors.offline.steps import Config, detect_mixed
from detectors.panel import Panel
from soak.app.analysis import series_files
from soak.app.analysis.series_files import CsvSeries
from soak.core import wording
from soak.core.errors import PlanError
from soak.core.model import Change, Column, Kind, Series
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder

_KINDS = {"step": "", "drift": "drift ", "spikes": "spikes ", "stalls": "stalls ", "tail": "tail "}


@dataclass(frozen=True, slots=True)
class Rows:
    """The time of each row in seconds, and their spacing."""

    seconds: NDArray[np.float64]
    spacing_seconds: float
    are_shared: bool  # by several series
    are_dated: bool = False  # times are printed as dates


def change_text(changes: Sequence[Change], rows: Rows) -> str:
    """Return a sentence about one change: the clearest series with its time, then the others."""
    first, *others = changes
    low, high = (_time(rows, k) for k in first.interval)
    unit = "UTC" if rows.are_dated else "s"
    period = _period_seconds(first, rows)
    every = (
        ""
        if period is None
        else f", every {np.format_float_positional(period, precision=4, fractional=False, trim='-')} s"
    )
    along = "".join(
        f"{', ' if at else '; with '}{other.series}: {_levels(other)}"
        for at, other in enumerate(others)
    )
    return wording.printable(
        f"{first.series}: {_KINDS[first.kind]}{_levels(first)} at "
        f"{_time(rows, first.onset_k)} {unit} (between {low} and {high} {unit}), "
        f"row {first.onset_k}{every}{along}"
    )


def no_change_text(names: str, rows: Rows) -> str:
    """Return a sentence that says that these series have no change."""
    return wording.printable(f"{names}: no change in {rows.seconds.size} rows")


def change_json(changes: Sequence[Change], raised: int | None, rows: Rows) -> str:
    """Return a JSON object; for several series `moved` lists the change of each, clearest first."""
    first = changes[0]
    fields: dict[str, object] = {"index": first.onset_k}
    if raised is not None:
        fields["raised_index"] = raised
    fields |= {
        "before": first.before,
        "after": first.after,
        "kind": first.kind,
        "interval": list(first.interval),
        "confidence": round(first.confidence, 4),
    }
    period = _period_seconds(first, rows)
    if period is not None:
        fields["period_seconds"] = float(f"{period:.6g}")
    if rows.are_shared:
        fields["moved"] = [
            {"series": one.series, "before": one.before, "after": one.after} for one in changes
        ]
    return json.dumps(fields)


def _time(rows: Rows, k: int) -> str:
    """Return a date, or the shortest decimal number that identifies this time, without an exponent."""
    seconds = float(rows.seconds[k])
    if rows.are_dated:
        return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(sep=" ")
    return np.format_float_positional(seconds, trim="-")


def _levels(change: Change) -> str:
    return f"{change.before:.6g} to {change.after:.6g}"


def _period_seconds(change: Change, rows: Rows) -> float | None:
    """Return the period of spikes; in a change a row counts as one second."""
    if change.period_seconds is None:
        return None
    return change.period_seconds * rows.spacing_seconds


_FALSE_ALARMS_SECONDS = 30 * 86_400
_MIN_COURSE_RATIO = 1.05  # of drift, spikes and tails
_MIN_STEP_RATIO = 1.005  # lower than in a run, where a step sends a notification
_MIN_STEP_RATIO_ONLINE = 1.007  # also the minimum noise of the detector
_CONFIRM_SECONDS, _CONFIRM_ROWS = 10.0, 7.0  # whichever is longer

FoundChange = tuple[tuple[Change, ...], int | None]
"""Changes of several series at one time, clearest first, and the row that confirmed them if online."""


def detect_lines(
    target: Path, names: Sequence[str] | None, *, is_online: bool, is_json: bool
) -> Iterator[str]:
    """Give the output of `soak detect` for a CSV file or the folder of a run.

    Raises:
        PlanError: the file or an option is wrong.
        SoakError: the folder is not that of a run.
    """
    many, rows, found = (
        _detect_in_run(target, names, is_online=is_online)
        if target.is_dir()
        else _detect_in_file(target, names or [], is_online=is_online)
    )
    for changes, raised in found:
        yield change_json(changes, raised, rows) if is_json else change_text(changes, rows)
    if not found and not is_json:
        yield no_change_text(", ".join(many) or str(target), rows)


def detect_offline(many: Sequence[CsvSeries]) -> list[tuple[Change, ...]]:
    """Return the changes of complete series of the same rows; row numbers count as seconds."""
    whole, configs, effects = [], [], []
    for series in many:
        here = np.flatnonzero(np.isfinite(series.values))
        values = series.unit_seconds * series.values[here]
        whole.append(Series(series.name, here.astype(np.int64), values))
        configs.append(
            Config(
                scale="log" if series.is_latency else "linear",
                smallest_step_ratio=_MIN_STEP_RATIO,
                smallest_step_seconds=0.0,
                unit_seconds=series.spacing_seconds,
            )
        )
        effects.append(_minimum_effect(series))
    steps = detect_mixed(list(zip(whole, configs, strict=True)))
    found = kinds.changes_of_many(list(zip(whole, effects, strict=True)), steps)
    by_name = {series.name: series for series in many}
    return [tuple(_in_file_unit(by_name[one.series], one) for one in changes) for changes in found]


def online_config(series: CsvSeries, panel_size: int = 1) -> level_shift.Config:
    """Return the configuration of steps online, in which a row counts as one second."""
    confirm_rows = min(60.0, max(_CONFIRM_ROWS, _CONFIRM_SECONDS / series.spacing_seconds))
    return level_shift.Config(
        false_alarms=int(_rows_between(series) * SECOND_NS),
        panel_size=panel_size,
        smallest_step_ratio=_MIN_STEP_RATIO_ONLINE,
        smallest_step_seconds=0.0,
        confirm=int(confirm_rows * SECOND_NS),
    )


def detect_online(series: CsvSeries, panel_size: int = 1) -> list[tuple[Change, int | None]]:
    """Return the confirmed changes, each with the row that confirmed it."""
    columns = [Column(series.name, unit="seconds" if series.is_latency else "")]
    config = online_config(series, panel_size)
    panel = Panel(config, watched=lambda _: True, effect=_minimum_effect(series, panel_size))
    found: dict[tuple[Kind, int], tuple[Change, int | None]] = {}
    values = series.unit_seconds * series.values
    for row in range(values.size):
        changes = panel.update("csv", columns, row, values[row : row + 1], True, "soak")
        for change in changes:
            if change.state == "confirmed":  # a continuing drift is reported again
                named = _in_file_unit(series, replace(change, series=series.name))
                found.setdefault((change.kind, change.raised_k), (named, row))
    return list(found.values())


def _detect_in_file(
    path: Path, names: Sequence[str], *, is_online: bool
) -> tuple[list[str], Rows, list[FoundChange]]:
    """Return the names of the series in a file, their rows, and the changes in order of rows."""
    many = series_files.read_together(path, names)
    found: list[FoundChange]
    if is_online:
        raised = [one for series in many for one in detect_online(series, len(many))]
        found = [((change,), row) for change, row in sorted(raised, key=_confirming_row)]
    else:
        found = [(changes, None) for changes in detect_offline(many)]
    one = many[0]
    rows = Rows(one.seconds, one.spacing_seconds, len(many) > 1, one.are_dated)
    return [series.name for series in many], rows, found


def _detect_in_run(
    path: Path, names: Sequence[str] | None, *, is_online: bool
) -> tuple[list[str], Rows, list[FoundChange]]:
    """Return the same for the soak of a run, analysed offline."""
    from spark.batch.offline_analysis import headlines, offline_changes
    from spark.batch.timeline import assemble, digest_rows

    if names or is_online:
        raise PlanError(f"{path} is a folder of a run: --value and --mode online are for files")
    timeline = assemble(RunFolder(path.absolute()), digest_rows)
    rows = Rows(np.arange(float(timeline.end_k)), 1.0, are_shared=True)
    return headlines(timeline), rows, [(one, None) for one in offline_changes(timeline)]


def _in_file_unit(series: CsvSeries, change: Change) -> Change:
    """Return a change with its values in the unit of the file."""
    unit = series.unit_seconds
    return replace(change, before=change.before / unit, after=change.after / unit)


def _confirming_row(one: tuple[Change, int | None]) -> int:
    return one[1] or 0


def _rows_between(series: CsvSeries) -> float:
    """Return the mean number of rows between two false alarms."""
    return max(60.0, _FALSE_ALARMS_SECONDS / series.spacing_seconds)


def _minimum_effect(series: CsvSeries, panel_size: int = 1) -> minimum_effect.Config:
    """Return the configuration of drift, spikes and tails."""
    return minimum_effect.Config(
        scale="log" if series.is_latency else "linear",
        threshold=minimum_effect.threshold_of(_rows_between(series), panel_size),
        smallest_step_ratio=_MIN_COURSE_RATIO,
        smallest_step_seconds=0.0,
    )
