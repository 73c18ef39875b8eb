"""A benchmark's result, the same whatever dialect it was written in: seconds as unit, NaN for missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A latency over the whole run: `percentiles` (0 to 100) ascending, shape (m,); `seconds` at each."""

    percentiles: Floats
    seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """One run. `seconds` and each of `samples` have shape (n,), one entry a sample.

    Names end with the unit: `publish_latency_p99_seconds`, `publish_rate_per_second`,
    `backlog_messages`. `seconds` tells when a sample ended, counted from the begin of the first.
    """

    dialect: str
    workload: str
    driver: str
    facts: Mapping[str, str | int | float]  # what else it says of the run, by the benchmark's names
    step_seconds: float  # nominal length of a sample
    seconds: Floats
    samples: Mapping[str, Floats]
    totals: Mapping[str, float]  # of the whole run, by the names of `samples`
    distributions: Mapping[str, Distribution]  # by latency, such as `publish_latency_seconds`
    remarks: tuple[str, ...] = ()  # what a reader must know: rebuilt times, caps, missing samples
