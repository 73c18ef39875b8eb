"""Labelled traces: accuracy, counted one to one and pooled, and how much of it one trace decides.

Methods with a setting (the limit of a CUSUM, the factor of a moving average) get the one that is best on the
other traces. Ours have none: their figures without each trace in turn tell how much one trace weighs.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from statistics import median

import numpy as np

from soak.app.analysis.series_files import CsvSeries
from tests.bench.detect import feed, peers
from tests.bench.detect.parts import OURS, Measurement, Run

ONLINE_ROWS = 30
OFFLINE_ROWS = 5
_RBF_WIDTH, _MIN_ROWS = 0.01, 3
_MIN_STEP, _CONFIRM_ROWS, _MONTH = (
    1.007,
    7,
    30 * 86_400.0,
)  # of the online reference, as `soak detect`
_EVERY_ROWS = (30, 100, 300, 1e3, 3e3, 1e4, 1e5, 1e6, 1e8)  # between two false alarms of a CUSUM
_LEARN_ROWS = (30, 120)
_TIMES = (1.01, 1.02, 1.03, 1.05, 1.1, 1.2, 1.5, 2.0)
_WINDOWS = (10, 60, 600)


@dataclass(frozen=True, slots=True)
class Trace:
    """A series and the first rows of its new levels."""

    series: CsvSeries
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What was found on one trace or several."""

    rows: int
    labels: int
    found: int
    delays: tuple[int, ...]  # of those that are right; offline the distance

    @property
    def precision(self) -> float:
        return len(self.delays) / max(1, self.found)

    @property
    def recall(self) -> float:
        return len(self.delays) / max(1, self.labels)

    @property
    def f1(self) -> float:
        return 2.0 * len(self.delays) / max(1, self.found + self.labels)

    @property
    def false_per_1000(self) -> float:
        return 1000.0 * (self.found - len(self.delays)) / max(1, self.rows)

    @property
    def delay(self) -> float:
        return float(median(self.delays)) if self.delays else float("nan")


@dataclass(frozen=True, slots=True)
class Spread:
    """F1 without one trace: the lowest and the highest, each with the trace that is left out."""

    low: float
    without_for_low: str
    high: float
    without_for_high: str


def read(path: Path) -> Trace:
    """Return a trace of three columns: seconds, value (empty: missing) and 1 where a level begins."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    seconds = np.array([float(row[0]) for row in rows])
    values = np.array([float(row[1]) if row[1] else np.nan for row in rows])
    labels = tuple(i for i, row in enumerate(rows) if row[2] == "1")
    return Trace(CsvSeries(head[1], seconds, values), labels)


def labelled(shared: Path) -> dict[str, Trace]:
    """Return the labelled traces by name; none where the folder has none."""
    paths = sorted(shared.glob("latency-traces/real-*.csv.gz"))
    return {f"trace {path.name[5:].partition('.')[0]}": read(path) for path in paths}


def online_score(trace: Trace, rows: Iterable[int]) -> Score:
    """Score alarms: right is one raised 0 to 30 rows after a label."""
    raised = sorted(rows)
    left, delays = list(raised), []
    for label in sorted(trace.labels):
        late = next((row for row in left if label <= row <= label + ONLINE_ROWS), None)
        if late is not None:
            left.remove(late)
            delays.append(late - label)
    return Score(trace.series.values.size, len(trace.labels), len(raised), tuple(delays))


def offline_score(trace: Trace, rows: Iterable[int]) -> Score:
    """Score cuts: right is the nearest one within 5 rows of a label."""
    found = set(rows)
    left, distances = set(found), []
    for label in sorted(trace.labels):
        near = [(abs(label - row), row) for row in left if abs(label - row) <= OFFLINE_ROWS]
        if near:
            distance, row = min(near)
            left.discard(row)
            distances.append(distance)
    return Score(trace.series.values.size, len(trace.labels), len(found), tuple(distances))


def together(scores: Iterable[Score]) -> Score:
    many = list(scores)
    return Score(
        sum(one.rows for one in many),
        sum(one.labels for one in many),
        sum(one.found for one in many),
        tuple(delay for one in many for delay in one.delays),
    )


def left_out(scores: Mapping[str, Score]) -> Spread:
    """Return how far F1 changes when one trace is left out."""
    f1 = [
        (together(score for other, score in scores.items() if other != name).f1, name)
        for name in scores
    ]
    (low, lowest), (high, highest) = min(f1), max(f1)
    return Spread(low, lowest, high, highest)


def chosen_by_others(scores: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    """Return the score of each trace at the setting that is best on the others; `scores`: one a setting."""
    found = {}
    for name in scores[0]:
        others = [
            together(score for other, score in setting.items() if other != name).f1
            for setting in scores
        ]
        found[name] = scores[int(np.argmax(others))][name]
    return found


def measure(run: Run) -> list[Measurement]:
    """Score all methods on the labelled traces; nothing where there are none."""
    found: list[Measurement] = []
    traces = labelled(run.shared)
    if not traces:
        return found
    jobs = [(name, trace, run.references, run.are_peers_shown) for name, trace in traces.items()]
    pairs = list(run.map(_scored, jobs))
    for mode, at in (("online", 0), ("offline", 1)):
        methods = pairs[0][at]
        for method in methods:
            settings = [
                {name: pair[at][method][i] for (name, *_), pair in zip(jobs, pairs, strict=True)}
                for i in range(len(methods[method]))
            ]
            found += _figures(mode, method, chosen_by_others(settings))
    return found


def measure_online(run: Run) -> list[Measurement]:
    """Score the steps that our online detector finds on the labelled traces, all traces at once."""
    traces = labelled(run.shared)
    if not traces:
        return []
    alarms = feed.step_alarms([trace.series for trace in traces.values()])
    scores = {
        name: online_score(trace, rows)
        for (name, trace), rows in zip(traces.items(), alarms, strict=True)
    }
    return _figures("online", OURS, scores)


_GOALS: Mapping[str, tuple[float, float, float]] = {
    "online": (0.70, 0.85, 6.0),  # F1 at least, false in 1,000 rows and rows at most
    "offline": (0.71, 0.85, 2.0),
}


def _figures(mode: str, method: str, scores: Mapping[str, Score]) -> list[Measurement]:
    pooled, spread = together(scores.values()), left_out(scores)
    least, most_false, most_rows = _GOALS[mode]
    with_labels = {name: score for name, score in scores.items() if score.labels}
    worst = min(with_labels, key=lambda name: with_labels[name].f1)
    noisiest = max(scores, key=lambda name: scores[name].false_per_1000)
    one = partial(Measurement, method=method)
    rows = "median delay" if mode == "online" else "median distance"
    return [
        one(figure=f"{mode}: precision", value=pooled.precision),
        one(figure=f"{mode}: recall", value=pooled.recall),
        one(figure=f"{mode}: F1", value=pooled.f1, at_least=least),
        one(
            figure=f"{mode}: F1 without one trace, lowest",
            value=spread.low,
            note=f"without {spread.without_for_low}",
        ),
        one(
            figure=f"{mode}: F1 without one trace, highest",
            value=spread.high,
            note=f"without {spread.without_for_high}",
        ),
        one(figure=f"{mode}: F1 of the worst trace", value=with_labels[worst].f1, note=worst),
        one(figure=f"{mode}: false in 1,000 rows", value=pooled.false_per_1000, at_most=most_false),
        one(
            figure=f"{mode}: false in 1,000 rows of the worst trace",
            value=scores[noisiest].false_per_1000,
            note=noisiest,
        ),
        one(figure=f"{mode}: {rows}, rows", value=pooled.delay, at_most=most_rows),
    ]


_Job = tuple[str, Trace, Path | None, bool]
_Scores = dict[str, list[Score]]
"""Of one trace: by method, one score a setting."""


def _scored(job: _Job) -> tuple[_Scores, _Scores]:
    """Return the online and the offline scores of one trace."""
    _, trace, references, with_peers = job
    online = {OURS: [online_score(trace, feed.trace_alarms(trace.series))]}
    offline = {OURS: [offline_score(trace, feed.trace_cuts(trace.series))]}
    if with_peers:
        online |= _online_peers(trace, references)
        offline |= _offline_peers(trace, references)
    return online, offline


def _online_peers(trace: Trace, references: Path | None) -> _Scores:
    values = np.maximum(trace.series.values, 1e-9)[:, np.newaxis]
    limits = np.array([peers.cusum_limit(every) for every in _EVERY_ROWS])
    y = np.repeat(np.log10(values), limits.size, axis=1)
    found: _Scores = {peers.CUSUM: [], peers.MOVING_AVERAGE: []}
    for learn_rows in _LEARN_ROWS:
        alarms = peers.cusum(y, limits, learn_rows)
        for i in range(limits.size):
            rows = [one.row for one in alarms if one.series == i]
            found[peers.CUSUM].append(online_score(trace, rows))
    for window in _WINDOWS:
        for times in _TIMES:
            rows = [one.row for one in peers.moving_average(values, times, window)]
            found[peers.MOVING_AVERAGE].append(online_score(trace, rows))
    if references is not None and (references / "online_detector.py").exists():
        spacing = trace.series.spacing_seconds
        rows = [
            row
            for row, *_ in peers.program(references, "online_detector").run(
                values * trace.series.unit_seconds,
                "seconds",
                max(60.0, _MONTH / spacing),
                1,
                _MIN_STEP,
                0.0,
                max(_CONFIRM_ROWS, round(10.0 / spacing)),
            )
        ]
        found[peers.REFERENCE] = [online_score(trace, rows)]
    return found


def _offline_peers(trace: Trace, references: Path | None) -> _Scores:
    """Score methods that see the rows with a value as one row after the other."""
    here = np.flatnonzero(np.isfinite(trace.series.values))
    y = np.log10(np.maximum(trace.series.values, 1e-9))
    methods: dict[str, Callable[[np.ndarray], list[int]]] = {
        peers.RBF: lambda part: peers.rbf(part, _RBF_WIDTH, _MIN_ROWS, log(part.size)),
        peers.PELT: lambda part: peers.pelt(part, _MIN_ROWS),
    }
    if peers.has_otava():
        methods[peers.OTAVAS] = peers.otava
    found = {
        name: [offline_score(trace, [int(here[at]) for at in method(y[here])])]
        for name, method in methods.items()
    }
    if references is not None and (references / "offline_detector.py").exists():
        cuts = peers.reference_cuts(references, y, trace.series.spacing_seconds)
        found[peers.REFERENCE] = [offline_score(trace, cuts)]
    return found
