"""A Pulsar producer for every partition, and the partition of a key."""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import _pulsar
import numpy as np
import pulsar
from numpy.typing import NDArray

from soak.brokers.pulsar.client import close_client
from soak.brokers.pulsar.partition_log import pack_offsets
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET, Acks, Clock, Outgoing
from soak.core.retry import Once
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.pulsar.broker")

_OK = _pulsar.Result.Ok
_FULL = _pulsar.Result.ProducerQueueIsFull
_NO_MEMORY = _pulsar.Result.MemoryBufferIsFull  # of the client, for all partitions
_POLL_NS = SECOND_NS // 200

_NOTE = struct.Struct("=5q")
"""Token, ledger (or FAILED, or UNKNOWN_OFFSET), entry, index in the batch, monotonic time."""


class PulsarProducer:
    """One client with a producer a partition, in the order of the running numbers."""

    def __init__(
        self, client: pulsar.Client, producers: Sequence[pulsar.Producer], clock: Clock
    ) -> None:
        self._client = client
        self._producers = [one._producer for one in producers]  # noqa: SLF001  # see above
        self._clock = clock
        self._notes = _SendReports(clock.mono_ns)
        self._outstanding = 0
        self._errors = Once()

    def rings(self, bell: int) -> bool:
        """Return True: the client's thread stamps what comes."""
        del bell
        return True

    @property
    def refused_by_partition(self) -> bool:
        return self._notes.was_queue

    def send(self, messages: Outgoing) -> int:
        producers, notes, note = self._producers, self._notes, self._notes.note
        builder_of, token = _pulsar.MessageBuilder, messages.first_token
        keys = messages.key
        notes.refused, count = -1, 0
        for at, payload in zip(messages.partition, messages.payload, strict=True):
            builder = builder_of()
            builder.content(bytes(payload))
            if keys is not None:
                builder.partition_key(keys[count].decode("latin-1"))
            producers[at].send_async(builder.build(), partial(note, token + count))
            if notes.refused == token + count:  # said at once, by a call from within the one above
                break
            count += 1
        self._outstanding += count
        return count

    def serve(self) -> None:
        """Do nothing: the client's thread has noted what there was."""

    def take(self) -> Acks:
        taken = self._notes.take()
        self._outstanding -= len(taken)
        token, ledger, entry, index, at_ns = taken.T
        is_known = ledger >= 0
        offset = ledger.copy()  # FAILED and UNKNOWN_OFFSET stay what they are
        offset[is_known] = pack_offsets(ledger[is_known], entry[is_known], index[is_known])
        if self._notes.said and self._errors.is_new(self._notes.said):
            LOG.warning("send_failed error=%s", self._notes.said)
        return Acks(token=token, offset=offset, at_mono_ns=at_ns)

    def close(self, timeout_seconds: float) -> Acks:
        """Wait for the last reports; a client that is cut off reports nothing of what is still out."""
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * SECOND_NS)
        # No flush: the client's takes a lock of its own without giving Python's up, and its thread
        # may hold the one while it waits for the other. Batches go out by themselves.
        while len(self._notes) < self._outstanding and self._clock.mono_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        if len(self._notes) < self._outstanding:  # nor would the broker answer a farewell
            self._client.shutdown()
        else:
            close_client(self._client)
        return self.take()


class _SendReports:
    """What the client's thread noted. `note` is a closure over one append: nothing else runs a message."""

    def __init__(self, mono_ns: Callable[[], int]) -> None:
        self.refused = -1  # the token of the last message for which there was no room
        self.was_queue = False  # of its partition, not the client's memory
        self.said = ""
        self._mono_ns = mono_ns
        self._notes: list[bytes] = []
        self.note: Callable[[int, Any, Any], None] = self._first

    def __len__(self) -> int:
        return len(self._notes)

    def take(self) -> NDArray[np.int64]:
        """Return what was noted since the last call, shape (n, 5); the other thread only ever appends."""
        taken = self._notes[:]
        del self._notes[: len(taken)]
        return np.frombuffer(b"".join(taken), dtype=np.int64).reshape(-1, 5)

    def _first(self, token: int, result: Any, message_id: Any) -> None:  # noqa: ANN401  # the client's
        # The client's thread is not Python's: its state, with a page of stack, would be made and taken
        # down in every call. One hold that is never released keeps it, as long as the thread lives.
        ctypes.pythonapi.PyGILState_Ensure()
        self.note = self._bound()
        self.note(token, result, message_id)

    def _bound(self) -> Callable[[int, Any, Any], None]:
        add, mono_ns, odd, pack = self._notes.append, self._mono_ns, self._odd, _NOTE.pack

        def note(token: int, result: Any, message_id: Any) -> None:  # noqa: ANN401  # the client's types
            ledger = message_id.ledger_id()
            if ledger < 0:  # to compare the result costs more than all the rest
                odd(token, result)
                return
            add(pack(token, ledger, message_id.entry_id(), message_id.batch_index(), mono_ns()))

        return note

    def _odd(self, token: int, result: Any) -> None:  # noqa: ANN401  # the client's type
        if result in (_FULL, _NO_MEMORY):
            self.refused, self.was_queue = token, result == _FULL
            return
        if result != _OK:
            self.said = result.name
        # Acknowledged without a place: a repeat, which the broker dropped.
        ledger = UNKNOWN_OFFSET if result == _OK else FAILED_OFFSET
        self._notes.append(_NOTE.pack(token, ledger, 0, 0, self._mono_ns()))


# --- Which partition Pulsar gives a key: the Java client's default, which others take to meet it.


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition by JavaStringHash of the key read as Latin-1."""
    value = 0
    for byte in key:
        value = (31 * value + byte) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partitions
