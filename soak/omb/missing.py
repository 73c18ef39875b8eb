"""Takes zeros that mean that nothing was measured as missing, and tells what is odd about the values.

HdrHistogram gives 0 for mean, percentiles and maximum of an empty sample: an outage looks perfect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from soak.omb import fields
from soak.omb.fields import END_TO_END, PUBLISH, Family
from soak.omb.result import Floats

_AT_CAP = 0.9999  # a recorder of 5 digits gives a capped value back a little changed
_ALWAYS = (PUBLISH, END_TO_END)  # every dialect has them, and neither ever takes no time


def forget_empty(samples: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the samples with NaN for latencies of 0 where the rate is 0, or the maximum is."""
    found = dict(samples)
    for family in fields.FAMILIES:
        rate = samples[fields.COUNTS[family.side]]
        maximum = samples.get(fields.statistic_name(family, "max"), np.ones_like(rate))
        for name in _names(samples, family):
            is_zero = samples[name] == 0.0
            found[name] = np.where(
                is_zero & ((rate == 0.0) | (maximum == 0.0)), np.nan, samples[name]
            )
    return found


def remarks(samples: Mapping[str, Floats], caps_seconds: Mapping[Family, float]) -> list[str]:
    """Return one sentence each for what is missing, cannot be so, or reaches a recorder's cap."""
    found = []
    for family in fields.FAMILIES:
        names = _names(samples, family)
        missing = [int(np.count_nonzero(np.isnan(samples[name]))) for name in names]
        if any(missing):
            found.append(
                f"{family.name}: {max(missing)} of {samples[names[0]].size} samples missing"
            )
    for family in _ALWAYS:
        names = _names(samples, family)
        if not names:
            found.append(f"{family.name}: no values in the file")
        impossible = _samples_with(samples[name] <= 0.0 for name in names)
        if impossible:
            found.append(
                f"{family.name}: {impossible} samples hold values of 0 or below: kept as told, "
                "no step is looked for in those values"
            )
    for family, cap in caps_seconds.items():
        capped = _samples_with(samples[name] >= cap * _AT_CAP for name in _names(samples, family))
        if capped:
            found.append(
                f"{family.name}: {capped} samples reach the recorder's cap of {cap:g} s; "
                "the true values may be greater"
            )
    negative = int(np.count_nonzero(samples.get("backlog_messages", np.zeros(0)) < 0))
    if negative:
        found.append(f"backlog_messages: {negative} samples are negative, kept as told")
    return found


def _samples_with(marks: Iterable[NDArray[np.bool_]]) -> int:
    """Return how many samples are marked by any statistic."""
    return int(np.count_nonzero(np.any(list(marks), axis=0)))


def _names(samples: Mapping[str, Floats], family: Family) -> list[str]:
    return [name for name in samples if name.startswith(f"{family.name}_")]
