"""Benchmark results with a catch-up read: its start found by `soak omb analyse`, and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from soak.app.analysis.omb import LatencyRise
from tests.bench.detect import feed
from tests.bench.detect.parts import OURS, Measurement, Run
from tests.support.omb.catch_up import CatchUp, result

_CAUSE = "catch_up_read"
_BACKLOG = "backlog_messages"
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


def near(found: Sequence[LatencyRise], sample: int) -> list[LatencyRise]:
    """Return those at the start of the drain, give or take a sample."""
    return [one for one in found if abs(one.change.onset_k - sample) <= 1]


def measure(run: Run) -> list[Measurement]:
    drains = list(run.map(analysed, [(11, number) for number in range(run.size.drains)]))
    shares = {
        "start of the drain found within a sample": [one.is_found for one in drains],
        f"cause of the drain: {_CAUSE}": [one.is_named for one in drains],
        "at most one other finding": [one.others <= 1 for one in drains],
        "without the backlog: cause unknown": [one.is_unknown_without for one in drains],
    }
    return [
        Measurement(
            figure=f"{len(drains)} results, {name}",
            method=OURS,
            value=float(np.mean(each)),
            at_least=_MIN_SHARE,
        )
        for name, each in shares.items()
    ]


def analysed(job: tuple[int, int]) -> Drain:
    """Make a run at random from its seed and analyse it with and without its backlog."""
    catch_up = _at_random(np.random.default_rng([*job, 0]))
    made = result(catch_up, np.random.default_rng([*job, 1]))
    every = feed.result_rises(made)
    starts = near(every, catch_up.drain)
    samples = {name: values for name, values in made.samples.items() if name != _BACKLOG}
    without = near(feed.result_rises(replace(made, samples=samples)), catch_up.drain)
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
