"""A Kafka topic as a log of numbered records: where it ends, and what lies between two offsets.

Clients are made where they are used: a reader travels to the process that reads. Transactions of others are
not waited for, so what they abort is read as well; their markers are offsets without a record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from soak.clients.kafka_log import error_text, headers_of_message
from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.store.samples_topic import MAX_MESSAGE_BYTES, SamplesClients
from spark.sources.topic_offsets import Ends

LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_MESSAGES = 1000  # taken at once
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a topic whose brokers know no ids
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: the partitions are assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",  # deleted offsets are reported, not skipped
    "enable.partition.eof": "true",
    "isolation.level": "read_uncommitted",
    # A range that ends with offsets without records is known to end by an empty answer.
    "fetch.wait.max.ms": "100",
    "fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "receive.message.max.bytes": str(2 * MAX_MESSAGE_BYTES),
    "queued.max.messages.kbytes": str(MAX_MESSAGE_BYTES // 1024),
}
_IS_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # its public name
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # its public name
}
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client's
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's


class TopicRecord(NamedTuple):
    """One record of the topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Lost(NamedTuple):
    """Offsets [begin, end) of a partition that cannot be read any more."""

    partition: int
    begin: int
    end: int
    reason: str


class TopicLog(Protocol):
    """What a source needs of the topic."""

    def ends(self) -> Ends | None:
        """Return where the topic ends now; None while no broker answers or there is no such topic."""

    def begins(self, since_ms: int | None) -> Ends:
        """Return the first offset of each partition, or the first of this time by the records' stamps.

        Raises:
            BrokerError: the cluster does not answer for all partitions.
        """

    def read(self, partition: int, begin: int, end: int) -> Iterator[TopicRecord | Lost]:
        """Yield the records in [begin, end) in order, and what is lost of them.

        Raises:
            BrokerError: the cluster does not answer.
        """

    def close(self) -> None: ...


class KafkaTopicLog:
    """The log on a Kafka cluster."""

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._ship = ship
        self._clock = clock
        self._timeout_seconds = ship.timeout / SECOND_NS
        self._clients = SamplesClients(ship, "soakd-fleet", clock)
        self._admin: Any = None
        self._failures = Once(max_messages=100)

    def describe(self) -> tuple[str, list[int]]:
        """Return id and partitions of the topic.

        Raises:
            BrokerError: the cluster does not answer or refuses to, or there is no such topic.
        """
        names = TopicCollection([self._ship.topic])
        try:
            future = self._admin_client().describe_topics(
                names, request_timeout=self._timeout_seconds
            )[self._ship.topic]
            found = future.result(2 * self._timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            raise self._error(error) from error
        name = str(found.topic_id)
        return "" if name == _NO_ID else name, [one.id for one in found.partitions]

    def ends(self) -> Ends | None:
        try:
            topic, partitions = self.describe()
            found, missing = self._offsets(partitions, _LATEST)
        except BrokerError as error:
            self._log_failure(str(error))
            return None
        for partition, reason in missing.items():
            self._log_failure(f"partition {partition}: {reason}")
        if not missing:
            self._failures.clear()
        return Ends(topic, found)

    def begins(self, since_ms: int | None) -> Ends:
        spec = _EARLIEST if since_ms is None else OffsetSpec.for_timestamp(since_ms)
        topic, partitions = self.describe()
        found, missing = self._offsets(partitions, spec)
        newer = [at for at, offset in found.items() if offset < 0]  # no record since then
        if newer and not missing:
            ends, missing = self._offsets(newer, _LATEST)
            found = {**found, **ends}
        for partition, reason in missing.items():
            raise self._read_error(partition, reason)
        return Ends(topic, found)

    def read(self, partition: int, begin: int, end: int) -> Iterator[TopicRecord | Lost]:
        settings = {**_CONSUMER, "queued.min.messages": str(min(100_000, max(1, end - begin)))}
        consumer = self._clients.create(confluent_kafka.Consumer, settings)
        try:
            yield from self._read(consumer, partition, begin, end)
        finally:
            consumer.close()

    def close(self) -> None:
        self._admin = None

    def _read(
        self,
        consumer: Any,  # noqa: ANN401  # the client ships no types
        partition: int,
        begin: int,
        end: int,
    ) -> Iterator[TopicRecord | Lost]:
        self._assign(consumer, partition, begin)
        deadline_ns = self._deadline_ns()
        failure: KafkaError | None = None  # since the last record
        while begin < end:
            first = consumer.poll(_POLL_SECONDS)  # `consume` would wait for all of its messages
            more = () if first is None else consumer.consume(min(_MESSAGES, end - begin), 0)
            for message in () if first is None else (first, *more):
                error = message.error()
                if _ends_range(message, error, end):
                    return
                if error is None:
                    begin, deadline_ns, failure = message.offset() + 1, self._deadline_ns(), None
                    yield _record_of(message)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
                    lost = self._lost_begin(consumer, partition, begin, end)
                    yield lost
                    begin, deadline_ns, failure = lost.end, self._deadline_ns(), None
                    self._assign(consumer, partition, begin)
                    break  # what came after it is read again
                else:
                    failure = error
                    if _is_end(error):
                        begin = max(begin, message.offset())
            if begin < end and self._clock.mono_ns() >= deadline_ns:
                yield self._lost_end(consumer, partition, begin, end, failure)
                return

    def _assign(self, consumer: Any, partition: int, offset: int) -> None:  # noqa: ANN401  # a client
        consumer.assign([TopicPartition(self._ship.topic, partition, offset)])

    def _lost_begin(self, consumer: Any, partition: int, begin: int, end: int) -> Lost:  # noqa: ANN401  # a client
        """Return what is missing of a range whose first offset was out of range.

        Raises:
            BrokerError: nothing is, or the cluster does not answer.
        """
        low, high = self._bounds(consumer, partition)
        if low > begin:
            return Lost(partition, begin, min(low, end), "deleted before they were read")
        if high < begin:
            return Lost(partition, begin, end, "the log became shorter")
        raise self._read_error(partition, f"offset {begin} was out of range, and is not any more")

    def _lost_end(
        self,
        consumer: Any,  # noqa: ANN401  # the client ships no types
        partition: int,
        begin: int,
        end: int,
        failure: KafkaError | None,
    ) -> Lost:
        """Return why the rest of a range does not come, after a silence that followed `failure`.

        Raises:
            BrokerError: it may still come.
        """
        if failure is not None and failure.code() in _IS_GONE:
            return Lost(partition, begin, end, "the topic was deleted")
        reason = "no answer" if failure is None else failure.str()
        if failure is not None and _is_end(failure):
            _, high = self._bounds(consumer, partition)
            if high <= begin:
                return Lost(partition, begin, end, f"the log ends at {high}")
            reason = f"no records, though the log ends at {high}"
        raise self._read_error(partition, self._clients.cause.or_else(reason))

    def _bounds(self, consumer: Any, partition: int) -> tuple[int, int]:  # noqa: ANN401  # a client
        """Return the first offset of a partition and its end, as its leader says now.

        A consumer that has come to the end of a log may have come to the high watermark of a new leader,
        which lags for up to `replica.lag.time.max.ms`. Until it has caught up, that leader refuses to say
        where the log ends (KIP-207).

        Raises:
            BrokerError: the leader does not answer, or does not know yet.
        """
        place = TopicPartition(self._ship.topic, partition)
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=self._timeout_seconds)
        except KafkaException as error:
            reason = self._clients.cause.or_else(error_text(error))
            raise self._read_error(partition, reason) from error
        return low, high

    def _offsets(
        self, partitions: Sequence[int], spec: OffsetSpec
    ) -> tuple[dict[int, int], dict[int, str]]:
        """Return the offsets of the partitions that answered, and why others did not."""
        asked = {TopicPartition(self._ship.topic, partition): spec for partition in partitions}
        found: dict[int, int] = {}
        missing: dict[int, str] = {}
        if not asked:
            return found, missing
        try:
            futures: Mapping[Any, Any] = self._admin_client().list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._timeout_seconds,
            )
        except KafkaException as error:
            raise self._error(error) from error
        for place, future in futures.items():
            try:
                found[place.partition] = future.result(2 * self._timeout_seconds).offset
            except (KafkaException, TimeoutError) as error:
                missing[place.partition] = self._clients.cause.or_else(error_text(error))
        return found, missing

    def _admin_client(self) -> Any:  # noqa: ANN401  # the client ships no types
        if self._admin is None:
            self._admin = self._clients.create(AdminClient, {})
        return self._admin

    def _error(self, error: BaseException) -> BrokerError:
        inner = error.args[0] if error.args else None
        if isinstance(inner, KafkaError) and inner.code() in _IS_GONE:
            return BrokerError(f"there is no topic {self._ship.topic}")
        reason = self._clients.cause.or_else(error_text(error))
        return BrokerError(f"cannot read {self._ship.topic}: {reason}")

    def _read_error(self, partition: int, reason: str) -> BrokerError:
        return BrokerError(f"cannot read {self._ship.topic}, partition {partition}: {reason}")

    def _log_failure(self, reason: str) -> None:
        if self._failures.is_new(reason):
            LOG.warning("samples_not_read topic=%s error=%s", self._ship.topic, reason)

    def _deadline_ns(self) -> int:
        return self._clock.mono_ns() + self._ship.timeout


def _ends_range(message: Any, error: KafkaError | None, end: int) -> bool:  # noqa: ANN401  # a client's
    """Return whether a message, or the end of the log, lies behind a range.

    The last offsets of the range have no record then: compaction or a transaction left them.
    """
    return (error is None or _is_end(error)) and bool(message.offset() >= end)


def _is_end(error: KafkaError) -> bool:
    return error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  # its public name


def _record_of(message: Any) -> TopicRecord:  # noqa: ANN401  # the client ships no types
    return TopicRecord(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        headers_of_message(message),
    )
