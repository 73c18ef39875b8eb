"""Whether the cluster carried the load at all: latency tells only of the messages that came through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from spark.gaps import Gap, runs
from spark.timeline import Timeline

STANDSTILL_SECONDS = 10
"""Without a message: as long as a step takes to be confirmed, and none, as there is no latency."""

MOST_SHORT = 0.01
"""Of what was due in the soak: a p99 says nothing about more than that."""

LEAST_RECEIVED = 0.90
"""Of what was acknowledged in the soak: so much has a reader that ends three minutes 18 s behind."""

Ints = NDArray[np.int64]
_NOTHING: tuple[Ints, NDArray[np.float64]] = (np.empty(0, np.int64), np.empty(0))


def load_doubts(timeline: Timeline) -> Iterator[Gap]:
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
                why = f"acknowledged nothing of what {source} sent"
                yield Gap("cluster", first, last + 1, why)


def _not_carried(timeline: Timeline) -> Iterator[Gap]:
    """Say so where a part of the load was never sent, or given up: those messages have no latency."""
    missed = failed = 0
    at = []
    for source, short in timeline.short.items():
        judged = short[np.isin(short[:, 0], _judged(timeline, source, short[:, 0]))]
        missed, failed = missed + int(judged[:, 1].sum()), failed + int(judged[:, 2].sum())
        at += judged[:1, 0].tolist()
    due = _soak_total(timeline, _producers(timeline), "sent_messages", "missed_messages")
    if missed + failed > MOST_SHORT * due:
        why = (
            f"did not carry the load: of {due:,} messages due in the soak "
            f"{missed:,} were missed and {failed:,} failed"
        )
        yield Gap("cluster", min(at), min(at), why)


def _starved(timeline: Timeline, subscription: int, readers: Iterable[str]) -> Iterator[Gap]:
    """Name where all of a subscription's readers got nothing, while messages were acknowledged."""
    silent = [_judged(timeline, source, timeline.silent[source]) for source in readers]
    acked = [
        np.setdiff1d(timeline.seconds[source], timeline.silent[source])
        for source in _producers(timeline)
    ]
    acked_k = np.unique(np.concatenate([np.empty(0, np.int64), *acked]))
    silent_k: Ints = reduce(np.intersect1d, silent)
    for first, last in runs(silent_k):
        if np.count_nonzero((acked_k >= first) & (acked_k <= last)) >= STANDSTILL_SECONDS:
            why = f"gave subscription {subscription} nothing of what it acknowledged"
            yield Gap("cluster", first, last + 1, why)


def _received_little(timeline: Timeline, subscription: int, readers: list[str]) -> Iterator[Gap]:
    """Say so where a subscription got only a part: the latency of what did come is in order.

    What is lost or expired is told as that; what came in seconds without a record is not known.
    """
    soak = timeline.soak_seconds
    acked = _soak_total(timeline, _producers(timeline), "acked_messages")
    received = _soak_total(timeline, readers, "received_messages")
    counts = timeline.audit_by_subscription[subscription]
    told = (counts["expired"] or 0) + (counts["lost"] or 0)
    recorded = min(np.intersect1d(soak, timeline.seconds[source]).size for source in readers)
    if (received + told) * soak.size < LEAST_RECEIVED * acked * recorded:
        why = f"gave subscription {subscription} {received:,} of {acked:,} messages acknowledged in the soak"
        yield Gap("cluster", int(soak[0]), int(soak[0]), why)


def _judged(timeline: Timeline, source: str, seconds: Ints) -> Ints:
    """Return which of a source's seconds count: those of the soak in which it was not the bottleneck."""
    ours = np.array(list(timeline.untrusted.get(source, {})), dtype=np.int64)
    return np.setdiff1d(np.intersect1d(seconds, timeline.soak_seconds), ours)


def _producers(timeline: Timeline) -> list[str]:
    return [source for source in timeline.seconds if source.startswith("produce.")]


def _readers(timeline: Timeline, subscription: int) -> list[str]:
    """Return the sources that read for a subscription; none unless all of its processes are on record."""
    who = timeline.plan.consumers
    index_of = {
        source: int(source.partition("@")[0].removeprefix("consume."))
        for source in timeline.seconds
        if source.startswith("consume.") and f"{source}|received_messages" in timeline.series
    }
    mine = [source for source, at in index_of.items() if who.subscription_of(at) == subscription]
    return mine if len({index_of[source] for source in mine}) == who.per_subscription else []


def _soak_total(timeline: Timeline, sources: Iterable[str], *metrics: str) -> int:
    """Return the sum of counts over the soak, as far as whole steps of the series lie in it."""
    total = 0.0
    for source in sources:
        for metric in metrics:
            k, counts = timeline.series.get(f"{source}|{metric}", _NOTHING)
            total += counts[timeline.is_soak(k)].sum()
    return round(total)
