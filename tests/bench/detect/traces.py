"""Scores on labelled traces, counted as `score_detection` counts: one to one, pooled."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from soak.app.analysis.detect import detect_offline, detect_online
from soak.app.analysis.series_files import CsvSeries

ONLINE_ROWS = 30
OFFLINE_ROWS = 5


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


def read(path: Path) -> Trace:
    """Return a trace of three columns: seconds, value (empty: missing) and 1 where a level begins."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    seconds = np.array([float(row[0]) for row in rows])
    values = np.array([float(row[1]) if row[1] else np.nan for row in rows])
    labels = tuple(i for i, row in enumerate(rows) if row[2] == "1")
    return Trace(CsvSeries(head[1], seconds, values), labels)


def score_online(trace: Trace) -> Score:
    raised = sorted(row for _, row in detect_online(trace.series) if row is not None)
    return _score(trace, raised, _delays(trace.labels, raised))


def score_offline(trace: Trace) -> Score:
    return score_rows(
        trace, sorted({changes[0].onset_k for changes in detect_offline([trace.series])})
    )


def score_rows(trace: Trace, found: list[int]) -> Score:
    """Score the first rows of new levels that anyone found, looking back."""
    return _score(trace, found, _distances(trace.labels, found))


def pooled(traces: Iterable[Trace], score: Callable[[Trace], Score]) -> Score:
    return together([score(trace) for trace in traces])


def together(scores: Sequence[Score]) -> Score:
    return Score(
        sum(one.rows for one in scores),
        sum(one.labels for one in scores),
        sum(one.found for one in scores),
        tuple(delay for one in scores for delay in one.delays),
    )


def _score(trace: Trace, found: list[int], delays: list[int]) -> Score:
    return Score(trace.series.values.size, len(trace.labels), len(found), tuple(delays))


def _delays(labels: Iterable[int], raised: Sequence[int]) -> list[int]:
    left, delays = list(raised), []
    for label in sorted(labels):
        late = next((row for row in left if label <= row <= label + ONLINE_ROWS), None)
        if late is not None:
            left.remove(late)
            delays.append(late - label)
    return delays


def _distances(labels: Iterable[int], found: Sequence[int]) -> list[int]:
    left, distances = set(found), []
    for label in sorted(labels):
        near = [(abs(label - row), row) for row in left if abs(label - row) <= OFFLINE_ROWS]
        if near:
            distance, row = min(near)
            left.discard(row)
            distances.append(distance)
    return distances
