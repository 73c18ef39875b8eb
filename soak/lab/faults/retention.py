"""Faults of deletion and segments: a lowered retention limit, stalled deletion, frequent segment rolls."""

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
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, format_duration, size_bytes
from soak.lab.faults.active import ActiveFault, activating
from soak.lab.faults.stopping import Stopping
from soak.lab.ports import Target

_ASK_SECONDS = 20.0


def altered(target: Target, pattern: str, settings: Mapping[str, str]) -> ActiveFault:
    """Set these on every topic whose name matches, until the fault is lifted.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    try:
        with activating(target) as active:
            topics = fnmatch.filter(admin.list_topics(timeout=_ASK_SECONDS).topics, pattern)
            if not topics:
                raise LabError(f"the lab has no topic {pattern!r} whose settings could be altered")
            for topic in topics:
                active.on_lift(_set, admin, topic, _own(admin, topic, list(settings)))
                _set(admin, topic, settings)
            active.did(topics=topics, settings=dict(settings))
    except KafkaException as error:
        raise LabError(f"cannot alter the settings of {pattern!r}: {error}") from error
    return active


def _own(admin: AdminClient, topic: str, keys: list[str]) -> dict[str, str | None]:
    """Return what the topic itself says of these; None where it goes by the cluster's default."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (found,) = admin.describe_configs([resource], request_timeout=_ASK_SECONDS).values()
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
    (done,) = admin.incremental_alter_configs([resource], request_timeout=_ASK_SECONDS).values()
    done.result()


# --- Makes the broker wait while it deletes segments, as a drive that starves would make it wait.
# Needs no root: it watches the data folder for segments that are being deleted and stops the broker's
# process for a moment, again and again, as long as deletions are recent.

_DELETED = ".log.deleted"  # Kafka renames a segment, and unlinks it after file.delete.delay.ms


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeletionStallConfig:
    stall: Duration = duration_ns("80ms")  # how long the broker is stopped at a time
    every: Duration = duration_ns("250ms")  # from one stop to the next
    within: Duration = duration_ns("1s")  # after a deletion, how long it goes on
    poll: Duration = duration_ns("20ms")  # between two looks at the data folder
    topics: str = "soak-*"  # only deletions in topics of this pattern count

    def __post_init__(self) -> None:
        for key in ("stall", "every", "within", "poll"):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} must be above 0s")
        if self.stall * 2 > self.every:
            raise ValueError("stall must be at most half of every, or the broker hardly runs")
        if self.stall > 5 * SECOND_NS:
            raise ValueError(
                f"stall must be at most 5s, not {format_duration(self.stall)}: "
                "clients would take the broker for dead"
            )


def inject_deletion_stall(target: Target, config: DeletionStallConfig) -> Stopping:
    """Begin to watch and to stop the broker; ends with `lift`, or with this process."""

    def watch(active: Stopping) -> None:
        clock, duty = target.clock, Duty(config)
        while not active.is_lifted_in(config.poll):
            deleted = deleted_segments(target.broker.data_directory, config.topics)
            now_ns = clock.mono_ns()
            fresh = duty.fresh(now_ns, deleted)
            if fresh:
                active.has_begun(clock.wall_ns())
            if duty.is_due(now_ns):
                active.stop(target.broker.pid, config.stall, new_deletions=fresh)

    active = Stopping("deletion_stall", target, watch)
    active.begin()
    return active


def deleted_segments(data: Path, topics: str) -> frozenset[str]:
    """Return the segments of these topics that are renamed for deletion and still there."""
    found = []
    for partition in _listed(data):
        topic = partition.rpartition("-")[0]
        if fnmatch.fnmatchcase(topic, topics):
            names = _listed(data / partition)
            found += [f"{partition}/{name}" for name in names if name.endswith(_DELETED)]
    return frozenset(found)


class Duty:
    """Decides from what is being deleted whether the broker is stopped now; no IO."""

    def __init__(self, config: DeletionStallConfig) -> None:
        self._config = config
        self._seen: frozenset[str] = frozenset()
        self._until_ns = 0
        self._next_ns = 0

    def fresh(self, now_ns: int, deleted: frozenset[str]) -> int:
        """Return how many deletions began since the last call."""
        new = len(deleted - self._seen)
        self._seen = deleted
        if new:
            self._until_ns = now_ns + self._config.within
        return new

    def is_due(self, now_ns: int) -> bool:
        """Return whether to stop the broker now; a True counts as done."""
        if now_ns >= self._until_ns or now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._config.every
        return True


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are enough, fifty times a second
    except (FileNotFoundError, NotADirectoryError):  # deleted meanwhile, or a file beside them
        return []


# --- Lowers the retention limit of the run's topics while it runs, so that deletions begin at once and go on.
# Needs: a Kafka, and more in those topics than the limit.

_PATIENCE_NS, _LOOK_NS = 30 * SECOND_NS, SECOND_NS // 20


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetentionLimitConfig:
    bytes: Size = size_bytes("4MiB")  # of each partition
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("bytes must be above 0B")


def inject_retention_limit(target: Target, config: RetentionLimitConfig) -> ActiveFault:
    """Return when the first segments are deleted.

    Raises:
        LabError: there is no such topic, the cluster refuses, or nothing was deleted.
    """
    active = altered(target, config.topics, {"retention.bytes": str(config.bytes)})
    try:
        count = await_deletion(target, config)
    except BaseException:
        active.lift()
        raise
    active.did(deleted_segments=count)
    return active


def await_deletion(target: Target, config: RetentionLimitConfig) -> int:
    """Return how many segments are being deleted, as soon as there are some.

    Raises:
        LabError: there were none for half a minute.
    """
    clock, data = target.clock, target.broker.data_directory
    deadline_ns = clock.mono_ns() + _PATIENCE_NS
    while clock.mono_ns() < deadline_ns:
        deleted = deleted_segments(data, config.topics)
        if deleted:
            return len(deleted)
        clock.sleep_until(clock.mono_ns() + _LOOK_NS)
    raise LabError(f"the limit of {config.topics!r} was lowered, and nothing was deleted")


# --- Has the broker begin a new segment every so often: opening and flushing files becomes a part of the
# load.
# Needs: a Kafka.

_MS_NS = 1_000_000


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SegmentRollConfig:
    every: Duration = duration_ns("1s")
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.every < _MS_NS:
            raise ValueError("every must be at least 1ms")


def inject_segment_roll(target: Target, config: SegmentRollConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    return altered(target, config.topics, {"segment.ms": str(config.every // _MS_NS)})
