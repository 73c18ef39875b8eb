"""Results of runs whose consumers pause and then read what has gathered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.omb.result import END_TO_END, PUBLISH, Floats, Result, statistic_name

STEP = 10.0
_QUANTILES = {"p50": 1.0, "p99": 4.0, "p99.9": 12.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Samples in which consumers pause and the backlog is read, and what reading costs those who write."""

    samples: int = 90
    pause: int = 30
    drain: int = 48
    end: int = 58
    rate: float = 10_000.0
    publish_ratio: float = 1.5
    noise: float = 0.05  # sd of log10 from sample to sample
    correlation: float = 0.3


def result(catch_up: CatchUp, rng: np.random.Generator) -> Result:
    """Return the result; the pause leaves end-to-end latency without a value."""
    n = catch_up.samples
    at = np.arange(float(n))
    is_paused = (at >= catch_up.pause) & (at < catch_up.drain)
    is_draining = (at >= catch_up.drain) & (at < catch_up.end)
    backlog = _backlog(catch_up, at)
    samples: dict[str, Floats] = {"backlog_messages": backlog}
    samples["publish_rate_per_second"] = catch_up.rate * (1.0 + 0.002 * rng.normal(size=n))
    read = -np.diff(backlog, prepend=backlog[0]) / STEP
    rate = np.maximum(samples["publish_rate_per_second"] + read, 0.0)
    samples["consume_rate_per_second"] = np.where(is_paused, 0.0, rate)
    wander = _wander(catch_up, rng)
    age = np.concatenate([backlog[:1], backlog[:-1]]) / catch_up.rate
    for statistic, ratio in _QUANTILES.items():
        own = ratio * 10.0 ** (wander + 0.3 * catch_up.noise * rng.normal(size=n))
        paid = np.where(is_draining, catch_up.publish_ratio, 1.0)
        samples[statistic_name(PUBLISH, statistic)] = 0.002 * own * paid
        waited = np.where(is_draining, age, 0.0)
        samples[statistic_name(END_TO_END, statistic)] = np.where(
            is_paused, np.nan, 0.003 * own + waited
        )
    return Result(
        dialect="upstream",
        workload="catch-up",
        driver="Kafka",
        facts={},
        step_seconds=STEP,
        seconds=STEP * np.arange(1.0, n + 1),
        samples=samples,
        totals={},
        distributions={},
    )


def _backlog(catch_up: CatchUp, at: Floats) -> Floats:
    """Return what is unread at the end of each sample."""
    peak = (catch_up.drain - catch_up.pause) * catch_up.rate * STEP
    grown = np.clip((at + 1 - catch_up.pause) / (catch_up.drain - catch_up.pause), 0.0, 1.0)
    left = np.clip((catch_up.end - at - 1) / (catch_up.end - catch_up.drain), 0.0, 1.0)
    return np.asarray(peak * np.minimum(grown, left))


def _wander(catch_up: CatchUp, rng: np.random.Generator) -> Floats:
    found = catch_up.noise * rng.normal(size=catch_up.samples)
    for row in range(1, found.size):
        found[row] += catch_up.correlation * found[row - 1]
    return np.asarray(found)
