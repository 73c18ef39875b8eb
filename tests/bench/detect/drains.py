"""How often `soak omb analyse` finds the begin of a catch-up read, and by its right name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from soak.app.analysis.omb import LatencyRise, latency_rises
from tests.support.omb.catch_up import CatchUp, result

_SAMPLES = (24, 40, 90, 180)  # four minutes to half an hour
_LONGEST = 35  # samples of a drain
_NEVER_OVER = 0.15  # of the runs


@dataclass(frozen=True, slots=True)
class Drains:
    """Of so many runs: begin found within a sample, with its cause, and with more than one other finding."""

    runs: int
    found: int
    named: int
    crowded: int


def near(found: Sequence[LatencyRise], sample: int) -> list[LatencyRise]:
    """Return those at the begin of the drain, give or take a sample."""
    return [one for one in found if abs(one.change.onset_k - sample) <= 1]


def measure(runs: int, seed: int) -> Drains:
    rng = np.random.default_rng(seed)
    found = named = crowded = 0
    for run in range(runs):
        catch_up = _at_random(rng)
        every = latency_rises(result(catch_up, np.random.default_rng([seed, run])))
        begins = near(every, catch_up.drain)
        found += bool(begins)
        named += bool(begins) and begins[0].causes[0].cause == "catch_up_read"
        crowded += len(every) - len(begins) > 1
    return Drains(runs, found, named, crowded)


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
