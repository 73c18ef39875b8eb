"""Kafka's consuming side: takes whole batches, and asks the cluster nothing while messages come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import confluent_kafka
import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from soak.brokers._kafka_fetch import Fetch
from soak.clients.kafka_words import said
from soak.core.errors import BrokerError
from soak.core.ports import Batch, Clock, Topics

LOG = logging.getLogger("soak.brokers.kafka")


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
    ) -> None:
        self._client = client
        self._fetch = fetch
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._last_error = ""
        self._cached = {at: TopicPartition(*topics.split(at)) for at in positions}
        self._base = {name: at * topics.partitions for at, name in enumerate(topics.names)}
        client.assign(
            [TopicPartition(*topics.split(at), offset) for at, offset in positions.items()]
        )

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        taken = self._fetch.take(limit, timeout_seconds)
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if taken.errors:
            self._tell_errors(taken.errors)
        partition = taken.partition
        if taken.topic:
            partition = partition + np.array([self._base[name] for name in taken.topic])
        return Batch(
            taken.heads,
            partition,
            taken.offset,
            at_mono_ns,
            at_wall_ns,
            came_mono_ns=taken.came_mono_ns,
        )

    def pause(self, *, is_paused: bool) -> None:
        partitions = list(self._cached.values())
        (self._client.pause if is_paused else self._client.resume)(partitions)

    def lag(self, positions: Mapping[int, int]) -> int | None:
        total = 0
        for at, position in positions.items():
            _, high = self._client.get_watermark_offsets(self._cached[at], cached=True)
            if high < 0:
                return None
            total += max(0, high - max(position, 0))
        return total

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        first = self._offsets(partitions, OFFSET_BEGINNING)
        end = self._offsets(partitions, OFFSET_END)
        return {at: (first[at], end[at]) for at in partitions}

    def close(self) -> None:
        self._fetch.close()
        self._client.close()

    def close_for_good(self) -> None:
        """Leave: without a group the cluster keeps nothing."""
        self.close()

    def _offsets(self, partitions: Sequence[int], which: int) -> dict[int, int]:
        """Return the first or the next offset of each: one question a broker, however many there are."""
        places = [self._cached[at] for at in partitions]
        asked = [TopicPartition(place.topic, place.partition, which) for place in places]
        try:
            found = self._client.offsets_for_times(asked, timeout=self._timeout_seconds)
        except KafkaException as error:
            raise BrokerError(f"no bounds of the logs: {said(error)}") from error
        for one in found:
            if one.error is not None:
                where = f"{one.topic}-{one.partition}"
                raise BrokerError(f"no bounds of the log of {where}: {one.error.str()}")
        return {self._base[one.topic] + one.partition: int(one.offset) for one in found}

    def _tell_errors(self, errors: Sequence[KafkaError]) -> None:
        """Log an error when it is another one than the last."""
        for error in errors:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                continue
            if str(error) != self._last_error:
                self._last_error = str(error)
                LOG.warning("consume_failed error=%s", error)
