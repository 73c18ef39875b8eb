"""When each sample ended: results carry no times, so they are rebuilt, and it is said how."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from soak.omb.result import Floats

_END = re.compile(r"-(\d{4}(?:-\d\d){5})\.json(?:\.gz)?$")
_SHORTEST_DRIFT = 1e-3  # of the nominal step: less is rounding


def rebuilt(samples: Mapping[str, Floats], step_seconds: float) -> tuple[Floats, str]:
    """Return the end of each sample in seconds from the begin of the first, and a remark.

    The benchmark sleeps for the nominal step and then collects, so a true step is never shorter.
    Where counts are there, rate = count / true step gives it; else the nominal step stands.
    """
    count = samples["publish_rate_per_second"].size
    steps = np.full(count, np.nan)
    for amount, rate in (
        ("sent_messages", "publish_rate_per_second"),
        ("received_messages", "consume_rate_per_second"),
    ):
        if amount in samples:
            steps = np.where(np.isfinite(steps), steps, _ratio(samples[amount], samples[rate]))
    is_known = np.isfinite(steps)
    steps = np.where(is_known & (steps > step_seconds), steps, step_seconds)
    ends = np.round(np.cumsum(steps), 3)
    return ends, _remark(steps[is_known], step_seconds)


def end_in_name(name: str) -> str:
    """Return the end of the run as a result's file name tells it, or "": local time, zone unknown."""
    match = _END.search(name)
    return match[1] if match else ""


def _ratio(amount: Floats, rate: Floats) -> Floats:
    found = np.full(rate.shape, np.nan)
    np.divide(amount, rate, out=found, where=(rate > 0) & (amount > 0))
    return found


def _remark(known: Floats, step_seconds: float) -> str:
    if not known.size:
        return (
            f"no time axis in the file: rebuilt at the nominal {step_seconds:g} s a sample; true steps"
            " are longer (0.7 % in results that tell), so late samples lie later than shown"
        )
    drift = float(known.mean()) / step_seconds - 1.0
    if abs(drift) < _SHORTEST_DRIFT:
        return ""
    return (
        f"time axis rebuilt from counts and rates: a step is {known.mean():.3f} s, "
        f"not the nominal {step_seconds:g} s"
    )
