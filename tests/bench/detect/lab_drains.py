"""Catch-up reads of real lab runs, and runs resampled from them: found by `soak omb analyse`, and named.

Resampled: rows before and after the catch-up are drawn in blocks, whole rows, so that all latencies of a
sample stay together; a pause of another length has a backlog and a drain in proportion. Some begin with the
pause, as the benchmark's own runs with a backlog do. `record_drains` made the runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.omb import result_file
from soak.omb.result import END_TO_END, Floats, Result, statistic_name
from tests.bench.detect import drains
from tests.bench.detect.drains import BACKLOG, Drain
from tests.bench.detect.parts import Measurement, Run
from tests.support.paths import DATA

FOLDER = DATA / "recorded" / "omb" / "lab_drains"
LIST = "runs.json"
_BLOCK = 3  # samples drawn together
_QUIET = (8, 120)  # samples before the pause, and after the drain
_FIRST = 0.25  # of the runs begin with the pause
_EMPTY = 0.02  # of the peak: the backlog is read
_LAST = 6  # samples of a run that show its usual latency
_NEAR_USUAL = 4.0  # times it: no message of the backlog is among those of the sample
_SEED = 23

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LabRun:
    """A result with the samples in which its consumer pauses, reads again, and has read all."""

    name: str
    result: Result
    pause: int
    drain: int
    end: int  # the first sample after the drain


def measure(run: Run) -> list[Measurement]:
    runs = lab_runs(FOLDER)
    real = [(one.name, drains.judged(one.result, one.drain)) for one in runs]
    jobs = [(_SEED, number) for number in range(run.size.drains)]
    found = list(run.map(resampled_drain, jobs))
    return [
        *drains.measurements(f"{len(real)} exports of lab runs", real),
        *drains.measurements(f"{len(found)} resampled lab runs", found),
    ]


def lab_runs(folder: Path) -> list[LabRun]:
    """Return the recorded runs in the order of their names."""
    listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
    return [_lab_run(folder / one["file"], one) for one in listed]


def resampled_drain(job: tuple[int, int]) -> tuple[str, Drain]:
    """Resample one of the recorded runs, in turn, from a seed; return its name and what was found."""
    _, number = job
    runs = _recorded()
    one = resampled(runs[number % len(runs)], np.random.default_rng(job))
    return one.name, drains.judged(one.result, one.drain)


def resampled(run: LabRun, rng: np.random.Generator) -> LabRun:
    """Return a run with other lengths of all parts, drawn from a recorded one."""
    n = run.result.seconds.size
    before, after = (int(one) for one in rng.integers(*_QUIET, endpoint=True, size=2))
    if run.pause == 0 or rng.random() < _FIRST:
        before = 0
    paused = run.drain - run.pause
    new_pause = max(2, round(paused * float(rng.uniform(0.6, 2.0))))
    ratio = new_pause / paused
    new_drain = max(1, round((run.end - run.drain) * ratio))
    drained = np.linspace(run.drain, run.end - 1, new_drain)
    rows = np.concatenate(
        [
            _blocks(range(run.pause), before, rng),
            _blocks(range(run.pause + 1, run.drain), new_pause, rng),
            np.floor(drained).astype(np.int64),
            _blocks(range(run.end, n), after, rng),
        ]
    )
    pause, drain = before, before + new_pause
    end = drain + new_drain
    samples = {name: values[rows] for name, values in run.result.samples.items()}
    for name, values in run.result.samples.items():
        if name.startswith(END_TO_END.name) and new_drain > 1:
            samples[name][drain:end] = ratio * np.interp(drained, np.arange(n), values)
    samples[BACKLOG] = _backlog(run, pause, drain, end, samples[BACKLOG].copy())
    made = replace(
        run.result,
        samples=samples,
        seconds=run.result.step_seconds * np.arange(1.0, rows.size + 1),
    )
    return LabRun(run.name, made, pause, drain, end)


@cache
def _recorded() -> list[LabRun]:
    return lab_runs(FOLDER)


def _lab_run(path: Path, listed: Mapping[str, float]) -> LabRun:
    body = result_file.parse_json(result_file.read_text(path), str(path))
    result = result_file.parse_result(body, str(path))
    drain_seconds = listed["drain_seconds"]
    pause = max(0, int((drain_seconds - listed["backlog_seconds"]) // result.step_seconds))
    drain = int(drain_seconds // result.step_seconds)
    oldest = result.samples[statistic_name(END_TO_END, "p99")]
    usual = float(np.nanmedian(oldest[-_LAST:]))
    is_read = (result.samples[BACKLOG] <= _EMPTY * np.nanmax(result.samples[BACKLOG])) & (
        oldest <= _NEAR_USUAL * usual
    )
    later = np.flatnonzero(is_read[drain + 1 :])
    end = drain + 1 + int(later[0]) if later.size else result.seconds.size - 1
    return LabRun(path.name.removesuffix(".json.gz"), result, pause, drain, end)


def _blocks(rows: Sequence[int], count: int, rng: np.random.Generator) -> Rows:
    """Return `count` of some rows, drawn in blocks of consecutive ones."""
    if count == 0:
        return np.empty(0, np.int64)
    size = min(_BLOCK, len(rows))
    starts = rng.integers(0, len(rows) - size + 1, size=-(-count // size))
    drawn = np.concatenate([np.asarray(rows)[start : start + size] for start in starts])
    return drawn[:count].astype(np.int64)


def _backlog(run: LabRun, pause: int, drain: int, end: int, drawn: Floats) -> Floats:
    """Return the backlog of a resampled run: it grows as it did while the consumer paused, and is then read.

    The recorded drain keeps its shape; `drawn` has the rows of the quiet samples.
    """
    recorded = run.result.samples[BACKLOG]
    peak = float(recorded[run.drain - 1])
    new_peak = peak * (drain - pause) / (run.drain - run.pause)
    drawn[pause:drain] = new_peak * np.arange(1, drain - pause + 1) / (drain - pause)
    share = np.append(peak, recorded[run.drain : run.end]) / peak
    at = np.linspace(0, share.size - 1, end - drain + 1)[1:]
    drawn[drain:end] = new_peak * np.interp(at, np.arange(share.size), share)
    return drawn
