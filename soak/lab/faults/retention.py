"""Faults of deletion and segments: stalled deletion, a lowered retention limit, frequent segment rolls."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs lack them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes
from soak.lab.faults.active import (
    ActiveFault,
    Fault,
    ThreadedFault,
    activating,
    start_threaded,
)
from soak.lab.faults.broker_process import check_stall
from soak.lab.ports import Target

_DELETED_SUFFIX = (
    ".log.deleted"  # Kafka renames a segment, and unlinks it after file.delete.delay.ms
)
_REQUEST_SECONDS = 20.0
_DELETION_LIMIT_NS, _DELETION_POLL_NS = 30 * SECOND_NS, SECOND_NS // 20
_MS_NS = 1_000_000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeletionStallConfig:
    """Make the broker wait while it deletes segments, as a starving drive would make it wait.

    The data folder is watched for segments under deletion; while deletions are recent, the broker's process
    is stopped for a moment, again and again.

    Needs: nothing, not even root.
    """

    stall: Duration = duration_ns("80ms")  # length of each stop
    every: Duration = duration_ns("250ms")  # from the start of a stop to the next
    within: Duration = duration_ns("1s")  # after a deletion, during which stops go on
    poll: Duration = duration_ns("20ms")  # between two looks at the data folder
    topics: str = "soak-*"  # only deletions in these topics count

    def __post_init__(self) -> None:
        for key in ("every", "within", "poll"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be above 0s")
        check_stall(self.stall, self.every, "clients would take the broker for dead")


def _inject_deletion_stall(target: Target, config: DeletionStallConfig) -> ThreadedFault:
    def watch(active: ThreadedFault) -> None:
        clock, stalls = target.clock, DeletionStalls(config)
        while not active.wait_for_lift(config.poll):
            deleted = deleted_segments(target.broker.data_directory, config.topics)
            now_ns = clock.mono_ns()
            new = stalls.count_new(now_ns, deleted)
            if new:
                active.note_onset(clock.wall_ns())
            if stalls.is_due(now_ns):
                active.stop_process(target.broker.pid, config.stall, new_deletions=new)

    return start_threaded("deletion_stall", target, watch)


def deleted_segments(data: Path, topics: str) -> frozenset[str]:
    """Return the segments of these topics that are renamed for deletion and still there."""
    found = []
    for partition in _names_in(data):
        if fnmatch.fnmatchcase(partition.rpartition("-")[0], topics):
            names = _names_in(data / partition)
            found += [f"{partition}/{name}" for name in names if name.endswith(_DELETED_SUFFIX)]
    return frozenset(found)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough, fifty times a second
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or a file among folders
        return []


class DeletionStalls:
    """Decide from the segments under deletion whether to stop the broker now; no IO."""

    def __init__(self, config: DeletionStallConfig) -> None:
        self._config = config
        self._seen: frozenset[str] = frozenset()
        self._until_ns = 0
        self._next_ns = 0

    def count_new(self, now_ns: int, deleted: frozenset[str]) -> int:
        """Return how many deletions began since the last call."""
        new = len(deleted - self._seen)
        self._seen = deleted
        if new:
            self._until_ns = now_ns + self._config.within
        return new

    def is_due(self, now_ns: int) -> bool:
        """Return whether to stop the broker now; the next stop is due a period later."""
        if now_ns >= self._until_ns or now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._config.every
        return True


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetentionLimitConfig:
    """Lower the retention limit of the run's topics while it runs, so that deletions begin at once and go on.

    Needs: a Kafka, and more in those topics than the limit.
    """

    bytes: Size = size_bytes("4MiB")  # of each partition
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("bytes must be above 0B")


def _inject_retention_limit(target: Target, config: RetentionLimitConfig) -> ActiveFault:
    """Lower the limit and return when the first segments are deleted.

    Raises:
        LabError: there is no such topic, the cluster refuses, or nothing was deleted.
    """
    active = _alter_topics(target, config.topics, {"retention.bytes": str(config.bytes)})
    try:
        count = await_deletion(target, config.topics)
    except BaseException:
        active.lift()
        raise
    active.record(deleted_segments=count)
    return active


def await_deletion(target: Target, topics: str) -> int:
    """Return how many segments of these topics are being deleted, as soon as there are some.

    Raises:
        LabError: there were none for half a minute.
    """
    clock, data = target.clock, target.broker.data_directory
    deadline_ns = clock.mono_ns() + _DELETION_LIMIT_NS
    while clock.mono_ns() < deadline_ns:
        if deleted := deleted_segments(data, topics):
            return len(deleted)
        clock.sleep_until(clock.mono_ns() + _DELETION_POLL_NS)
    raise LabError(f"the limit of {topics!r} was lowered, and nothing was deleted")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SegmentRollConfig:
    """Make the broker begin a new segment often: opening and flushing files becomes a part of the load.

    Needs: a Kafka.
    """

    every: Duration = duration_ns("1s")
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.every < _MS_NS:
            raise ValueError("every must be at least 1ms")


def _inject_segment_roll(target: Target, config: SegmentRollConfig) -> ActiveFault:
    return _alter_topics(target, config.topics, {"segment.ms": str(config.every // _MS_NS)})


def _alter_topics(target: Target, pattern: str, settings: Mapping[str, str]) -> ActiveFault:
    """Set these on every topic whose name matches, until the fault is lifted.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    try:
        with activating(target) as active:
            topics = fnmatch.filter(admin.list_topics(timeout=_REQUEST_SECONDS).topics, pattern)
            if not topics:
                raise LabError(f"the lab has no topic {pattern!r} whose settings could be altered")
            for topic in topics:
                active.on_lift(_set, admin, topic, _topic_settings(admin, topic, list(settings)))
                _set(admin, topic, settings)
            active.record(topics=topics, settings=dict(settings))
    except KafkaException as error:
        raise LabError(f"cannot alter the settings of {pattern!r}: {error}") from error
    return active


def _topic_settings(admin: AdminClient, topic: str, keys: list[str]) -> dict[str, str | None]:
    """Return these settings of a topic; None where it takes the cluster's default."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (found,) = admin.describe_configs([resource], request_timeout=_REQUEST_SECONDS).values()
    entries = found.result()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: entries[key].value if entries[key].source == own else None for key in keys}


def _set(admin: AdminClient, topic: str, settings: Mapping[str, str | None]) -> None:
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource], request_timeout=_REQUEST_SECONDS).values()
    done.result()


FAULTS = {
    "deletion_stall": Fault(config=DeletionStallConfig, inject=_inject_deletion_stall),
    "retention_limit": Fault(config=RetentionLimitConfig, inject=_inject_retention_limit),
    "segment_roll": Fault(config=SegmentRollConfig, inject=_inject_segment_roll),
}
