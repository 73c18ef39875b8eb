"""What stepped in a benchmark's result, since which sample, and why: findings of `soak omb analyse`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from detectors import bursts, episodes
from detectors.attribution import attribute
from detectors.nearby import Nearby
from detectors.segmentation import Config, detect_together
from soak.cli._omb_text import Imported, notes
from soak.core import wording
from soak.core.errors import PlanError
from soak.core.model import Change, Explanation, Series
from soak.omb import series
from soak.omb.result import Result

_STEP_RATIO = 1.5
_LEAST_SAMPLES = 2  # of a level: one sample is an outlier
_CONFIG = Config(
    smallest_step_ratio=_STEP_RATIO, smallest_step_seconds=0.0, least_rows=_LEAST_SAMPLES
)
_BURSTS = bursts.Config()
_MEDIAN = "_p50_seconds"
_BOUNDS = episodes.Bounds(together=2, smallest_step_ratio=_STEP_RATIO)


@dataclass(frozen=True, slots=True)
class Found:
    """A step of `metric`, counted in samples, with what moved along and its causes, strongest first."""

    metric: str
    change: Change
    beside: tuple[str, ...]
    causes: tuple[Explanation, ...]


def check_measured(path: Path, result: Result) -> None:
    """Refuse a result of which nothing can be said: that nothing rose would be taken for a clean run.

    Raises:
        PlanError: no sample has a latency in which steps are looked for.
    """
    if not series.latencies(result):
        raise PlanError(
            f"{path}: no latency was measured: publishLatency and endToEndLatency (50pct, 99pct, 999pct)"
            f" hold no value above 0 in {result.seconds.size} samples"
        )


def findings(result: Result) -> list[Found]:
    """Return the rises of publish and end-to-end latency in order of time, each with its return.

    What only becomes better is no finding.
    """
    latencies = series.latencies(result)
    metrics = {one.name: metric for metric, one in latencies.items()}
    steps = _steps(latencies)
    end = series.second_of(result, result.seconds.size)
    panel = Nearby(k0=0, k1=end, series=series.by_second(result))
    found = []
    for changes in episodes.joined(steps, _BOUNDS):
        if changes[0].direction == "down":
            continue
        first, *beside = (metrics[change.series] for change in changes)
        causes = _causes(result, changes[0], panel)
        found.append(Found(first, changes[0], tuple(beside), tuple(causes)))
    return found


def _steps(latencies: Mapping[str, Series]) -> list[tuple[Change, ...]]:
    """Return steps of all, and the edges of what is over before it is a level, in order of time.

    Only a latency's median tells of bursts: the slowest of a sample are always far above the others now and
    then. While it is away the other quantiles of that latency tell of no step.
    """
    edges = {
        metric: bursts.detect(one, _BURSTS)
        for metric, one in latencies.items()
        if metric.endswith(_MEDIAN)
    }
    calm = [
        bursts.without(one, edges.get(metric.partition("_p")[0] + _MEDIAN, []))
        for metric, one in latencies.items()
    ]
    steps: list[tuple[Change, ...]] = [(edge,) for one in edges.values() for edge in one]
    steps += detect_together(calm, _CONFIG)
    return sorted(steps, key=lambda changes: changes[0].onset_k)


def json_rows(imported: Imported, found: Sequence[Found]) -> Iterator[str]:
    """Give one object a finding; `until` is the sample in which the level was back, null if it stayed."""
    path, result = imported
    for one in found:
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
                "until": change.gone_k,
                "cause": one.causes[0].cause,
                "causes": [
                    {"cause": why.cause, "score": round(why.score, 3)} for why in one.causes
                ],
                "confidence": round(change.confidence, 4),
                "remarks": result.remarks,
            }
        )


def summary(imported: Imported, found: Sequence[Found]) -> Iterator[str]:
    """Give a sentence a finding, the reasons for its cause below it, and the notes on the file."""
    path, result = imported
    if not found:
        yield f"{path}: no rise of latency in {result.seconds.size} samples"
    for one in found:
        change = one.change
        until = "" if change.gone_k is None else f" until sample {change.gone_k}"
        yield (
            f"{path}: {wording.title(change.series)} {wording.amount(change.before, 'seconds')} to "
            f"{wording.amount(change.after, 'seconds')} from sample {change.onset_k} "
            f"({wording.span(series.second_of(result, change.onset_k))}){until}, "
            f"cause {one.causes[0].cause}"
        )
        if one.beside:
            yield f"  with {', '.join(one.beside)}"
        for evidence in (text for why in one.causes for text in why.evidence):
            yield f"  {evidence.text}"
    yield from notes(result)


def _causes(result: Result, change: Change, panel: Nearby) -> list[Explanation]:
    """Return the causes of a step counted in samples, by a panel that counts seconds."""
    first, last = change.interval
    return attribute(
        replace(
            change,
            raised_k=series.second_of(result, change.raised_k),
            onset_k=series.second_of(result, change.onset_k),
            interval=(series.second_of(result, first), series.second_of(result, last + 1)),
            gone_k=None if change.gone_k is None else series.second_of(result, change.gone_k),
        ),
        panel,
    )
