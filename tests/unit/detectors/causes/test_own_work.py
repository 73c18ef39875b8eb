"""What a drive has to do for its broker alone: compactions, deletions and new partitions are no neighbour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.attribution import attribute
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Series
from tests.support.detection.cause_panels import END, ONSET, STEP, K, around, channel, told

VDA = '{device="vda"}'
KEPT = 'probe@h|kafka_log_log_size_bytes{target="b1:7071"}'
GROWING = np.asarray(1e11 + 9e6 * K, np.float64)
FREED = np.where(K < ONSET, 0.0, 5e9)


def busy(*, read: float = 1e5, written: float = 9e7) -> list[Series]:
    """Return a drive with more to do, while clients write as before and brokers give out as before."""
    return [
        channel(f"probe@b1|disk_write_await_seconds{VDA}", 1e-3, 8e-3),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", 0.1, 0.9),
        channel(f"probe@b1|node_disk_written_bytes{VDA}", 9e6, written),
        channel(f"probe@b1|node_disk_read_bytes{VDA}", 1e5, read),
        channel("probe@b1|cluster_other_messages", 20.0, 20.0),
        channel("produce.0@h|sent_messages", 200.0, 200.0),
        channel('probe@h|kafka_server_brokertopicmetrics_bytesout{target="b1:7071"}', 9e6, 9e6),
    ]


def causes(found: Nearby) -> list[str]:
    return [one.cause for one in attribute(STEP, found)]


@pytest.mark.parametrize(
    ("kept", "cause"),
    [
        (GROWING, "noisy_neighbour"),
        (1e11 + 9e6 * (K % 30), "noisy_neighbour"),
        (GROWING - np.where(K < ONSET + 10, 0.0, 5e9), "unknown"),
        (GROWING - np.where(K < ONSET - 60, 0.0, 5e9), "unknown"),
        (GROWING - np.where(K < ONSET - 70, 0.0, 5e9), "noisy_neighbour"),
    ],
    ids=["grows", "deletes as ever", "is compacted", "deleted a minute before", "long before"],
)
def test_a_drive_whose_broker_keeps_less_around_the_onset_has_no_neighbour(
    kept: NDArray[np.float64], cause: str
) -> None:
    """Kafka's cleaner replaces segments as it goes on; it unlinks files a minute after it deleted them."""
    assert causes(around(*busy(), Series(KEPT, K, kept))) == [cause]


@pytest.mark.parametrize(
    ("host", "space", "cause"),
    [
        ("b1", 1e12 - 9e6 * K + FREED, "unknown"),
        ("b1", 1e12 - 9e6 * K, "noisy_neighbour"),
        ("b9", 1e12 - 9e6 * K + FREED, "noisy_neighbour"),
    ],
    ids=["more", "less and less", "of another host"],
)
def test_a_drive_whose_filesystem_has_more_space_from_the_onset_on_has_no_neighbour(
    host: str, space: NDArray[np.float64], cause: str
) -> None:
    """Old segments of a large topic are unlinked; neither a log nor a page says so."""
    name = f'probe@h|node_filesystem_avail_bytes{{mountpoint="/data",target="{host}:9100"}}'

    assert causes(around(*busy(), Series(name, K, space))) == [cause]


def test_reads_that_may_be_a_compaction_s_have_no_neighbour_until_it_would_show() -> None:
    """The cleaner reads all that is new before it replaces a segment: that shows within a minute.

    Where no page says what brokers keep there is nothing to wait for.
    """
    read = busy(read=5e7, written=9e6)
    seen = around(*read, Series(KEPT, K, GROWING))

    assert causes(replace(seen, k1=ONSET + 40)) == ["unknown"]
    assert causes(replace(around(*read), k1=ONSET + 40)) == ["noisy_neighbour"]
    assert causes(seen) == ["noisy_neighbour"]


def elected(*ks: int, partitions: int) -> tuple[TimedEvent, ...]:
    """Return the first elections of new partitions of another topic, so many in each of these seconds."""
    return tuple(
        one
        for k in ks
        for at in range(partitions)
        for one in told("leader_change", k, topic="many", partition=1_000 * k + at, epoch=0)
    )


def test_new_partitions_are_no_neighbour_though_one_was_elected_before() -> None:
    """500 are elected in five seconds, and no page counts them."""
    events = (*elected(10, partitions=1), *elected(*range(ONSET, ONSET + 5), partitions=100))
    seen = replace(around(*busy(), events=events), topics=frozenset({"soak-t"}))

    assert causes(seen) == ["metadata_storm"]


def test_deletions_of_others_are_no_neighbour_though_this_run_deletes_all_along() -> None:
    """One in ten seconds is this run's, and is no reason by itself."""
    own = [
        one
        for kind in ("retention_deletion", "segment_unlink")
        for one in told(kind, *range(5, END, 10), topic="soak-t")
    ]
    others = told("segment_unlink", ONSET, ONSET + 1, topic="bulk")
    usual, more = (
        replace(
            around(*busy(), events=tuple(sorted(events, key=lambda one: one.k))),
            topics=frozenset({"soak-t"}),
        )
        for events in (own, [*own, *others])
    )

    assert causes(usual) == ["noisy_neighbour"]
    assert causes(more) == ["unknown"]
