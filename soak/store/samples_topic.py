"""The Kafka topic that carries journal lines between the hosts of a run, keyed by source.

The lines of a source lie in one partition, in the order in which they were written. Headers name the run and
its start. A record is identified by (source, epoch, interval), so a line that is sent or read twice changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCause, error_text
from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.store.samples_topic")
PARTITIONS = 8  # of a topic that is made; an existing one is taken as it is
MAX_MESSAGE_BYTES = 16 * 2**20  # of a line
_CLIENT = {
    "log_level": "3",
    "reconnect.backoff.ms": "500",  # its 100 cost a hundredth of a core while nobody answers
    "reconnect.backoff.max.ms": "2000",
}
_RETENTION_MS = 7 * 24 * 3600 * 1000  # of a topic that is made, whatever the cluster's default
_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS


class SamplesClients:
    """Makes clients that tell why nobody answers; `cause` is that of the newest."""

    def __init__(self, ship: Ship, name: str, clock: Clock) -> None:
        self._ship = ship
        self._name = name
        self._log = ClientLog(LOG, clock)
        self._has_asked = False  # how the topic is cleaned up
        self.cause = ErrorCause()

    def made(self, kind: type[Any], settings: Mapping[str, str]) -> Any:  # noqa: ANN401  # a client
        """Return a client of this kind; what the plan says goes over our own settings.

        Raises:
            BrokerError: a secret is not where the plan says, or the client refuses its settings.
        """
        self.cause = ErrorCause()
        ours = {"client.id": self._name, **_CLIENT, **settings}
        given: dict[str, Any] = {**ours, **client_settings.resolve_secrets(self._ship.client)}
        given["bootstrap.servers"] = self._ship.bootstrap_servers
        try:
            return kind({**given, "error_cb": self.cause.note}, logger=self._log)
        except KafkaException as error:
            raise BrokerError(f"the client refuses its settings: {error_text(error)}") from error

    def ask(self) -> None:
        """Ask the cluster for its topics, to know that it answers.

        Raises:
            BrokerError: it does not, or a secret is not where the plan says.
        """
        admin = self.made(AdminClient, {})
        self.cause.metadata(admin, self._ship.bootstrap_servers, self._ship.timeout / SECOND_NS)

    def ensure_topic(self) -> None:
        """Make the topic unless it is there.

        Raises:
            BrokerError: the cluster does not answer, or refuses to.
        """
        ship, timeout = self._ship, self._ship.timeout / SECOND_NS
        admin = self.made(AdminClient, {})
        if ship.topic in self.cause.metadata(admin, ship.bootstrap_servers, timeout).topics:
            self._warn_of_compaction(admin, timeout)
            return
        new = NewTopic(
            ship.topic,
            num_partitions=PARTITIONS,
            replication_factor=-1,  # as the cluster has it by default
            config={
                "max.message.bytes": str(MAX_MESSAGE_BYTES),
                "cleanup.policy": "delete",  # compaction would keep one line a source: its key
                "retention.ms": str(_RETENTION_MS),
            },
        )
        try:
            admin.create_topics([new], operation_timeout=timeout)[ship.topic].result(timeout)
        except (KafkaException, TimeoutError) as error:
            told = error.args[0] if error.args else None
            is_there = isinstance(told, KafkaError) and told.code() == _EXISTS
            if not is_there:  # another host may have been faster
                raise BrokerError(
                    f"cannot create topic {ship.topic}: {error_text(error)}"
                ) from error

    def _warn_of_compaction(self, admin: Any, timeout: float) -> None:  # noqa: ANN401  # a client
        """Say once of an existing topic that it will keep one line a source, where we may know it."""
        if self._has_asked:
            return
        topic = ConfigResource(ConfigResource.Type.TOPIC, self._ship.topic)
        with contextlib.suppress(
            KafkaException, TimeoutError
        ):  # who may write need not see settings
            found = admin.describe_configs([topic], request_timeout=timeout)[topic].result(timeout)
            self._has_asked = True
            policy = found["cleanup.policy"].value if "cleanup.policy" in found else ""
            if "compact" in policy:
                LOG.error("topic_is_compacted topic=%s cleanup_policy=%s", self._ship.topic, policy)


# --- The Kafka topic over which hosts bring their records together: journal lines as they are, keyed by
# source.
# A source's lines lie in one partition, so they come in the order in which they were written. The
# headers name
# the run and its start; who reads twice, or what is sent twice, changes nothing: a record is (source,
# epoch, k).

_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "50",
    "compression.type": "lz4",
    "batch.size": str(
        2**16
    ),  # a topic that allows no more than this refuses none whose lines would fit
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
}
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: partitions are assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "queued.max.messages.kbytes": str(MAX_MESSAGE_BYTES // 1024),  # held of each partition, at most
}
_SKEW_MS = 60_000  # by so much the clocks of hosts may differ
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


@dataclass(frozen=True, slots=True)
class ShippedLine:
    """One line of a source's journal, without its line break; `sender` is the id of its run folder."""

    source: str
    raw: bytes
    sender: str = ""


class SamplesWriter:
    """Sends lines of one run; a client is made when it is needed, and anew after a failure."""

    def __init__(
        self, ship: Ship, run_id: str, start_wall_ns: int, clock: Clock, sender: str = ""
    ) -> None:
        self._ship = ship
        self._headers = {**headers_of(run_id, start_wall_ns), "sender": sender.encode()}
        self._clients = SamplesClients(ship, f"soakd-{run_id}-ship", clock)
        self._client: Any = None
        self.too_large = 0  # lines that the cluster refuses for good, left out

    def send(self, lines: Sequence[ShippedLine]) -> None:
        """Deliver all lines, in order.

        Raises:
            BrokerError: the cluster did not take all of them in time; some may be there.
        """
        if self._client is None:
            self._clients.ensure_topic()
            timeout = {"message.timeout.ms": str(self._ship.timeout // 10**6)}
            self._client = self._clients.made(confluent_kafka.Producer, {**_PRODUCER, **timeout})
        failures: list[KafkaError] = []
        note = partial(self._note, failures)
        try:
            for line in lines:
                self._produce(line, note)
            left = self._client.flush(2 * self._ship.timeout / SECOND_NS)
        except (KafkaException, BufferError) as error:
            self.close()
            raise BrokerError(f"cannot send to {self._ship.topic}: {error_text(error)}") from error
        if failures or left:
            self.close()
            why = self._clients.cause.or_else(failures[0].str() if failures else "no answer")
            raise BrokerError(f"{self._ship.topic} took not all lines: {why}")

    def close(self) -> None:
        """Give up what is out."""
        if self._client is not None:
            self._client.purge()
            self._client.poll(0)
            self._client = None

    def _produce(self, line: ShippedLine, note: Any) -> None:  # noqa: ANN401  # a callback of the client's
        try:
            self._client.produce(
                self._ship.topic, line.raw, line.source, headers=self._headers, on_delivery=note
            )
        except KafkaException as error:
            if error.args[0].code() not in _TOO_LARGE:
                raise
            self.too_large += 1
        self._client.poll(0)

    def _note(self, failures: list[KafkaError], error: KafkaError | None, _message: object) -> None:
        if error is None:
            return
        if error.code() in _TOO_LARGE:
            self.too_large += 1
        else:
            failures.append(error)


class SamplesReader:
    """Reads the lines of one run, from kept offsets on or from the run's start."""

    def __init__(
        self,
        ship: Ship,
        run_id: str,
        start_wall_ns: int,
        offsets: Mapping[int, int],
        clock: Clock,
    ) -> None:
        self._ship = ship
        self._headers = headers_of(run_id, start_wall_ns)
        self._start_ms = start_wall_ns // 10**6 - _SKEW_MS
        self.offsets = dict(offsets)  # next one to be read, by partition
        self._clients = SamplesClients(ship, f"soakd-{run_id}-receive", clock)
        self._client: Any = None
        self._timeout_seconds = ship.timeout / SECOND_NS
        self._clock = clock
        self._deadline_ns = 0  # of the question in hand
        self._errors = Once(max_messages=100)  # by code
        self.skipped = 0  # messages that were deleted before they were read, of whatever run

    def open(self) -> None:
        """Find out where to read: kept offsets that the topic does not have are moved to where it begins.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self.close()
        self._clients.ensure_topic()
        self._deadline_ns = self._clock.mono_ns() + self._ship.timeout
        self._client = self._clients.made(confluent_kafka.Consumer, _CONSUMER)
        topic, timeout = self._ship.topic, self._timeout_seconds
        found = self._answered(lambda: self._client.list_topics(topic, timeout=timeout))
        since = [TopicPartition(topic, at, self._start_ms) for at in found.topics[topic].partitions]
        first = self._answered(lambda: self._client.offsets_for_times(since, timeout=timeout))
        spans = self._spans(place.partition for place in first)
        self.offsets = {
            place.partition: self._begin(place.partition, place.offset, *spans[place.partition])
            for place in first
        }
        places = [TopicPartition(topic, at, offset) for at, offset in self.offsets.items()]
        self._client.assign(places)

    def _begin(self, partition: int, of_run: int, oldest: int, end: int) -> int:
        """Return where to read one partition: at the kept offset, or where the run began.

        `of_run` is below 0 when nothing is that new yet: then the end of now is meant, not that of the
        first fetch. A kept offset that the partition does not have moves to its oldest: below that,
        what lay between was deleted; beyond the end, the topic was made anew.
        """
        offset = self.offsets.get(partition, of_run if of_run >= 0 else end)
        if oldest <= offset <= end:
            return offset
        LOG.warning(
            "offset_out_of_range partition=%d offset=%d oldest=%d", partition, offset, oldest
        )
        self._count_skipped(oldest - offset, partition)
        return oldest

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset to be written to each partition.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self._deadline_ns = self._clock.mono_ns() + self._ship.timeout
        return {at: end for at, (_, end) in self._spans(partitions).items()}

    def _spans(self, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the oldest offset of each partition and the next to be written."""
        timeout = self._timeout_seconds
        found = {}
        for at in partitions:
            place = TopicPartition(self._ship.topic, at)
            ask = partial(self._client.get_watermark_offsets, place, timeout=timeout)
            found[at] = self._answered(ask)
        return found

    def _answered(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401  # the client ships no types
        """Ask until there is an answer: partitions of a new topic have leaders before they have logs."""
        while True:
            try:
                return ask()
            except KafkaException as error:
                now_ns = self._clock.mono_ns()
                if now_ns >= self._deadline_ns:
                    why = self._clients.cause.or_else(error_text(error))
                    raise BrokerError(f"cannot read {self._ship.topic}: {why}") from error
                self._clock.sleep_until(now_ns + SECOND_NS // 4)

    def take(self, limit: int, timeout_seconds: float) -> list[ShippedLine]:
        """Return what has come of this run; while the cluster is away, nothing."""
        found = []
        for message in self._client.consume(limit, timeout_seconds):
            if message.error() is not None:
                self._say(message.error())
                continue
            self._note_place(message.partition(), message.offset())
            headers = dict(message.headers() or ())
            if headers.items() >= self._headers.items() and message.key():
                source = message.key().decode(errors="replace")
                sender = (headers.get("sender") or b"").decode(errors="replace")
                found.append(ShippedLine(source, message.value() or b"", sender))
        return found

    def _note_place(self, partition: int, offset: int) -> None:
        """Note how far a partition was read; what is not there any more is counted."""
        self._count_skipped(offset - self.offsets[partition], partition)
        self.offsets[partition] = offset + 1

    def _count_skipped(self, count: int, partition: int) -> None:
        if count <= 0:
            return
        before, self.skipped = self.skipped, self.skipped + count
        if before.bit_length() < self.skipped.bit_length():  # not each hole of a topic full of them
            LOG.warning(
                "offsets_skipped topic=%s partition=%d count=%d total=%d: deleted before they were read",
                self._ship.topic,
                partition,
                count,
                self.skipped,
            )

    def _say(self, error: KafkaError) -> None:
        """Say each kind of trouble once; the client goes on by itself."""
        if self._errors.is_new(error.code()):
            LOG.warning("samples_not_read topic=%s error=%s", self._ship.topic, error.str())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def headers_of(run_id: str, start_wall_ns: int) -> dict[str, bytes]:
    """Return by what a line's run is known."""
    return {"run": run_id.encode(), "start_ns": str(start_wall_ns).encode()}
