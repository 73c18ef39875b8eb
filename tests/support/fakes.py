"""Stand-ins for the outside world: exact, instant, and without threads."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from probes.retention_kafka.cluster import Choose, Listing
from soak.core.errors import BrokerError, ProbeError
from soak.core.model import Reading
from soak.core.ports import UNMARKED, Acks, Batch, Outgoing, TopicCreation, Topics
from soak.core.units import SECOND_NS


class FakeClock:
    """A clock that moves only when asked to; the three Linux clocks may be moved apart."""

    def __init__(self, mono_ns: int = 0, wall_ns: int = 1_790_000_000 * SECOND_NS) -> None:
        self._mono_ns = mono_ns
        self._wall_ns = wall_ns
        self._boot_ns = mono_ns

    def mono_ns(self) -> int:
        return self._mono_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def boot_ns(self) -> int:
        return self._boot_ns

    def advance(self, seconds: float) -> None:
        self.advance_ns(round(seconds * SECOND_NS))

    def advance_ns(self, step_ns: int) -> None:
        self._mono_ns += step_ns
        self._wall_ns += step_ns
        self._boot_ns += step_ns

    def step_wall(self, seconds: float) -> None:
        self._wall_ns += round(seconds * SECOND_NS)

    def suspend(self, seconds: float) -> None:
        """Let wall and boot time go on while the monotonic clock stands still."""
        self._wall_ns += round(seconds * SECOND_NS)
        self._boot_ns += round(seconds * SECOND_NS)

    def sleep_until(self, mono_ns: int) -> None:
        self.advance_ns(max(0, mono_ns - self._mono_ns))


def refuse(*_: object) -> NoReturn:
    """Stand for a call of the system that this user may not make."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class FakeBell:
    """Nobody rings it."""

    fd = -1

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def wait(self, mono_ns: int) -> None:
        self._clock.sleep_until(mono_ns)


class FakeProducer:
    """A client that acknowledges everything `latency_ns` after it was sent, unless set otherwise."""

    refused_by_partition = False

    def __init__(self, clock: FakeClock, latency_ns: int = 1_000_000) -> None:
        self._clock = clock
        self.latency_ns = latency_ns
        self.is_full = False
        self.full: set[int] = set()  # partitions
        self.is_stalled = False
        self.payloads: list[tuple[int, bytes]] = []
        self.throttled: dict[str, float] | None = None
        self._out: list[tuple[int, int, int]] = []
        self._offsets: dict[int, int] = {}

    def rings(self, bell: int) -> bool:
        del bell
        return True

    def send(self, messages: Outgoing) -> int:
        if self.is_full:
            self.refused_by_partition = False
            return 0
        due_ns = self._clock.mono_ns() + self.latency_ns
        for number, (at, payload) in enumerate(
            zip(messages.partition, messages.payload, strict=True)
        ):
            if at in self.full:
                self.refused_by_partition = True
                return number
            offset = self._offsets.get(at, 0)
            self._offsets[at] = offset + 1
            self.payloads.append((at, bytes(payload)))
            self._out.append((messages.first_token + number, offset, due_ns))
        return len(messages.payload)

    def serve(self) -> None:
        pass

    def throttle_seconds(self) -> dict[str, float] | None:
        return self.throttled

    def take(self) -> Acks:
        now = self._clock.mono_ns()
        is_due = [not self.is_stalled and at <= now for _, _, at in self._out]
        done = [item for item, due in zip(self._out, is_due, strict=True) if due]
        self._out = [item for item, due in zip(self._out, is_due, strict=True) if not due]
        block = np.array(done, dtype=np.int64).reshape(-1, 3)
        return Acks(block[:, 0], block[:, 1], block[:, 2])

    def close(self, timeout_seconds: float) -> Acks:
        """Give up what is still out: offset -1."""
        del timeout_seconds
        now = self._clock.mono_ns()
        block = np.array([(token, -1, now) for token, _, _ in self._out], dtype=np.int64)
        self._out = []
        block = block.reshape(-1, 3)
        return Acks(block[:, 0], block[:, 1], block[:, 2])


class FakeConsumer:
    """Gives the batches it was made with; the log's bounds are set by the test."""

    def __init__(self, batches: list[Batch], bounds: Mapping[int, tuple[int, int]]) -> None:
        self._batches = batches
        self.is_paused = False
        self.closed = ""
        self.bounds = dict(bounds)
        self.throttled: dict[str, float] | None = None

    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        del limit, timeout_seconds
        return self._batches.pop(0)

    def pause(self, *, is_paused: bool) -> None:
        self.is_paused = is_paused

    def lag(self, positions: Mapping[int, int]) -> int | None:
        return sum(max(0, self.bounds[at][1] - max(where, 0)) for at, where in positions.items())

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return {at: self.bounds[at] for at in partitions}

    def throttle_seconds(self) -> dict[str, float] | None:
        return self.throttled

    def close(self) -> None:
        self.closed = "left"

    def close_for_good(self) -> None:
        self.closed = "for good"


class FakeBroker:
    """A cluster of which only the leaders and the partitioner matter."""

    block_bits = 0
    wait_ns = 260_000

    def __init__(self, leader: Sequence[int] = (1,)) -> None:
        self.leader = list(leader)
        self.addresses: dict[int, str] = {}  # of those that their names do not tell
        self.error: Exception | None = None

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        if self.error is not None:
            raise self.error
        return np.resize(np.array(self.leader, dtype=np.int64), topics.total)

    def leader_name(self, number: int) -> str:
        return f"broker{number}:8080"

    def leader_address(self, number: int) -> str:
        return self.addresses.get(number, "")

    def broker_count(self) -> int:
        if self.error is not None:
            raise self.error
        return len(set(self.leader))

    def topic_error(self, topic: object) -> str:  # noqa: ARG002  # of the port
        return ""

    def replication_error(self, topic: object) -> str:
        del topic
        return ""

    def cluster_warnings(self) -> list[str]:
        return []

    def partition_of(self, key: bytes, partitions: int) -> int:
        return sum(key) % partitions


class FakeCluster:
    """Topics and what tells them from others of their name: ids of its own, our marks, or nothing.

    `dies_after` is the topic behind whose making the process that asked for it dies.
    """

    def __init__(self, tells: Literal["ids", "marks", "nothing"] = "ids") -> None:
        self.topics: dict[str, str] = {}
        self.refused: set[str] = set()
        self.dies_after = ""
        self.error: BrokerError | None = None
        self.finished: list[str] = []
        self._tells = tells
        self._made = 0

    def make(self, name: str, mark: str = "") -> None:
        self._made += 1
        marks = {"ids": f"id-{self._made}", "marks": mark, "nothing": ""}
        self.topics[name] = marks[self._tells]

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def topic_error(self, topic: object) -> str:  # noqa: ARG002  # of the port
        return ""

    def existing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.topics]

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        if self.error is not None:
            raise self.error
        return {name: self.topics[name] for name in self.existing(names)}

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        del replication, settings
        for name in topics.names:
            if name not in making.begun:
                if name in self.refused or name in self.topics:
                    raise BrokerError(f"cannot create topic {name}: refused")
                self.make(name, making.mark)
                if name == self.dies_after:
                    raise KeyboardInterrupt
                making.note(self.identities([name]))
            self.finished.append(name)

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.refused:
                raise BrokerError(f"cannot delete topic {name}: refused")
            self.topics.pop(name, None)


class FakeProbe:
    """Gives the readings it was made with, in order; an error among them is raised."""

    def __init__(self, *readings: Reading | Exception) -> None:
        self._readings = list(readings)
        self.reads = 0
        self.is_closed = False

    def read(self) -> Reading:
        self.reads += 1
        found = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.is_closed = True


class HangingProbe(FakeProbe):
    """Answers nothing until it is let go."""

    def __init__(self, *readings: Reading) -> None:
        super().__init__(*readings)
        self.let_go = threading.Event()

    def read(self) -> Reading:
        self.let_go.wait()
        return super().read()


class FakeOffsets:
    """A Kafka cluster of one topic: log starts and ends are set by the test."""

    def __init__(self, clock: FakeClock, topic: str, starts: list[int]) -> None:
        self._clock = clock
        self.topic = topic
        self.starts = starts
        self.answer_seconds = 0.0
        self.error: ProbeError | None = None
        self.list_error: ProbeError | None = None
        self.leaderless: set[int] = set()
        self.asked: list[list[int]] = []
        self.listed = 0

    def partitions(
        self, topics: Sequence[str], failed: Callable[[ProbeError], None]
    ) -> list[tuple[str, int]]:
        del failed
        self.listed += 1
        error = self.error or self.list_error
        if error is not None:
            raise error
        return [(topic, at) for topic in topics for at in range(len(self.starts))]

    def listing(self, choose: Choose) -> Listing:
        """Return one broker and no topic of others."""
        del choose
        return Listing({1: "b1:9092"}, {}, len(self.starts), [])

    def latest(
        self, partitions: Sequence[tuple[str, int]], failed: Callable[[ProbeError], None]
    ) -> dict[tuple[str, int], int]:
        raise AssertionError(f"nothing was listed, and {partitions} are asked for, {failed}")

    def earliest(
        self, partitions: Sequence[tuple[str, int]], failed: Callable[[ProbeError], None]
    ) -> dict[tuple[str, int], int]:
        self.asked.append([at for _, at in partitions])
        self._clock.advance(self.answer_seconds)
        if self.error is not None:
            raise self.error
        if self.leaderless:
            failed(ProbeError("cannot list offsets: leader not available"))
        return {
            (topic, at): self.starts[at] for topic, at in partitions if at not in self.leaderless
        }
