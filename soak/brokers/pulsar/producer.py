"""A Pulsar producer for every partition, and the partition of a key.

The client calls back on a thread of its own, where five numbers become one entry of a list and nothing else
runs. Messages are built with the client's extension module, because its Python layer costs 10 us a message.
"""

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

LOG = logging.getLogger("soak.brokers.pulsar")

_OK = _pulsar.Result.Ok
_FULL = _pulsar.Result.ProducerQueueIsFull
_NO_MEMORY = _pulsar.Result.MemoryBufferIsFull  # of the client, for all partitions
_POLL_NS = SECOND_NS // 200

_REPORT = struct.Struct("=5q")
"""Token, ledger (or FAILED_OFFSET, or UNKNOWN_OFFSET), entry, index in the batch, monotonic time."""


class PulsarProducer:
    """One client with a producer for each partition, in the order of their indices."""

    def __init__(
        self, client: pulsar.Client, producers: Sequence[pulsar.Producer], clock: Clock
    ) -> None:
        self._client = client
        self._producers = [one._producer for one in producers]  # noqa: SLF001  # see above
        self._clock = clock
        self._reports = SendReports(clock.mono_ns)
        self._outstanding = 0
        self._errors = Once()

    def rings(self, bell: int) -> bool:
        """Return True: the client's thread records the time of each report."""
        del bell
        return True

    @property
    def refused_by_partition(self) -> bool:
        return self._reports.was_queue

    def send(self, messages: Outgoing) -> int:
        producers, reports, note = self._producers, self._reports, self._reports.note
        builder_of, token = _pulsar.MessageBuilder, messages.first_token
        keys = messages.key
        reports.refused, count = -1, 0
        for at, payload in zip(messages.partition, messages.payload, strict=True):
            builder = builder_of()
            builder.content(bytes(payload))
            if keys is not None:
                builder.partition_key(keys[count].decode("latin-1"))
            producers[at].send_async(builder.build(), partial(note, token + count))
            if (
                reports.refused == token + count
            ):  # reported at once, by a call from within `send_async`
                break
            count += 1
        self._outstanding += count
        return count

    def serve(self) -> None:
        """Do nothing: the client's thread has recorded the reports."""

    def take(self) -> Acks:
        taken = self._reports.take()
        self._outstanding -= len(taken)
        token, ledger, entry, index, at_ns = taken.T
        failed = int(np.count_nonzero(ledger == FAILED_OFFSET))
        is_known = ledger >= 0
        offset = ledger.copy()  # FAILED_OFFSET and UNKNOWN_OFFSET are kept
        offset[is_known] = pack_offsets(ledger[is_known], entry[is_known], index[is_known])
        error = self._reports.last_error
        if error and self._errors.is_new(error):
            LOG.warning("send_failed error=%s", error)
        # Its reports fail by thousands for one reason: the last one stands for all.
        failures = {error: failed} if failed else {}
        return Acks(token=token, offset=offset, at_mono_ns=at_ns, failures=failures)

    def throttle_seconds(self) -> None:
        """Return None: Pulsar throttles by reading less from the connection, which no client sees."""

    def close(self, timeout_seconds: float) -> Acks:
        """Wait for the last reports; a client that is cut off reports no message still in flight."""
        deadline_ns = self._clock.mono_ns() + round(timeout_seconds * SECOND_NS)
        # No flush: the client's takes a lock of its own while it holds Python's, and its thread may hold the
        # one while it waits for the other. Batches are sent without it.
        while len(self._reports) < self._outstanding and self._clock.mono_ns() < deadline_ns:
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        if len(self._reports) < self._outstanding:  # nor would the broker answer to a close
            self._client.shutdown()
        else:
            close_client(self._client)
        return self.take()


class SendReports:
    """Reports recorded by the client's thread; `note` runs for every message, as one append."""

    def __init__(self, mono_ns: Callable[[], int]) -> None:
        self.refused = -1  # the token of the last message for which there was no room
        self.was_queue = False  # of its partition, not the client's memory
        self.last_error = ""
        self._mono_ns = mono_ns
        self._notes: list[bytes] = []
        self.note: Callable[[int, Any, Any], None] = self._first

    def __len__(self) -> int:
        return len(self._notes)

    def take(self) -> NDArray[np.int64]:
        """Return the reports since the last call, shape (n, 5); the other thread only appends."""
        taken = self._notes[:]
        del self._notes[: len(taken)]
        return np.frombuffer(b"".join(taken), dtype=np.int64).reshape(-1, 5)

    def _first(self, token: int, result: Any, message_id: Any) -> None:  # noqa: ANN401  # the client's
        # The client's thread is not Python's: its thread state, with a page of stack, would be created and
        # destroyed in every call. One hold that is never released keeps it while the thread lives.
        ctypes.pythonapi.PyGILState_Ensure()
        self.note = self._bound()
        self.note(token, result, message_id)

    def _bound(self) -> Callable[[int, Any, Any], None]:
        add, mono_ns, report_other, pack = (
            self._notes.append,
            self._mono_ns,
            self._report_other,
            _REPORT.pack,
        )

        def note(token: int, result: Any, message_id: Any) -> None:  # noqa: ANN401  # the client's types
            ledger = message_id.ledger_id()
            if ledger < 0:  # comparing the result would cost more than all the other work
                report_other(token, result)
                return
            add(pack(token, ledger, message_id.entry_id(), message_id.batch_index(), mono_ns()))

        return note

    def _report_other(self, token: int, result: Any) -> None:  # noqa: ANN401  # the client's type
        """Record a report without a place: refused, failed, or a duplicate."""
        if result in (_FULL, _NO_MEMORY):
            self.refused, self.was_queue = token, result == _FULL
            return
        if result != _OK:
            self.last_error = result.name
        # Acknowledged without a place: a duplicate, which the broker dropped.
        ledger = UNKNOWN_OFFSET if result == _OK else FAILED_OFFSET
        self._notes.append(_REPORT.pack(token, ledger, 0, 0, self._mono_ns()))


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition by JavaStringHash of the key read as Latin-1."""
    value = 0
    for byte in key:
        value = (31 * value + byte) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partitions
