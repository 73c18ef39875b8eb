"""Export a run as parquet for notebooks: samples, events, findings and changes.

For each journal file one file of samples is written, so that no process holds more than an hour of a source.
What the columns mean is in docs/how-to/export.md.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from soak.core.clock import SystemClock
from soak.core.errors import JournalError, RunFolderError
from soak.core.model import Change, Finding
from soak.core.plan.phases import Phases
from soak.core.ports import Each, each_here
from soak.core.series import series_name
from soak.store.findings.topic import findings_place
from soak.store.journal.merged import SegmentRecord, read_segment
from soak.store.journal.reader import SourceReader, segments, sources
from soak.store.run_folder import Run, RunFolder, read_phases, read_plan, read_run

MODULES = ("spark.batch.export",)
"""Of the function that tasks call."""
_NAME = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")  # Spark reads no nanoseconds
SAMPLES = pa.schema(
    [
        ("run", _NAME),
        ("source", _NAME),
        ("series", _NAME),
        ("metric", _NAME),
        ("unit", _NAME),
        ("epoch", pa.int32()),
        ("k", pa.int64()),
        ("time", _TIME),
        ("value", pa.float64()),
        ("valid", pa.bool_()),
        ("phase", _NAME),
    ]
)
"""Of `samples/`: a row for each value that was measured."""

EVENTS = pa.schema(
    [
        ("run", pa.string()),
        ("source", pa.string()),
        ("k", pa.int64()),
        ("kind", pa.string()),
        ("since", _TIME),
        ("time", _TIME),
        ("fields", pa.string()),
    ]
)
"""Of `events.parquet`: what happened between two intervals, and each line that could not be read."""

_OF_CHANGE = (
    ("series", pa.string()),
    ("kind", pa.string()),
    ("state", pa.string()),
    ("onset_k", pa.int64()),
    ("raised_k", pa.int64()),
    ("resolved_k", pa.int64()),
    ("onset", _TIME),
    ("before", pa.float64()),
    ("after", pa.float64()),
    ("confidence", pa.float64()),
)
FINDINGS = pa.schema(
    [
        ("run", pa.string()),
        ("key", pa.string()),
        *_OF_CHANGE,
        ("is_about_cluster", pa.bool_()),
        ("cause", pa.string()),
    ]
)
"""Of `findings.parquet`: the incidents that the detector stored while the run went on."""

CHANGES = pa.schema([("run", pa.string()), *_OF_CHANGE])
"""Of `changes.parquet`: the changes of single series that the detector stored."""

DAMAGED = "damaged_line"
"""Kind of an event that stands for a line of a journal that could not be read."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: rows of each table."""

    folder: Path
    samples: int
    events: int
    findings: int
    changes: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A journal file, and where its samples go."""

    path: Path
    target: Path
    run: str
    phases: Phases


@dataclass(frozen=True, slots=True)
class _Written:
    samples: int
    events: tuple[dict[str, Any], ...]
    error: str = ""


def run(run_dir: Path, to: Path) -> Exported:
    """Export a run in the tasks of Spark, which it starts.

    Raises:
        SoakError: as `export`; or Spark does not start.
    """
    from spark.batch.tasks import in_tasks  # noqa: PLC0415  # what follows needs no Spark
    from spark.cluster.session import build_context  # noqa: PLC0415

    folder, to = RunFolder(run_dir.resolve()), to.absolute()  # tasks work elsewhere
    _check(folder, to)
    with tempfile.TemporaryDirectory(prefix="soak-export-") as temporary:
        context = build_context("soak-export", temporary=Path(temporary), modules=MODULES)
        try:
            return export(folder, to, in_tasks(context))
        finally:
            context.stop()


def export(folder: RunFolder, to: Path, each: Each = each_here) -> Exported:
    """Write the tables of a run to a new folder, which appears when all of it is written.

    Damaged lines are events; a run that goes on is exported as far as it is written.

    Raises:
        RunFolderError: this is no run folder, or the folder to write exists or cannot be written.
        JournalError: a journal was written by a newer version.
        FindingsError: the findings cannot be read.
    """
    of_run = _check(folder, to)
    draft = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        (draft / "samples").mkdir(parents=True)
        found = _write(folder, of_run, draft, each)
        draft.rename(to)
    except OSError as error:
        raise RunFolderError(f"cannot export to {to}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(to, *found)


def _check(folder: RunFolder, to: Path) -> Run:
    of_run = read_run(folder)
    if to.exists():
        raise RunFolderError(f"{to} exists: an export writes a new folder")
    return of_run


def _write(folder: RunFolder, of_run: Run, draft: Path, each: Each) -> tuple[int, int, int, int]:
    phases = read_phases(folder.phases)
    wanted = [
        _Wanted(path, draft / "samples" / f"{source}-{path.stem}.parquet", of_run.id, phases)
        for source in sources(folder.journal)
        for path in segments(folder.journal / source)
    ]
    written = each(_write_samples, wanted)
    for one in written:
        if one.error:
            raise JournalError(one.error)
    events = [event for one in written for event in one.events]
    _write_table(draft / "events.parquet", events, EVENTS)
    findings, changes = _detected(folder, of_run)
    _write_table(draft / "findings.parquet", findings, FINDINGS)
    _write_table(draft / "changes.parquet", changes, CHANGES)
    samples = sum(one.samples for one in written)
    return samples, len(events), len(findings), len(changes)


def _write_table(path: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")


# --- Of one journal file, in a task: samples by series, then by interval, and events.


def _write_samples(wanted: _Wanted) -> _Written:
    source, reader = wanted.path.parent.name, SourceReader(wanted.path.parent)
    try:
        found = list(read_segment(wanted.path, reader))
    except JournalError as error:  # in a worker it would end as Spark's traceback
        return _Written(0, (), f"{wanted.path}: {error}")
    table = _samples(found, source, wanted)
    if table.num_rows:
        pq.write_table(table, wanted.target, compression="zstd")
    head = {"run": wanted.run, "source": source}
    events = [
        head
        | {"k": one.record.k, "kind": event.kind, "fields": json.dumps(dict(event.fields))}
        | {"since": event.since_ns // 1000, "time": event.at_ns // 1000}
        for one in found
        for event in one.record.events
    ]
    for damage in reader.damage:
        fields = {"file": damage.path.name, "byte": damage.offset, "reason": damage.reason}
        events.append({**head, "kind": DAMAGED, "fields": json.dumps(fields)})
    return _Written(table.num_rows, tuple(events))


def _samples(found: Sequence[SegmentRecord], source: str, wanted: _Wanted) -> pa.Table:
    """Return the rows of `SAMPLES`; what was not measured has none."""
    columns = tuple(dict.fromkeys(column for one in found for column in one.columns))
    place = {column: at for at, column in enumerate(columns)}
    values = np.full((len(columns), len(found)), np.nan)
    for at, one in enumerate(found):
        values[[place[column] for column in one.columns], at] = one.record.values
    which, row = np.nonzero(~np.isnan(values))
    phases = [wanted.phases.at(one.record.k) for one in found]
    of_phase = {name: at for at, name in enumerate(dict.fromkeys(phases))}

    def of_records(numbers: Sequence[int], kind: type[np.generic]) -> np.ndarray[Any, Any]:
        return np.array(numbers, dtype=kind)[row]

    times = of_records([one.record.at_ns // 1000 for one in found], np.int64)
    arrays = [
        _names([wanted.run], np.zeros_like(which)),
        _names([source], np.zeros_like(which)),
        _names([series_name(source, column.name) for column in columns], which),
        *(_repeated([getattr(column, name) for column in columns], which) for name in _OF_COLUMN),
        pa.array(of_records([one.record.epoch for one in found], np.int32)),
        pa.array(of_records([one.record.k for one in found], np.int64)),
        pa.array(times).cast(_TIME),
        pa.array(values[which, row]),
        pa.array(of_records([one.record.is_valid for one in found], np.bool_)),
        _names(list(of_phase), of_records([of_phase[name] for name in phases], np.int32)),
    ]
    return pa.Table.from_arrays(arrays, schema=SAMPLES)


_OF_COLUMN = ("metric", "unit")


def _repeated(names: Sequence[str], at: np.ndarray[Any, Any]) -> pa.DictionaryArray:
    """Return a name a row, where `at` are places in `names`, which may repeat."""
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return _names(list(place), np.array([place[name] for name in names], dtype=np.int32)[at])


def _names(names: Sequence[str], at: np.ndarray[Any, Any]) -> pa.DictionaryArray:
    indices = pa.array(at.astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


# --- What the detector stored.


def _detected(folder: RunFolder, of_run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    place = findings_place(folder, read_plan(folder), of_run.id, SystemClock())
    try:
        if not place.exists():
            return [], []
        with place.open() as store:
            findings, changes = store.findings(of_run.id), store.changes(of_run.id)
    finally:
        place.close()
    return (
        [_finding(one, of_run) for one in findings],
        [_row(one, CHANGES, of_run) for one in changes],
    )


def _finding(one: Finding, of_run: Run) -> dict[str, Any]:
    cause = one.causes[0].cause if one.causes else None
    return _row(one, FINDINGS, of_run) | {"cause": cause}


def _row(one: Finding | Change, schema: pa.Schema, of_run: Run) -> dict[str, Any]:
    onset = (of_run.start_wall_ns + one.onset_k * 1_000_000_000) // 1000
    found = {name: getattr(one, name, None) for name in schema.names}
    state = "resolved" if one.state == "gone" else one.state
    return found | {"run": of_run.id, "onset": onset, "state": state}
