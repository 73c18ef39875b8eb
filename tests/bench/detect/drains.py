"""Benchmark results with a catch-up read: its start found by `soak omb analyse`, and named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from soak.app.analysis.omb import LatencyRise
from soak.omb.result import Result
from tests.bench.detect import feed
from tests.bench.detect.parts import OURS, Measurement, Run
from tests.support.omb.catch_up import CatchUp, result

_CAUSE = "catch_up_read"
BACKLOG = "backlog_messages"
_SAMPLES = (24, 40, 90, 180)  # four minutes to half an hour
_LONGEST = 35  # samples of a drain
_NEVER_OVER = 0.15  # of the runs
_MIN_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Drain:
    """What was found of one run; without its backlog nothing tells the cause."""

    is_found: bool  # start within a sample
    is_named: bool
    others: int
    is_unknown_without: bool


_ASKED: Mapping[str, Callable[[Drain], bool]] = {
    "start of the drain found within a sample": lambda one: one.is_found,
    f"cause of the drain: {_CAUSE}": lambda one: one.is_named,
    "at most one other finding": lambda one: one.others <= 1,
    "without the backlog: cause unknown": lambda one: one.is_unknown_without,
}


def near(found: Sequence[LatencyRise], sample: int) -> list[LatencyRise]:
    """Return those at the start of the drain, give or take a sample."""
    return [one for one in found if abs(one.change.onset_k - sample) <= 1]


def measure(run: Run) -> list[Measurement]:
    jobs = [(11, number) for number in range(run.size.drains)]
    found = [("", one) for one in run.map(analysed, jobs)]
    return measurements(f"{len(found)} results", found)


def measurements(runs: str, found: Sequence[tuple[str, Drain]]) -> list[Measurement]:
    """Return the share of runs that are right, for each thing asked; the note names the worst kind of run.

    `runs` says which they are, `found` gives each with the name of its kind, "" for all alike.
    """
    return [
        Measurement(
            figure=f"{runs}, {figure}",
            method=OURS,
            value=float(np.mean([is_right(one) for _, one in found])),
            at_least=_MIN_SHARE,
            note=_worst_kind([(name, is_right(one)) for name, one in found]),
        )
        for figure, is_right in _ASKED.items()
    ]


def _worst_kind(found: Sequence[tuple[str, bool]]) -> str:
    """Return the kind of run with the smallest share that is right; "" when all are."""
    by_name: dict[str, list[bool]] = defaultdict(list)
    for name, is_right in found:
        by_name[name].append(is_right)
    name, right = min(by_name.items(), key=lambda one: float(np.mean(one[1])))
    return "" if all(right) or not name else f"{name}: {sum(right)} of {len(right)}"


def analysed(job: tuple[int, int]) -> Drain:
    """Make a run at random from its seed and analyse it with and without its backlog."""
    catch_up = _at_random(np.random.default_rng([*job, 0]))
    return judged(result(catch_up, np.random.default_rng([*job, 1])), catch_up.drain)


def judged(made: Result, drain: int) -> Drain:
    """Analyse a result whose drain begins in a known sample, with and without its backlog."""
    every = feed.result_rises(made)
    starts = near(every, drain)
    samples = {name: values for name, values in made.samples.items() if name != BACKLOG}
    without = near(feed.result_rises(replace(made, samples=samples)), drain)
    return Drain(
        is_found=bool(starts),
        is_named=bool(starts) and starts[0].causes[0].cause == _CAUSE,
        others=len(every) - len(starts),
        is_unknown_without=bool(without) and without[0].causes[0].cause == "unknown",
    )


def _at_random(rng: np.random.Generator) -> CatchUp:
    samples = int(rng.choice(_SAMPLES))
    pause = int(rng.integers(samples // 6, samples // 3))
    drain = pause + int(rng.integers(max(2, samples // 12), samples // 4))
    end = drain + int(rng.integers(1, min(_LONGEST, samples - drain - 2) + 1))
    return CatchUp(
        samples=samples,
        pause=pause,
        drain=drain,
        end=samples if rng.random() < _NEVER_OVER else end,
        publish_ratio=float(rng.choice([1.0, 1.5, 3.0])),
        noise=float(rng.choice([0.05, 0.08, 0.12])),
        correlation=float(rng.choice([0.0, 0.3, 0.6])),
    )
