"""Kafka through librdkafka (confluent-kafka).

Callbacks only note numbers. The partition is ours to choose, and consumers are assigned, never subscribed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic.dataclasses import dataclass

from soak.core.errors import BrokerError
from soak.core.plan import STRICT, Settings
from soak.core.ports import FAILED, UNKNOWN_OFFSET, Acks, Batch, Clock
from soak.core.units import SECOND_NS, Duration

LOG = logging.getLogger("soak.brokers.kafka")
_QUIET = {"log_level": "3"}  # librdkafka's own lines: errors and worse
_LARGE = {"message.max.bytes": str(17 * 2**20)}  # what the cluster takes is the cluster's to say


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the lab's broker
    timeout: Duration = 10 * SECOND_NS  # for every question that is not a message
    producer: Settings = field(
        default_factory=lambda: {"acks": "all", "enable.idempotence": "true", "linger.ms": "1"}
    )
    consumer: Settings = field(default_factory=dict)
    common: Settings = field(default_factory=dict)  # security and the like, for every client


def connect(config: Config, clock: Clock) -> KafkaBroker:
    return KafkaBroker(config, clock)


class KafkaBroker:
    """A cluster as the plan names it; every client is made where it is asked for."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._timeout_seconds = config.timeout / SECOND_NS

    def check_settings(self) -> None:
        """Have the client refuse settings that it does not know.

        Raises:
            BrokerError: with what the client said.
        """
        self.producer("").close(0.0)
        self.consumer("", {}).close()

    def check(self) -> None:
        """Check the settings, and reach the cluster.

        Raises:
            BrokerError: with what the client said.
        """
        self.check_settings()
        self._metadata()

    def topic_exists(self, topic: str) -> bool:
        return topic in self._metadata().topics

    def create_topic(
        self, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
    ) -> None:
        """Create a topic and wait until every partition has a leader.

        Raises:
            BrokerError: it exists, the settings are refused, or leaders are not there in time.
        """
        new = NewTopic(
            topic, num_partitions=partitions, replication_factor=replication, config=dict(settings)
        )
        admin = self._admin()
        try:
            admin.create_topics([new], operation_timeout=self._timeout_seconds)[topic].result(
                self._timeout_seconds
            )
        except (KafkaException, TimeoutError) as error:
            raise BrokerError(f"cannot create topic {topic}: {_said(error)}") from error
        deadline_ns = self._clock.mono_ns() + self._config.timeout
        while self._clock.mono_ns() < deadline_ns:
            listed = self._metadata().topics  # asked for by name, a cluster may create it
            found = listed[topic].partitions if topic in listed else {}
            if len(found) == partitions and all(item.leader >= 0 for item in found.values()):
                return
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 20)
        raise BrokerError(f"topic {topic} was created but has no leader for every partition")

    def producer(self, topic: str) -> KafkaProducer:
        settings = {**_QUIET, **_LARGE, **self._common(), **self._config.producer}
        return KafkaProducer(_client(confluent_kafka.Producer, settings), topic, self._clock)

    def consumer(self, topic: str, positions: Mapping[int, int]) -> KafkaConsumer:
        """Return a consumer of these partitions; a position of -2 means the earliest offset."""
        settings = {
            **_QUIET,
            **self._common(),
            "group.id": f"{topic or 'soak'}-audit",  # the client asks for one; never joined
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": "100",
        }
        client = _client(confluent_kafka.Consumer, {**settings, **self._config.consumer})
        client.assign([TopicPartition(topic, at, offset) for at, offset in positions.items()])
        return KafkaConsumer(client, topic, self._clock, self._timeout_seconds)

    def versions(self) -> dict[str, str]:
        return {
            "confluent-kafka": str(confluent_kafka.__version__),
            "librdkafka": str(confluent_kafka.libversion()[0]),
        }

    def _common(self) -> dict[str, str]:
        return {"bootstrap.servers": self._config.bootstrap_servers, **self._config.common}

    def _admin(self) -> AdminClient:
        return AdminClient({**_QUIET, **self._common()}, logger=LOG)

    def _metadata(self) -> Any:  # noqa: ANN401  # the client ships no types
        try:
            return self._admin().list_topics(timeout=self._timeout_seconds)
        except KafkaException as error:
            where = self._config.bootstrap_servers
            raise BrokerError(f"no Kafka broker answered at {where}: {_said(error)}") from error


class KafkaProducer:
    def __init__(self, client: confluent_kafka.Producer, topic: str, clock: Clock) -> None:
        self._client = client
        self._topic = topic
        self._clock = clock
        self._notes: list[tuple[int, int, int]] = []

    def send(self, partition: int, payload: bytes, token: int) -> bool:
        try:
            self._client.produce(
                self._topic, payload, partition=partition, on_delivery=partial(self._note, token)
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise BrokerError(f"the client refuses to send: {_said(error)}") from error
        return True

    def serve(self) -> None:
        self._client.poll(0)

    def take(self) -> Acks:
        notes, self._notes = self._notes, []
        block = np.array(notes, dtype=np.int64).reshape(-1, 3)
        return Acks(token=block[:, 0], offset=block[:, 1], at_mono_ns=block[:, 2])

    def in_flight(self) -> int:
        return len(self._client)

    def close(self, timeout_seconds: float) -> Acks:
        self._client.flush(timeout_seconds)
        self._client.purge()
        self._client.poll(0)
        return self.take()

    def _note(self, token: int, error: Any, message: Any) -> None:  # noqa: ANN401  # the client's types
        offset = FAILED if error is not None else message.offset()
        if error is None and (offset is None or offset < 0):
            offset = UNKNOWN_OFFSET
        self._notes.append((token, offset, self._clock.mono_ns()))


class KafkaConsumer:
    def __init__(
        self, client: confluent_kafka.Consumer, topic: str, clock: Clock, timeout_seconds: float
    ) -> None:
        self._client = client
        self._topic = topic
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._last_error = ""

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        """Wait for the first message, then take what else is there, up to `limit`."""
        first = self._client.poll(timeout_seconds)
        found = [] if first is None else [first, *self._client.consume(limit - 1, 0)]
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        good = [message for message in found if message.error() is None]
        if len(good) < len(found):
            self._tell_errors(found)
        return Batch(
            heads=[message.value() or b"" for message in good],
            partition=np.array([message.partition() for message in good], dtype=np.int64),
            offset=np.array([message.offset() for message in good], dtype=np.int64),
            at_mono_ns=at_mono_ns,
            at_wall_ns=at_wall_ns,
        )

    def lag(self, partition: int, position: int) -> int | None:
        """Return the messages not yet read, as of the last fetch: no question to the broker."""
        _, high = self._client.get_watermark_offsets(
            TopicPartition(self._topic, partition), cached=True
        )
        return max(0, high - max(position, 0)) if high >= 0 else None

    def log_bounds(self, partition: int) -> tuple[int, int]:
        try:
            low, high = self._client.get_watermark_offsets(
                TopicPartition(self._topic, partition), timeout=self._timeout_seconds
            )
        except KafkaException as error:
            raise BrokerError(f"no log bounds of partition {partition}: {_said(error)}") from error
        return int(low), int(high)

    def close(self) -> None:
        self._client.close()

    def _tell_errors(self, found: list[Any]) -> None:
        """Log an error when it is another one than the last."""
        for message in found:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                continue
            if str(error) != self._last_error:
                self._last_error = str(error)
                LOG.warning("consume_failed error=%s", error)


def _client(kind: type[Any], settings: dict[str, str]) -> Any:  # noqa: ANN401  # either client
    try:
        return kind(settings, logger=LOG)
    except KafkaException as error:
        raise BrokerError(f"the client refuses its settings: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return the client's words without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
