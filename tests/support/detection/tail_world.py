"""A source that tells a latency as quantiles and as counts above thresholds, message by message."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core.model import THRESHOLDS_SECONDS, Column

METRIC = "publish_latency_seconds"
QUANTILES = ("0.5", "0.99", "0.999")
COLUMNS = (
    *(Column(METRIC, (("quantile", quantile),), "seconds") for quantile in QUANTILES),
    *(
        Column("publish_latency_above_messages", (("threshold", f"{at:g}"),), "messages")
        for at in THRESHOLDS_SECONDS
    ),
    Column("acked_messages", (), "messages"),
)


def series(quantile: str) -> str:
    return f's|{METRIC}{{quantile="{quantile}"}}'


def rows(
    rng: np.random.Generator, seconds: int, slow_ratio: NDArray[np.float64], messages: int = 500
) -> NDArray[np.float64]:
    """Return the values of `COLUMNS` a second; a share `slow_ratio` of messages takes four times as long."""
    latency = 0.004 * rng.lognormal(0.0, 0.3, (seconds, messages))
    latency *= np.where(rng.random((seconds, messages)) < slow_ratio[:, np.newaxis], 4.0, 1.0)
    quantiles = np.quantile(latency, [float(quantile) for quantile in QUANTILES], axis=1).T
    above = (latency[:, :, np.newaxis] >= np.array(THRESHOLDS_SECONDS)).sum(axis=1)
    return np.hstack([quantiles, above, np.full((seconds, 1), messages)])
