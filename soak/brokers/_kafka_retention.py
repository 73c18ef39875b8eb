"""What a Kafka topic keeps: its own settings, else the plan's, else every broker's, else Kafka's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from soak.brokers import _kafka_batch, _kafka_durability, _kafka_held
from soak.brokers._kafka_durability import Config
from soak.core.forecast import NEVER, Limits, Stored
from soak.core.plan import Plan, Topic
from soak.core.plan_base import Settings

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

_OF_BROKERS: Mapping[str, tuple[tuple[str, int], ...]] = {
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

_DEFAULTS: Mapping[str, int] = {
    "retention.ms": 168 * _HOUR_MS,
    "retention.bytes": -1,
    "segment.ms": 168 * _HOUR_MS,
    "segment.bytes": 2**30,
    "file.delete.delay.ms": 60_000,
    "check": 300_000,
}


def read(config: Config, topic: Topic, own: Mapping[str, str] | None = None) -> Limits:
    """Return what the topics of a plan keep, as the first of them and one broker tell; `own` counts more.

    Raises:
        BrokerError: no broker answers.
    """
    cluster = _kafka_durability.ask(config, topic)
    brokers = next(iter(cluster.brokers.values()), {})
    one = next((one for one in cluster.topics if not cluster.silence_of(one)), None)
    told = {} if one is None else one.whole
    found = limits_of({**topic.settings, **told}, {**brokers, **(own or {})})
    return dataclasses.replace(
        found,
        copies=None if one is None else one.copies or None,
        is_empty=not topic.use_existing or _kafka_held.is_empty(config, topic.names),
    )


def assumed(topic: Topic, brokers: Settings) -> Limits:
    """Return what the topics of a plan will keep on brokers with these settings."""
    return limits_of(topic.settings, brokers)


def stored(plan: Plan, limits: Limits) -> Stored:
    """Return what the plan's messages take in the log."""
    config: Config = plan.broker_config
    producer = {**config.common, **config.producer}
    partitions = plan.topic.total_partitions
    return _kafka_batch.stored(plan.load, partitions, producer, limits.compression)


def limits_of(topic: Mapping[str, str], brokers: Mapping[str, str]) -> Limits:
    """Return the limits from a topic's settings over those of a broker."""
    found = {name: _number(name, topic, brokers) for name in _DEFAULTS}
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
    told = [(topic.get(name), 1), *((brokers.get(other), of) for other, of in _OF_BROKERS[name])]
    for text, worth in told:
        try:
            if text is not None:
                return int(text) * worth
        except ValueError:
            continue
    return _DEFAULTS[name]


def _kept(value: int) -> float:
    return NEVER if value < 0 else float(value)
