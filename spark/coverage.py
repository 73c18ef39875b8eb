"""Which seconds of a run were recorded, which are missing, and which say nothing about the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak.core import wording
from soak.core.units import SECOND_NS
from spark.timeline import Timeline

LEAST_COVERAGE = 0.97
MOST_UNTRUSTED = 0.10
MEASURING = ("produce.", "consume.", "probe@")


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds [from_k, to_k) of one source; an empty span marks a place or a moment."""

    source: str
    from_k: int
    to_k: int
    why: str


@dataclass(frozen=True, slots=True)
class Coverage:
    seconds: int  # of the run, whole
    ratio: float  # recorded over expected, over all measuring sources
    gaps: tuple[Gap, ...]
    untrusted_seconds: int  # of the soak, in any load source
    untrusted_ratio: float

    @property
    def is_enough(self) -> bool:
        return self.ratio >= LEAST_COVERAGE and self.untrusted_ratio <= MOST_UNTRUSTED


def coverage(timeline: Timeline) -> Coverage:
    """Judge a run's records against the seconds that it should have."""
    expected = np.arange(timeline.end_k)
    gaps: list[Gap] = []
    recorded = wanted = 0
    found = [name for name in timeline.seconds if name.startswith(MEASURING)]
    for source in found:
        missing = np.setdiff1d(expected, timeline.seconds[source])
        recorded += expected.size - missing.size
        wanted += expected.size
        gaps += [Gap(source, first, last + 1, "no record") for first, last in runs(missing)]
    for role in MEASURING:
        if expected.size and not any(name.startswith(role) for name in found):
            gaps.append(Gap(role.rstrip("@."), 0, expected.size, "never wrote"))
            wanted += expected.size
    gaps += [Gap(source, 0, 0, f"{place}: {why}") for source, place, why in timeline.damage]
    gaps += [_restart(timeline, line) for line in timeline.restarts]
    begin, end = timeline.soak
    untrusted = {
        k
        for source, reasons in timeline.untrusted.items()
        for k in reasons
        if begin <= k < end and source.startswith(("produce.", "consume."))
    }
    return Coverage(
        seconds=expected.size,
        ratio=recorded / wanted if wanted else 0.0,
        gaps=tuple(gaps),
        untrusted_seconds=len(untrusted),
        untrusted_ratio=len(untrusted) / (end - begin) if end > begin else 0.0,
    )


def runs(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive ones."""
    if numbers.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    first = numbers[np.concatenate([[0], breaks + 1])]
    last = numbers[np.concatenate([breaks, [numbers.size - 1]])]
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]


def gap_json(timeline: Timeline, gap: Gap) -> dict[str, object]:
    return {
        "source": gap.source,
        "from": wording.iso(timeline.wall_ns(gap.from_k)),
        "seconds": gap.to_k - gap.from_k,
        "why": gap.why,
    }


def _restart(timeline: Timeline, line: Mapping[str, Any]) -> Gap:
    k = (int(line["at_ns"]) - timeline.run.start_wall_ns) // SECOND_NS
    return Gap(str(line["daemon"]), k, k, f"died ({line['how']}), started again")
