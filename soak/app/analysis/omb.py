"""`soak omb`: read benchmark results, print them, export a run as one, find the steps of latency in them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detectors import bursts, episodes
from detectors.attribution import attribute
from detectors.nearby import Nearby
from detectors.offline.steps import Config, detect_together
from soak.app.live.snapshot import clock_text
from soak.core import wording
from soak.core.errors import PlanError, RunFolderError
from soak.core.model import Change, Explanation, Series
from soak.core.plan.phases import Phases
from soak.omb import plan_import, result_file
from soak.omb import result as series
from soak.omb.histograms import SourceRecord
from soak.omb.load_faults import PUBLISH_RATE, LoadFault, load_faults
from soak.omb.plan_import import SourceFile
from soak.omb.result import (
    END_TO_END,
    FAMILIES,
    PUBLISH,
    Family,
    Floats,
    Result,
    statistic_name,
)
from soak.omb.run_result import ExportedRun, Second
from soak.store.journal.merged import MergedReader
from soak.store.journal.reader import sources
from soak.store.run_folder import RunFolder, read_phases, read_plan, read_run

_SHOWN_QUANTILES = ("p50", "p99", "p99.9", "max")
_RATES = ("publish_rate_per_second", "publish_error_rate_per_second", "consume_rate_per_second")

Imported = tuple[Path, Result]


def result_text(path: Path, result: Result) -> Iterator[str]:
    """Give the summary of one file: workload, rates, latencies of the whole run, notes."""
    seconds = int(result.seconds[-1]) if result.seconds.size else 0
    yield (
        f"{path}: {result.dialect}, workload {result.workload or '?'}, driver {result.driver or '?'}, "
        f"{result.seconds.size} samples of {result.step_seconds:g} s in {clock_text(seconds)}"
    )
    for name in (*_RATES, "backlog_messages"):
        if name in result.samples:
            yield f"  {name.replace('_', ' ')}: {_range_text(result.samples[name])}"
    for family in FAMILIES:
        line = _latency_text(result, family)
        if line:
            yield f"  {family.name.replace('_', ' ')}: {line}"
    yield from notes(result)


def notes(result: Result) -> Iterator[str]:
    """Give a line for each remark about the numbers."""
    for remark in result.remarks:
        yield f"  note: {wording.printable(remark)}"


def result_json(path: Path, result: Result) -> Iterator[str]:
    """Give one JSON object for each sample; null is a missing value."""
    for row in range(result.seconds.size):
        body: dict[str, object] = {"file": str(path), "index": row}
        body["seconds"] = float(result.seconds[row])
        for name, values in result.samples.items():
            value = float(values[row])
            body[name] = None if math.isnan(value) else value
        yield json.dumps(body)


def results_csv(imported: list[Imported]) -> str:
    """Return CSV with one row for each sample: `seconds`, the values, the file; an empty cell is missing."""
    names = list(dict.fromkeys(name for _, result in imported for name in result.samples))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["seconds", *names, "file"])
    for path, result in imported:
        empty = np.full(result.seconds.size, np.nan)
        columns = [result.samples.get(name, empty) for name in names]
        for row, seconds in enumerate(result.seconds):
            cells = [
                "" if np.isnan(column[row]) else repr(float(column[row])) for column in columns
            ]
            table.writerow([repr(float(seconds)), *cells, str(path)])
    return text.getvalue()


def _range_text(values: Floats) -> str:
    found = values[np.isfinite(values)]
    if not found.size:
        return "missing"
    low, middle, high = (
        wording.amount(float(x), "") for x in (found.min(), np.median(found), found.max())
    )
    return f"{middle} (median; {low} to {high})"


def _latency_text(result: Result, family: Family) -> str:
    """Return the percentiles of the whole run, which cannot be computed from those of intervals."""
    names = {name: statistic_name(family, name) for name in _SHOWN_QUANTILES}
    parts = [
        f"{name} {wording.amount(result.totals[column], 'seconds')}"
        for name, column in names.items()
        if column in result.totals and not math.isnan(result.totals[column])
    ]
    return ", ".join(parts)


_ROLES = ("produce", "consume")
_NO_END = 2**62


def run_source(folder: RunFolder) -> ExportedRun:
    """Return the run and its measured interval, from the beginning of the soak to its end.

    Raises:
        SoakError: no run folder, a damaged plan, or the soak has not begun.
    """
    run, plan = read_run(folder), read_plan(folder)
    phases = read_phases(folder.phases)
    begin_k, end_k = _soak_span(phases, folder)
    decided = phases.decision_at(begin_k)
    rate = None if decided is None else decided.rate
    return ExportedRun(
        plan=plan,
        rate=plan.load.rate if rate is None else rate,
        name=run.name or plan.name,
        start_wall_ns=run.start_wall_ns,
        begin_k=begin_k,
        end_k=end_k,
    )


def run_seconds(folder: RunFolder) -> Iterator[Second]:
    """Give (k, records of all producers and consumers), in ascending order unless a clock was set back."""
    names = [name for name in sources(folder.journal) if name.startswith(_ROLES)]
    found = MergedReader(folder.journal, names).read()
    for k, group in groupby(found, key=lambda one: one.record.k):
        yield k, [SourceRecord(one.source, one.record, one.columns) for one in group]


def _soak_span(phases: Phases, folder: RunFolder) -> tuple[int, int]:
    soaks = phases.spans("soak", _NO_END)
    if not soaks:
        raise RunFolderError(
            f"the soak of {folder.path} has not begun, so there is nothing to export"
        )
    return soaks[0][0], soaks[-1][1]


_YAML = {".yaml", ".yml"}


def read_files(paths: Sequence[Path]) -> tuple[list[Imported], list[SourceFile]]:
    """Return the results, and the workloads and drivers, recognised by file name or content.

    Raises:
        PlanError: a file is neither.
    """
    results: list[Imported] = []
    sources: list[SourceFile] = []
    for path in paths:
        text = result_file.read_text(path)
        if path.suffix in _YAML or text.lstrip()[:1] not in ("{", "[", ""):
            sources.append(plan_import.read_source_file(text, str(path)))
        else:
            body = result_file.parse_json(text, str(path))
            results.append((path, result_file.parse_result(body, str(path))))
    return results, sources


def show_results(results: list[Imported], output: str) -> None:
    """Print results."""
    if output == "csv":
        sys.stdout.write(results_csv(results))
        return
    lines_of = result_json if output == "jsonl" else result_text
    for path, result in results:
        for line in lines_of(path, result):
            print(line)


def write_file(path: Path, chunks: Iterable[str]) -> None:
    """Replace a file atomically.

    Raises:
        PlanError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(chunks)
        temporary.replace(path)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


_STEP_RATIO = 1.5
_BURSTS = bursts.Config()
_MEDIAN = "_p50_seconds"
_LEVEL_VALUES = 2  # the fewest that `detect_together` takes for a level
_LEAST_AGE = 0.5  # of a silence: its first messages are as old as it, but a quantile is no maximum
_BOUNDS = episodes.Bounds(together=2, smallest_step_ratio=_STEP_RATIO)


@dataclass(frozen=True, slots=True)
class LatencyRise:
    """A rise of `metric`, counted in samples, with the other metrics that rose and its causes."""

    metric: str
    change: Change
    others: tuple[str, ...]
    causes: tuple[Explanation, ...]


def check_measured(path: Path, result: Result) -> None:
    """Check that a result has latencies; without them it would look like a clean run.

    Raises:
        PlanError: no sample has a latency that is analysed.
    """
    if not series.latency_series(result):
        raise PlanError(
            f"{path}: no latency was measured: publishLatency and endToEndLatency (50pct, 99pct, 999pct)"
            f" hold no value above 0 in {result.seconds.size} samples"
        )


def latency_rises(result: Result) -> list[LatencyRise]:
    """Return the rises of publish and end-to-end latency in order of time, each with its end.

    An improvement is not a finding.
    """
    latencies = series.latency_series(result)
    metrics = {one.name: metric for metric, one in latencies.items()}
    steps = _steps(_with_level_before(latencies, result.step_seconds), result.step_seconds)
    end = series.second_of(result, result.seconds.size)
    panel = Nearby(k0=0, k1=end, series=series.series_by_second(result))
    found = []
    for changes in episodes.joined(steps, _BOUNDS):
        if changes[0].direction == "down":
            continue
        first, *others = (metrics[change.series] for change in changes)
        causes = _causes(result, changes[0], panel)
        found.append(LatencyRise(first, changes[0], tuple(others), tuple(causes)))
    return found


def _steps(latencies: Mapping[str, Series], step_seconds: float) -> list[tuple[Change, ...]]:
    """Return the steps of all latencies, and the edges of bursts too short for a level, in order of time.

    Bursts are found in medians only: high quantiles have outliers in any run. During a burst the other
    quantiles of that latency are not searched for steps.
    """
    edges = {
        metric: bursts.detect(one, _BURSTS)
        for metric, one in latencies.items()
        if metric.endswith(_MEDIAN)
    }
    without_bursts = [
        bursts.without(one, edges.get(metric.partition("_p")[0] + _MEDIAN, []))
        for metric, one in latencies.items()
    ]
    steps: list[tuple[Change, ...]] = [(edge,) for one in edges.values() for edge in one]
    config = Config(
        smallest_step_ratio=_STEP_RATIO, smallest_step_seconds=0.0, unit_seconds=step_seconds
    )
    measured = {one.name: one.k for one in without_bursts}
    steps += [
        tuple(_at_measured(change, measured[change.series]) for change in changes)
        for changes in detect_together(without_bursts, config)
    ]
    return sorted(steps, key=lambda changes: changes[0].onset_k)


def _with_level_before(latencies: Mapping[str, Series], step_seconds: float) -> dict[str, Series]:
    """Return the latencies; until a late first read, publish latency stands in for end-to-end latency.

    A benchmark with a backlog pauses its consumers when it begins, so it has no end-to-end latency before
    they read the backlog. Publish latency is the lower one and the nearest to it that was measured.
    """
    found = dict(latencies)
    received = [name for name in latencies if name.startswith(END_TO_END.name)]
    begin = max((_late_first_read(latencies[name], step_seconds) for name in received), default=0)
    for name in received:
        one = latencies[name]
        published = latencies.get(name.replace(END_TO_END.name, PUBLISH.name))
        if published is not None:
            before, since = published.k < begin, one.k >= begin
            k = np.concatenate([published.k[before], one.k[since]])
            values = np.concatenate([published.values[before], one.values[since]])
            found[name] = Series(one.name, k, values)
    return found


def _late_first_read(latency: Series, step_seconds: float) -> int:
    """Return the sample of the first read if it ends a silence at the begin of the run, else 0.

    What is read then has waited for most of the silence; otherwise consumers only began later.
    """
    silent = np.diff(latency.k, prepend=-1)[:_LEVEL_VALUES] - 1  # samples before each value
    at = int(np.argmax(silent))
    is_late = latency.values[at] >= _LEAST_AGE * silent[at] * step_seconds
    return int(latency.k[at]) if silent[at] > 0 and is_late else 0


def _at_measured(change: Change, k: NDArray[np.int64]) -> Change:
    """Return a change with its onset in a sample that has this latency, which may have gaps."""
    at = min(int(np.searchsorted(k, change.onset_k)), k.size - 1)
    onset_k = int(k[at])
    return replace(
        change,
        onset_k=onset_k,
        interval=(change.interval[0], max(change.interval[1], onset_k)),
    )


def findings_json(imported: Imported) -> Iterator[str]:
    """Give one JSON object for each rise of latency and each fault of the load.

    `until` is the sample in which the level was back, or null.
    """
    path, result = imported
    for fault in load_faults(result):
        end = fault.last + 1
        yield json.dumps(
            {
                "file": str(path),
                "index": fault.first,
                "metric": fault.metric,
                "kind": "rate_not_held" if fault.metric == PUBLISH_RATE else "backlog_growth",
                "before": fault.before,
                "after": fault.after,
                "interval": [fault.first, fault.first],
                "until": end if end < result.seconds.size else None,
                "cause": "unknown",
                "causes": [],
                "confidence": 1.0,
                "remarks": result.remarks,
            }
        )
    for one in latency_rises(result):
        change = one.change
        yield json.dumps(
            {
                "file": str(path),
                "index": change.onset_k,
                "metric": one.metric,
                "kind": change.kind,
                "before": change.before,
                "after": change.after,
                "interval": list(change.interval),
                "until": change.resolved_k,
                "cause": one.causes[0].cause,
                "causes": [
                    {"cause": why.cause, "score": round(why.score, 3)} for why in one.causes
                ],
                "confidence": round(change.confidence, 4),
                "remarks": result.remarks,
            }
        )


def findings_text(imported: Imported) -> Iterator[str]:
    """Give a sentence for each fault of the load and each rise, its evidence, and the notes on the file."""
    path, result = imported
    faults, found = load_faults(result), latency_rises(result)
    for fault in faults:
        yield f"{path}: {_fault_text(result, fault)}"
    if not found:
        yield f"{path}: no rise of latency in {result.seconds.size} samples"
    for one in found:
        change = one.change
        until = "" if change.resolved_k is None else f" until sample {change.resolved_k}"
        yield (
            f"{path}: {wording.title(change.series)} {wording.amount(change.before, 'seconds')} to "
            f"{wording.amount(change.after, 'seconds')} from sample {change.onset_k} "
            f"({wording.span(series.second_of(result, change.onset_k))}){until}, "
            f"cause {one.causes[0].cause}"
        )
        if one.others:
            yield f"  with {', '.join(one.others)}"
        for evidence in (text for why in one.causes for text in why.evidence):
            yield f"  {evidence.text}"
    yield from notes(result)


def _fault_text(result: Result, fault: LoadFault) -> str:
    begin, end = series.second_of(result, fault.first), series.second_of(result, fault.last + 1)
    where = f"from sample {fault.first} ({wording.span(begin)}) for {wording.span(end - begin)}"
    before, after = (wording.amount(value, "messages") for value in (fault.before, fault.after))
    if fault.metric == PUBLISH_RATE:
        return f"the publish rate was not held: {after}/s where it was {before}/s, {where}"
    received = f"consumers received {fault.received:.0%} of what was sent"
    return f"the backlog grew from {before} to {after} {where}: {received}"


def _causes(result: Result, change: Change, panel: Nearby) -> list[Explanation]:
    """Return the causes of a change counted in samples, by a panel that counts seconds."""
    first, last = change.interval
    return attribute(
        replace(
            change,
            raised_k=series.second_of(result, change.raised_k),
            onset_k=series.second_of(result, change.onset_k),
            interval=(series.second_of(result, first), series.second_of(result, last + 1)),
            resolved_k=None
            if change.resolved_k is None
            else series.second_of(result, change.resolved_k),
        ),
        panel,
    )
