"""Quantiles of counts in buckets, as Prometheus' histogram_quantile estimates them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise


def cumulative(counts: Mapping[float, float]) -> dict[float, float]:
    """Return counts up to each upper end from the counts of each bucket alone."""
    ends = sorted(counts)
    return dict(zip(ends, accumulate(counts[end] for end in ends), strict=True))


def quantiles(up_to: Mapping[float, float], wanted: Iterable[float]) -> list[tuple[float, float]]:
    """Return (quantile, value) from the counts up to each upper end, the last of which is infinite.

    Nothing when nothing was counted, or when the counts cannot be those of one histogram. Inside a bucket the
    counts are taken to be even; a quantile beyond the last finite end gives that end: it is at least that.
    """
    ends = sorted(up_to)
    counts = [up_to[end] for end in ends]
    is_one = all(low <= high for low, high in pairwise([0.0, *counts]))  # False with NaN, too
    if len(ends) < 2 or ends[-1] != math.inf or not is_one or not 0.0 < counts[-1] < math.inf:  # noqa: PLR2004  # a finite end and the infinite one
        return []
    return [(at, _value(ends, counts, at * counts[-1])) for at in wanted]


def _value(ends: list[float], counts: list[float], rank: float) -> float:
    at = next(index for index, count in enumerate(counts) if count >= rank)
    if ends[at] == math.inf:
        return ends[at - 1]
    low_end, low = (ends[at - 1], counts[at - 1]) if at else (min(0.0, ends[0]), 0.0)
    share = (rank - low) / (counts[at] - low) if counts[at] > low else 1.0
    return low_end + (ends[at] - low_end) * share
