"""What a cluster says of its own settings over the Kafka protocol: of topics and of every broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource

from soak.clients.kafka_words import said
from soak.core.durability import Told

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic that exists: `own` was set for it, `whole` is what one broker applies to it."""

    name: str
    copies: int  # of the partition that has the fewest
    own: Values
    whole: Values


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was told; `silent` holds the reasons of those that did not answer."""

    topics: tuple[TopicSettings, ...]
    brokers: Mapping[int, Values]
    silent: Mapping[str, str]

    def silence_of(self, topic: TopicSettings) -> str:
        """Return why a topic does not tell its settings, or ""."""
        return self.silent.get(f"topic {topic.name}", "")


def ask(admin: AdminClient, seen: Any, names: tuple[str, ...], timeout_seconds: float) -> Cluster:  # noqa: ANN401  # the client ships no types
    """Return the settings of those topics that exist, and of every broker, in a cluster that was `seen`."""
    there = [name for name in names if name in seen.topics]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
    asked = _asked(admin, resources, timeout_seconds) if resources else {}
    for number in seen.brokers:  # the protocol takes one broker a question
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        asked |= _asked(admin, [resource], timeout_seconds)
    told: dict[str, Mapping[str, Any]] = {}
    silent: dict[str, str] = {}
    for who, future in asked.items():
        try:
            told[who] = future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            silent[who] = f"{who} does not tell: {said(error)}"
    return Cluster(
        tuple(_topic(name, seen.topics[name], told.get(f"topic {name}", {})) for name in there),
        {number: _values(told.get(f"broker {number}", {})) for number in seen.brokers},
        silent,
    )


def number(cluster: Cluster, name: str, weakest: Callable[[list[int]], int]) -> Told:
    """Return a number of the brokers as the weakest of them has it; unknown when one does not tell."""
    found: dict[int, int] = {}
    for broker, values in sorted(cluster.brokers.items()):
        value = Told(values.get(name), "").number
        if value is None:
            return Told(None, _silence(cluster, broker, name))
        found[broker] = value
    if not found:
        return Told(None, "the cluster names no broker")
    value = weakest(list(found.values()))
    if len(set(found.values())) == 1:
        return Told(str(value), f"{name} of every broker")
    which = next(broker for broker, has in found.items() if has == value)
    return Told(str(value), f"{name} of broker {which}, the weakest")


def text(cluster: Cluster, *names: str) -> Told:
    """Return what the brokers have under the first of these names that any has; all values that differ."""
    for name in names:
        found = {values[name] for values in cluster.brokers.values() if name in values}
        if found:
            return Told(", ".join(sorted(found)), f"{name} of the brokers")
    return Told(None, f"no broker tells {' or '.join(names)}")


def _silence(cluster: Cluster, broker: int, name: str) -> str:
    return cluster.silent.get(f"broker {broker}", f"broker {broker} has no {name}")


def _asked(
    admin: AdminClient, resources: list[ConfigResource], timeout_seconds: float
) -> dict[str, Any]:
    futures = admin.describe_configs(resources, request_timeout=timeout_seconds)
    return {
        f"{resource.restype.name.lower()} {resource.name}": futures[resource]
        for resource in resources
    }


def _topic(name: str, seen: Any, entries: Mapping[str, Any]) -> TopicSettings:  # noqa: ANN401  # the client ships no types
    own = {
        key: entry
        for key, entry in entries.items()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    copies = min((len(partition.replicas) for partition in seen.partitions.values()), default=0)
    return TopicSettings(name, copies, _values(own), _values(entries))


def _values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}
