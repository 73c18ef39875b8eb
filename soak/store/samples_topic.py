"""The Kafka topic over which hosts bring their records together: journal lines as they are, keyed by source.

A source's lines lie in one partition, so they come in the order in which they were written. The headers name
the run and its start; who reads twice, or what is sent twice, changes nothing: a record is (source, inc, k).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from soak.clients.kafka_words import said
from soak.core.errors import BrokerError
from soak.core.plan_records import Ship
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.samples_clients import MOST_BYTES, Clients

LOG = logging.getLogger("soak.store.samples_topic")
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "50",
    "compression.type": "lz4",
    "batch.size": str(
        2**16
    ),  # a topic that allows no more than this refuses none whose lines would fit
    "message.max.bytes": str(MOST_BYTES),
}
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: partitions are assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.max.bytes": str(MOST_BYTES),
    "queued.max.messages.kbytes": str(MOST_BYTES // 1024),  # held of each partition, at most
}
_SKEW_MS = 60_000  # by so much the clocks of hosts may differ
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


@dataclass(frozen=True, slots=True)
class Line:
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
        self._clients = Clients(ship, f"soakd-{run_id}-ship", clock)
        self._client: Any = None
        self.too_large = 0  # lines that the cluster refuses for good, left out

    def send(self, lines: Sequence[Line]) -> None:
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
            raise BrokerError(f"cannot send to {self._ship.topic}: {said(error)}") from error
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

    def _produce(self, line: Line, note: Any) -> None:  # noqa: ANN401  # a callback of the client's
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
        self._clients = Clients(ship, f"soakd-{run_id}-receive", clock)
        self._client: Any = None
        self._timeout_seconds = ship.timeout / SECOND_NS
        self._clock = clock
        self._deadline_ns = 0  # of the question in hand
        self._said: set[int] = set()  # codes of errors
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
        LOG.warning("place_is_gone partition=%d offset=%d oldest=%d", partition, offset, oldest)
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
                    why = self._clients.cause.or_else(said(error))
                    raise BrokerError(f"cannot read {self._ship.topic}: {why}") from error
                self._clock.sleep_until(now_ns + SECOND_NS // 4)

    def take(self, limit: int, timeout_seconds: float) -> list[Line]:
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
                found.append(Line(source, message.value() or b"", sender))
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
        if error.code() not in self._said:
            self._said.add(error.code())
            LOG.warning("samples_not_read topic=%s error=%s", self._ship.topic, error.str())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def headers_of(run_id: str, start_wall_ns: int) -> dict[str, bytes]:
    """Return by what a line's run is known."""
    return {"run": run_id.encode(), "start_ns": str(start_wall_ns).encode()}
