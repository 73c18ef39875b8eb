"""Coverage of a run: which seconds were recorded, which are missing, which say nothing about the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.plan.load import process_index
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from soak.store.audit import is_order_guaranteed
from soak.store.run_folder import RunFolder
from spark.batch.digest import distinct
from spark.batch.timeline import Timeline
from spark.sources.offsets import newest
from spark.streaming.checkpoint import committed

# --- A span of seconds of a run that must be reported: nothing was recorded, or nothing came.


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds [from_k, to_k) of one source; an empty span marks a place or a moment."""

    source: str
    from_k: int
    to_k: int
    why: str


def runs(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of consecutive ones."""
    if numbers.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    first = numbers[np.concatenate([[0], breaks + 1])]
    last = numbers[np.concatenate([breaks, [numbers.size - 1]])]
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]


def merged_spans(spans: Sequence[tuple[float, float]], least: float) -> list[tuple[int, int]]:
    """Return spans of whole numbers, sorted by their begin; those nearer to each other than `least` join."""
    if not spans:
        return []
    from_k, to_k = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    to_k = np.maximum.accumulate(to_k)  # one may lie in another
    apart = np.flatnonzero(from_k[1:] - to_k[:-1] >= least)
    begins, ends = from_k[np.append(0, apart + 1)], to_k[np.append(apart, to_k.size - 1)]
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


# --- Whether messages came once and in order, where the client's settings promise that.


def order_blockers(timeline: Timeline) -> Iterator[Gap]:
    """Name what an idempotent producer rules out; without one, a message sent again may come twice."""
    doubled, late = timeline.audit["duplicated"] or 0, timeline.audit["reordered"] or 0
    if (doubled or late) and is_order_guaranteed(timeline.plan):
        why = f"duplicated {doubled:,} and reordered {late:,} messages of idempotent producers"
        yield Gap("cluster", 0, 0, why)


# --- Whether the cluster carried the load at all: latency is known of the messages that came through only.

STANDSTILL_SECONDS = 10
"""Without a message: as long as a step takes to be confirmed, and none, as there is no latency."""

MOST_SHORT = 0.01
"""Of what was due in the soak: a p99 says nothing about more than that."""

LEAST_RECEIVED = 0.90
"""Of what was acknowledged in the soak: so much has a reader that ends three minutes 18 s behind."""

Ints = NDArray[np.int64]
_NOTHING: tuple[Ints, NDArray[np.float64]] = (np.empty(0, np.int64), np.empty(0))


def load_blockers(timeline: Timeline) -> Iterator[Gap]:
    """Name what did not come through in the soak; seconds in which we ourselves were late do not count."""
    yield from _standstills(timeline)
    yield from _not_carried(timeline)
    for subscription in range(timeline.plan.consumers.subscriptions):
        readers = _readers(timeline, subscription)
        if readers:
            starved = list(_starved(timeline, subscription, readers))
            yield from starved or _received_little(timeline, subscription, readers)


def _standstills(timeline: Timeline) -> Iterator[Gap]:
    """Name where a producer had messages to send and nothing came back."""
    for source, standing in timeline.standing.items():
        for first, last in runs(_judged(timeline, source, standing)):
            if last + 1 - first >= STANDSTILL_SECONDS:
                why = f"acknowledged no message of {source}"
                yield Gap("cluster", first, last + 1, why)


def _not_carried(timeline: Timeline) -> Iterator[Gap]:
    """Say so where a part of the load was never sent, or given up: those messages have no latency."""
    missed = failed = 0
    at = []
    for source, short in timeline.short.items():
        within = short[np.isin(short[:, 0], timeline.soak_seconds)]
        is_ours = ~np.isin(within[:, 0], _judged(timeline, source, distinct(within[:, 0])))
        # what failed was with the cluster, whatever the client's schedule was like in that second
        counts = np.where(is_ours, 0, within[:, 1]), within[:, 2]
        missed, failed = missed + int(counts[0].sum()), failed + int(counts[1].sum())
        at += within[counts[0] + counts[1] > 0][:1, 0].tolist()
    due = _soak_total(timeline, _producers(timeline), "sent_messages", "missed_messages")
    if missed + failed > MOST_SHORT * due:
        why = (
            f"did not carry the load: of {due:,} messages due in the soak "
            f"{missed:,} were skipped and {failed:,} failed"
        )
        yield Gap("cluster", min(at), min(at), why)


def _starved(timeline: Timeline, subscription: int, readers: Iterable[str]) -> Iterator[Gap]:
    """Name where all of a subscription's readers got nothing, while messages were acknowledged."""
    silent = [_judged(timeline, source, timeline.silent[source]) for source in readers]
    acked = [
        np.setdiff1d(timeline.seconds[source], timeline.silent[source], assume_unique=True)
        for source in _producers(timeline)
    ]
    acked_k = distinct(np.concatenate([np.empty(0, np.int64), *acked]))
    silent_k: Ints = reduce(_in_both, silent)
    for first, last in runs(silent_k):
        if np.count_nonzero((acked_k >= first) & (acked_k <= last)) >= STANDSTILL_SECONDS:
            why = f"delivered to subscription {subscription} none of the messages that it acknowledged"
            yield Gap("cluster", first, last + 1, why)


def _received_little(timeline: Timeline, subscription: int, readers: list[str]) -> Iterator[Gap]:
    """Say so where a subscription got only a part: the latency of what did come is in order.

    Lost and expired messages are reported as such; what was received in seconds without a record is unknown.
    """
    soak = timeline.soak_seconds
    acked = _soak_total(timeline, _producers(timeline), "acked_messages")
    received = _soak_total(timeline, readers, "received_messages")
    counts = timeline.audit_by_subscription[subscription]
    missing = (counts["expired"] or 0) + (counts["lost"] or 0)
    recorded = min(_in_both(soak, timeline.seconds[source]).size for source in readers)
    if (received + missing) * soak.size < LEAST_RECEIVED * acked * recorded:
        why = (
            f"delivered to subscription {subscription} {received:,} of {acked:,} messages "
            "acknowledged in the soak"
        )
        yield Gap("cluster", int(soak[0]), int(soak[0]), why)


def _judged(timeline: Timeline, source: str, seconds: Ints) -> Ints:
    """Return which of a source's seconds, each there once, count: those of the soak without its own fault."""
    ours = np.array(list(timeline.invalid.get(source, {})), dtype=np.int64)
    return np.setdiff1d(_in_both(seconds, timeline.soak_seconds), ours, assume_unique=True)


def _in_both(one: Ints, other: Ints) -> Ints:
    """Return the seconds that both have, of which each is there once."""
    return np.intersect1d(one, other, assume_unique=True)


def _producers(timeline: Timeline) -> list[str]:
    return [source for source in timeline.seconds if source.startswith("produce.")]


def _readers(timeline: Timeline, subscription: int) -> list[str]:
    """Return the sources that read for a subscription; none unless all of its processes are on record."""
    who = timeline.plan.consumers
    index_of = {
        source: process_index(source)
        for source in timeline.seconds
        if source.startswith("consume.")
        and series_name(source, "received_messages") in timeline.series
    }
    mine = [source for source, at in index_of.items() if who.subscription_of(at) == subscription]
    return mine if len({index_of[source] for source in mine}) == who.per_subscription else []


def _soak_total(timeline: Timeline, sources: Iterable[str], *metrics: str) -> int:
    """Return the sum of counts over the soak, as far as whole steps of the series lie in it."""
    total = 0.0
    for source in sources:
        for metric in metrics:
            k, counts = timeline.series.get(series_name(source, metric), _NOTHING)
            total += counts[timeline.is_soak(k)].sum()
    return round(total)


# --- Which seconds of a run were recorded, which are missing, and which say nothing about the cluster.

LEAST_COVERAGE = 0.97
MOST_UNTRUSTED = 0.10
MEASURING = ("produce.", "consume.", "probe@")
LOADING = ("produce.", "consume.")
LATE_SECONDS = 5
"""Sources may stop so long before the decided end: they are stopped one after the other."""


@dataclass(frozen=True, slots=True)
class Coverage:
    seconds: int  # of the run, whole
    ratio: float  # recorded over expected, over all measuring sources
    gaps: tuple[Gap, ...]
    invalid_seconds: int  # of the soak, in any load source
    invalid_ratio: float
    blockers: tuple[Gap, ...]  # gaps that each alone forbid to call a run clean

    @property
    def is_enough(self) -> bool:
        is_there = self.ratio >= LEAST_COVERAGE and self.invalid_ratio <= MOST_UNTRUSTED
        return is_there and not self.blockers


def coverage(timeline: Timeline, unread: Sequence[Gap] = ()) -> Coverage:
    """Judge a run's records against the seconds that it should have.

    `unread` names what else belongs to the run and could not be read.
    """
    due_k = timeline.due_k
    if 0 <= due_k - timeline.recorded_k <= LATE_SECONDS:
        due_k = timeline.end_k
    expected = np.arange(due_k)
    blockers = (*unread, *_blockers(timeline), *load_blockers(timeline), *order_blockers(timeline))
    gaps: list[Gap] = list(blockers)
    recorded = wanted = 0
    found = [name for name in timeline.seconds if name.startswith(MEASURING)]
    for source in found:
        missing = np.setdiff1d(expected, timeline.seconds[source], assume_unique=True)
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
        gaps.append(Gap(daemon, k, k, f"died ({how}) and was restarted"))
    soak = set(timeline.soak_seconds.tolist())
    invalid = {
        k
        for source, reasons in timeline.invalid.items()
        for k in reasons
        if k in soak and source.startswith(LOADING)
    }
    return Coverage(
        seconds=expected.size,
        ratio=recorded / wanted if wanted else 0.0,
        gaps=tuple(gaps),
        invalid_seconds=len(invalid),
        invalid_ratio=len(invalid) / len(soak) if soak else 0.0,
        blockers=blockers,
    )


def judged_seconds(timeline: Timeline) -> int:
    """Return how many seconds of the soak can be judged, in the load source that has fewest."""
    counted = []
    for role in LOADING:
        found = [
            _judged(timeline, source, seconds).size
            for source, seconds in timeline.seconds.items()
            if source.startswith(role)
        ]
        counted.append(min(found, default=0))
    return min(counted)


def _blockers(timeline: Timeline) -> Iterator[Gap]:
    k = timeline.recorded_k
    if timeline.phases.end_k is None and not timeline.is_running:
        yield Gap("run", k, k, "was killed: it has no recorded end")
    if timeline.phases.end_k is not None and timeline.phases.end_k - k > LATE_SECONDS:
        yield Gap("run", k, k, "all sources stopped before its end")
    wanted = timeline.plan.least_soak // SECOND_NS
    there = judged_seconds(timeline)
    if there < wanted:
        why = f"{there} s of soak could be judged, at least {wanted} s are needed"
        yield Gap("run", k, k, why)
    if not _has_detected(timeline):
        yield Gap("detector", 0, 0, "never wrote")
    elif not timeline.is_running and _is_behind(timeline.folder):
        yield Gap("detector", k, k, "ended before it had read all records")


def _has_detected(timeline: Timeline) -> bool:
    """Say whether the detector ever got to its findings; in a cluster those of a quiet run leave no trace."""
    if timeline.plan.store is None:
        return timeline.folder.findings.exists()
    return committed(timeline.folder.checkpoint) is not None


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
