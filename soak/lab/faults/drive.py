"""Faults of a broker's drive: slow, failing, hanging, discarding, out of erased blocks, full, throttled or shared with another writer."""

from __future__ import annotations

import errno
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, size_bytes
from soak.lab.drive.flash import PAGE_BYTES, Settings
from soak.lab.drive.throttle import Throttle
from soak.lab.faults import active as _sole
from soak.lab.faults.active import (
    ActiveFault,
    activating,
    drive_of,
    lacking_own_drive,
    node_of,
    revive,
    spawned,
)
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveDelayConfig:
    node: int = 1  # whose drive, from 1
    delay: Duration = duration_ns("10ms")

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")


drive_delay_lacks = lacking_own_drive
drive_delay_exclusion = _sole.drive_answers_exclusion


def inject_drive_delay(target: Target, config: DriveDelayConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.answer)
        drive.answer(delay_seconds=config.delay / SECOND_NS)
        active.did(delay_ns=config.delay)
    return active


# --- Makes a broker's drive fail every write and every flush, as one does that is worn or full.
# Needs: an injected drive (`lab.drive`), so root and FUSE. A filesystem writes no more after such an
# error, so
# when the fault is lifted it is mounted anew and the broker, which may have ended of it, is started again.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveErrorConfig:
    node: int = 1  # whose drive, from 1
    error: Literal["EIO", "ENOSPC"] = "EIO"


drive_error_lacks = lacking_own_drive
drive_error_exclusion = _sole.drive_answers_exclusion


def inject_drive_error(target: Target, config: DriveErrorConfig) -> ActiveFault:
    """Begin at once; lift it from the main thread, as the broker is then started.

    Raises:
        LabError: the broker has no injected drive.
    """
    with activating(target) as active:
        drive = drive_of(target, config.node)
        node = node_of(target, config.node)
        for step in (node.restart, drive.remount, node.kill, drive.answer):  # the last one first
            active.on_lift(step)
        drive.fail(config.error)
        active.did(error=config.error)
    return active


# --- Makes a broker's drive answer nothing at all, as a controller does that resets itself.
# Needs: an injected drive (`lab.drive`), so root and FUSE.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveHangConfig:
    node: int = 1  # whose drive, from 1


drive_hang_lacks = lacking_own_drive
drive_hang_exclusion = _sole.drive_answers_exclusion


def inject_drive_hang(target: Target, config: DriveHangConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.answer)
        drive.stop_answering()
        active.did(hanging=config.node)
    return active


# --- Gives a broker's drive work with what is deleted: writes wait while it discards, longer the fuller
# it is.
# Needs: an injected drive with ext4 (`lab.drive`), so root and FUSE, and deletions in the run. Its filesystem
# is mounted with `discard` for as long as the fault lasts. It is felt from the first deletion on for which a
# write has to wait; begun before the load, as only what is written from then on is known to lie on the drive.

_AT_ONCE = 1e9
"""Pages collected a second: this drive never runs out of erased ones, that is another fault."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveDiscardConfig:
    node: int = 1  # whose drive, from 1
    kept: float = 0.9  # of the drive, by others, who never delete
    per_mib: Duration = duration_ns("20ms")  # for each MiB discarded, were the drive all but empty

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= 1:
            raise ValueError("kept must lie between 0 and 1")
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


drive_discard_lacks = lacking_own_drive
drive_discard_exclusion = _sole.drive_pages_exclusion


def inject_drive_discard(target: Target, config: DriveDiscardConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive, or its filesystem refuses.
    """
    drive = drive_of(target, config.node)
    settings = Settings(
        is_full=False,
        kept_ratio=config.kept,
        collected_pages_per_second=_AT_ONCE,
        trim_seconds_per_mib=config.per_mib / SECOND_NS,
    )
    with activating(target) as active:
        active.on_lift(drive.keep_deleted)
        active.on_lift(drive.age, replace(settings, trim_seconds_per_mib=0.0))
        drive.age(settings)
        drive.discard_deleted()
        active.did(kept_ratio=config.kept, per_mib_ns=config.per_mib)
        active.is_felt_from(lambda: drive.said().held_up_wall_ns)
    return active


# --- Lets a broker's flash drive run out of erased blocks: it is full and was never trimmed, and writes
# go on.
# Needs: an injected drive (`lab.drive`), so root and FUSE. The step comes when the load has written the
# pool of
# erased pages; lifting the fault trims the drive, as an operator would, and nothing else: it stays what
# it is.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveGcConfig:
    node: int = 1  # whose drive, from 1
    pool: Size = size_bytes("24MiB")  # erased when it begins
    # as if nothing on it were valid: what it can keep up for long is pool / (capacity + pool) of that
    collected_per_second: Size = size_bytes("16MiB")
    foreground: float = 1.0  # so many times that while a write waits
    starved: Duration = duration_ns("2ms")  # more for each write that finds nothing erased

    def __post_init__(self) -> None:
        if self.pool <= 0 or self.collected_per_second <= 0:
            raise ValueError("pool and collected_per_second must be above 0B")
        if self.starved < 0:
            raise ValueError("starved must not be below 0s")
        if not 1.0 <= self.foreground < math.inf:
            raise ValueError("foreground must be a number from 1 on")


drive_gc_lacks = lacking_own_drive
drive_gc_exclusion = _sole.drive_pages_exclusion


def inject_drive_gc(target: Target, config: DriveGcConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.trim)
        drive.age(
            Settings(
                spare_ratio=config.pool / drive.capacity_bytes,
                collected_pages_per_second=config.collected_per_second / PAGE_BYTES,
                foreground_ratio=config.foreground,
                starved_seconds=config.starved / SECOND_NS,
            )
        )
        active.did(pool_bytes=config.pool)
        active.is_felt_from(lambda: drive.said().starved_wall_ns)
    return active


# --- Fills a broker's drive up, for root too, but for what is asked to be left.
# Needs: an injected drive (`lab.drive`), so root and FUSE: a drive that others use is never filled. What
# fills
# it is a file without a name, so it goes with this process. A broker that ended of it is started again.

_BLOCK_BYTES = 4096


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DiskFullConfig:
    node: int = 1  # whose drive, from 1
    left: Size = 0  # free afterwards

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("left must not be below 0B")


disk_full_lacks = lacking_own_drive


def inject_disk_full(target: Target, config: DiskFullConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive.
    """
    with activating(target) as active:
        folder = drive_of(target, config.node).mount_point
        node = node_of(target, config.node)
        active.on_lift(revive, node)
        try:
            filler = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            active.on_lift(os.close, filler)
            filled = _fill(filler, folder, config.left)
        except OSError as error:
            raise LabError(f"cannot fill {folder}: {error.strerror}") from error
        active.did(filled_bytes=filled)
    return active


def _fill(filler: int, folder: Path, left: int) -> int:
    """Let a file have all blocks but for these; return its length.

    A filesystem needs some of what it counts as free for its own maps, so the last blocks are tried for in
    ever smaller pieces.
    """
    length, piece = 0, _free_bytes(folder) - left
    while piece >= _BLOCK_BYTES:
        try:
            os.posix_fallocate(filler, length, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            piece //= 2
        else:
            length += piece
        piece = min(piece, _free_bytes(folder) - left)
    return length


def _free_bytes(folder: Path) -> int:
    """Return what root may still write."""
    free = os.statvfs(folder)
    return free.f_bfree * free.f_frsize


# --- Limits how often a broker and the probe beside it may write: flushes are slow, and the drive is
# innocent.
# Needs: root, for a cgroup, and an injected drive (`lab.drive`). It is felt by a broker that flushes
# before it
# acknowledges (`flush.messages=1`); the kernel waits before the device is asked, so the device shows nothing.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FsyncThrottleConfig:
    node: int = 1  # which broker, from 1
    writes_per_second: int = 50

    def __post_init__(self) -> None:
        if self.writes_per_second < 1:
            raise ValueError("writes_per_second must be at least 1")


def fsync_throttle_missing() -> str:
    """Return what this machine lacks, or ""."""
    return Throttle("", 1).lack


fsync_throttle_lacks = lacking_own_drive
fsync_throttle_exclusion = _sole.write_limit_exclusion


def inject_fsync_throttle(target: Target, config: FsyncThrottleConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: this machine cannot, or the broker has no injected drive.
    """
    throttle = Throttle(drive_of(target, config.node).device, config.writes_per_second)
    if throttle.lack:
        raise LabError(throttle.lack)
    with activating(target) as active:
        active.on_lift(throttle.lift)
        probes = [pid for name, pid in target.daemons().items() if name == "probe"]
        for pid in (node_of(target, config.node).pid, *probes):
            throttle.hold(pid)
        active.did(writes_per_second=config.writes_per_second)
    return active


# --- Lets another process write on a broker's drive and flush again and again.
# Needs: nothing. The writer is a child of this process and ends with it; its file has no name.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyNeighbourConfig:
    node: int = 1  # on whose drive, from 1
    writers: int = 2
    bytes_per_second: Size = size_bytes("32MiB")  # of each
    block: Size = size_bytes("1MiB")  # after which it flushes

    def __post_init__(self) -> None:
        if self.writers < 1 or self.bytes_per_second < 1 or self.block < 1:
            raise ValueError("writers, bytes_per_second and block must be at least 1")


def inject_noisy_neighbour(target: Target, config: NoisyNeighbourConfig) -> ActiveFault:
    """Begin at once; from the main thread.

    Raises:
        LabError: there is no such broker.
    """
    with activating(target) as active:
        node = node_of(target, config.node)
        numbers = str(config.bytes_per_second), str(config.block)
        command = [sys.executable, "-m", "soak.lab.neighbour", str(node.data_directory), *numbers]
        log = node.log_path.with_name("neighbour.log")
        for _ in range(config.writers):
            spawned(active, command, log)
        active.did(writers=config.writers)
    return active
