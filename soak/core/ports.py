"""The seams: what a broker, a probe, a sink and a clock must be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Reading


class Clock(Protocol):
    def mono_ns(self) -> int: ...
    def wall_ns(self) -> int: ...
    def boot_ns(self) -> int: ...
    def sleep_until(self, mono_ns: int) -> None: ...


FAILED = -1
"""Offset of a message that the client gave up."""
UNKNOWN_OFFSET = -2
"""Offset of a message that was delivered, when the cluster did not say where it lies (acks=0)."""


@dataclass(frozen=True, slots=True)
class Acks:
    """A batch of delivery reports, arrays of shape (n,). `token` is what was given to `send`."""

    token: NDArray[np.int64]
    offset: NDArray[np.int64]  # or FAILED, or UNKNOWN_OFFSET
    at_mono_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Received messages in order of arrival. `heads` are the first bytes of each payload."""

    heads: Sequence[bytes]
    partition: NDArray[np.int64]
    offset: NDArray[np.int64]
    at_mono_ns: int
    at_wall_ns: int


class Producer(Protocol):
    def send(self, partition: int, payload: bytes, token: int) -> bool:
        """Hand over one message; False when the client's queue is full (try again, nothing sent)."""
        ...

    def serve(self) -> None:
        """Let the client note, with its time, what has been acknowledged; returns at once."""
        ...

    def take(self) -> Acks:
        """Return the delivery reports noted since the last call."""
        ...

    def in_flight(self) -> int: ...

    def close(self, timeout_seconds: float) -> Acks:
        """Wait for outstanding messages; return the last reports. What is left counts as failed."""
        ...


class Consumer(Protocol):
    def receive(self, limit: int, timeout_seconds: float) -> Batch: ...

    def lag(self, partition: int, position: int) -> int | None:
        """Return how many messages lie between `position` and the log's end, if that was seen."""
        ...

    def log_bounds(self, partition: int) -> tuple[int, int]:
        """Return the earliest offset still readable and the next one to be written.

        Raises:
            BrokerError: the broker did not answer in time.
        """
        ...

    def close(self) -> None: ...


class Broker(Protocol):
    def check_settings(self) -> None:
        """Raise `BrokerError` when the client does not know its settings; asks no cluster."""
        ...

    def check(self) -> None:
        """Raise `BrokerError` when the settings are wrong or the cluster cannot be reached."""
        ...

    def topic_exists(self, topic: str) -> bool: ...

    def create_topic(
        self, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
    ) -> None: ...

    def producer(self, topic: str) -> Producer: ...

    def consumer(self, topic: str, positions: Mapping[int, int]) -> Consumer:
        """Return a consumer assigned to the partitions given, from these offsets on."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Return the names and versions of client library and cluster, as far as known."""
        ...


class Probe(Protocol):
    def read(self) -> Reading:
        """Return at once; what may block has a thread of its own.

        Raises:
            NotAvailableError: this machine lacks what the probe reads; said once.
            ProbeError: this reading failed.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A finding ready for people, built once and rendered by each sink."""

    key: str  # stable per finding and kind, becomes the Message-ID
    subject: str
    text: str
    chart_png: bytes | None = None
    follows: str = ""  # key of the message that this one is the sequel of
    at_wall_ns: int = 0  # when it was written; a repeat carries the same stamp


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message: `retry` means temporary, `never` means permanent."""

    result: Literal["delivered", "retry", "never"]
    detail: str = ""


class Sink(Protocol):
    def send(self, message: Message) -> Outcome: ...
