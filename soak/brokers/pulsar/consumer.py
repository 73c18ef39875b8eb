"""A Pulsar consumer: one exclusive subscription a partition, all read through one queue."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import _pulsar
import numpy as np
import pulsar
from numpy.typing import NDArray

from soak.brokers.pulsar.client import close_client
from soak.brokers.pulsar.partition_log import (
    INDEX_BITS,
    LogWatcher,
    pack_offsets,
    partition_name,
    unpack_offset,
)
from soak.core.errors import BrokerError
from soak.core.ports import Batch, Clock, ReceiveError, Topics
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.pulsar")

SHALLOW = 100
"""Up to so many waiting messages are received one by one; for more, whole batches are cheaper, and the time
that they wait does not matter."""

_READY_NS = 30_000  # a message that waits takes less than this to receive and read
_COLLECT_NS = SECOND_NS // 5
_GENERATION_NS = SECOND_NS
_AVERAGE_WEIGHT = (
    0.9  # of messages and entries of the last second: after ten seconds they hardly count
)

_RECEIPT = struct.Struct("=5q")
"""Ledger, entry, index in the batch, index of the partition, monotonic time."""


class PulsarConsumer:
    """One client; `subscribed` is its consumer of all these partitions.

    Messages that a broker delivers again after a reconnect are dropped: their offsets are known. The
    consumer acknowledges two seconds late, so that messages that a killed daemon had not recorded are
    delivered again.
    """

    def __init__(
        self,
        client: pulsar.Client,
        subscribed: pulsar.Consumer,
        topics: Topics,
        positions: Mapping[int, int],
        watcher: LogWatcher,
        clock: Clock,
        take_errors: Callable[[], Mapping[ReceiveError, int]] = dict,
    ) -> None:
        """`take_errors` returns what the client reported since its last call."""
        self._take_errors = take_errors
        self._client = client
        self._subscribed = subscribed
        self._raw = subscribed._consumer  # noqa: SLF001  # its wrapper creates an object for each message
        self._topics = topics
        self._is_one_topic = len(topics.names) == 1
        self._watcher = watcher
        self._clock = clock
        self._is_paused = False
        self._is_deep = False
        self._at = {partition_name(topics, at): at for at in positions}
        self._highest = np.full(topics.total, -1, dtype=np.int64)
        for at, position in positions.items():
            self._highest[at] = max(position - 1, -1)
        self._generations = [self._highest.copy(), self._highest.copy()]
        self._acknowledged = self._highest.copy()
        self._generation_ns = clock.mono_ns()
        self._messages, self._entries = 1.0, 1.0
        self.redelivered_total = 0

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        """Wait for the first message, then collect others for 200 ms, up to `limit`.

        A few arrive at a time, hundreds of times a second, and to process few costs as much as many.
        """
        received = _Received([], [])
        if self._is_paused:
            self._clock.sleep_until(self._clock.mono_ns() + round(timeout_seconds * SECOND_NS))
        else:
            self._collect(received, limit, timeout_seconds)
        at_mono_ns, at_wall_ns = self._clock.mono_ns(), self._clock.wall_ns()
        heads = received.heads
        ledger, entry, index, partition, came_ns = received.columns()
        offset = pack_offsets(ledger, entry, index)
        is_new = self._is_new(partition, offset)
        redelivered = int(np.count_nonzero(~is_new))
        if redelivered:
            self._count_redelivered(redelivered)
            heads = [head for head, new in zip(heads, is_new.tolist(), strict=True) if new]
            partition, offset, came_ns = partition[is_new], offset[is_new], came_ns[is_new]
        if offset.size:
            np.maximum.at(self._highest, partition, offset)
            self._note_entries(offset)
        if at_mono_ns >= self._generation_ns + _GENERATION_NS:
            self._generation_ns = at_mono_ns
            self._acknowledge()
        return Batch(
            heads=heads,
            partition=partition,
            offset=offset,
            at_mono_ns=at_mono_ns,
            at_wall_ns=at_wall_ns,
            redelivered=redelivered,
            came_mono_ns=came_ns,
            errors=self._take_errors(),
        )

    def pause(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused

    def lag(self, positions: Mapping[int, int]) -> int | None:
        """Return the unread messages: entries counted, each as large as recent ones."""
        entries = self._watcher.entries_behind(positions)
        return None if entries is None else round(entries * self._messages / self._entries)

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return self._watcher.bounds(partitions)

    def throttle_seconds(self) -> None:
        """Return None: Pulsar throttles by sending less, which no client sees."""

    def close(self) -> None:
        """Close, but keep the subscription, which protects unread messages from deletion."""
        self._watcher.close()
        close_client(self._client)

    def close_for_good(self) -> None:
        """Delete the subscription, which would protect every later message from deletion."""
        self._watcher.close()
        try:
            self._subscribed.unsubscribe()
        except pulsar.PulsarException as error:
            LOG.warning("subscription_not_deleted error=%s", error)
            self._client.shutdown()
        else:
            close_client(self._client)

    def _collect(self, received: _Received, limit: int, timeout_seconds: float) -> None:
        """Note the messages, and when each arrived."""
        try:
            if self._is_deep:
                found, now_ns = self._raw.batch_receive(), self._clock.mono_ns()
                for message in found:
                    self._note(message, now_ns, received)
                self._is_deep = len(found) >= SHALLOW
            if not received.receipts:
                self._collect_singly(received, limit, timeout_seconds)
        except pulsar.Timeout:
            return
        except pulsar.PulsarException as error:
            raise BrokerError(f"the client cannot receive: {error}") from error

    def _collect_singly(self, received: _Received, limit: int, timeout_seconds: float) -> None:
        receive, mono_ns, note = self._raw.receive, self._clock.mono_ns, self._note
        end_ns = mono_ns() + round(timeout_seconds * SECOND_NS)
        wait_ms = max(1, round(timeout_seconds * 1000))
        arrivals: deque[int] = deque(maxlen=SHALLOW)
        while wait_ms > 0 and len(received.receipts) < limit:
            message = receive(wait_ms)
            now_ns = mono_ns()
            if not arrivals:
                end_ns = min(end_ns, now_ns + _COLLECT_NS)
            note(message, now_ns, received)
            arrivals.append(now_ns)
            wait_ms = (end_ns - now_ns) // 1_000_000
            if len(arrivals) == SHALLOW and now_ns - arrivals[0] < SHALLOW * _READY_NS:
                self._is_deep = True
                return

    def _note(self, message: Any, arrived_ns: int, received: _Received) -> None:  # noqa: ANN401  # the client's
        """Copy what is needed from a message and release it: releasing all at the end delays the next one."""
        place = message.message_id()
        at = place.partition() if self._is_one_topic else self._at[message.topic_name()]
        received.heads.append(message.data())
        received.receipts.append(
            _RECEIPT.pack(place.ledger_id(), place.entry_id(), place.batch_index(), at, arrived_ns)
        )

    def _is_new(self, partition: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which messages lie above all that were delivered before them."""
        is_new: NDArray[np.bool_] = offset > self._highest[partition]
        order = np.argsort(partition, kind="stable")
        falls = (np.diff(partition[order]) == 0) & (np.diff(offset[order]) <= 0)
        if falls.any():  # the client reconnected within this batch
            highest = self._highest.copy()
            for row, (at, where) in enumerate(
                zip(partition.tolist(), offset.tolist(), strict=True)
            ):
                is_new[row] = where > highest[at]
                highest[at] = max(highest[at], where)
        return is_new

    def _count_redelivered(self, count: int) -> None:
        if self.redelivered_total == 0:
            LOG.info("redelivered messages=%d", count)
        self.redelivered_total += count

    def _note_entries(self, offset: NDArray[np.int64]) -> None:
        entries = np.count_nonzero(np.diff(offset >> INDEX_BITS)) + 1
        self._messages += offset.size
        self._entries += entries

    def _acknowledge(self) -> None:
        """Acknowledge, in each partition, all before the entry that was the newest two seconds ago."""
        self._messages, self._entries = (
            _AVERAGE_WEIGHT * self._messages,
            _AVERAGE_WEIGHT * self._entries,
        )
        self._generations.append(self._highest.copy())
        old = self._generations.pop(0)
        for at in np.flatnonzero(old >> INDEX_BITS > self._acknowledged >> INDEX_BITS).tolist():
            ledger, entry, _ = unpack_offset(int(old[at]))
            if entry == 0:  # the length of the ledger before is not known
                continue
            before = _pulsar.MessageId(at % self._topics.partitions, ledger, entry - 1, -1)
            before.topic_name(partition_name(self._topics, at))
            try:
                self._raw.acknowledge_cumulative(before)  # the client sends it later
            except pulsar.PulsarException:  # not connected: the next generation includes it
                return
            self._acknowledged[at] = old[at]


@dataclass(frozen=True, slots=True)
class _Received:
    """The messages of one call, in order of arrival."""

    heads: list[bytes]
    receipts: list[bytes]

    def columns(self) -> NDArray[np.int64]:
        """Return the fields of the receipts, shape (5, n)."""
        return np.frombuffer(b"".join(self.receipts), dtype=np.int64).reshape(-1, 5).T.copy()
