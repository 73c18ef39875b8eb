"""What brokers do by themselves on their drives: deletions, compaction, moving leaders and copies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from detectors.causes._moves import moves, near, risen
from detectors.nearby import Nearby
from soak.core.model import Change
from soak.core.series import parse_series

DELETIONS = ("retention_deletion", "segment_deletion", "ledger_deletion", "segment_unlinked")
MOVES = ("leader_change", "isr_shrink")
LEADER_COUNTERS = ("vectorized_raft_leadership_changes", "redpanda_raft_leadership_changes")
_COMPACTIONS = (
    "bookie_MAJOR_COMPACTIONS",
    "bookie_MINOR_COMPACTIONS",
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
    "retention_compacted_bytes",
)
_BOOKIE = ("bookie_", "pulsar_", "bookkeeper_")
_LATER = 120  # seconds until a compaction is told: it is counted when it ends
_COPIES = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "vectorized_cluster_partition_under_replicated_replicas",
    "redpanda_kafka_under_replicated_replicas",
)


def is_at_work(change: Change, nearby: Nearby) -> bool:
    """True when such work began at the onset, or when it cannot be told that it did not."""
    if has_begun((*DELETIONS, *MOVES), change, nearby):
        return True
    if copying(change, nearby):
        return True
    return _is_compacting(change, nearby) or not _is_compaction_known(change, nearby)


def has_begun(kinds: Iterable[str], change: Change, nearby: Nearby) -> bool:
    """True when events of one of these kinds came at the onset, and none before it."""
    first, last = near(change)
    return any(
        bool(np.any((ks >= first) & (ks <= last))) and not np.any(ks < first)
        for ks in map(nearby.event_ks, kinds)
    )


def copying(change: Change, nearby: Nearby) -> bool:
    """True when copies fell behind at the onset, so that brokers copy from each other."""
    return any(risen(moves(metric, change, nearby)) for metric in _COPIES)


def are_leaders_known(nearby: Nearby) -> bool:
    """True when somebody would have told of leaders that moved."""
    return any(nearby.named(metric) for metric in (*LEADER_COUNTERS, "broker_log_events"))


def are_deletions_known(nearby: Nearby) -> bool:
    """True when somebody would have told of deletions one by one."""
    metrics = {parse_series(name).metric for name in nearby.series}
    return any(metric.startswith(("retention_", "broker_log_events")) for metric in metrics)


def tells_compactions(nearby: Nearby) -> bool:
    """True when bookies say what they compact."""
    return any(nearby.named(metric) for metric in _COMPACTIONS)


def compactions(change: Change, nearby: Nearby) -> tuple[int, ...]:
    """Return the seconds from the onset on in which a compaction was told, if none was told before it."""
    ks = _compactions_told(nearby)
    if np.any(ks < near(change)[0]):
        return ()
    return tuple(int(k) for k in _since_onset(ks, change))


def _is_compacting(change: Change, nearby: Nearby) -> bool:
    """True when one was told from the onset on, whatever was told before: it may be another one."""
    return _since_onset(_compactions_told(nearby), change).size > 0


def _since_onset(ks: NDArray[np.int64], change: Change) -> NDArray[np.int64]:
    first, last = near(change)
    return ks[(ks >= first) & (ks <= last + _LATER)]


def _compactions_told(nearby: Nearby) -> NDArray[np.int64]:
    """Return the seconds in which bookies told of a compaction, ascending, each once."""
    told = [
        series.k[series.values > 0.0] for m in _COMPACTIONS for series in nearby.named(m).values()
    ]
    told.append(
        np.array(
            [
                e.k
                for e in nearby.events
                if e.event.kind == "space_reclaimed" and e.event.fields.get("by") == "compaction"
            ],
            np.int64,
        )
    )
    return np.unique(np.concatenate(told))


def _is_compaction_known(change: Change, nearby: Nearby) -> bool:
    """True for a cluster without bookies, and once those that say what they compact would have said it."""
    metrics = {parse_series(name).metric for name in nearby.series}
    has_bookies = any(metric.startswith(_BOOKIE) for metric in metrics)
    has_bookies |= bool(
        nearby.event_ks("ledger_created").size or nearby.event_ks("ledger_roll").size
    )
    telling = [name for metric in _COMPACTIONS for name in nearby.named(metric)]
    if not telling:
        return not has_bookies
    lag_seconds = max(_LATER, *(nearby.lag_seconds.get(name, 0.0) for name in telling))
    return nearby.k1 > near(change)[1] + lag_seconds
