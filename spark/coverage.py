"""Which seconds of a run were recorded, which are missing, and which say nothing about the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from soak.core import wording
from soak.core.plan import STREAM_DETECTOR
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder
from spark._offsets import newest
from spark.checkpoint import committed
from spark.gaps import Gap, runs
from spark.load_doubts import load_doubts
from spark.order_doubts import order_doubts
from spark.timeline import Timeline

LEAST_COVERAGE = 0.97
MOST_UNTRUSTED = 0.10
MEASURING = ("produce.", "consume.", "probe@")
LOADING = ("produce.", "consume.")
LATE_SECONDS = 5
"""Sources may stop so long before the decided end: they are told to one after the other."""


@dataclass(frozen=True, slots=True)
class Coverage:
    seconds: int  # of the run, whole
    ratio: float  # recorded over expected, over all measuring sources
    gaps: tuple[Gap, ...]
    untrusted_seconds: int  # of the soak, in any load source
    untrusted_ratio: float
    doubts: tuple[Gap, ...]  # those of the gaps of which each alone forbids to call a run clean

    @property
    def is_enough(self) -> bool:
        is_there = self.ratio >= LEAST_COVERAGE and self.untrusted_ratio <= MOST_UNTRUSTED
        return is_there and not self.doubts


def coverage(timeline: Timeline, unread: Sequence[Gap] = ()) -> Coverage:
    """Judge a run's records against the seconds that it should have.

    `unread` names what else belongs to the run and could not be read.
    """
    due_k = timeline.due_k
    if 0 <= due_k - timeline.recorded_k <= LATE_SECONDS:
        due_k = timeline.end_k
    expected = np.arange(due_k)
    doubts = (*unread, *_doubts(timeline), *load_doubts(timeline), *order_doubts(timeline))
    gaps: list[Gap] = list(doubts)
    recorded = wanted = 0
    found = [name for name in timeline.seconds if name.startswith(MEASURING)]
    for source in found:
        missing = np.setdiff1d(expected, timeline.seconds[source])
        recorded += expected.size - missing.size
        wanted += expected.size
        gaps += [Gap(source, first, last + 1, "no record") for first, last in runs(missing)]
    for daemon in timeline.plan.measuring:
        if expected.size and not any(name.startswith(f"{daemon}@") for name in found):
            gaps.append(Gap(daemon, 0, expected.size, "never wrote"))
            wanted += expected.size
    gaps += [Gap(source, k, k, f"{place}: {why}") for source, k, place, why in timeline.damage]
    for daemon, how, at_ns in timeline.restarts:
        k = (at_ns - timeline.run.start_wall_ns) // SECOND_NS
        gaps.append(Gap(daemon, k, k, f"died ({how}), started again"))
    soak = set(timeline.soak_seconds.tolist())
    untrusted = {
        k
        for source, reasons in timeline.untrusted.items()
        for k in reasons
        if k in soak and source.startswith(LOADING)
    }
    return Coverage(
        seconds=expected.size,
        ratio=recorded / wanted if wanted else 0.0,
        gaps=tuple(gaps),
        untrusted_seconds=len(untrusted),
        untrusted_ratio=len(untrusted) / len(soak) if soak else 0.0,
        doubts=doubts,
    )


def judged_seconds(timeline: Timeline) -> int:
    """Return how many seconds of the soak can be judged, in the load source that has fewest."""
    soak = timeline.soak_seconds
    counted = []
    for role in LOADING:
        found = [
            np.setdiff1d(
                np.intersect1d(seconds, soak),
                np.array(list(timeline.untrusted.get(source, {})), dtype=np.int64),
            ).size
            for source, seconds in timeline.seconds.items()
            if source.startswith(role)
        ]
        counted.append(min(found, default=0))
    return min(counted)


def _doubts(timeline: Timeline) -> Iterator[Gap]:
    k = timeline.recorded_k
    if timeline.phases.end_k is None and not timeline.is_running:
        yield Gap("run", k, k, "was killed: its end was never decided")
    if timeline.phases.end_k is not None and timeline.phases.end_k - k > LATE_SECONDS:
        yield Gap("run", k, k, "all sources stopped before its end")
    detector = timeline.plan.detection.detectors[STREAM_DETECTOR]
    wanted = (detector.baseline + detector.confirm) // SECOND_NS
    there = judged_seconds(timeline)
    if there < wanted:
        why = f"{there} s of soak could be judged, at least {wanted} s are needed"
        yield Gap("run", k, k, why)
    if not timeline.folder.findings.exists():
        yield Gap("detector", 0, 0, "never wrote")
    elif not timeline.is_running and _is_behind(timeline.folder):
        yield Gap("detector", k, k, "ended before it had read all records")


def _is_behind(folder: RunFolder) -> bool:
    """Say whether the detector left records of its sources unread; those collected after it do not count."""
    if not folder.checkpoint.is_dir():
        return False
    done = committed(folder.checkpoint)
    if done is None:
        return True
    there = newest(folder.journal, done, None)
    return any(there[source] > place for source, place in done.items() if source in there)


def gap_json(timeline: Timeline, gap: Gap) -> dict[str, object]:
    return {
        "source": gap.source,
        "from": wording.iso(timeline.wall_ns(gap.from_k)),
        "seconds": gap.to_k - gap.from_k,
        "why": gap.why,
    }
