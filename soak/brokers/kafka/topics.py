"""Kafka topics: names and settings that a cluster accepts, ids, settings in force, deletion."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource

from soak.clients import client_settings
from soak.clients.kafka_log import error_text
from soak.core.cluster.durability import SettingValue
from soak.core.errors import BrokerError, SettingError
from soak.core.plan.plan import Topic

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic that exists: `own` was set for it, `whole` is what one broker applies to it."""

    name: str
    copies: int  # of the partition that has the fewest
    own: Values
    whole: Values


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What was told; `silent` holds the reasons of those that did not answer."""

    topics: tuple[TopicSettings, ...]
    brokers: Mapping[int, Values]
    silent: Mapping[str, str]

    def silence_of(self, topic: TopicSettings) -> str:
        """Return why a topic does not tell its settings, or ""."""
        return self.silent.get(f"topic {topic.name}", "")


def read_settings(
    admin: AdminClient,
    seen: Any,  # noqa: ANN401  # the client ships no types
    names: tuple[str, ...],
    timeout_seconds: float,
) -> ClusterSettings:
    """Return the settings of those topics that exist, and of every broker, in a cluster that was `seen`."""
    there = [name for name in names if name in seen.topics]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
    asked = _describe_configs(admin, resources, timeout_seconds) if resources else {}
    for number in seen.brokers:  # the protocol takes one broker a question
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        asked |= _describe_configs(admin, [resource], timeout_seconds)
    told: dict[str, Mapping[str, Any]] = {}
    silent: dict[str, str] = {}
    for who, future in asked.items():
        try:
            told[who] = future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            silent[who] = f"{who} does not tell: {error_text(error)}"
    return ClusterSettings(
        tuple(
            _topic_settings(name, seen.topics[name], told.get(f"topic {name}", {}))
            for name in there
        ),
        {number: _config_values(told.get(f"broker {number}", {})) for number in seen.brokers},
        silent,
    )


def weakest_broker_number(
    cluster: ClusterSettings, name: str, weakest: Callable[[list[int]], int]
) -> SettingValue:
    """Return a number of the brokers as the weakest of them has it; unknown when one does not tell."""
    found: dict[int, int] = {}
    for broker, values in sorted(cluster.brokers.items()):
        value = SettingValue(values.get(name), "").number
        if value is None:
            return SettingValue(None, _reason_unknown(cluster, broker, name))
        found[broker] = value
    if not found:
        return SettingValue(None, "the cluster names no broker")
    value = weakest(list(found.values()))
    if len(set(found.values())) == 1:
        return SettingValue(str(value), f"{name} of every broker")
    which = next(broker for broker, has in found.items() if has == value)
    return SettingValue(str(value), f"{name} of broker {which}, the weakest")


def broker_values(cluster: ClusterSettings, *names: str) -> SettingValue:
    """Return what the brokers have under the first of these names that any has; all values that differ."""
    for name in names:
        found = {values[name] for values in cluster.brokers.values() if name in values}
        if found:
            return SettingValue(", ".join(sorted(found)), f"{name} of the brokers")
    return SettingValue(None, f"no broker tells {' or '.join(names)}")


def _reason_unknown(cluster: ClusterSettings, broker: int, name: str) -> str:
    return cluster.silent.get(f"broker {broker}", f"broker {broker} has no {name}")


def _describe_configs(
    admin: AdminClient, resources: list[ConfigResource], timeout_seconds: float
) -> dict[str, Any]:
    futures = admin.describe_configs(resources, request_timeout=timeout_seconds)
    return {
        f"{resource.restype.name.lower()} {resource.name}": futures[resource]
        for resource in resources
    }


def _topic_settings(name: str, seen: Any, entries: Mapping[str, Any]) -> TopicSettings:  # noqa: ANN401  # the client ships no types
    own = {
        key: entry
        for key, entry in entries.items()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    copies = min((len(partition.replicas) for partition in seen.partitions.values()), default=0)
    return TopicSettings(name, copies, _config_values(own), _config_values(entries))


def _config_values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


# --- Which Kafka topics are the same as before, by the ids that a cluster gives them; and their end.


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_seconds: float) -> dict[str, str]:
    """Return each topic's id, without those that are not there; "" where a cluster has none (before 2.8).

    Raises:
        BrokerError: the cluster did not answer in time, or lets us not ask.
    """
    if not names:
        return {}
    asked = TopicCollection(list(names))
    found: dict[str, str] = {}
    for name, future in admin.describe_topics(asked, request_timeout=timeout_seconds).items():
        try:
            number = future.result(timeout_seconds).topic_id
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown_topic(error):
                raise BrokerError(f"cannot describe topic {name}: {error_text(error)}") from error
        else:
            bits = number.get_most_significant_bits(), number.get_least_significant_bits()
            found[name] = str(number) if any(bits) else ""
    return found


def delete_topics(admin: AdminClient, names: Sequence[str], timeout_seconds: float) -> None:
    """Delete topics; raises `BrokerError` when the cluster refuses or does not answer in time."""
    if not names:
        return
    deleted = admin.delete_topics(list(names), operation_timeout=timeout_seconds)
    for name, future in deleted.items():
        try:
            future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown_topic(error):
                raise BrokerError(f"cannot delete topic {name}: {error_text(error)}") from error


def _is_unknown_topic(error: Exception) -> bool:
    told = error.args[0] if error.args else None
    return isinstance(told, KafkaError) and told.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


# --- What a Kafka cluster would refuse of a topic: its name, an unknown setting, a value that is no number.
# Source: the documents of Kafka 4 on topic configurations, with those that 4.0 dropped, and of Redpanda 25.
# What a vendor named after itself is passed on as it is.

_NUMERIC_SETTINGS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "internal.segment.bytes",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
_OTHER_SETTINGS = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
_REDPANDA_SETTINGS = frozenset(
    {
        "flush.bytes",
        "initial.retention.local.target.bytes",
        "initial.retention.local.target.ms",
        "replication.factor",
        "retention.local.target.bytes",
        "retention.local.target.ms",
        "write.caching",
    }
)
_VENDOR_PREFIXES = ("redpanda.", "confluent.", "automq.")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
TOPIC_NAME_RULE = "must be at most 249 letters, digits, '.', '_' or '-', and neither '.' nor '..'"
"""What holds for the name of a topic, after that name."""


def check_topic(topic: Topic) -> None:
    """Refuse what is known to be refused.

    Raises:
        SettingError: about the first of them; its place is that in a plan's `topic`.
    """
    if topic.name:
        for name in topic.names:
            _check_topic_name(name)
    ours = [name for name in topic.settings if not name.startswith(_VENDOR_PREFIXES)]
    client_settings.refuse_unknown(
        "settings", ours, _NUMERIC_SETTINGS | _OTHER_SETTINGS | _REDPANDA_SETTINGS, who="a topic"
    )
    for name, text in topic.settings.items():
        if name in _NUMERIC_SETTINGS and not _WHOLE_NUMBER.fullmatch(text):
            raise SettingError(("settings", name), f"must be a whole number, not {text!r}")


def is_topic_name(name: str) -> bool:
    """True when a topic may be called so."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def _check_topic_name(name: str) -> None:
    if not is_topic_name(name):
        raise SettingError(("name",), f"{name!r} {TOPIC_NAME_RULE}")
