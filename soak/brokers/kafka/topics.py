"""Kafka topics: the names and settings that a cluster accepts, their ids, the settings in force, deletion."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from confluent_kafka.cimpl import NewTopic

from soak.brokers.kafka import rights
from soak.brokers.kafka.config import KafkaProtocolConfig
from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCause, error_text
from soak.core.clock import SystemClock
from soak.core.cluster.durability import SettingValue
from soak.core.errors import BrokerError, SettingError, raise_settings
from soak.core.plan.plan import Topic
from soak.core.plan.plugins import close_to
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.kafka")

Values = Mapping[str, str]

# Source: the documents of Kafka 4 on topic settings, with those that 4.0 removed, and of Redpanda 25.
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
_OWN_SOURCES = {ConfigSource.DYNAMIC_TOPIC_CONFIG.value, ConfigSource.UNKNOWN_CONFIG.value}
_SHARED_STORAGE = ("elasticstream.enable", "diskless.enable")  # of AutoMQ; of topics by KIP-1150
_MAX_NAMED = 5  # partitions in one warning
_QUOTA_SECONDS = 60  # its windows take seconds (KIP-599)
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
TOPIC_NAME_RULE = "must be at most 249 letters, digits, '.', '_' or '-', and neither '.' nor '..'"
"""The rule for the name of a topic, to stand after that name."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic that exists: `own` was set for it, `whole` is what one broker applies to it."""

    name: str
    copies: int  # of the partition that has the fewest
    own: Values
    whole: Values


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of topics and brokers; `silent` holds why some of them did not answer.

    `is_refused`: one of them refused, as the user lacks the right to read its settings.
    """

    topics: tuple[TopicSettings, ...]
    brokers: Mapping[int, Values]
    silent: Mapping[str, str]
    is_refused: bool = False

    def silence_of(self, topic: TopicSettings) -> str:
        """Return why the settings of a topic are unknown, or ""."""
        return self.silent.get(f"topic {topic.name}", "")


def check_topic(topic: Topic) -> None:
    """Check the name and settings of a plan's topic without a cluster.

    Raises:
        SettingError: a cluster would refuse them, such as a value that is no number. The places are those in
            the plan's `topic`.
    """
    names = topic.names if topic.name else ()
    faults = [
        SettingError(("name",), f"{name!r} {TOPIC_NAME_RULE}")
        for name in names
        if not is_topic_name(name)
    ]
    faults += [
        SettingError(("settings", name), f"must be a whole number, not {text!r}")
        for name, text in topic.settings.items()
        if name in _NUMERIC_SETTINGS and not _WHOLE_NUMBER.fullmatch(text)
    ]
    raise_settings(faults)


def topic_warnings(topic: Topic) -> list[str]:
    """Return a warning for each setting that is not known here: a newer cluster may have it, or refuse it."""
    known = sorted(_NUMERIC_SETTINGS | _OTHER_SETTINGS | _REDPANDA_SETTINGS)
    return [
        f"topic.settings.{name} is no setting known here{close_to(name, known)}: the cluster may refuse it"
        for name in topic.settings
        if name not in known and not name.startswith(_VENDOR_PREFIXES)
    ]


def partition_warnings(topics: Mapping[str, Any]) -> list[str]:
    """Return a warning for the partitions without a leader, and one for those that lack copies in sync."""
    partitions = [
        (f"{name}-{number}", partition)
        for name, topic in sorted(topics.items())
        for number, partition in sorted(topic.partitions.items())
    ]
    leaderless = [name for name, one in partitions if one.leader < 0]
    behind = [
        name for name, one in partitions if one.leader >= 0 and len(one.isrs) < len(one.replicas)
    ]
    found = []
    if leaderless:
        found.append(
            f"{_named(leaderless)} no leader: start the brokers that hold them; until then clients of these"
            " topics wait"
        )
    if behind:
        found.append(
            f"{_named(behind)} fewer copies in sync than replicas: a broker is down or catches up, which"
            " costs the others; wait until all are in sync"
        )
    return found


def _named(partitions: Sequence[str]) -> str:
    more = len(partitions) - _MAX_NAMED
    names = ", ".join(partitions[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{names} {'has' if len(partitions) == 1 else 'have'}"


def is_topic_name(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_seconds: float) -> dict[str, str]:
    """Return the id of each topic that exists; "" where a cluster has none (before 2.8).

    Raises:
        BrokerError: the cluster did not answer in time, or refuses to describe topics.
    """
    if not names:
        return {}
    found: dict[str, str] = {}
    answers = admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_seconds)
    for name, future in answers.items():
        try:
            number = future.result(timeout_seconds).topic_id
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown_topic(error):
                raise BrokerError(f"cannot describe topic {name}: {error_text(error)}") from error
        else:
            bits = number.get_most_significant_bits(), number.get_least_significant_bits()
            found[name] = str(number) if any(bits) else ""
    return found


def create_topics(
    admin: AdminClient, new: Sequence[NewTopic], timeout_seconds: float, clock: Clock
) -> dict[str, Exception]:
    """Create topics; return the error of each that was not created, or not in time.

    Those above the cluster's quota are requested again for a minute.
    """
    deadline_ns = clock.mono_ns() + _QUOTA_SECONDS * SECOND_NS
    refused: dict[str, Exception] = {}
    waiting = list(new)
    while waiting:
        created = admin.create_topics(waiting, operation_timeout=timeout_seconds)
        for name, future in created.items():
            refused.pop(name, None)
            try:
                future.result(timeout_seconds)
            except (KafkaException, TimeoutError) as error:
                refused[name] = error
        over_quota = {name for name, error in refused.items() if rights.is_over_quota(error)}
        waiting = [one for one in waiting if one.topic in over_quota]
        if clock.mono_ns() >= deadline_ns:
            break
        if waiting:
            clock.sleep_until(clock.mono_ns() + SECOND_NS)
    return refused


def delete_topics(
    admin: AdminClient,
    names: Sequence[str],
    config: KafkaProtocolConfig,
    timeout_seconds: float,
) -> None:
    """Delete topics; one that does not exist is no error.

    Raises:
        BrokerError: a right is missing, the cluster refuses, or it did not answer in time.
    """
    if not names:
        return
    deleted = admin.delete_topics(list(names), operation_timeout=timeout_seconds)
    for name, future in deleted.items():
        try:
            future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            if _is_unknown_topic(error):
                continue
            missing = rights.deletion_error(name, error, config)
            raise BrokerError(
                missing or f"cannot delete topic {name}: {error_text(error)}"
            ) from error


def read_cluster(config: KafkaProtocolConfig, topic: Topic) -> ClusterSettings:
    """Return the settings of every broker, and of those topics of a plan that exist.

    Topics that a run creates are alike, so that the first of them speaks for all.

    Raises:
        BrokerError: no broker answers.
    """
    names = topic.names if topic.use_existing else topic.names[:1]
    admin, metadata, timeout_seconds = _connect(config)
    return read_settings(admin, metadata, names, timeout_seconds)


def read_settings(
    admin: AdminClient,
    metadata: Any,  # noqa: ANN401  # the client ships no types
    names: Sequence[str],
    timeout_seconds: float,
) -> ClusterSettings:
    """Return the settings of the brokers in a cluster's metadata, and of those of the topics that exist.

    An empty answer, as a managed cluster may give it, says nothing: each topic and broker has settings.
    """
    there = [name for name in names if name in metadata.topics]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
    futures = _describe_configs(admin, resources, timeout_seconds) if resources else {}
    for number in metadata.brokers:  # the protocol allows one broker a request
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        futures |= _describe_configs(admin, [resource], timeout_seconds)
    answers: dict[str, Mapping[str, Any]] = {}
    silent: dict[str, str] = {}
    is_refused = False
    for owner, future in futures.items():
        try:
            answers[owner] = future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            silent[owner] = f"{owner} does not report its settings: {error_text(error)}"
            is_refused = is_refused or rights.is_refused(error)
        else:
            if not answers[owner]:
                silent[owner] = f"{owner} does not report its settings: the answer is empty"
    return ClusterSettings(
        tuple(
            _topic_settings(name, metadata.topics[name], answers.get(f"topic {name}", {}))
            for name in there
        ),
        {
            number: _config_values(answers.get(f"broker {number}", {}))
            for number in metadata.brokers
        },
        silent,
        is_refused,
    )


def are_topics_empty(config: KafkaProtocolConfig, names: Sequence[str]) -> bool:
    """Return whether every log of these topics ends where it begins; False where one does not answer.

    Raises:
        BrokerError: no broker answers.
    """
    admin, metadata, timeout_seconds = _connect(config)
    topics = metadata.topics
    places = [
        TopicPartition(name, at)
        for name in names
        if name in topics
        for at in topics[name].partitions
    ]
    if not places:
        return True

    def offsets(wanted: OffsetSpec) -> list[int]:
        answers = admin.list_offsets(dict.fromkeys(places, wanted), request_timeout=timeout_seconds)
        return [int(answers[place].result(timeout_seconds).offset) for place in places]

    try:
        return offsets(OffsetSpec.earliest()) == offsets(OffsetSpec.latest())  # type: ignore[no-untyped-call]  # the client's
    except (KafkaException, TimeoutError):
        return False


def shared_storage(*settings: Values) -> str:
    """Return the setting by which messages are kept in object storage, not on drives of brokers; "" for none.

    Of `settings` later ones override earlier ones.
    """
    merged = {name: value for one in settings for name, value in one.items()}
    return next((name for name in _SHARED_STORAGE if merged.get(name, "").lower() == "true"), "")


def weakest_broker_number(
    cluster: ClusterSettings, name: str, weakest: Callable[[list[int]], int]
) -> SettingValue:
    """Return a number of the brokers as the weakest of them has it; unknown when one does not answer."""
    found: dict[int, int] = {}
    for broker, values in sorted(cluster.brokers.items()):
        value = SettingValue(values.get(name), "").number
        if value is None:
            reason = cluster.silent.get(f"broker {broker}", f"broker {broker} has no {name}")
            return SettingValue(None, reason)
        found[broker] = value
    if not found:
        return SettingValue(None, "the cluster names no broker")
    value = weakest(list(found.values()))
    if len(set(found.values())) == 1:
        return SettingValue(str(value), f"{name} of every broker")
    which = next(broker for broker, has in found.items() if has == value)
    return SettingValue(str(value), f"{name} of broker {which}, the weakest")


def broker_values(cluster: ClusterSettings, *names: str) -> SettingValue:
    """Return the brokers' value under the first of these names that any has; all values where they differ."""
    for name in names:
        found = {values[name] for values in cluster.brokers.values() if name in values}
        if found:
            return SettingValue(", ".join(sorted(found)), f"{name} of the brokers")
    return SettingValue(None, f"no broker has {' or '.join(names)}")


def _connect(config: KafkaProtocolConfig) -> tuple[AdminClient, Any, float]:
    """Return an admin client, the cluster's metadata and the timeout of requests in seconds."""
    settings = {
        "client.id": "soakd",
        "log_level": "3",
        "bootstrap.servers": config.bootstrap_servers,
        **config.common,
    }
    cause = ErrorCause()
    given: dict[str, Any] = {**client_settings.resolve_secrets(settings), "error_cb": cause.note}
    admin = AdminClient(given, logger=ClientLog(LOG, SystemClock()))
    timeout_seconds = config.timeout / SECOND_NS
    metadata = cause.metadata(admin, config.bootstrap_servers, timeout_seconds)
    return admin, metadata, timeout_seconds


def _describe_configs(
    admin: AdminClient, resources: list[ConfigResource], timeout_seconds: float
) -> dict[str, Any]:
    futures = admin.describe_configs(resources, request_timeout=timeout_seconds)
    return {
        f"{resource.restype.name.lower()} {resource.name}": futures[resource]
        for resource in resources
    }


def _topic_settings(name: str, metadata: Any, entries: Mapping[str, Any]) -> TopicSettings:  # noqa: ANN401  # the client ships no types
    own = {  # of an unknown source: the value is reported for this topic, and a broker may have another
        key: entry for key, entry in entries.items() if entry.source in _OWN_SOURCES
    }
    copies = min((len(partition.replicas) for partition in metadata.partitions.values()), default=0)
    return TopicSettings(name, copies, _config_values(own), _config_values(entries))


def _config_values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _is_unknown_topic(error: Exception) -> bool:
    reason = error.args[0] if error.args else None
    return isinstance(reason, KafkaError) and reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
