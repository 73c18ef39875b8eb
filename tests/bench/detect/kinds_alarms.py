"""How often drift, spikes and tails are told where nothing happens, at one false alarm an hour and series.

Each source has one latency: three quantiles whose log10 is a noise of the bench, and counts of slow messages
whose log-odds are the same kind of noise. Nothing but the threshold holds an alarm back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.panel import Panel
from soak.core.model import Column
from tests.bench.detect.feed import config
from tests.bench.detect.noises import NOISES, Make

HOUR = 3600.0
_LATENCY = "publish_latency_seconds"
_QUANTILES = ("0.5", "0.99", "0.999")
_SHARES = np.array([0.3, 0.1, 0.03, 0.01, 0.003, 0.001])  # of messages above each threshold
_MESSAGES = 20_000  # a second
COLUMNS = (
    *(Column(_LATENCY, (("quantile", quantile),), "seconds") for quantile in _QUANTILES),
    *(
        Column("publish_latency_above_messages", (("threshold", str(number)),), "messages")
        for number in range(_SHARES.size)
    ),
    Column("acked_messages", (), "messages"),
)
SERIES = {"drift": len(_QUANTILES), "spikes": len(_QUANTILES), "tail": 2}
"""Of one source, those in which a kind is looked for."""
_SD = 0.05  # of log10, and of the log-odds four times that
_LEARNT = 120


@dataclass(frozen=True, slots=True)
class Told:
    """What one kind told of one noise, and what it was allowed to."""

    noise: str
    kind: str
    allowed: float
    confirmed: int


def measure(rows: int, sources: int, seed: int, noises: Mapping[str, Make] = NOISES) -> list[Told]:
    """Feed so many seconds of so many sources of each noise, after what is learnt from."""
    found = []
    for noise, make in noises.items():
        told: Counter[str] = Counter()
        for source in range(sources):
            rng = np.random.default_rng([seed, source])
            told += _told(_values(rng, make, _LEARNT + rows))
        found += [
            Told(noise, kind, sources * series * rows / HOUR, told[kind])
            for kind, series in SERIES.items()
        ]
    return found


def _values(rng: np.random.Generator, make: Make, rows: int) -> NDArray[np.float64]:
    """Return rows of COLUMNS; where the noise has no value, there is none."""
    quantiles = 0.01 * 10.0 ** (_SD * make(rng, rows, len(_QUANTILES)) + np.array([0.0, 0.5, 1.0]))
    wandering = 4.0 * _SD * np.nan_to_num(make(rng, rows, 1))
    odds = _SHARES / (1.0 - _SHARES) * np.exp(wandering)
    above = rng.binomial(_MESSAGES, odds / (1.0 + odds))
    return np.hstack([quantiles, above, np.full((rows, 1), _MESSAGES)])


def _told(values: NDArray[np.float64]) -> Counter[str]:
    """Return how many changes of each kind are confirmed; one that goes on is one."""
    panel = Panel(config(HOUR))
    said = {
        (change.kind, change.series, change.raised_k)
        for k, row in enumerate(values)
        for change in panel.update("s", COLUMNS, k, row, True, "soak")
        if change.state == "confirmed"
    }
    return Counter(kind for kind, _, _ in said)
