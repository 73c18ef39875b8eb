"""Partitions that are added by the thousand, whose page counts them, and topics that only move."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.attribution import attribute
from soak.core.model import Series
from tests.support.detection.cause_panels import ONSET, STEP, K, around, channel

SHORT = [
    channel("probe@b1|host_cpu_ratio", 0.3, 0.97),
    channel("probe@b1|node_pressure_cpu_waiting_seconds", 0.02, 0.6),
    channel('probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}', 2e-3, 2e-3),
]


def counted(metric: str, target: str, before: float, after: float) -> Series:
    name = f'probe@h|{metric}{{target="{target}"}}'
    return Series(name, K, np.where(K < ONSET, before, after))


def causes(*series: Series) -> list[str]:
    return [one.cause for one in attribute(STEP, around(*series))]


@pytest.mark.parametrize(
    ("added", "named"),
    [(2_000, ["metadata_storm", "broker_cpu"]), (100, ["broker_cpu"])],
)
def test_thousands_of_new_partitions_are_a_storm_also_beside_twenty_thousand(
    added: int, named: list[str]
) -> None:
    """A tenth more, of which the CPU runs short; a hundred are nothing to such a cluster."""
    metric = "kafka_server_replicamanager_partitioncount"

    assert causes(*SHORT, counted(metric, "b1:7071", 2e4, 2e4 + added)) == named


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        ("kafka_controller_kafkacontroller_globalpartitioncount", "metadata_storm"),
        ("kafka_server_replicamanager_partitioncount", "unknown"),
    ],
)
def test_partitions_of_the_cluster_count_though_the_broker_that_counts_them_is_not_slow(
    metric: str, named: str
) -> None:
    """Latency of b1 alone stepped; the controller is b2. What b2 has itself says nothing of b1."""
    latencies = [
        channel(
            f'produce.0@h|publish_latency_seconds{{leader="{at}:9092",quantile="0.99"}}', 4e-3, one
        )
        for at, one in (("b1", 0.06), ("b2", 4e-3))
    ]

    assert causes(*latencies, counted(metric, "b2:7071", 400.0, 2_400.0)) == [named]


@pytest.mark.parametrize(
    ("left", "named"), [(100.0, "unknown"), (160.0, "metadata_storm")], ids=["move", "are added"]
)
def test_topics_that_move_between_pulsar_s_brokers_are_not_added(left: float, named: str) -> None:
    """Bundles with 60 topics come to b1, from b2 or anew."""
    metric = "pulsar_topics_count"
    owned = counted(metric, "b1:8080", 100.0, 160.0), counted(metric, "b2:8080", 160.0, left)

    assert causes(*owned) == [named]


def test_topics_of_a_broker_whose_page_ends_are_not_added_to_the_others() -> None:
    kept = counted("pulsar_topics_count", "b1:8080", 100.0, 160.0)
    ended = counted("pulsar_topics_count", "b2:8080", 60.0, 60.0)
    ended = Series(ended.name, ended.k[:ONSET], ended.values[:ONSET])

    assert "metadata_storm" not in causes(kept, ended)
