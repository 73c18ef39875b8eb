"""One latency, or many beside each other, fed to a panel of steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.online.panel import Panel
from soak.core.model import Change, Column
from soak.core.units import SECOND_NS

P99 = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
BASELINE = 25 * SECOND_NS


def latencies(seed: int, seconds: int, onset: int | None = None) -> NDArray[np.float64]:
    """p99 of about 4 ms with pauses of the broker's collector, 60 ms from the onset on."""
    rng = np.random.default_rng(seed)
    y = np.log10(0.004) + rng.normal(0.0, 0.15, seconds)
    pauses = rng.random(seconds) < 0.05
    y[pauses] += rng.lognormal(-0.7, 0.4, pauses.sum())
    if onset is not None:
        y[onset:] = np.log10(0.06) + rng.normal(0.0, 0.15, seconds - onset)
    return np.asarray(10.0**y)


def run(
    values: NDArray[np.float64],
    config: Config | None = None,
    *,
    column: Column = P99,
    invalid: Iterable[int] = (),
    phases: dict[int, str] | None = None,
    k: Iterable[int] | None = None,
) -> list[tuple[int, Change]]:
    """Feed one series; return each change with the second that brought it."""
    panel = Panel(config or Config(baseline=BASELINE))
    seconds = list(k) if k is not None else list(range(values.size))
    bad, found, phase = set(invalid), [], "soak"
    for row, second in enumerate(seconds):
        phase = (phases or {}).get(second, phase)
        changes = panel.update(
            "produce.0@h", [column], second, values[row : row + 1], second not in bad, phase
        )
        found += [(second, change) for change in changes]
    return found


def confirmed(found: list[tuple[int, Change]]) -> list[tuple[int, Change]]:
    return [(k, change) for k, change in found if change.state == "confirmed"]


def run_beside_each_other(
    values: NDArray[np.float64], config: Config | None = None, unit: str = "seconds"
) -> list[tuple[int, Change]]:
    """Feed series of one source, one a column."""
    columns = [Column(P99.metric, (("i", str(i)),), unit) for i in range(values.shape[1])]
    panel = Panel(config or Config(baseline=BASELINE))
    return [
        (k, change)
        for k, row in enumerate(values)
        for change in panel.update("produce.0@h", columns, k, row, True, "soak")
    ]
