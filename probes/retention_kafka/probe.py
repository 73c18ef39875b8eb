"""The probe `retention_kafka`: polls log starts, folders and, on a second thread, the whole cluster."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Protocol

from pydantic.dataclasses import dataclass

from probes.common.folders import FolderList, folders_of
from probes.common.polling import PollingLoop, ReadingBuffer
from probes.retention_kafka import segments
from probes.retention_kafka.cluster import Cluster, ClusterOffsets
from probes.retention_kafka.log_starts import LogStartChange, LogStarts, Partition, RoundRobin
from probes.retention_kafka.segments import CREATED, RENAMED, UNLINKED, Folders, Segments
from soak.clients import client_settings
from soak.core.errors import BrokerError, NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

LIST_PERIOD_NS = 60 * SECOND_NS  # partitions may be added
_HOUR_NS = 3600 * SECOND_NS
SCAN_LIMIT_NS = 5_000_000  # for folders in each poll
FIRST_SCAN_LIMIT_NS = 100_000_000  # until each folder has been read once

_VERBS = {
    CREATED: "created_segments",
    RENAMED: "renamed_segments",
    UNLINKED: "unlinked_segments",
}

Samples = list[tuple[Column, float]]
Failed = Callable[[ProbeError], None]
"""Called with the error of a part that failed while the rest succeeded."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the run's broker
    topics: tuple[str, ...] = ()  # empty: the run's topic
    # The broker's log.dirs; null: on another host, so sizes are unknown.
    directory: FolderList | None = ""
    client: Settings = field(default_factory=dict)  # security; empty: that of the broker's clients
    period: Duration = SECOND_NS
    timeout: Duration = duration_ns("10s")
    effect_lag: Duration = duration_ns("60s")
    partitions_per_poll: int = 200
    # How often copies that are behind, and what others write, are looked at; null: never.
    cluster_period: Duration | None = duration_ns("5s")

    def __post_init__(self) -> None:
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if not duration_ns("100ms") <= self.period <= duration_ns("60s"):
            raise ValueError("period must lie between 100ms and 60s")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        if self.partitions_per_poll < 1:
            raise ValueError("partitions_per_poll must be at least 1")
        if self.cluster_period is not None and not SECOND_NS <= self.cluster_period <= _HOUR_NS:
            raise ValueError("cluster_period must lie between 1s and 1h")


class Offsets(ClusterOffsets, Protocol):
    """The requests to a cluster; see `KafkaOffsets`."""

    def partitions(self, topics: Sequence[str], failed: Failed) -> list[Partition]: ...
    def earliest(self, partitions: Sequence[Partition], failed: Failed) -> dict[Partition, int]: ...


def build(config: Config, clock: Clock) -> RetentionKafka:
    return RetentionKafka(config, clock)


def check_settings(config: Config) -> None:
    """Raise `SettingError` for client settings that a plan must not have."""
    client_settings.check_librdkafka("client", config.client)


def preflight(config: Config, clock: Clock) -> list[str]:
    """Return a warning for each of the broker's folders that cannot be listed."""
    del clock
    warnings = []
    for directory in folders_of(config.directory):
        try:
            os.listdir(directory)  # noqa: PTH208  # the path is text
        except OSError as error:
            warnings.append(
                f"the probe retention_kafka cannot list {directory} and will have no sizes: {error.strerror}"
            )
    return warnings


def connect(config: Config) -> Offsets:
    """Connect to the cluster that the settings name.

    Raises:
        ProbeError: a secret is not where the plan says, or the client refuses its settings.
    """
    from probes.retention_kafka.offsets import KafkaOffsets  # noqa: PLC0415  # a C library, only when used

    try:
        settings = {"client.id": "soakd-probe", **client_settings.resolve_secrets(config.client)}
    except BrokerError as error:
        raise ProbeError(str(error)) from error
    settings["bootstrap.servers"] = config.bootstrap_servers
    return KafkaOffsets(settings, config.timeout / SECOND_NS)


class RetentionKafka:
    """`poll` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        connect: Callable[[Config], Offsets] = connect,
        folders: Folders = segments,
    ) -> None:
        self._config = config
        self._clock = clock
        self._connect = connect
        self.loop = PollingLoop("retention_kafka", self._begin, config.period, clock)
        self._buffer = self.loop.buffer
        # used by the thread only
        self._starts = LogStarts()
        self._segments = Segments(folders_of(config.directory), clock, folders)
        self._partitions: list[Partition] = []
        self._next_list_ns = 0
        self._round_robin = RoundRobin(config.partitions_per_poll)
        self._cluster_loop = _cluster_loop(config, clock, connect, self._buffer)

    def read(self) -> Reading:
        if self._cluster_loop is not None:
            self._cluster_loop.check()
        return self.loop.read()

    def close(self) -> None:
        self.loop.close()
        if self._cluster_loop is not None:
            self._cluster_loop.close()

    def poll(self, offsets: Offsets) -> None:
        """Read the folders, ask for log starts once, and pass on the changes.

        A partition that does not answer does not affect the others; its next answer covers the time in
        between.

        Raises:
            ProbeError: no partition has answered.
        """
        begin_ns = self._clock.mono_ns()
        if not self._partitions:
            self._list(offsets)
        files = self._scan_folders()
        self._buffer.put(self._file_sums(files), self._held(), files, begin_ns)
        begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
        if begin_ns >= self._next_list_ns:
            self._list_again(offsets)
        asked = self._round_robin.next(self._partitions, _renamed(files))
        starts = offsets.earliest(asked, self._buffer.failed)
        changes = self._starts.update(starts, self._segments.sizes, asked_ns, self._clock.wall_ns())
        self._round_robin.answered(is_moving=bool(changes))
        for change in changes:
            self._segments.forget_below(change.partition, change.to_offset)
        sums = [*self._zeros(starts), *(one for change in changes for one in self._sums(change))]
        self._buffer.put(sums, (), (change.event() for change in changes), begin_ns)
        if len(starts) == len(asked):
            self._buffer.polled()

    def _begin(self) -> Callable[[], None]:
        _require_cluster(self._config)
        offsets = self._connect(self._config)
        return lambda: self.poll(offsets)

    def _list(self, offsets: Offsets) -> None:
        self._next_list_ns = self._clock.mono_ns() + LIST_PERIOD_NS
        self._partitions = offsets.partitions(self._config.topics, self._buffer.failed)

    def _list_again(self, offsets: Offsets) -> None:
        """List the partitions again; keep the known ones if the cluster does not answer."""
        try:
            self._list(offsets)
        except ProbeError as error:
            self._buffer.failed(error)

    def _scan_folders(self) -> list[Event]:
        if not self._config.directory:
            return []
        limit_ns = (
            SCAN_LIMIT_NS if self._segments.round_seconds is not None else FIRST_SCAN_LIMIT_NS
        )
        events = self._segments.scan(self._partitions, limit_ns)
        if self._segments.error is not None:  # offsets are useful without sizes
            where, why = self._config.directory, self._segments.error.strerror
            self._buffer.failed(ProbeError(f"cannot read the folders in {where}: {why}"))
        elif self._segments.round_seconds is not None and not self._segments.totals:
            self._buffer.failed(
                ProbeError(f"no partition's folder is in {self._config.directory}: no sizes")
            )
        return events

    def _file_sums(self, files: Sequence[Event]) -> Samples:
        """Return how many segments were created, renamed and unlinked, and the bytes of the unlinked ones."""
        found: Samples = [
            (Column(f"retention_{verb}", (("topic", topic),), verb.rpartition("_")[2]), 0.0)
            for topic in self._segments.totals
            for verb in (*_VERBS.values(), "unlinked_bytes")
        ]
        for event in files:
            labels, verb = (("topic", str(event.fields["topic"])),), _VERBS[event.kind]
            found.append((Column(f"retention_{verb}", labels, "segments"), 1.0))
            if event.kind == UNLINKED:
                size = float(event.fields["bytes"])
                found.append((Column("retention_unlinked_bytes", labels, "bytes"), size))
        return found

    def _held(self) -> Samples:
        round_seconds = self._segments.round_seconds
        found: Samples = []
        if round_seconds is not None:
            found.append((Column("retention_round_seconds", (), "seconds"), round_seconds))
        for topic, total in self._segments.measured_totals().items():
            labels = (("topic", topic),)
            waiting = Column("retention_waiting_bytes", labels, "bytes")
            found += [
                (Column("retention_held_bytes", labels, "bytes"), float(total.held_bytes)),
                (waiting, float(total.waiting_bytes)),
            ]
        return found

    def _zeros(self, asked: Iterable[Partition]) -> Samples:
        """Return zeros for each topic that answered, so that no deletion is a measured zero."""
        topics = dict.fromkeys(topic for topic, _ in asked)
        return [(column, 0.0) for topic in topics for column in self._columns(topic)]

    def _sums(self, change: LogStartChange) -> Samples:
        if not change.is_deletion:
            return []
        size = math.nan if change.bytes is None else float(change.bytes)
        amounts = (1.0, float(change.messages), size)
        return list(zip(self._columns(change.partition[0]), amounts, strict=False))

    def _columns(self, topic: str) -> list[Column]:
        labels, lag = (("topic", topic),), self._config.effect_lag / SECOND_NS
        numbers = [
            ("retention_deletions", "deletions"),
            ("retention_deleted_messages", "messages"),
            *([("retention_deleted_bytes", "bytes")] if self._config.directory else []),
        ]
        return [Column(metric, labels, unit, lag) for metric, unit in numbers]


def _require_cluster(config: Config) -> None:
    if not (config.bootstrap_servers and config.topics):
        raise NotAvailableError("retention_kafka needs bootstrap_servers and topics")


def _cluster_loop(
    config: Config, clock: Clock, connect: Callable[[Config], Offsets], buffer: ReadingBuffer
) -> PollingLoop | None:
    """Return the thread that looks at the whole cluster; None where it is not to be looked at."""
    period_ns = config.cluster_period
    if period_ns is None:
        return None
    cluster = Cluster(config.topics, period_ns, clock, buffer)
    limited = dataclasses.replace(config, timeout=min(config.timeout, period_ns))

    def begin() -> Callable[[], None]:
        _require_cluster(config)
        offsets = connect(limited)
        return lambda: cluster.poll(offsets)

    return PollingLoop("retention_kafka_cluster", begin, period_ns, clock, buffer)


def _renamed(files: Sequence[Event]) -> list[Partition]:
    """Return the partitions with a segment that was just renamed."""
    return [
        (str(event.fields["topic"]), int(event.fields["partition"]))
        for event in files
        if event.kind == RENAMED
    ]
