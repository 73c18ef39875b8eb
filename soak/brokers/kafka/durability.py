"""How safe an acknowledged message is on Kafka: from acks, topic settings and broker settings.

Sources: a broker refuses acks=all below min.insync.replicas, which counts at most as many copies as there
are (kafka.cluster.Partition); an append flushes once `flush.messages` are unflushed, on followers as on the
leader, before it answers, while `flush.ms` is a background job (UnifiedLog, LogManager).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from soak.brokers.kafka.config import ACKS_SETTINGS, KafkaProtocolConfig
from soak.brokers.kafka.topics import (
    ClusterSettings,
    TopicSettings,
    broker_values,
    read_cluster,
    shared_storage,
    weakest_broker_number,
)
from soak.core.cluster.durability import (
    Axis,
    Durability,
    Setting,
    SettingValue,
    majority,
    unknown,
    weakest,
)
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath

WANTED_COPIES = 3


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """The settings that decide about durability on Kafka.

    `brokers` limits what can be proposed, 0: unknown.
    """

    acks: SettingValue
    copies: SettingValue
    least_in_sync: SettingValue
    flush_messages: SettingValue
    flush_ms: SettingValue
    unclean_election: SettingValue
    brokers: int = field(default=0, kw_only=True)


def read_durability(
    config: KafkaProtocolConfig, topic: Topic, written: Container[KeyPath]
) -> Durability:
    """Return the durability of a plan's topics; of several the weakest.

    A topic that does not exist yet has the settings that the plan would give it. `written` are the keys
    in the broker's section of the plan.

    Raises:
        BrokerError: no broker answers.
    """
    return durability_in_cluster(acks_of(config, written), topic, read_cluster(config, topic))


def durability_in_cluster(acks: SettingValue, topic: Topic, cluster: ClusterSettings) -> Durability:
    """Return the durability of a plan's topics; unknown where brokers keep no messages on their drives."""
    owners = [one.whole for one in cluster.topics] or [topic.settings]
    shared = shared_storage(*cluster.brokers.values(), *owners)
    if shared:
        why = f"messages are kept in object storage ({shared}), not in copies on drives of brokers"
        return unknown("kafka", why)
    existing = [durability_of(settings_of_topic(acks, one, cluster)) for one in cluster.topics]
    return weakest(existing or [durability_of(_settings_of_plan(acks, topic, cluster))])


def durability_of(read: DurabilitySettings) -> Durability:
    """Return the level; an unknown value leaves it open only where it matters."""
    copies, least = read.copies.number, read.least_in_sync.number
    flush = read.flush_messages.number
    if waits_for_every_copy(read.acks):
        confirmed = None if copies is None or least is None else min(copies, max(least, 1))
    else:
        confirmed = 0 if read.acks.value == "0" else 1
    needed = majority(max(copies or WANTED_COPIES, WANTED_COPIES))
    is_each_flushed = None if flush is None else flush <= 1
    is_flushed = False if _may_be_truncated(read) else is_each_flushed
    return Durability(
        "kafka",
        copies,
        confirmed,
        is_flushed,
        (
            acks_setting(read.acks, _decided_by_acks(read)),
            copies_setting(read.copies, read.brokers),
            Setting(
                "min.insync.replicas",
                read.least_in_sync,
                ("replication",),
                ""
                if (least is not None and least >= needed) or 0 < read.brokers < needed
                else f"min.insync.replicas: {needed}",
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
    """Return what the level alone does not tell about these settings."""
    notes: list[str] = []
    if waits_for_every_copy(read.acks) and confirmed == 1 and (read.copies.number or 0) > 1:
        notes.append(
            "while all copies are in sync an acknowledgement waits for each of them, but not for one "
            "that falls behind"
        )
    if confirmed == 1 and _may_be_truncated(read):
        notes.append(
            f"acks {read.acks.value} waits for the leader alone: a follower may lead before it has fetched "
            "the last messages, and the old leader then truncates them from its log, flushed or not"
        )
    if "true" in (read.unclean_election.value or "").lower().split(", "):  # brokers may differ
        notes.append(
            "unclean.leader.election.enable is on: an election may discard acknowledged messages"
        )
    return notes


def acks_of(config: KafkaProtocolConfig, written: Container[KeyPath]) -> SettingValue:
    """Return the acknowledgements that the producer waits for, and where they are set."""
    settings: Mapping[str, str] = {**config.common, **config.producer}
    value = [value for name, value in settings.items() if name in ACKS_SETTINGS][-1]
    for section in ("producer", "common"):
        if any((section, name) in written for name in ACKS_SETTINGS):
            return SettingValue(value, f"the plan's {section}")
    return SettingValue(value, "soakd's default")


def waits_for_every_copy(acks: SettingValue) -> bool:
    return acks.value == "all"


def _may_be_truncated(read: DurabilitySettings) -> bool:
    """Return whether a leader that restarts may lose flushed messages.

    It does where a follower that has not fetched them leads meanwhile.
    """
    return not waits_for_every_copy(read.acks) and read.copies.number != 1


def _decided_by_acks(read: DurabilitySettings) -> tuple[Axis, ...]:
    """Return what acks decide: of a single copy, acks 1 and all are the same."""
    if read.copies.number == 1 and read.acks.value != "0":
        return ("replication",)
    return ("replication", "local")


def acks_setting(acks: SettingValue, decides: tuple[Axis, ...]) -> Setting:
    change = "" if waits_for_every_copy(acks) else "acks: all"
    return Setting("acks", acks, decides, change)


def copies_setting(copies: SettingValue, brokers: int = 0) -> Setting:
    """Return the number of copies; more are proposed where so many brokers can hold them (0: unknown)."""
    possible = min(brokers or WANTED_COPIES, WANTED_COPIES)
    is_enough = copies.number is not None and copies.number > 1
    change = "" if is_enough or possible == 1 else f"replication: {possible}"
    return Setting("replication factor", copies, ("replication",), change)


def copies_of(topic: Topic | TopicSettings) -> SettingValue:
    """Return the number of copies of a topic that exists, or that the plan would make."""
    if isinstance(topic, TopicSettings):
        where = f"topic {topic.name}"
        if not topic.copies:
            return SettingValue(None, f"{where} is listed without partitions")
        return SettingValue(str(topic.copies), where)
    return SettingValue(str(topic.replication), "the plan's topic")


def settings_of_topic(
    acks: SettingValue, topic: TopicSettings, cluster: ClusterSettings
) -> DurabilitySettings:
    """Return the settings of a topic that exists: its own, else those of every broker.

    If the cluster does not describe the topic, nothing is known: its own settings may be weaker.
    """
    of_brokers, brokers = _settings_of_brokers(cluster), len(cluster.brokers)
    reason = cluster.silence_of(topic)
    if reason:
        untold = [SettingValue(None, reason) for _ in of_brokers]
        return DurabilitySettings(acks, copies_of(topic), *untold, brokers=brokers)
    found = [_value_of_topic(name, topic, cluster, value) for name, value in of_brokers.items()]
    return DurabilitySettings(acks, copies_of(topic), *found, brokers=brokers)


def _value_of_topic(
    name: str, topic: TopicSettings, cluster: ClusterSettings, of_brokers: SettingValue
) -> SettingValue:
    if name in topic.own:
        return SettingValue(topic.own[name], f"topic {topic.name}")
    if of_brokers.value is not None or name not in topic.whole:
        return of_brokers
    of_one = SettingValue(topic.whole[name], f"topic {topic.name}, as one broker has it")
    is_certain = len(cluster.brokers) == 1 or _is_weakest(name, of_one)
    return of_one if is_certain else of_brokers


def _is_weakest(name: str, value: SettingValue) -> bool:
    """Return whether no other broker could have a weaker value."""
    if name == "min.insync.replicas":
        return value.number is not None and value.number <= 1
    if name == "flush.messages":
        return value.number is not None and value.number > 1
    return True  # it decides nothing


def _settings_of_plan(
    acks: SettingValue, topic: Topic, cluster: ClusterSettings
) -> DurabilitySettings:
    """Return the settings of a topic that the plan would create: the plan's, else those of every broker."""
    planned = {
        name: SettingValue(value, "the plan's topic") for name, value in topic.settings.items()
    }
    of_brokers = _settings_of_brokers(cluster)
    found = [planned.get(name, value) for name, value in of_brokers.items()]
    return DurabilitySettings(acks, copies_of(topic), *found, brokers=len(cluster.brokers))


def _settings_of_brokers(cluster: ClusterSettings) -> dict[str, SettingValue]:
    """Return the settings of a topic without its own, in the order of `DurabilitySettings`."""
    return {
        "min.insync.replicas": weakest_broker_number(cluster, "min.insync.replicas", min),
        "flush.messages": weakest_broker_number(cluster, "log.flush.interval.messages", max),
        "flush.ms": broker_values(
            cluster, "log.flush.interval.ms", "log.flush.scheduler.interval.ms"
        ),
        "unclean.leader.election.enable": broker_values(cluster, "unclean.leader.election.enable"),
    }
