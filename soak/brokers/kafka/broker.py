"""Kafka through librdkafka (confluent-kafka): the broker port.

soakd chooses the partition of each message, and its consumers are assigned partitions, never subscribed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic
from numpy.typing import NDArray

from soak.brokers.kafka import durability, listener, retention, rights
from soak.brokers.kafka.batch_calls import Library, installed_versions, load_library
from soak.brokers.kafka.config import Config, KafkaProtocolConfig, check_settings
from soak.brokers.kafka.consumer import BatchFetch, KafkaConsumer, MessageFetch, ReceiveErrors
from soak.brokers.kafka.leaders import LeaderCache
from soak.brokers.kafka.producer import (
    DEFAULT_PARTITIONER,
    BatchProducer,
    KafkaProducer,
    partition_of,
)
from soak.brokers.kafka.release import release_of
from soak.brokers.kafka.topics import (
    create_topics,
    delete_topics,
    is_topic_name,
    partition_warnings,
    topic_ids,
)
from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCallback, ErrorCause, error_text
from soak.clients.kafka_throttle import ThrottleTimes, statistics_interval_ms
from soak.core.cluster.durability import Durability
from soak.core.cluster.forecast import Limits, Stored
from soak.core.errors import (
    BrokerError,
    LoginMissingError,
    LoginRefusedError,
    NotAvailableError,
    SettingError,
    raise_settings,
    wrong_settings,
)
from soak.core.plan.config import Settings
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath
from soak.core.ports import UNMARKED, Clock, Guarantees, TopicCreation, Topics
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.kafka")

_CLIENT = {
    "client.id": "soakd",  # of commands; a daemon's own: `Config.with_client_id`
    "log_level": "5",  # librdkafka's own lines, down to a request that was never answered
    "reconnect.backoff.max.ms": "1000",  # its 10 s would make a restart of a broker look longer
}
_PRODUCER = {"message.max.bytes": str(17 * 2**20)}  # the cluster's own limit decides
_CONSUMER = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": "100",
    # The default stops before an open transaction of another client, which would count as lost.
    "isolation.level": "read_uncommitted",
    # With its queue full the client stops fetching for so long: a second of it halves the throughput.
    "fetch.queue.backoff.ms": "2",
}
_ADMIN = {"allow.auto.create.topics": "false"}  # a request for a topic must not create it
_NEW_TOPICS_PER_CALL = 20
_MAX_CONCURRENT = 16  # brokers that are asked for their release at the same time


def connect(config: Config, clock: Clock) -> KafkaBroker:
    return connect_protocol(config, clock, KafkaGuarantees(config))


def connect_protocol(
    config: Config,
    clock: Clock,
    guarantees: Guarantees,
    would_create: rights.WouldCreate = rights.would_create,
) -> KafkaBroker:
    """Return a broker of Kafka's protocol that uses batched calls where their self-test passes."""
    found = _library_or_reason()
    library, reason = (None, found) if isinstance(found, str) else (found, "")
    return KafkaBroker(config, clock, guarantees, library, reason, would_create=would_create)


@cache
def _library_or_reason() -> Library | str:
    """Return the library with batched calls, or why they cannot be used: tested and logged once a process."""
    try:
        return load_library()
    except NotAvailableError as error:
        LOG.warning("batched_calls_not_used reason=%r", str(error))
        return str(error)


@dataclass(frozen=True, slots=True)
class KafkaGuarantees:
    """What a Kafka cluster guarantees for the topics of a plan, and how long it retains them."""

    config: KafkaProtocolConfig

    def durability(self, topic: Topic, written: Container[KeyPath]) -> Durability:
        return durability.read_durability(self.config, topic, written)

    def retention(self, topic: Topic) -> Limits:
        return retention.read_retention(self.config, topic)

    def assumed_retention(self, topic: Topic, broker_settings: Settings) -> Limits:
        return retention.retention_of(topic.settings, broker_settings)

    def stored_size(self, load: Load, topic: Topic, limits: Limits) -> Stored:
        producer = {**self.config.common, **self.config.producer}
        partitions = topic.total_partitions
        return retention.stored_in_batches(load, partitions, producer, limits.compression)


class KafkaBroker:
    """A cluster as the plan names it; every client is made where it is asked for."""

    block_bits = 0
    wait_ns = 260_000  # three messages a wake-up at 10,000/s

    def __init__(
        self,
        config: Config,
        clock: Clock,
        guarantees: Guarantees,
        library: Library | None = None,
        fallback_reason: str = "not asked for",
        *,
        would_create: rights.WouldCreate = rights.would_create,
    ) -> None:
        """With `library` a batch of messages is one call; without it the client's public API is used.

        `would_create` asks whether a topic with more copies than brokers would be created.
        """
        self.guarantees = guarantees
        self._config = config
        self._clock = clock
        self._library = library
        self._fallback_reason = "" if library else fallback_reason
        self._would_create = would_create
        self._timeout_seconds = config.timeout / SECOND_NS
        self._client_log = ClientLog(LOG, clock)
        where = config.bootstrap_servers
        self._leaders = LeaderCache(self._admin, where, self._timeout_seconds)

    def check_settings(self) -> None:
        """Check the settings, also with the client itself; connects to nothing.

        Raises:
            SettingError: secrets in the plan, unknown names, or values that no broker accepts.
            BrokerError: the client refuses the settings.
        """
        sections = ("common", "producer", "consumer")
        faults = wrong_settings(
            *(partial(check_settings, one, getattr(self._config, one)) for one in sections)
        )
        refused = "; ".join(self._refusals({fault.place[0] for fault in faults}))
        if refused and not faults:
            raise BrokerError(refused)
        raise_settings([*faults, *([SettingError((), refused)] if refused else [])])

    def _refusals(self, wrong: Container[str]) -> list[str]:
        """Return why the client itself refuses settings, but for those of sections known to be wrong."""
        common = {"log_level": "3", **self._config.common}  # hides that the lab has no address yet
        config = replace(self._config, common=common)
        quiet = KafkaBroker(config, self._clock, self.guarantees, self._library)
        nowhere = Topics(("",), 1)
        opened: dict[str, Callable[[], object]] = {
            "producer": lambda: quiet.producer(nowhere).close(0.0),
            "consumer": lambda: quiet.consumer(nowhere, "", {}).close(),
        }
        found = []
        for section, open_client in opened.items():
            if "common" in wrong or section in wrong:
                continue
            try:
                open_client()
            except BrokerError as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def check(self) -> None:
        """Check the settings, and connect to the cluster.

        Raises:
            BrokerError: the settings are wrong, or no broker answers; where the listener is of another kind
                than the plan says, or its certificate or login is refused, that is reported too, as are
                addresses of brokers that this host cannot reach. A login or certificate that it asks for
                and the plan lacks is a `LoginMissingError`.
        """
        self.check_settings()
        cause, where = ErrorCause(), self._config.bootstrap_servers
        admin = self._admin(error_cb=cause.note)
        try:
            cause.wait_for_login(admin, where, self._timeout_seconds, self._clock)
            metadata = cause.metadata(admin, where, self._timeout_seconds)
        except BrokerError as error:
            found = listener.mismatch(where, self._config.common)
            is_refused = isinstance(error, LoginRefusedError)
            first = (
                rights.refused_login(self._config, str(error), found.text)
                if is_refused
                else str(error)
            )
            text = f"{first}; {found.text}" if found.text else first
            if found.lacks_login:
                raise LoginMissingError(text, found.logins) from error
            raise BrokerError(text) from error
        places = _places(metadata)
        unreachable = listener.unreachable(places)
        if places and len(unreachable) == len(places):
            raise BrokerError(listener.advertised_error(where, unreachable))

    def existing(self, names: Sequence[str]) -> list[str]:
        there = self._metadata().topics  # a request by name may create the topic
        return [name for name in names if name in there]

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        return topic_ids(self._admin(), self.existing(names), self._timeout_seconds)

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        """Create topics and wait until every partition can be written and read.

        A leader is named before its log is open. Until then it refuses requests, and clients back off
        each time: with thousands of partitions a run would begin with a minute of silence.

        Raises:
            BrokerError: one exists, the settings are refused, the user may not read or write them, or
                partitions are not open in time.
        """
        names = [name for name in topics.names if name not in making.begun]
        for first in range(0, len(names), _NEW_TOPICS_PER_CALL):
            new = [
                NewTopic(
                    name,
                    num_partitions=topics.partitions,
                    replication_factor=replication,
                    config=dict(settings),
                )
                for name in names[first : first + _NEW_TOPICS_PER_CALL]
            ]
            self._create(new, making)
        self._check_rights(topics.names)
        self._wait_until_open(topics)

    def _create(self, new: Sequence[NewTopic], making: TopicCreation) -> None:
        refused = create_topics(self._admin(), new, self._timeout_seconds, self._clock)
        self._note_made({one.topic for one in new} - refused.keys(), making)
        late = self._arrived([name for name, why in refused.items() if rights.is_unanswered(why)])
        self._note_made(late, making)
        for name, reason in refused.items():
            if name not in late:
                maybe = "; it may appear later" if rights.is_unanswered(reason) else ""
                text = f"cannot create topic {name}: {error_text(reason)}{maybe}"
                raise BrokerError(text) from reason

    def _note_made(self, names: Collection[str], making: TopicCreation) -> None:
        """Note topics just created, with their identities; raises as `_check_rights`."""
        if not names:
            return
        try:
            self._check_rights(sorted(names))  # a topic that the user may not see has no identity
        except BrokerError:
            making.note(dict.fromkeys(names, ""))
            raise
        making.note(self._new_identities(names))

    def _arrived(self, names: Sequence[str]) -> list[str]:
        """Return which topics exist, of those that the cluster did not confirm in time."""
        found: list[str] = []
        deadline_ns = self._clock.mono_ns() + self._config.timeout
        while len(found) < len(names) and self._clock.mono_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 2)
            try:
                found = self.existing(names)
            except BrokerError as error:
                LOG.warning("creation_not_confirmed why=%r", str(error))
        return found

    def _check_rights(self, names: Sequence[str]) -> None:
        """Raise `BrokerError` when the user may not see, read and write one of these new topics.

        A broker that has not learnt of one yet says nothing about it.
        """
        error = rights.topics_error(self._admin(), names, self._config, self._timeout_seconds)
        if error:
            raise BrokerError(error)

    def _new_identities(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of topics just created, "" if not in time: brokers learn of one after another."""
        deadline_ns = self._clock.mono_ns() + self._config.timeout
        found = self._identities_now(names)
        while len(found) < len(names) and self._clock.mono_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 20)
            found = self._identities_now(names)
        return {**dict.fromkeys(names, ""), **found}

    def _identities_now(self, names: Collection[str]) -> dict[str, str]:
        try:
            return self.identities(sorted(names))
        except BrokerError as error:  # it may answer again: the topics exist, and are to be noted
            LOG.warning("identities_unknown why=%r", str(error))
            return {}

    def _wait_until_open(self, topics: Topics) -> None:
        # A broker opens thousands of logs one after another.
        limit_ns = self._config.timeout + topics.total * SECOND_NS // 100
        deadline_ns = self._clock.mono_ns() + limit_ns
        why = ""
        while self._clock.mono_ns() < deadline_ns:
            why = self._why_not_open(topics)
            if not why:
                return
            now_ns = self._clock.mono_ns()  # a request about thousands of partitions takes seconds
            self._clock.sleep_until(now_ns + SECOND_NS // 20 + topics.total * SECOND_NS // 5000)
        which = topics.names[0] if len(topics.names) == 1 else f"{len(topics.names)} topics"
        raise BrokerError(f"not every partition of {which} has a leader and a log: {why}")

    def delete_topics(self, names: Sequence[str]) -> None:
        delete_topics(self._admin(), names, self._config, self._timeout_seconds)

    def producer(self, topics: Topics) -> KafkaProducer | BatchProducer:
        throttle = ThrottleTimes(self._clock)
        settings = {
            "statistics.interval.ms": statistics_interval_ms(topics.total),
            **self._producer_settings(),
        }
        client = self._client(confluent_kafka.Producer, settings, stats_cb=throttle.note)
        if self._library is None or self._has_token_callback():
            return KafkaProducer(client, topics, self._clock, throttle)
        return BatchProducer(self._library, client, topics, self._clock, self._client_log, throttle)

    def consumer(
        self, topics: Topics, subscription: str, positions: Mapping[int, int]
    ) -> KafkaConsumer:
        """Return a consumer of these partitions; it joins no group, though one is named after it."""
        settings = {
            **_CLIENT,
            **_CONSUMER,
            **self._common(),
            "group.id": f"{topics.names[0] or 'soak'}-{subscription or 'audit'}",
            "statistics.interval.ms": statistics_interval_ms(len(positions)),
            **self._config.consumer,
        }
        clock, throttle, errors = self._clock, ThrottleTimes(self._clock), ReceiveErrors()
        client = self._client(
            confluent_kafka.Consumer, settings, stats_cb=throttle.note, error_cb=errors.note
        )
        fetch = (
            MessageFetch(client, topics)
            if self._library is None
            else BatchFetch(self._library, client, topics, positions, clock, errors.note)
        )
        return KafkaConsumer(
            client, topics, positions, clock, self._timeout_seconds, fetch, throttle, errors
        )

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        return self._leaders.leaders(topics)

    def leader_name(self, number: int) -> str:
        """Return the node's id, the name that Kafka itself uses."""
        return str(number)

    def leader_address(self, number: int) -> str:
        return self._leaders.address(number)

    def broker_count(self) -> int:
        return len(self._metadata().brokers)

    def replication_error(self, topic: Topic) -> str:
        """Compare the copies with the brokers, unless the cluster would create the topic.

        It knows of brokers that are down, and one behind a proxy or in object storage may list few. Neither a
        setting nor a name that is refused says anything about the copies.
        """
        brokers = self.broker_count()
        name = topic.name if is_topic_name(topic.names[0]) else ""
        new = _new_topic(replace(topic, name=name, settings={}))
        if topic.replication <= brokers or self._would_create(
            self._admin(), new, self._timeout_seconds
        ):
            return ""
        have = "1 broker" if brokers == 1 else f"{brokers} brokers"
        return (
            f"{topic.replication} copies need as many brokers, and the cluster has {have}: "
            f"set it to at most {brokers}, or add brokers"
        )

    def topic_error(self, topic: Topic) -> str:
        admin, config = self._admin(), self._config
        if topic.use_existing:
            return rights.topics_error(admin, topic.names, config, self._timeout_seconds)
        return rights.creation_error(
            admin, _new_topic(topic), config, self._timeout_seconds, self.broker_count()
        )

    def cluster_warnings(self) -> list[str]:
        metadata = self._metadata()
        unreachable = listener.unreachable(_places(metadata))
        return [*partition_warnings(metadata.topics), *listener.reach_warnings(unreachable)]

    def partition_of(self, key: bytes, partitions: int) -> int:
        settings = {**self._config.common, **self._config.producer}
        partitioner = settings.get("partitioner", DEFAULT_PARTITIONER)
        return partition_of(key, partitions, partitioner)

    def client_facts(self) -> dict[str, str]:
        reason = self._fallback_reason
        if not reason and self._has_token_callback():
            reason = "tokens of OAUTHBEARER come from a callback"
        used = f"not used: {reason}" if reason else "used"
        return {**self.client_versions(), "batched_calls": used}

    def client_versions(self) -> dict[str, str]:
        binding, library = installed_versions()
        return {"confluent-kafka": binding, "librdkafka": library}

    def broker_versions(self) -> dict[str, str]:
        nodes = list(self._metadata().brokers.values())
        with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
            releases = pool.map(
                lambda node: release_of(node.host, node.port, self._config.common), nodes
            )
            found = zip(nodes, releases, strict=True)
            return {f"{node.host}:{node.port}": release for node, release in found}

    def _why_not_open(self, topics: Topics) -> str:
        """Return why the newest offset of a partition is not known, "" where all are."""
        places = (TopicPartition(*topics.split(at)) for at in range(topics.total))
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's
        admin, limit = self._admin(), self._timeout_seconds  # answers need their client alive
        found = admin.list_offsets(dict.fromkeys(places, newest), request_timeout=limit)
        for place, answer in found.items():
            try:
                answer.result(limit)
            except (KafkaException, TimeoutError) as error:
                return f"{place.topic}-{place.partition}: {error_text(error)}"
        return ""

    def _producer_settings(self) -> dict[str, str]:
        return {**_CLIENT, **_PRODUCER, **self._common(), **self._config.producer}

    def _has_token_callback(self) -> bool:
        """Return whether the client calls Python back for a token, which it cannot where it sends events."""
        settings = self._producer_settings()
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or ""
        return mechanism.upper() == "OAUTHBEARER"

    def _common(self) -> dict[str, str]:
        return {"bootstrap.servers": self._config.bootstrap_servers, **self._config.common}

    def _admin(self, **callbacks: ErrorCallback) -> AdminClient:
        settings = {**_CLIENT, **self._common(), **_ADMIN}
        admin: AdminClient = self._client(AdminClient, settings, **callbacks)
        return admin

    def _metadata(self) -> Any:  # noqa: ANN401  # the client ships no types
        cause = ErrorCause()
        admin = self._admin(error_cb=cause.note)
        return cause.metadata(admin, self._config.bootstrap_servers, self._timeout_seconds)

    def _client(
        self, kind: type[Any], settings: dict[str, str], **callbacks: Callable[[Any], None]
    ) -> Any:  # noqa: ANN401  # any of its clients
        try:
            # The plan's settings last: a text of the plan in a callback's place must be refused.
            return kind(
                {**callbacks, **client_settings.resolve_secrets(settings)}, logger=self._client_log
            )
        except (KafkaException, TypeError, ValueError) as error:  # ValueError: text for a callback
            raise BrokerError(f"the client refuses its settings: {error_text(error)}") from error


def _new_topic(topic: Topic) -> NewTopic:
    """Return the first topic of a plan as it would be created, under any name if it has none yet."""
    name = topic.names[0] if topic.name else rights.CHECKED_TOPIC
    return NewTopic(name, topic.partitions, topic.replication, config=dict(topic.settings))


def _places(metadata: Any) -> list[tuple[str, int]]:  # noqa: ANN401  # the client ships no types
    """Return the addresses that brokers advertise, each once: a proxy may have one for all."""
    found = ((node.host, node.port) for node in metadata.brokers.values() if node.host)
    return list(dict.fromkeys(found))
