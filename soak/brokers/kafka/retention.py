"""What a Kafka topic retains, and how many bytes a message takes in its log."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs

from soak.brokers.kafka import durability
from soak.brokers.kafka.durability import KafkaProtocolConfig
from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, error_text
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import NEVER, Limits, Stored
from soak.core.errors import BrokerError
from soak.core.plan.config import Settings
from soak.core.plan.load import Load
from soak.core.plan.plan import Plan, Topic
from soak.core.units import SECOND_NS

HEADER_BYTES = 61  # of a batch
STICKY_SECONDS = 0.01  # without keys a producer stays with a partition for so long
_KEY_BYTES = 8  # `key-` and a number
_OTHER_FIELDS = 4  # attributes, two deltas, number of headers
_PRODUCER_DEFAULTS = {"linger.ms": "5", "batch.size": "1000000", "batch.num.messages": "10000"}
_ALIASES = {
    "linger.ms": "queue.buffering.max.ms",
    "compression.type": "compression.codec",
}
_UNCOMPRESSED = ("", "none", "uncompressed")


def stored_in_batches(
    load: Load, partitions: int, producer: Mapping[str, str], compression: str = ""
) -> Stored:
    """Return what messages of a load take; `compression` is by the cluster, "" where the producer's stays."""
    size = load.mean_size
    together = messages_per_batch(load, partitions, producer)
    body = record_bytes(round(size), 0 if load.keys.kind == "none" else _KEY_BYTES)
    whole = body + HEADER_BYTES / together
    if (compression or _producer_setting(producer, "compression.type")) not in _UNCOMPRESSED:
        whole -= load.compressible * size
    return Stored(whole, together)


def messages_per_batch(load: Load, partitions: int, producer: Mapping[str, str]) -> float:
    """Return how many messages share a batch, at least 1."""
    rate = float(load.rate) / (load.producers * load.clients_per_producer)
    if load.keys.kind != "none":
        rate /= partitions
    linger = float(_producer_setting(producer, "linger.ms")) * 1e-3
    if load.keys.kind == "none":
        linger = min(linger, STICKY_SECONDS)
    most = min(
        float(_producer_setting(producer, "batch.num.messages")),
        float(_producer_setting(producer, "batch.size")) / load.mean_size,
    )
    return max(1.0, min(1.0 + rate * linger, most))


def record_bytes(value_bytes: int, key_bytes: int = 0) -> int:
    """Return what one record takes in a batch without its share of the header."""
    key = _varint_bytes(key_bytes) + key_bytes if key_bytes else 1
    body = _OTHER_FIELDS + key + _varint_bytes(value_bytes) + value_bytes
    return _varint_bytes(body) + body


def _varint_bytes(value: int) -> int:
    """Return the length of a whole number in zigzag coding, seven bits a byte."""
    return max(1, -(-(2 * value).bit_length() // 7))


def _producer_setting(producer: Mapping[str, str], name: str) -> str:
    """Return a setting under either of its names, or the client's default."""
    return (
        producer.get(name)
        or producer.get(_ALIASES.get(name, ""))
        or _PRODUCER_DEFAULTS.get(name, "")
    )


# --- Whether Kafka topics hold messages before a run sends its first: retention counts those, too.

LOG = logging.getLogger("soak.brokers.kafka.broker")


def are_topics_empty(config: KafkaProtocolConfig, topics: Sequence[str]) -> bool:
    """Return whether every log of these topics ends where it begins; False where one does not tell.

    Raises:
        BrokerError: the cluster does not answer.
    """
    ours = {"client.id": "soakd", "log_level": "3", "bootstrap.servers": config.bootstrap_servers}
    settings: dict[str, Any] = client_settings.resolve_secrets({**ours, **config.common})
    admin, limit = AdminClient(settings, logger=ClientLog(LOG, SystemClock())), _seconds(config)
    try:
        seen = admin.list_topics(timeout=limit).topics
    except KafkaException as error:
        raise BrokerError(
            f"cannot tell whether the topics are empty: {error_text(error)}"
        ) from error
    places = [
        TopicPartition(name, at) for name in topics if name in seen for at in seen[name].partitions
    ]
    try:
        starts = _offsets(admin, places, OffsetSpec.earliest(), limit)  # type: ignore[no-untyped-call]  # the client's
        return starts == _offsets(admin, places, OffsetSpec.latest(), limit)  # type: ignore[no-untyped-call]  # the client's
    except (KafkaException, TimeoutError):
        return False


def _offsets(
    admin: AdminClient, places: Sequence[TopicPartition], wanted: OffsetSpec, limit: float
) -> dict[tuple[str, int], int]:
    if not places:
        return {}
    found = admin.list_offsets(dict.fromkeys(places, wanted), request_timeout=limit)
    return {(at.topic, at.partition): int(one.result(limit).offset) for at, one in found.items()}


def _seconds(config: KafkaProtocolConfig) -> float:
    return config.timeout / SECOND_NS


# --- What a Kafka topic keeps: its own settings, else the plan's, else every broker's, else Kafka's defaults.

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

_BROKER_NAMES: Mapping[str, tuple[tuple[str, int], ...]] = {
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "check": (("log.retention.check.interval.ms", 1),),
}
"""By a topic's name of a setting, the brokers' names and what their unit is worth; the first one counts."""

_TIERED = (
    ("remote.storage.enable", "local.retention.bytes", "local.retention.ms"),  # KIP-405
    ("redpanda.remote.write", "retention.local.target.bytes", "retention.local.target.ms"),
)

_BROKER_DEFAULTS: Mapping[str, int] = {
    "retention.ms": 168 * _HOUR_MS,
    "retention.bytes": -1,
    "segment.ms": 168 * _HOUR_MS,
    "segment.bytes": 2**30,
    "file.delete.delay.ms": 60_000,
    "check": 300_000,
}


def read_retention(
    config: KafkaProtocolConfig, topic: Topic, own: Mapping[str, str] | None = None
) -> Limits:
    """Return what the topics of a plan keep, as the first of them and one broker tell; `own` counts more.

    Raises:
        BrokerError: no broker answers.
    """
    cluster = durability.read_cluster(config, topic)
    brokers = next(iter(cluster.brokers.values()), {})
    one = next((one for one in cluster.topics if not cluster.silence_of(one)), None)
    told = {} if one is None else one.whole
    found = retention_of({**topic.settings, **told}, {**brokers, **(own or {})})
    return dataclasses.replace(
        found,
        copies=None if one is None else one.copies or None,
        is_empty=not topic.use_existing or are_topics_empty(config, topic.names),
    )


def assumed_retention(topic: Topic, brokers: Settings) -> Limits:
    """Return what the topics of a plan will keep on brokers with these settings."""
    return retention_of(topic.settings, brokers)


def stored_size(plan: Plan, limits: Limits) -> Stored:
    """Return what the plan's messages take in the log."""
    config: KafkaProtocolConfig = plan.broker_config
    producer = {**config.common, **config.producer}
    partitions = plan.topic.total_partitions
    return stored_in_batches(plan.load, partitions, producer, limits.compression)


def retention_of(topic: Mapping[str, str], brokers: Mapping[str, str]) -> Limits:
    """Return the limits from a topic's settings over those of a broker."""
    found = {name: _number(name, topic, brokers) for name in _BROKER_DEFAULTS}
    policy = topic.get("cleanup.policy") or brokers.get("log.cleanup.policy") or "delete"
    is_deleting = "delete" in policy
    local_bytes, local_seconds = _local(topic)
    compression = topic.get("compression.type") or brokers.get("compression.type") or "producer"
    notes = [] if brokers else ["no broker tells its settings: Kafka's defaults are taken"]
    if not is_deleting:
        notes.append("cleanup.policy is compact: nothing is deleted for its age or the log's size")
    if min(local_bytes, local_seconds) < NEVER:
        notes.append(
            "storage is tiered: drives free a segment at the local limits, before messages are deleted"
        )
    return Limits(
        segment_bytes=found["segment.bytes"],
        segment_seconds=found["segment.ms"] / 1000,
        keep_bytes=_kept(found["retention.bytes"]) if is_deleting else NEVER,
        keep_seconds=_kept(found["retention.ms"]) / 1000 if is_deleting else NEVER,
        check_seconds=found["check"] / 1000,
        free_seconds=found["file.delete.delay.ms"] / 1000,
        local_bytes=local_bytes,
        local_seconds=local_seconds,
        compression="" if compression == "producer" else compression,
        notes=tuple(notes),
    )


def _local(topic: Mapping[str, str]) -> tuple[float, float]:
    """Return the bytes and seconds that drives keep of a topic whose older segments are stored elsewhere."""
    for switch, size, milliseconds in _TIERED:
        if topic.get(switch) == "true":
            of_size, of_time = topic.get(size, ""), topic.get(milliseconds, "")
            return _kept(_whole(of_size)), _kept(_whole(of_time)) / 1000
    return NEVER, NEVER


def _whole(text: str) -> int:
    """Return a whole number; below 0, which means that the topic's own limit holds, where it is none."""
    try:
        return int(text)
    except ValueError:
        return -2


def _number(name: str, topic: Mapping[str, str], brokers: Mapping[str, str]) -> int:
    told = [(topic.get(name), 1), *((brokers.get(other), of) for other, of in _BROKER_NAMES[name])]
    for text, worth in told:
        try:
            if text is not None:
                return int(text) * worth
        except ValueError:
            continue
    return _BROKER_DEFAULTS[name]


def _kept(value: int) -> float:
    return NEVER if value < 0 else float(value)
