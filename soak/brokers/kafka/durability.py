"""How safe an acknowledged message is on Kafka: from acks, topic settings and broker settings.

Sources: the broker refuses acks=all below min.insync.replicas, which counts at most as many copies as
there are (kafka.cluster.Partition); an append flushes once `flush.messages` are unflushed, on
followers as on the leader, before it answers, while `flush.ms` is a background job (UnifiedLog, LogManager).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka.admin import AdminClient

from soak.brokers.kafka import config as _kafka_acks
from soak.brokers.kafka import topics
from soak.brokers.kafka.topics import ClusterSettings, TopicSettings
from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCause
from soak.core.clock import SystemClock
from soak.core.cluster.durability import Axis, Durability, Setting, SettingValue, majority, weakest
from soak.core.plan.config import Settings
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.kafka.broker")

WANTED_COPIES = 3
_EVERY_COPY = "all"
_NEVER = "0"


class KafkaProtocolConfig(Protocol):
    """What is asked of a configuration of the Kafka protocol: Kafka's or Redpanda's."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def timeout(self) -> int: ...
    @property
    def producer(self) -> Settings: ...
    @property
    def common(self) -> Settings: ...


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """What decides on Kafka, as it was read."""

    acks: SettingValue
    copies: SettingValue
    least_in_sync: SettingValue
    flush_messages: SettingValue
    flush_ms: SettingValue
    unclean_election: SettingValue


def read_durability(
    config: KafkaProtocolConfig, topic: Topic, written: Container[KeyPath]
) -> Durability:
    """Return what the topics of a plan promise; of several the weakest.

    A topic that does not exist yet is judged as the plan would make it. `written` are the keys that
    the broker's section of the plan has in its text.

    Raises:
        BrokerError: no broker answers.
    """
    cluster = read_cluster(config, topic)
    acks = acks_of(config, written)
    existing = [durability_of(_settings_of_topic(acks, one, cluster)) for one in cluster.topics]
    return weakest(existing or [durability_of(_settings_of_plan(acks, topic, cluster))])


def durability_of(read: DurabilitySettings) -> Durability:
    """Return the level; a value that was not told leaves it open only where it matters."""
    copies, least = read.copies.number, read.least_in_sync.number
    flush = read.flush_messages.number
    if waits_for_every_copy(read.acks):
        confirmed = None if copies is None or least is None else min(copies, max(least, 1))
    else:
        confirmed = 0 if read.acks.value == _NEVER else 1
    needed = majority(max(copies or WANTED_COPIES, WANTED_COPIES))
    is_each_flushed = None if flush is None else flush <= 1
    is_flushed = False if _may_be_cut(read) else is_each_flushed
    return Durability(
        "kafka",
        copies,
        confirmed,
        is_flushed,
        (
            acks_setting(read.acks, _decided_by_acks(read)),
            copies_setting(read.copies),
            Setting(
                "min.insync.replicas",
                read.least_in_sync,
                ("replication",),
                "" if least is not None and least >= needed else f"min.insync.replicas: {needed}",
            ),
            Setting(
                "flush.messages",
                read.flush_messages,
                ("local",),
                "" if is_each_flushed else "flush.messages: 1",
            ),
            Setting("flush.ms", read.flush_ms, ()),
            Setting("unclean.leader.election.enable", read.unclean_election, ()),
        ),
        tuple(_notes(read, confirmed)),
    )


def _notes(read: DurabilitySettings, confirmed: int | None) -> list[str]:
    """Return what the level does not say of these settings."""
    notes: list[str] = []
    if waits_for_every_copy(read.acks) and confirmed == 1 and (read.copies.number or 0) > 1:
        notes.append(
            "while all copies are in sync an acknowledgement waits for each of them; nothing keeps "
            "it waiting when they fall behind"
        )
    if confirmed == 1 and _may_be_cut(read):
        notes.append(
            f"acks {read.acks.value} waits for the leader alone: a follower may lead before it has fetched "
            "the last messages, and the old leader then cuts them from its log, flushed or not"
        )
    if "true" in (read.unclean_election.value or "").lower().split(", "):  # brokers may differ
        notes.append(
            "unclean.leader.election.enable is on: an election may discard what was acknowledged"
        )
    return notes


def read_cluster(config: KafkaProtocolConfig, topic: Topic) -> ClusterSettings:
    """Return what the cluster tells of its brokers and of the plan's topics that exist.

    Topics that a run makes are alike, so that one of them speaks for all.

    Raises:
        BrokerError: no broker answers.
    """
    ours = {"client.id": "soakd", "log_level": "3", "bootstrap.servers": config.bootstrap_servers}
    settings = {**ours, **config.common}
    names = topic.names if topic.use_existing else topic.names[:1]
    cause = ErrorCause()
    given: dict[str, Any] = {**client_settings.resolve_secrets(settings), "error_cb": cause.note}
    admin = AdminClient(given, logger=ClientLog(LOG, SystemClock()))
    limit = config.timeout / SECOND_NS
    seen = cause.metadata(admin, config.bootstrap_servers, limit)
    return topics.read_settings(admin, seen, names, limit)


def acks_of(config: KafkaProtocolConfig, written: Container[KeyPath]) -> SettingValue:
    """Return what the producer waits for, which its settings always say, and whether the plan did."""
    settings: Mapping[str, str] = {**config.common, **config.producer}
    value = [value for name, value in settings.items() if name in _kafka_acks.ACKS_SETTINGS][-1]
    for section in ("producer", "common"):
        if any((section, name) in written for name in _kafka_acks.ACKS_SETTINGS):
            return SettingValue(value, f"the plan's {section}")
    return SettingValue(value, "soakd's default")


def waits_for_every_copy(acks: SettingValue) -> bool:
    return acks.value == _EVERY_COPY


def _may_be_cut(read: DurabilitySettings) -> bool:
    """Return whether a leader that merely restarts may lose what it has flushed: another leads without it."""
    return not waits_for_every_copy(read.acks) and read.copies.number != 1


def _decided_by_acks(read: DurabilitySettings) -> tuple[Axis, ...]:
    """Return what acks have a part in: a single copy is flushed or not whether they are 1 or all."""
    if read.copies.number == 1 and read.acks.value != _NEVER:
        return ("replication",)
    return ("replication", "local")


def acks_setting(acks: SettingValue, decides: tuple[Axis, ...]) -> Setting:
    change = "" if waits_for_every_copy(acks) else "acks: all"
    return Setting("acks", acks, decides, change)


def copies_setting(copies: SettingValue) -> Setting:
    is_enough = copies.number is not None and copies.number > 1
    change = "" if is_enough else f"replication: {WANTED_COPIES}"
    return Setting("replication factor", copies, ("replication",), change)


def copies_of(topic: Topic | TopicSettings) -> SettingValue:
    """Return the number of copies of a topic that exists, or that the plan would make."""
    if isinstance(topic, TopicSettings):
        return SettingValue(str(topic.copies), f"topic {topic.name}")
    return SettingValue(str(topic.replication), "the plan's topic")


def _settings_of_topic(
    acks: SettingValue, topic: TopicSettings, cluster: ClusterSettings
) -> DurabilitySettings:
    """Read a topic that exists: what was set for it, else what every broker has.

    Of a topic that does not tell nothing is known: what was set for it may be weaker.
    """
    found = _settings_of_brokers(cluster)
    why = cluster.silence_of(topic)
    if why:
        return DurabilitySettings(acks, copies_of(topic), *(SettingValue(None, why) for _ in found))

    def told(name: str) -> SettingValue | None:
        return SettingValue(topic.own[name], f"topic {topic.name}") if name in topic.own else None

    def seen(name: str, of_brokers: SettingValue) -> SettingValue:
        if of_brokers.value is not None or name not in topic.whole:
            return of_brokers
        of_one = SettingValue(topic.whole[name], f"topic {topic.name}, as one broker has it")
        is_all = len(cluster.brokers) == 1 or _is_weakest(name, of_one)
        return of_one if is_all else of_brokers

    return DurabilitySettings(
        acks,
        copies_of(topic),
        *(told(name) or seen(name, of_brokers) for name, of_brokers in found.items()),
    )


def _is_weakest(name: str, told: SettingValue) -> bool:
    """Return whether no broker that is forbidden to tell could make it weaker than this does."""
    if name == "min.insync.replicas":
        return told.number is not None and told.number <= 1
    if name == "flush.messages":
        return told.number is not None and told.number > 1
    return True  # it decides nothing


def _settings_of_plan(
    acks: SettingValue, topic: Topic, cluster: ClusterSettings
) -> DurabilitySettings:
    """Read a topic that is yet to be made: the plan's settings over those of every broker."""
    planned = {
        name: SettingValue(value, "the plan's topic") for name, value in topic.settings.items()
    }
    found = {name: planned.get(name, told) for name, told in _settings_of_brokers(cluster).items()}
    return DurabilitySettings(acks, copies_of(topic), *found.values())


def _settings_of_brokers(cluster: ClusterSettings) -> dict[str, SettingValue]:
    """Return what applies to a topic without settings of its own, in the order of `Read`."""
    return {
        "min.insync.replicas": topics.weakest_broker_number(cluster, "min.insync.replicas", min),
        "flush.messages": topics.weakest_broker_number(cluster, "log.flush.interval.messages", max),
        "flush.ms": topics.broker_values(
            cluster, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"
        ),
        "unclean.leader.election.enable": topics.broker_values(
            cluster, "unclean.leader.election.enable"
        ),
    }
