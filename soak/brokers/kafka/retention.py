"""What a Kafka topic retains, and how many bytes a message takes in its log.

Sources: the record batch, format 2 (KIP-98). How many messages share a batch is an estimate for a client
that waits for `linger.ms` and no longer: a broker that answers slowly gets larger batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from soak.brokers.kafka import rights
from soak.brokers.kafka.config import KafkaProtocolConfig
from soak.brokers.kafka.topics import (
    ClusterSettings,
    are_topics_empty,
    read_cluster,
    shared_storage,
)
from soak.core.cluster.forecast import NEVER, Limits, Stored
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic
from soak.core.wording import GRANT_HINT

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
    """Return the bytes of a message in the log; `compression` is the cluster's, "" for the producer's."""
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
    """Return the bytes of one record in a batch, without its share of the header."""
    key = _varint_bytes(key_bytes) + key_bytes if key_bytes else 1
    body = _OTHER_FIELDS + key + _varint_bytes(value_bytes) + value_bytes
    return _varint_bytes(body) + body


def _varint_bytes(value: int) -> int:
    """Return the bytes of a whole number in zigzag coding, seven bits a byte."""
    return max(1, -(-(2 * value).bit_length() // 7))


def _producer_setting(producer: Mapping[str, str], name: str) -> str:
    """Return a setting under either of its names, or the client's default."""
    return (
        producer.get(name)
        or producer.get(_ALIASES.get(name, ""))
        or _PRODUCER_DEFAULTS.get(name, "")
    )


_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

_MESSAGE_SIZE = "max.message.bytes"
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
    _MESSAGE_SIZE: (("message.max.bytes", 1), ("kafka_batch_max_bytes", 1)),
}
"""By the name of a topic's setting: the names of brokers for it, with their unit; the first counts."""


class _Tiering(NamedTuple):
    """The names of the settings of tiered storage: of topics, and of brokers for topics without their own."""

    switch: str
    size: str
    time: str
    of_brokers: str
    size_of_brokers: str
    time_of_brokers: str


_TIERED = (
    _Tiering(  # KIP-405; brokers have a switch for all tiering, and none for topics
        "remote.storage.enable",
        "local.retention.bytes",
        "local.retention.ms",
        "",
        "log.local.retention.bytes",
        "log.local.retention.ms",
    ),
    _Tiering(
        "redpanda.remote.write",
        "retention.local.target.bytes",
        "retention.local.target.ms",
        "cloud_storage_enable_remote_write",
        "retention_local_target_bytes_default",
        "retention_local_target_ms_default",
    ),
    _Tiering(  # of Confluent Platform
        "confluent.tier.enable",
        "confluent.tier.local.hotset.bytes",
        "confluent.tier.local.hotset.ms",
        "confluent.tier.enable",
        "confluent.tier.local.hotset.bytes",
        "confluent.tier.local.hotset.ms",
    ),
)

_BROKER_DEFAULTS: Mapping[str, int] = {
    "retention.ms": 168 * _HOUR_MS,
    "retention.bytes": -1,
    "segment.ms": 168 * _HOUR_MS,
    "segment.bytes": 2**30,
    "file.delete.delay.ms": 60_000,
    "check": 300_000,
    _MESSAGE_SIZE: 1_048_588,
}


def read_retention(
    config: KafkaProtocolConfig, topic: Topic, fixed: Mapping[str, str] | None = None
) -> Limits:
    """Return the limits of a plan's topics, as `limits_of_cluster`, and whether they hold messages.

    Raises:
        BrokerError: no broker answers.
    """
    found = limits_of_cluster(config, topic, read_cluster(config, topic), fixed)
    is_empty = not topic.use_existing or are_topics_empty(config, topic.names)
    return dataclasses.replace(found, is_empty=is_empty)


def limits_of_cluster(
    config: KafkaProtocolConfig,
    topic: Topic,
    cluster: ClusterSettings,
    fixed: Mapping[str, str] | None = None,
) -> Limits:
    """Return the limits of a plan's topics, from the first topic and the first broker that report theirs.

    `fixed` are settings of brokers that the cluster does not show, or shows with another meaning.
    """
    brokers = next((values for values in cluster.brokers.values() if values), {})
    existing = next((one for one in cluster.topics if not cluster.silence_of(one)), None)
    # A plan leaves existing topics as they are.
    planned = {} if topic.use_existing else topic.settings
    settings = {**planned, **({} if existing is None else existing.whole)}
    found = retention_of(settings, {**brokers, **(fixed or {})})
    notes = list(found.notes)
    if existing is None and topic.use_existing and cluster.topics:
        why = cluster.silence_of(cluster.topics[0])
        notes.insert(0, f"{why}: the forecast assumes that it has none of its own")
    if not brokers:
        notes.insert(0, unread_note(config, cluster))
    copies = next((one.copies for one in cluster.topics), 0)
    is_size_known = bool(brokers) or _MESSAGE_SIZE in settings
    return dataclasses.replace(
        found,
        max_message_bytes=found.max_message_bytes if is_size_known else NEVER,
        notes=tuple(notes),
        copies=copies or None,
    )


def unread_note(config: KafkaProtocolConfig, cluster: ClusterSettings) -> str:
    """Return what follows where no broker reports its settings, with the command that grants the right."""
    why = grant = ""
    if cluster.is_refused:
        why = f", as {rights.user_name(config)} lacks DescribeConfigs on the cluster"
        grant = f"{GRANT_HINT}{rights.settings_grant(config)}"
    where = " where the topic reports none" if any(one.whole for one in cluster.topics) else ""
    return (
        f"no broker reports its settings{why}: the forecast of retention assumes Kafka's defaults{where}, "
        f"and the durability level may be unknown{grant}"
    )


def retention_of(topic: Mapping[str, str], brokers: Mapping[str, str]) -> Limits:
    """Return the limits from the settings of a topic, else of a broker."""
    found = {name: _limit_number(name, topic, brokers) for name in _BROKER_DEFAULTS}
    policy = topic.get("cleanup.policy", brokers.get("log.cleanup.policy", "delete"))
    is_deleting = "delete" in policy
    local_bytes, local_seconds = _local_limits(topic, brokers)
    compression = topic.get("compression.type") or brokers.get("compression.type") or "producer"
    notes = []
    if not is_deleting:
        named = policy.strip() or "empty"  # allowed since Kafka 4.2
        notes.append(f"cleanup.policy is {named}: nothing is deleted for its age or the log's size")
    shared = shared_storage(brokers, topic)
    if shared:
        notes.append(f"messages are kept in object storage ({shared}): drives free them at once")
    elif min(local_bytes, local_seconds) < NEVER:
        notes.append(
            "storage is tiered: drives free a segment at the local limits, before messages are deleted"
        )
    return Limits(
        segment_bytes=found["segment.bytes"],
        segment_seconds=found["segment.ms"] / 1000,
        keep_bytes=_limit(found["retention.bytes"]) if is_deleting else NEVER,
        keep_seconds=_limit(found["retention.ms"]) / 1000 if is_deleting else NEVER,
        check_seconds=found["check"] / 1000,
        free_seconds=found["file.delete.delay.ms"] / 1000,
        local_bytes=local_bytes,
        local_seconds=local_seconds,
        max_message_bytes=found[_MESSAGE_SIZE],
        compression="" if compression == "producer" else compression,
        notes=tuple(notes),
    )


def _local_limits(topic: Mapping[str, str], brokers: Mapping[str, str]) -> tuple[float, float]:
    """Return the bytes and seconds that drives keep of a topic with tiered or shared storage."""
    if shared_storage(brokers, topic):
        return 0.0, 0.0
    for tiering in _TIERED:
        switched_on = topic.get(tiering.switch, brokers.get(tiering.of_brokers, ""))
        if switched_on.lower() == "true":
            of_size = topic.get(tiering.size, brokers.get(tiering.size_of_brokers, ""))
            of_time = topic.get(tiering.time, brokers.get(tiering.time_of_brokers, ""))
            return _limit(_parse_whole(of_size)), _limit(_parse_whole(of_time)) / 1000
    return NEVER, NEVER


def _parse_whole(text: str) -> int:
    """Return a whole number, or one below 0 (the topic's own limit applies) for any other text."""
    try:
        return int(text)
    except ValueError:
        return -2


def _limit_number(name: str, topic: Mapping[str, str], brokers: Mapping[str, str]) -> int:
    of_brokers = ((brokers.get(other), unit) for other, unit in _BROKER_NAMES[name])
    for text, unit in [(topic.get(name), 1), *of_brokers]:
        try:
            if text is not None:
                return int(text) * unit
        except ValueError:
            continue
    return _BROKER_DEFAULTS[name]


def _limit(value: int) -> float:
    return NEVER if value < 0 else float(value)
