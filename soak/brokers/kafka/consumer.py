"""A Kafka consumer of fixed partitions that receives batches; while messages arrive it sends no requests."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import confluent_kafka
import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from numpy.typing import NDArray

from soak.clients.kafka_log import error_text, without_details
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.errors import BrokerError
from soak.core.ports import Batch, Clock, Heads, ReceiveError, Topics
from soak.core.retry import Once

LOG = logging.getLogger("soak.brokers.kafka")


class FetchError(NamedTuple):
    """An error in a message's place; `partition` is `topic-0`, or "" where it names none."""

    error: KafkaError
    partition: str = ""


def partition_text(topic: str | None, partition: int | None) -> str:
    """Return the name of a partition as Kafka writes it; "" where a client names none."""
    return f"{topic}-{partition}" if topic and partition is not None and partition >= 0 else ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages in order of arrival, and apart from them the errors; arrays of shape (n,)."""

    heads: Heads
    topic: Sequence[str]  # of each message; empty where there is but one topic
    partition: NDArray[np.int64]  # as its topic numbers it
    offset: NDArray[np.int64]
    errors: Sequence[FetchError]
    came_mono_ns: NDArray[np.int64] | None = None  # None: just now


class Fetch(Protocol):
    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        """Wait for the first message, then collect others that follow, up to `limit`."""
        ...

    def close(self) -> None:
        """Release the client, which is closed afterwards."""
        ...


class MessageFetch:
    """Fetches through the public API: one object for each message."""

    def __init__(self, client: confluent_kafka.Consumer, topics: Topics) -> None:
        self._client = client
        self._is_one_topic = len(topics.names) == 1

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        first = self._client.poll(timeout_seconds)
        found = [] if first is None else [first, *self._client.consume(limit - 1, 0)]
        good = [message for message in found if message.error() is None]
        errors = [
            FetchError(error, partition_text(message.topic(), message.partition()))
            for message in (found if len(good) < len(found) else [])
            if (error := message.error()) is not None
        ]
        return Fetched(
            heads=[message.value() or b"" for message in good],
            topic=[] if self._is_one_topic else [message.topic() or "" for message in good],
            partition=np.array([message.partition() for message in good], dtype=np.int64),
            offset=np.array([message.offset() for message in good], dtype=np.int64),
            errors=errors,
        )

    def close(self) -> None:
        """Do nothing: only the client holds resources."""


_NO_FAILURES = {
    KafkaError._PARTITION_EOF,  # noqa: SLF001  # its public name
    KafkaError.GROUP_AUTHORIZATION_FAILED,  # the client looks for its group, which it never joins
}


_BROKER = re.compile(r"(?:^|://|\s)([^\s/,]+:\d+)(?:/\w+)?: ")
MAX_ERROR_KINDS = 100


class ReceiveErrors:
    """Counts the errors of one client until they are taken; `note` is its `error_cb`.

    While a broker is down its client reports tens of refused connections a second: they are one kind.
    """

    def __init__(self) -> None:
        self._counts: Counter[ReceiveError] = Counter()

    def note(self, error: KafkaError, partition: str = "") -> None:
        """Count an error, unless it is none: the end of a partition, or a group that is never joined."""
        if error.code() in _NO_FAILURES:
            return
        if error.fatal():
            LOG.error("consume_failed error=%s", error)
        text = error.str()
        broker = _BROKER.search(text)
        kind = ReceiveError(
            reason=without_details(text),
            code=error.name(),
            broker="" if broker is None else broker.group(1),
            partition=partition,
        )
        if kind in self._counts or len(self._counts) < MAX_ERROR_KINDS:
            self._counts[kind] += 1

    def take(self) -> Mapping[ReceiveError, int]:
        """Return the counts since the last call."""
        found, self._counts = self._counts, Counter()
        return found


class KafkaConsumer:
    """One client, assigned to partitions; it joins no group."""

    def __init__(
        self,
        client: confluent_kafka.Consumer,
        topics: Topics,
        positions: Mapping[int, int],
        clock: Clock,
        timeout_seconds: float,
        fetch: Fetch,
        throttle: ThrottleTimes,
        errors: ReceiveErrors,
    ) -> None:
        """`throttle` gets the statistics of the client, `errors` what it reports apart from messages."""
        self._client = client
        self._fetch = fetch
        self._throttle = throttle
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._errors = errors
        self._logged = Once()
        self._places = {at: TopicPartition(*topics.split(at)) for at in positions}
        self._base = {name: at * topics.partitions for at, name in enumerate(topics.names)}
        client.assign(
            [TopicPartition(*topics.split(at), offset) for at, offset in positions.items()]
        )

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        fetched = self._fetch.take(limit, timeout_seconds)
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if fetched.errors:
            self._note_errors(fetched.errors)
        partition = fetched.partition
        if fetched.topic:
            partition = partition + np.array([self._base[name] for name in fetched.topic])
        return Batch(
            fetched.heads,
            partition,
            fetched.offset,
            at_mono_ns,
            at_wall_ns,
            came_mono_ns=fetched.came_mono_ns,
            errors=self._errors.take(),
        )

    def pause(self, *, is_paused: bool) -> None:
        partitions = list(self._places.values())
        (self._client.pause if is_paused else self._client.resume)(partitions)

    def lag(self, positions: Mapping[int, int]) -> int | None:
        total = 0
        for at, position in positions.items():
            _, high = self._client.get_watermark_offsets(self._places[at], cached=True)
            if high < 0:
                return None
            total += max(0, high - max(position, 0))
        return total

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        first = self._offsets(partitions, OFFSET_BEGINNING)
        end = self._offsets(partitions, OFFSET_END)
        return {at: (first[at], end[at]) for at in partitions}

    def throttle_seconds(self) -> Mapping[str, float] | None:
        return self._throttle.seconds()

    def close(self) -> None:
        self._fetch.close()
        self._client.close()

    def close_for_good(self) -> None:
        """Close: without a group the cluster keeps nothing for it."""
        self.close()

    def _offsets(self, partitions: Sequence[int], which: int) -> dict[int, int]:
        """Return the first or the next offset of each partition, with one request a broker."""
        places = [self._places[at] for at in partitions]
        wanted = [TopicPartition(place.topic, place.partition, which) for place in places]
        try:
            found = self._client.offsets_for_times(wanted, timeout=self._timeout_seconds)
        except KafkaException as error:
            raise BrokerError(f"cannot read the bounds of the logs: {error_text(error)}") from error
        for one in found:
            if one.error is not None:
                where = f"{one.topic}-{one.partition}"
                raise BrokerError(
                    f"cannot read the bounds of the log of {where}: {one.error.str()}"
                )
        return {self._base[one.topic] + one.partition: int(one.offset) for one in found}

    def _note_errors(self, errors: Sequence[FetchError]) -> None:
        """Count errors, and log one unless it is the same as the last one."""
        for error, partition in errors:
            self._errors.note(error, partition)
            if error.code() not in _NO_FAILURES and self._logged.is_new(str(error)):
                LOG.warning("consume_failed error=%s", error)
