"""Kafka through librdkafka (confluent-kafka): the broker port, and the leaders of partitions."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from soak.brokers.kafka import batch_calls
from soak.brokers.kafka import config as _kafka_acks
from soak.brokers.kafka import producer as _kafka_keys
from soak.brokers.kafka import topics as _kafka_topic_rules
from soak.brokers.kafka.batch_calls import BatchProducer
from soak.brokers.kafka.consumer import BatchFetch, KafkaConsumer, MessageFetch
from soak.brokers.kafka.producer import KafkaProducer
from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCallback, ErrorCause, error_text
from soak.core.errors import BrokerError, SettingError
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import UNMARKED, Clock, TopicCreation, Topics
from soak.core.units import SECOND_NS, Duration

# --- Who leads Kafka's partitions: asked about the run's topics alone, over one connection as long as it
# lasts.
# A new client is a handshake and a login each time, and every topic of a large cluster a tenth of a second
# in which the interpreter's lock is held beside the sender.

LEADER_TOPICS_PER_CALL = 100
"""More topics than these are asked about in turn: each is one question."""
_ADDRESS = re.compile(r"[\w.:%-]{1,262}")  # a cluster may say anything, and this becomes a label


class ConnectAdmin(Protocol):
    def __call__(self, *, error_cb: ErrorCallback) -> AdminClient:
        """Return a client that asks for topics without having them made.

        Raises:
            BrokerError: it refuses its settings.
        """
        ...


class LeaderCache:
    """The answers so far, and the client that got the last one; another is made when that has failed."""

    def __init__(self, connect: ConnectAdmin, where: str, timeout_seconds: float) -> None:
        self._connect = connect
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._admin: AdminClient | None = None
        self._cause = ErrorCause()
        self._leaders: dict[str, NDArray[np.int64]] = {}  # by topic
        self._addresses: dict[int, str] = {}  # by node id
        self._next = 0

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        """Return each partition's leader, shape (total,), -1 where none leads or it was not asked for yet.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        if self._admin is None:
            self._cause = ErrorCause()
            self._admin = self._connect(error_cb=self._cause.note)
        try:
            for step in range(min(LEADER_TOPICS_PER_CALL, len(topics.names))):
                name = topics.names[(self._next + step) % len(topics.names)]
                answer = self._cause.metadata(self._admin, self._where, self._timeout_seconds, name)
                self._leaders[name] = _leaders_of(answer, name, topics.partitions)
            self._note_addresses(answer)  # each answer lists all nodes
            self._admin.poll(0)  # what it was told meanwhile would else be kept
        except BrokerError:
            self._admin = None
            raise
        self._next += LEADER_TOPICS_PER_CALL
        unknown = np.full(topics.partitions, -1, dtype=np.int64)
        return np.concatenate([self._leaders.get(name, unknown) for name in topics.names])

    def address(self, number: int) -> str:
        """Return the host and port that a node had when it was last listed, "" of one that never was."""
        return self._addresses.get(number, "")

    def _note_addresses(self, answer: Any) -> None:  # noqa: ANN401
        for number, node in answer.brokers.items():
            address = f"{node.host}:{node.port}"
            if _ADDRESS.fullmatch(address):
                self._addresses[number] = address


def _leaders_of(answer: Any, topic: str, partitions: int) -> NDArray[np.int64]:  # noqa: ANN401
    found = np.full(partitions, -1, dtype=np.int64)
    there = answer.topics
    for partition, told in there[topic].partitions.items() if topic in there else ():
        if partition < partitions:
            found[partition] = told.leader
    return found


# --- Kafka through librdkafka (confluent-kafka).
# Callbacks only note numbers. The partition is ours to choose, and consumers are assigned, never subscribed.

LOG = logging.getLogger("soak.brokers.kafka.broker")

_CLIENT = {
    "client.id": "soakd",  # of commands; a daemon's own: `named`
    "log_level": "5",  # librdkafka's own lines, down to a request that was never answered
    "reconnect.backoff.max.ms": "1000",  # its 10 s would make a restart of a broker look longer
}
_PRODUCER = {"message.max.bytes": str(17 * 2**20)}  # what the cluster takes is the cluster's to say
_CONSUMER = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": "100",
    # The default would stop before what somebody else's open transaction holds back, and call it lost.
    "isolation.level": "read_uncommitted",
    # With its queue full the client stops fetching for so long: a second of it halves the throughput.
    "fetch.queue.backoff.ms": "2",
}
_ADMIN = {"allow.auto.create.topics": "false"}  # to ask for a topic must not make it
_NEW_TOPICS_PER_CALL = 20
_FIXED_SETTINGS: Mapping[str, tuple[frozenset[str], str]] = {
    "auto.offset.reset": (
        frozenset({"earliest", "smallest", "beginning"}),
        "what a reader passes over would count as lost",
    ),
    "isolation.level": (
        frozenset({"read_uncommitted"}),
        "what lies behind somebody else's open transaction would count as lost",
    ),
    "delivery.report.only.error": (frozenset({"false"}), "every message's report is measured"),
    "transactional.id": (frozenset({""}), "nothing is sent in transactions"),
}
"""Settings that must stay as they are here: the values that do, and why no other."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the lab's broker
    timeout: Duration = 10 * SECOND_NS  # for every question that is not a message
    producer: Settings = field(default_factory=dict)  # over those of `producer_settings`
    consumer: Settings = field(default_factory=dict)
    common: Settings = field(default_factory=dict)  # security and the like, for every client

    def __post_init__(self) -> None:
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        object.__setattr__(
            self, "producer", producer_settings(self.producer, self.common, linger_ms=1)
        )

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other parts of a plan use."""
        return {"bootstrap_servers": self.bootstrap_servers}


def producer_settings(
    given: Mapping[str, str], common: Mapping[str, str], *, linger_ms: int
) -> dict[str, str]:
    """Return a producer's settings: what a plan gives over our own, which it may leave out.

    Without a word about it a producer is idempotent, where its acknowledgements allow that.
    """
    said = {**common, **given}
    acks = _kafka_acks.normalised_acks(said) or {"acks": "all"}
    found = {**given, **acks}
    if not said.keys() & {"linger.ms", "queue.buffering.max.ms"}:  # two names as well
        found["linger.ms"] = str(linger_ms)
    if "enable.idempotence" not in said:
        found["enable.idempotence"] = "true" if next(iter(acks.values())) == "all" else "false"
    return dict(sorted(found.items()))


def named(config: Config, name: str) -> Config:
    """Return the configuration of clients that have a name, unless the plan gives them one.

    By it a cluster's quotas, metrics and logs tell one client from another.
    """
    return replace(config, common={"client.id": name, **config.common})


def _check_fixed_settings(where: str, settings: Mapping[str, str]) -> None:
    for name, (allowed, why) in _FIXED_SETTINGS.items():
        if name in settings and settings[name] not in allowed:
            raise SettingError((where, name), f"soakd itself decides this: {why}")


check_topic = _kafka_topic_rules.check_topic


def connect(config: Config, clock: Clock) -> KafkaBroker:
    return KafkaBroker(config, clock, batch_calls.load_library())


class KafkaBroker:
    """A cluster as the plan names it; every client is made where it is asked for."""

    block_bits = 0
    wait_ns = 260_000  # three messages a wake-up at 10,000/s

    def __init__(
        self, config: Config, clock: Clock, library: batch_calls.Library | None = None
    ) -> None:
        """`library` makes whole batches one call; without it the binding's calls serve."""
        self._config = config
        self._clock = clock
        self._library = library
        self._timeout_seconds = config.timeout / SECOND_NS
        self._client_log = ClientLog(LOG, clock)
        where = config.bootstrap_servers
        self._leaders = LeaderCache(self._admin, where, self._timeout_seconds)

    def check_settings(self) -> None:
        """Have the client refuse settings that it does not know.

        Raises:
            BrokerError: a secret in the plan, an unknown name, or what the client said.
        """
        for where in ("common", "producer", "consumer"):
            settings = getattr(self._config, where)
            client_settings.refuse_literal_secrets(
                where, settings, client_settings.LIBRDKAFKA_SECRETS
            )
            client_settings.refuse_unknown(where, settings, client_settings.librdkafka_settings())
            _kafka_acks.check_acks(where, settings)
            _check_fixed_settings(where, settings)
        # That the lab's broker has no address yet is no news.
        common = {"log_level": "3", **self._config.common}
        quiet = KafkaBroker(replace(self._config, common=common), self._clock, self._library)
        nowhere = Topics(("",), 1)
        quiet.producer(nowhere).close(0.0)
        quiet.consumer(nowhere, "", {}).close()

    def check(self) -> None:
        """Check the settings, and reach the cluster.

        Raises:
            BrokerError: with what the client said.
        """
        self.check_settings()
        self._metadata()

    def existing(self, names: Sequence[str]) -> list[str]:
        there = self._metadata().topics  # asked for by name, a cluster may create it
        return [name for name in names if name in there]

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        return _kafka_topic_rules.topic_ids(
            self._admin(), self.existing(names), self._timeout_seconds
        )

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        """Create topics and wait until every partition can be written and read.

        A leader is named before its log is there. Until then it refuses, and clients wait longer
        each time: with thousands of partitions a run would begin with a minute of silence.

        Raises:
            BrokerError: one exists, the settings are refused, or partitions are not there in time.
        """
        admin = self._admin()
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
            created = admin.create_topics(new, operation_timeout=self._timeout_seconds)
            refused: list[tuple[str, Exception]] = []
            for name, future in created.items():
                try:
                    future.result(self._timeout_seconds)
                except (KafkaException, TimeoutError) as error:
                    refused.append((name, error))
            making.note(self._identified(created.keys() - dict(refused).keys()))
            for name, why in refused:
                raise BrokerError(f"cannot create topic {name}: {error_text(why)}") from why
        # Thousands of logs are opened one after another.
        patience_ns = self._config.timeout + topics.total * SECOND_NS // 100
        deadline_ns = self._clock.mono_ns() + patience_ns
        while self._clock.mono_ns() < deadline_ns:
            if self._are_open(topics):
                return
            asked_ns = self._clock.mono_ns()  # a question to thousands of partitions costs seconds
            self._clock.sleep_until(asked_ns + SECOND_NS // 20 + topics.total * SECOND_NS // 5000)
        which = topics.names[0] if len(topics.names) == 1 else f"{len(topics.names)} topics"
        raise BrokerError(f"{which} was created but not every partition has a leader and a log")

    def _identified(self, names: Collection[str]) -> dict[str, str]:
        """Return the identities of topics that were just made: brokers learn of them one after another."""
        deadline_ns = self._clock.mono_ns() + self._config.timeout
        found = self.identities(sorted(names))
        while len(found) < len(names) and self._clock.mono_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 20)
            found = self.identities(sorted(names))
        return {**dict.fromkeys(names, ""), **found}

    def delete_topics(self, names: Sequence[str]) -> None:
        _kafka_topic_rules.delete_topics(self._admin(), names, self._timeout_seconds)

    def producer(self, topics: Topics) -> KafkaProducer | BatchProducer:
        settings = {**_CLIENT, **_PRODUCER, **self._common(), **self._config.producer}
        client = self._client(confluent_kafka.Producer, settings)
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or ""
        # A token may be asked for where reports come in, by a callback that events replace.
        if self._library is None or mechanism.upper() == "OAUTHBEARER":
            return KafkaProducer(client, topics, self._clock)
        return BatchProducer(self._library, client, topics, self._clock, self._client_log)

    def consumer(
        self, topics: Topics, subscription: str, positions: Mapping[int, int]
    ) -> KafkaConsumer:
        """Return a consumer of these partitions; its group is named after its subscription, never joined."""
        settings = {
            **_CLIENT,
            **_CONSUMER,
            **self._common(),
            "group.id": f"{topics.names[0] or 'soak'}-{subscription or 'audit'}",
            **self._config.consumer,
        }
        client, clock = self._client(confluent_kafka.Consumer, settings), self._clock
        fetch = (
            MessageFetch(client, topics)
            if self._library is None
            else BatchFetch(self._library, client, topics, positions, clock)
        )
        return KafkaConsumer(client, topics, positions, clock, self._timeout_seconds, fetch)

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        return self._leaders.leaders(topics)

    def leader_name(self, number: int) -> str:
        """Return the node's id, by which Kafka itself calls it."""
        return str(number)

    def leader_address(self, number: int) -> str:
        return self._leaders.address(number)

    def broker_count(self) -> int:
        return len(self._metadata().brokers)

    def partition_of(self, key: bytes, partitions: int) -> int:
        settings = {**self._config.common, **self._config.producer}
        partitioner = settings.get("partitioner", _kafka_keys.DEFAULT_PARTITIONER)
        return _kafka_keys.partition_of(key, partitions, partitioner)

    def versions(self) -> dict[str, str]:
        return {
            "confluent-kafka": str(confluent_kafka.__version__),
            "librdkafka": str(confluent_kafka.libversion()[0]),
        }

    def _are_open(self, topics: Topics) -> bool:
        places = (TopicPartition(*topics.split(at)) for at in range(topics.total))
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's
        admin, limit = self._admin(), self._timeout_seconds  # the answers end with their client
        found = admin.list_offsets(dict.fromkeys(places, newest), request_timeout=limit)
        try:
            for answer in found.values():
                answer.result(limit)
        except (KafkaException, TimeoutError):
            return False
        return True

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

    def _client(self, kind: type[Any], settings: dict[str, str], **callbacks: ErrorCallback) -> Any:  # noqa: ANN401  # any of its clients
        try:
            return kind(
                {**client_settings.resolve_secrets(settings), **callbacks}, logger=self._client_log
            )
        except (KafkaException, TypeError, ValueError) as error:  # the last: text for a callback
            raise BrokerError(f"the client refuses its settings: {error_text(error)}") from error
