"""Faults of a broker's drive, such as a slow, failing, full or throttled one."""

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
from soak.lab.drive.drive import Drive
from soak.lab.drive.flash import PAGE_BYTES, Settings
from soak.lab.drive.throttle import Throttle
from soak.lab.faults.active import (
    ActiveFault,
    ExclusiveSetting,
    Fault,
    NodeConfig,
    activating,
    drive_of,
    missing_drive_of_node,
    node_of,
    restart_if_ended,
    start_worker,
)
from soak.lab.ports import Target

_UNLIMITED_PAGES_PER_SECOND = 1e9  # so fast a collection never runs out of erased pages
_BLOCK_BYTES = 4096


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveDelayConfig:
    """Make every write and every flush of a broker's drive slower.

    Needs: an injected drive (`lab.drive`), so root and FUSE.
    """

    node: int = 1  # the broker, from 1
    delay: Duration = duration_ns("10ms")

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise ValueError("delay must be above 0s")


def _inject_delay(target: Target, config: DriveDelayConfig) -> ActiveFault:
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.answer)
        drive.answer(delay_seconds=config.delay / SECOND_NS)
        active.record(delay_ns=config.delay)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveHangConfig:
    """Stop a broker's drive from answering at all, like a controller that resets itself.

    Needs: an injected drive (`lab.drive`), so root and FUSE.
    """

    node: int = 1  # the broker, from 1


def _inject_hang(target: Target, config: DriveHangConfig) -> ActiveFault:
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(drive.answer)
        drive.stop_answering()
        active.record(hanging=config.node)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveErrorConfig:
    """Fail every write and every flush of a broker's drive, like a worn or full drive.

    A filesystem accepts no more writes after such an error, so the lifting mounts it again and restarts the
    broker, which may have ended.

    Needs: an injected drive (`lab.drive`), so root and FUSE.
    """

    node: int = 1  # the broker, from 1
    error: Literal["EIO", "ENOSPC"] = "EIO"


def _inject_error(target: Target, config: DriveErrorConfig) -> ActiveFault:
    """Inject the fault; lift it from the main thread, because that starts the broker."""
    with activating(target) as active:
        drive = drive_of(target, config.node)
        node = node_of(target, config.node)
        for step in (node.restart, drive.remount, node.kill, drive.answer):  # run from the last
            active.on_lift(step)
        drive.fail(config.error)
        active.record(error=config.error)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveDiscardConfig:
    """Make writes to a broker's drive wait while the drive discards deleted blocks, longer the fuller it is.

    The filesystem is mounted with `discard` while the fault lasts. The onset is the first deletion for which
    a write has to wait. Inject it before the load, because only what is written from then on is known to the
    model of the drive.

    Needs: an injected drive with ext4 (`lab.drive`), so root and FUSE, and deletions in the run.
    """

    node: int = 1  # the broker, from 1
    kept: float = 0.9  # share of the drive that others occupy and never delete
    per_mib: Duration = duration_ns("20ms")  # for each MiB discarded, on a nearly empty drive

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= 1:
            raise ValueError("kept must lie between 0 and 1")
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


def _inject_discard(target: Target, config: DriveDiscardConfig) -> ActiveFault:
    drive = drive_of(target, config.node)
    settings = Settings(
        is_full=False,
        kept_ratio=config.kept,
        collected_pages_per_second=_UNLIMITED_PAGES_PER_SECOND,
        trim_seconds_per_mib=config.per_mib / SECOND_NS,
    )
    with activating(target) as active:
        active.on_lift(drive.keep_deleted)
        active.on_lift(drive.age, replace(settings, trim_seconds_per_mib=0.0))
        drive.age(settings)
        drive.discard_deleted()
        active.record(kept_ratio=config.kept, per_mib_ns=config.per_mib)
        active.set_onset(lambda: drive.status().blocked_wall_ns)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveGcConfig:
    """Let a broker's flash drive run out of erased blocks: it is full, was never trimmed, and writes go on.

    The step comes when the load has written the pool of erased pages. The lifting trims the drive, as an
    operator would, and changes nothing else; one that is too slow even for that is as new afterwards.

    Needs: an injected drive (`lab.drive`), so root and FUSE.
    """

    node: int = 1  # the broker, from 1
    pool: Size = size_bytes("24MiB")  # erased at the injection
    # If no page were valid; the sustained rate is pool / (capacity + pool) of that.
    collected_per_second: Size = size_bytes("16MiB")
    foreground: float = 1.0  # factor of that rate while a write waits
    starved: Duration = duration_ns("2ms")  # added to each write that finds no erased page

    def __post_init__(self) -> None:
        if self.pool <= 0 or self.collected_per_second <= 0:
            raise ValueError("pool and collected_per_second must be above 0B")
        if self.starved < 0:
            raise ValueError("starved must not be below 0s")
        if not 1.0 <= self.foreground < math.inf:
            raise ValueError("foreground must be a number from 1 on")


def _trim(drive: Drive) -> None:
    try:
        drive.trim()
    except LabError:
        drive.renew()


def _inject_gc(target: Target, config: DriveGcConfig) -> ActiveFault:
    with activating(target) as active:
        drive = drive_of(target, config.node)
        active.on_lift(lambda: _trim(drive))
        drive.age(
            Settings(
                spare_ratio=config.pool / drive.capacity_bytes,
                collected_pages_per_second=config.collected_per_second / PAGE_BYTES,
                foreground_ratio=config.foreground,
                starved_seconds=config.starved / SECOND_NS,
            )
        )
        active.record(pool_bytes=config.pool)
        active.set_onset(lambda: drive.status().starved_wall_ns)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DiskFullConfig:
    """Fill a broker's drive, for root too, except for the bytes in `left`.

    A file without a name fills it, so the space is free again when this process ends. The lifting starts the
    broker again if it has ended.

    Needs: an injected drive (`lab.drive`), so root and FUSE: a drive that others use is never filled.
    """

    node: int = 1  # the broker, from 1
    left: Size = 0  # free afterwards

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("left must not be below 0B")


def _inject_disk_full(target: Target, config: DiskFullConfig) -> ActiveFault:
    with activating(target) as active:
        folder = drive_of(target, config.node).mount_point
        node = node_of(target, config.node)
        active.on_lift(restart_if_ended, node)
        try:
            filler = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            active.on_lift(os.close, filler)
            filled = _fill(filler, folder, config.left)
        except OSError as error:
            raise LabError(f"cannot fill {folder}: {error.strerror}") from error
        active.record(filled_bytes=filled)
    return active


def _fill(filler: int, folder: Path, left: int) -> int:
    """Allocate all free blocks but `left` bytes to a file; return its length.

    A filesystem needs some of its free space for its own maps, so the last blocks are allocated in ever
    smaller pieces.
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
    """Return how many bytes root may still write."""
    free = os.statvfs(folder)
    return free.f_bfree * free.f_frsize


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FsyncThrottleConfig:
    """Limit how often a broker and the probe may write: flushes are slow although the drive is not.

    Only a broker that flushes before it acknowledges (`flush.messages=1`) is affected. The kernel waits
    before it asks the device, so the device shows nothing.

    Needs: root, for a cgroup, and an injected drive (`lab.drive`).
    """

    node: int = 1  # the broker, from 1
    writes_per_second: int = 50

    def __post_init__(self) -> None:
        if self.writes_per_second < 1:
            raise ValueError("writes_per_second must be at least 1")


def _inject_fsync_throttle(target: Target, config: FsyncThrottleConfig) -> ActiveFault:
    throttle = Throttle(drive_of(target, config.node).device, config.writes_per_second)
    if throttle.missing:
        raise LabError(throttle.missing)
    with activating(target) as active:
        active.on_lift(throttle.lift)
        probes = [pid for name, pid in target.daemons().items() if name == "probe"]
        for pid in (node_of(target, config.node).pid, *probes):
            throttle.add(pid)
        active.record(writes_per_second=config.writes_per_second)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NoisyNeighbourConfig:
    """Let other processes write to a broker's drive and flush again and again.

    Needs: nothing. The writers end with this process, and their file has no name.
    """

    node: int = 1  # the broker, from 1
    writers: int = 2
    bytes_per_second: Size = size_bytes("32MiB")  # of each writer
    block: Size = size_bytes("1MiB")  # after which it flushes

    def __post_init__(self) -> None:
        if self.writers < 1 or self.bytes_per_second < 1 or self.block < 1:
            raise ValueError("writers, bytes_per_second and block must be at least 1")


def _inject_noisy_neighbour(target: Target, config: NoisyNeighbourConfig) -> ActiveFault:
    """Inject the fault; from the main thread."""
    with activating(target) as active:
        node = node_of(target, config.node)
        numbers = str(config.bytes_per_second), str(config.block)
        command = [sys.executable, "-m", "soak.lab.neighbour", str(node.data_directory), *numbers]
        log = node.log_path.with_name("neighbour.log")
        for _ in range(config.writers):
            start_worker(active, command, log)
        active.record(writers=config.writers)
    return active


def _answers(config: NodeConfig) -> ExclusiveSetting:
    return "how the drive answers", config.node


def _erased_pages(config: NodeConfig) -> ExclusiveSetting:
    return "the drive's erased pages", config.node


FAULTS = {
    "drive_delay": Fault(
        config=DriveDelayConfig,
        inject=_inject_delay,
        missing_from_lab=missing_drive_of_node,
        exclusive_setting=_answers,
    ),
    "drive_hang": Fault(
        config=DriveHangConfig,
        inject=_inject_hang,
        missing_from_lab=missing_drive_of_node,
        exclusive_setting=_answers,
    ),
    "drive_error": Fault(
        config=DriveErrorConfig,
        inject=_inject_error,
        missing_from_lab=missing_drive_of_node,
        exclusive_setting=_answers,
    ),
    "drive_discard": Fault(
        config=DriveDiscardConfig,
        inject=_inject_discard,
        missing_from_lab=missing_drive_of_node,
        exclusive_setting=_erased_pages,
    ),
    "drive_gc": Fault(
        config=DriveGcConfig,
        inject=_inject_gc,
        missing_from_lab=missing_drive_of_node,
        exclusive_setting=_erased_pages,
    ),
    "disk_full": Fault(
        config=DiskFullConfig,
        inject=_inject_disk_full,
        missing_from_lab=missing_drive_of_node,
    ),
    "fsync_throttle": Fault(
        config=FsyncThrottleConfig,
        inject=_inject_fsync_throttle,
        missing_from_lab=missing_drive_of_node,
        missing_on_machine=lambda: Throttle("", 1).missing,
        exclusive_setting=lambda _config: ("a limit on writes", 0),
    ),
    "noisy_neighbour": Fault(config=NoisyNeighbourConfig, inject=_inject_noisy_neighbour),
}
