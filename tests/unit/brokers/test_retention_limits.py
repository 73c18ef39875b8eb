"""Inputs of the forecast: retention limits of brokers, and the stored size of a message."""

from __future__ import annotations

import pytest

from soak.brokers.kafka import retention
from soak.brokers.pulsar import retention as pulsar_retention
from soak.core.cluster.forecast import NEVER, Limits, Stored
from soak.core.plan.load import Load


def test_the_size_of_a_record_is_that_of_kafka() -> None:
    """1,024 bytes: 2 of its length, 2 of the value's, attributes, deltas, no key, no headers."""
    assert retention.record_bytes(1024) == 1024 + 2 + 2 + 1 + 2 + 1 + 1
    assert retention.record_bytes(50) == 50 + 1 + 1 + 1 + 2 + 1 + 1
    assert retention.record_bytes(1024, 8) == 1024 + 2 + 2 + 1 + 2 + 1 + 8 + 1


@pytest.mark.parametrize(
    ("load", "producer", "expected"),
    [
        ({"rate": "10k/s"}, {"linger.ms": "1"}, 11.0),
        ({"rate": "10k/s", "producers": 2}, {"queue.buffering.max.ms": "1"}, 6.0),
        ({"rate": "10k/s", "keys": {"kind": "random"}}, {"linger.ms": "1"}, 3.5),
        ({"rate": "1M/s"}, {"linger.ms": "5", "batch.size": "131072"}, 128.0),
        ({"rate": "1k/s"}, {"linger.ms": "0"}, 1.0),
        ({"rate": "1k/s"}, {"linger.ms": "500"}, 11.0),
    ],
)
def test_a_batch_holds_the_messages_of_the_linger_time(
    load: dict[str, object], producer: dict[str, str], expected: float
) -> None:
    """With keys a partition gets its share; without, the producer stays with one for 10 ms."""
    assert retention.messages_per_batch(Load(**load), 4, producer) == pytest.approx(expected)  # type: ignore[arg-type]  # as a plan has it


def test_compression_removes_the_compressible_part() -> None:
    """Half of each message is one repeated byte; the topic may override the producer."""
    load = Load(rate=1000, compressible=0.5, message_size=1000)  # type: ignore[arg-type]  # as a plan has it
    plain = retention.stored_in_batches(load, 1, {"linger.ms": "0"})

    for producer, topic in (("zstd", ""), ("none", "lz4"), ("zstd", "uncompressed")):
        settings = {"linger.ms": "0", "compression.type": producer}
        found = retention.stored_in_batches(load, 1, settings, topic)
        saved = 0 if topic == "uncompressed" else 500
        assert plain.message_bytes - found.message_bytes == saved


@pytest.mark.parametrize(
    ("topic", "brokers", "expected"),
    [
        ({}, {}, ""),
        ({"compression.type": "producer"}, {}, ""),
        ({"compression.type": "zstd"}, {"compression.type": "lz4"}, "zstd"),
        ({}, {"compression.type": "lz4"}, "lz4"),
    ],
)
def test_the_cluster_compresses_unless_it_leaves_it_to_the_producer(
    topic: dict[str, str], brokers: dict[str, str], expected: str
) -> None:
    assert retention.retention_of(topic, brokers).compression == expected


def test_the_size_of_an_entry_is_that_of_pulsar() -> None:
    """As measured: 4,132 bytes of a message of 4,096."""
    single = pulsar_retention.stored_in_entries(Load(rate=100, message_size=4096), 1, {})  # type: ignore[arg-type]  # as a plan has it
    batch = {"batching_enabled": "true", "batching_max_publish_delay_ms": "1"}
    many = pulsar_retention.stored_in_entries(Load(rate=9000, message_size=1024), 1, batch)  # type: ignore[arg-type]  # as a plan has it

    assert single == Stored(4132.0, 1.0)
    assert many == Stored(1024 + 3.6 + 10, 10.0)


def test_kafkas_settings_come_from_the_topic_then_from_the_brokers_then_from_kafka() -> None:
    """Each in its own unit."""
    brokers = {"log.retention.hours": "2", "log.segment.bytes": "1000", "log.roll.ms": "5000"}

    found = retention.retention_of({"segment.bytes": "500", "retention.bytes": "-1"}, brokers)

    assert found == Limits(
        segment_bytes=500,
        segment_seconds=5,
        keep_seconds=7200,
        check_seconds=300,
        free_seconds=60,
        max_message_bytes=1_048_588,
    )


@pytest.mark.parametrize(
    ("topic", "brokers", "policy"),
    [
        ({"cleanup.policy": "compact"}, {}, "compact"),
        ({"cleanup.policy": ""}, {}, "empty"),  # since Kafka 4.2
        ({"cleanup.policy": " "}, {"log.cleanup.policy": "delete"}, "empty"),
        ({}, {"log.cleanup.policy": "compact"}, "compact"),
        ({}, {"log.cleanup.policy": ""}, "empty"),
    ],
)
def test_a_topic_that_is_not_cleaned_by_deletion_keeps_everything(
    topic: dict[str, str], brokers: dict[str, str], policy: str
) -> None:
    """An empty policy is set, and is not the default."""
    found = retention.retention_of(
        {"retention.ms": "5", "retention.bytes": "2097152", **topic}, {"x": "y", **brokers}
    )

    assert (found.keep_bytes, found.keep_seconds) == (NEVER, NEVER)
    assert [note.partition(":")[0] for note in found.notes] == [f"cleanup.policy is {policy}"]


@pytest.mark.parametrize(
    ("topic", "brokers"),
    [
        ({"cleanup.policy": "compact,delete"}, {}),
        ({"cleanup.policy": "delete"}, {"log.cleanup.policy": ""}),
        ({}, {"log.cleanup.policy": "delete"}),
        ({}, {}),
    ],
)
def test_a_topic_that_is_cleaned_by_deletion_has_its_limits(
    topic: dict[str, str], brokers: dict[str, str]
) -> None:
    """Its own policy comes before that of the brokers."""
    found = retention.retention_of({"retention.ms": "5000", **topic}, brokers)

    assert found.keep_seconds == 5.0


@pytest.mark.parametrize(
    ("topic", "brokers", "expected"),
    [
        (
            {"remote.storage.enable": "true", "local.retention.ms": "6000"},
            {"log.local.retention.bytes": "100"},
            (100, 6),
        ),
        ({"remote.storage.enable": "true", "local.retention.bytes": "-2"}, {}, (NEVER, NEVER)),
        ({"remote.storage.enable": "false", "local.retention.ms": "6000"}, {}, (NEVER, NEVER)),
        (
            {},
            {
                "cloud_storage_enable_remote_write": "true",
                "retention_local_target_ms_default": "6000",
            },
            (NEVER, 6),
        ),
        (
            {"redpanda.remote.write": "false"},
            {
                "cloud_storage_enable_remote_write": "true",
                "retention_local_target_ms_default": "6000",
            },
            (NEVER, NEVER),
        ),
    ],
)
def test_local_limits_of_tiered_storage_are_those_of_the_topic_or_else_of_its_brokers(
    topic: dict[str, str], brokers: dict[str, str], expected: tuple[float, float]
) -> None:
    """-2 is the limit of the whole topic."""
    found = retention.retention_of(topic, brokers)

    assert (found.local_bytes, found.local_seconds) == expected


@pytest.mark.parametrize(
    ("policy", "keep"),
    [
        ({}, (0, 0)),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": 2}, (2 * 2**20, NEVER)),
        ({"retentionTimeInMinutes": "3"}, (NEVER, 180)),
    ],
)
def test_pulsars_policies_are_in_minutes_and_mebibytes(
    policy: dict[str, object], keep: tuple[float, float]
) -> None:
    """-1 is unlimited; without a policy messages are deleted once they are read."""
    broker = {"managedLedgerMaxEntriesPerLedger": "200", "retentionCheckIntervalInSeconds": "1"}

    found = pulsar_retention.retention_of(policy, broker)

    assert (found.keep_bytes, found.keep_seconds) == keep
    assert (found.segment_entries, found.check_seconds, found.free_seconds) == (200, 1, None)


@pytest.mark.parametrize("minutes", ["0", "-1"])
def test_a_rollover_time_of_0_is_unlimited(minutes: str) -> None:
    """Pulsar then closes no ledger for its age."""
    broker = {"managedLedgerMaxLedgerRolloverTimeMinutes": minutes}

    assert pulsar_retention.retention_of({}, broker).segment_seconds == NEVER
