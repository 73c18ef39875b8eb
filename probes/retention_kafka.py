"""Retention at work in Kafka: which partitions lost their oldest segments, when, and how much went.

Source:   earliest and latest offsets of the run's topics (AdminClient.list_offsets), once every `period` on a
          thread of its own; sizes of the partition folders where `directory` is on this host.
Overhead: two requests a poll (0.5-6 ms); one stat a file in the folders, held below 5 % of a core.
Caveats:  The offset moves first; files are unlinked `effect_lag` later (file.delete.delay.ms, Kafka: 60 s).
          A poll sees one move a partition, of one segment or several. Bytes are the sizes of whole log
          files; without the folder they are not known and left out. More partitions than
          `partitions_per_poll` take turns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import Protocol

from pydantic.dataclasses import dataclass

from probes._kafka_folders import scan
from probes._log_starts import Bounds, Folder, LogStarts, Move, Partition
from probes._worker import Worker
from soak.clients import known, secret
from soak.core.errors import BrokerError, NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan_base import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

MAX_EVENTS = 1000  # kept between two readings; those beyond are counted
LIST_EVERY_NS = 60 * SECOND_NS  # partitions may be added
SCAN_SHARE = 20  # a scan of the folders is followed by a pause this many times as long

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the run's broker
    topics: tuple[str, ...] = ()  # empty: the run's topic
    directory: str | None = (
        ""  # the broker's data folder; null: on another host, sizes stay unknown
    )
    client: Settings = field(
        default_factory=dict
    )  # security; empty: what all the broker's clients have
    period: Duration = SECOND_NS
    timeout: Duration = duration_ns("10s")
    effect_lag: Duration = duration_ns("60s")
    partitions_per_poll: int = 500

    def __post_init__(self) -> None:
        if not duration_ns("100ms") <= self.period <= duration_ns("60s"):
            raise ValueError("period must lie between 100ms and 60s")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if self.partitions_per_poll < 1:
            raise ValueError("partitions_per_poll must be at least 1")


class Offsets(Protocol):
    """The part of a cluster that is asked; see `KafkaOffsets`."""

    def partitions(self, topics: Sequence[str]) -> list[Partition]: ...
    def bounds(self, partitions: Sequence[Partition]) -> dict[Partition, Bounds]: ...


def build(config: Config, clock: Clock) -> RetentionKafka:
    return RetentionKafka(config, clock)


def check_settings(config: Config) -> None:
    """Refuse a secret in the plan, and settings that the client does not have.

    Raises:
        SettingError: about the first of them.
    """
    secret.refuse_literals("client", config.client, secret.OF_LIBRDKAFKA)
    known.refuse_unknown("client", config.client, known.librdkafka())


def connect(config: Config) -> Offsets:
    """Return the cluster's offsets.

    Raises:
        ProbeError: a secret is not where the plan says, or the client refuses its settings.
    """
    from probes._kafka_offsets import KafkaOffsets  # noqa: PLC0415  # a C library, only when used

    try:
        settings = secret.resolved(config.client)
    except BrokerError as error:
        raise ProbeError(str(error)) from error
    settings["bootstrap.servers"] = config.bootstrap_servers
    return KafkaOffsets(settings, config.timeout / SECOND_NS)


@plain_dataclass(slots=True)
class _Topic:
    deletions: int = 0
    messages: int = 0
    bytes: int = 0
    is_size_known: bool = True


@plain_dataclass(slots=True)
class _Box:
    """What the thread hands over: everything since the last reading."""

    topics: dict[str, _Topic] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    dropped: int = 0
    held_bytes: dict[str, int] = field(default_factory=dict)
    cost_ns: int = 0

    def add(self, move: Move) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(move.event())
        else:
            self.dropped += 1
        if not move.is_deletion:
            return
        topic = self.topics[move.partition[0]]
        topic.deletions += 1
        topic.messages += move.messages
        topic.is_size_known = topic.is_size_known and move.bytes is not None
        topic.bytes += move.bytes or 0


class RetentionKafka:
    """`poll` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        connect: Callable[[Config], Offsets] = connect,
        scan: Callable[[Path, Sequence[Partition]], Mapping[Partition, Folder]] = scan,
    ) -> None:
        self._config = config
        self._clock = clock
        self._connect = connect
        self._scan = scan
        self._worker = Worker("retention_kafka", self._work)
        self._lock = threading.Lock()
        self._box = _Box()
        self._polled_ns: int | None = None
        # of the thread alone
        self._starts = LogStarts()
        self._partitions: list[Partition] = []
        self._next_list_ns = 0
        self._next_scan_ns = 0
        self._turn = 0

    def read(self) -> Reading:
        """Return what the polls since the last reading saw; without a poll only how old the last one is."""
        begin_ns = self._clock.mono_ns()
        self._worker.check()
        return self.taken(begin_ns)

    def taken(self, begin_ns: int) -> Reading:
        with self._lock:
            box, self._box = self._box, _Box()
            polled_ns = self._polled_ns
        samples: Samples = []
        if polled_ns is not None:
            age = (self._clock.mono_ns() - polled_ns) / SECOND_NS
            samples.append((Column("retention_poll_age_seconds", (), "seconds"), age))
        for name, topic in sorted(box.topics.items()):
            samples += self._topic_samples(name, topic)
        for name, size in sorted(box.held_bytes.items()):
            samples.append(
                (Column("retention_held_bytes", (("topic", name),), "bytes"), float(size))
            )
        if box.dropped:
            samples.append((Column("retention_dropped_events", (), "events"), float(box.dropped)))
        cost_ns = box.cost_ns + self._clock.mono_ns() - begin_ns
        return Reading(tuple(samples), tuple(box.events), cost_ns / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def poll(self, offsets: Offsets) -> None:
        """Ask once, and hand over what moved.

        Raises:
            ProbeError: the cluster did not answer; the next poll covers this one's time as well.
        """
        begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if begin_ns >= self._next_list_ns:
            self._partitions = offsets.partitions(self._config.topics)
            self._next_list_ns = begin_ns + LIST_EVERY_NS
        bounds = offsets.bounds(self._slice())
        answered_ns = self._clock.wall_ns()
        done_ns = self._clock.mono_ns()
        folders = self._folders(done_ns)
        moves = self._starts.update(bounds, folders, asked_ns, answered_ns)
        with self._lock:
            self._polled_ns = done_ns
            for topic, _ in bounds:
                self._box.topics.setdefault(topic, _Topic())
            for move in moves:
                self._box.add(move)
            self._box.held_bytes |= _held_by_topic(folders)
            self._box.cost_ns += self._clock.mono_ns() - begin_ns

    def _work(self, stop: threading.Event) -> None:
        if not (self._config.bootstrap_servers and self._config.topics):
            raise NotAvailableError("retention_kafka needs bootstrap_servers and topics")
        offsets = self._connect(self._config)
        period_ns = self._config.period
        next_ns = self._clock.mono_ns() + period_ns // 2  # between the readings, not at them
        while not stop.wait(max(0.0, (next_ns - self._clock.mono_ns()) / SECOND_NS)):
            try:
                self.poll(offsets)
            except ProbeError as error:
                self._worker.note(error)
            late_ns = self._clock.mono_ns() - next_ns
            next_ns += period_ns * (
                1 + max(0, late_ns // period_ns)
            )  # missed polls are not made up

    def _slice(self) -> list[Partition]:
        count = self._config.partitions_per_poll
        if len(self._partitions) <= count:
            return self._partitions
        begin = self._turn % len(self._partitions)
        self._turn = begin + count
        return [*self._partitions, *self._partitions][begin : begin + count]

    def _folders(self, now_ns: int) -> Mapping[Partition, Folder]:
        if not self._config.directory or now_ns < self._next_scan_ns:
            return {}
        try:
            found = self._scan(Path(self._config.directory), self._partitions)
        except OSError as error:  # the offsets are worth having without the sizes
            where = self._config.directory
            self._worker.note(ProbeError(f"cannot read the folders in {where}: {error.strerror}"))
            found = {}
        end_ns = self._clock.mono_ns()
        self._next_scan_ns = end_ns + SCAN_SHARE * (end_ns - now_ns)
        return found

    def _topic_samples(self, name: str, topic: _Topic) -> Samples:
        labels, lag = (("topic", name),), self._config.effect_lag / SECOND_NS
        numbers = [
            ("retention_deletions", "deletions", topic.deletions),
            ("retention_deleted_messages", "messages", topic.messages),
        ]
        if topic.is_size_known and self._config.directory:
            numbers.append(("retention_deleted_bytes", "bytes", topic.bytes))
        return [
            (Column(metric, labels, unit, lag), float(value)) for metric, unit, value in numbers
        ]


def _held_by_topic(folders: Mapping[Partition, Folder]) -> dict[str, int]:
    held: dict[str, int] = {}
    for (topic, _), folder in folders.items():
        held[topic] = held.get(topic, 0) + folder.held_bytes
    return held
