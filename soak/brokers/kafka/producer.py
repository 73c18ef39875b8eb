"""A Kafka producer through the client's public API, and the partitioners of librdkafka."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import confluent_kafka
import numpy as np
from confluent_kafka import KafkaException

from soak.clients.kafka_log import error_text
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.errors import BrokerError, SettingError
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Acks, Clock, Outgoing, Topics

DEFAULT_PARTITIONER = "consistent_random"
"""librdkafka's own; the Java client's is murmur2_random."""

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
_32_BITS = 0xFFFFFFFF

_MAX_POLLS = 4
"""`poll` returns after one batch of reports; a few batches a call keep up with full speed."""


class KafkaProducer:
    """One client; the delivery reports of a batch get the time at which the batch is fetched."""

    refused_by_partition = False

    def __init__(
        self,
        client: confluent_kafka.Producer,
        topics: Topics,
        clock: Clock,
        throttle: ThrottleTimes,
    ) -> None:
        """`throttle` gets the statistics of the client."""
        self._client = client
        self._where = [topics.split(at) for at in range(topics.total)]
        self._clock = clock
        self._throttle = throttle
        self._notes = _DeliveryReports()
        self._stamped: list[Acks] = []

    def rings(self, bell: int) -> bool:
        """Return False: the public API has no notification of reports."""
        del bell
        return False

    def send(self, messages: Outgoing) -> int:
        where, note = self._where, self._notes.note
        produce: Callable[..., None] = self._client.produce  # takes any buffer, and copies it
        keys, token = messages.key, messages.first_token
        count = 0
        try:
            if keys is None:
                for at, payload in zip(messages.partition, messages.payload, strict=True):
                    topic, partition = where[at]
                    produce(topic, payload, None, partition, partial(note, token + count))
                    count += 1
            else:
                for at, payload, key in zip(
                    messages.partition, messages.payload, keys, strict=True
                ):
                    topic, partition = where[at]
                    produce(topic, payload, key, partition, partial(note, token + count))
                    count += 1
        except BufferError:
            return count
        except KafkaException as error:
            raise BrokerError(f"the client refuses to send: {error_text(error)}") from error
        return count

    def serve(self) -> None:
        for _ in range(_MAX_POLLS):
            # The reports arrived before the call that returns them: the start of the call is nearest.
            at_ns = self._clock.mono_ns()
            if not self._client.poll(0):
                return
            self._stamp(at_ns)

    def take(self) -> Acks:
        taken, self._stamped = self._stamped, []
        return concatenate_acks(taken)

    def throttle_seconds(self) -> Mapping[str, float] | None:
        return self._throttle.seconds()

    def close(self, timeout_seconds: float) -> Acks:
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * 1e9)
        while len(self._client) and self._clock.mono_ns() < deadline_ns:
            self._client.poll(0.01)
            self._stamp(self._clock.mono_ns())
        self._client.purge()
        self._client.poll(0)
        self._stamp(self._clock.mono_ns())
        return self.take()

    def _stamp(self, at_ns: int) -> None:
        token, offset, failures = self._notes.take()
        if token.size:
            at = np.full(token.size, at_ns, dtype=np.int64)
            self._stamped.append(Acks(token, offset, at, failures))


def concatenate_acks(batches: Sequence[Acks]) -> Acks:
    """Return all batches of reports as one, in their order."""
    if len(batches) == 1:
        return batches[0]
    none = np.zeros(0, dtype=np.int64)
    return Acks(
        token=np.concatenate([none, *(one.token for one in batches)]),
        offset=np.concatenate([none, *(one.offset for one in batches)]),
        at_mono_ns=np.concatenate([none, *(one.at_mono_ns for one in batches)]),
        failures=sum((Counter(one.failures) for one in batches), Counter[str]()),
    )


class _DeliveryReports:
    """Reports noted by the client's callback, a closure over two appends: it runs for every message."""

    def __init__(self) -> None:
        self.note: Callable[[int, Any, Any], None]
        self._token = array("q")
        self._offset = array("q")
        self._failures: Counter[str] = Counter()
        self._bind()

    def take(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Mapping[str, int]]:
        """Return tokens and offsets noted since the last call, and how many failed by reason."""
        size = len(self._token)
        token = np.array(self._token, dtype=np.int64)
        offset = np.array(self._offset, dtype=np.int64)
        del self._token[:size], self._offset[:size]
        failures, self._failures = self._failures, Counter()
        return token, offset, failures

    def _bind(self) -> None:
        add_token, add_offset = self._token.append, self._offset.append

        def note(token: int, error: Any, message: Any) -> None:  # noqa: ANN401  # the client's types
            add_token(token)
            if error is not None:
                add_offset(FAILED_OFFSET)
                self._failures[error.str()] += 1
                return
            offset = message.offset()
            add_offset(UNKNOWN_OFFSET if offset is None or offset < 0 else offset)

        self.note = note


def partition_of(key: bytes, partitions: int, partitioner: str) -> int:
    """Return the partition of a key under a partitioner of librdkafka's.

    Raises:
        SettingError: a partitioner that does not look at the key, or an unknown one.
    """
    if partitioner in {"consistent", "consistent_random"}:
        return zlib.crc32(key) % partitions
    if partitioner in {"murmur2", "murmur2_random"}:
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    if partitioner in {"fnv1a", "fnv1a_random"}:
        return abs(_signed(fnv1a(key))) % partitions
    raise SettingError(
        ("producer", "partitioner"),
        f"{partitioner!r} gives a key no partition of its own; "
        "take consistent, murmur2 or fnv1a, each also with _random",
    )


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash as the Java client makes it (MurmurHash2, its own seed), unsigned."""
    value = _MURMUR2_SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR2_FACTOR & _32_BITS
        word ^= word >> 24
        value = (value * _MURMUR2_FACTOR & _32_BITS) ^ (word * _MURMUR2_FACTOR & _32_BITS)
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR2_FACTOR & _32_BITS
    value = (value ^ value >> 13) * _MURMUR2_FACTOR & _32_BITS
    return value ^ value >> 15


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, unsigned."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _32_BITS
    return value


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
