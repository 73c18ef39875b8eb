"""Measures an idle drive before a run: flush latency at a steady pace, then sequential throughput.

The file has no name, so the kernel frees it however the process ends. The work may hang and runs on a
thread of its own, which is then abandoned.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from probes.common.block_device import (
    MEMORY_FILESYSTEMS,
    BlockDevices,
    SystemPaths,
    device_name,
    find_devices,
    find_mount,
    read_kernel_file,
)
from probes.common.polling import Stop, Worker
from soak.core.cluster.drives import DriveState, Measured, Moment, Trim
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, duration_ns, format_duration, format_size

_TIMER_LINK = "systemd/system/timers.target.wants/fstrim.timer"
_TIMER_STAMP = "var/lib/systemd/timers/stamp-fstrim.timer"

FLUSH_EVERY_NS = duration_ns("10ms")
PAYLOAD_BYTES = 4096
STAT_TIMEOUT_NS = duration_ns("10s")  # to learn the filesystem of a directory
_BLOCK_BYTES = 2**20
_BLOCKS = 16  # between two flushes of sequential writing

Sync = Callable[[int], None]


def read_drive_state(directory: str, paths: SystemPaths, root: Path = Path("/")) -> DriveState:
    """Return how the drive under a directory is set up and how full it is; unknown facts are left empty.

    May block if the filesystem hangs.

    Raises:
        ProbeError: the mount table cannot be read.
        OSError: the directory cannot be read.
    """
    mount = find_mount(directory, paths.proc)
    space = os.statvfs(directory)
    try:
        device: BlockDevices | None = find_devices(directory, paths)
    except (NotAvailableError, ProbeError):
        device = None
    drives = device.drives if device else ()
    names = tuple(device_name(drive.number, paths.sys) for drive in drives)
    queues = [paths.sys / "block" / name.replace("/", "!") / "queue" for name in names]
    discards = [_number(queue / "discard_max_bytes") for queue in queues]
    known = [size for size in discards if size is not None]
    stamp = root / _TIMER_STAMP
    return DriveState(
        filesystem=mount.kind,
        options=",".join(dict.fromkeys(f"{mount.own_options},{mount.options}".split(","))),
        devices=names,
        total_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        discard_bytes=min(known) if known else None,
        write_cache=_text(queues[0] / "write_cache") if queues else "",
        trim_timer=_trim_timer(root),
        trimmed_wall_ns=int(stamp.stat().st_mtime * SECOND_NS) if stamp.exists() else None,
        used_bytes=(space.f_blocks - space.f_bfree) * space.f_frsize,
    )


def _trim_timer(root: Path) -> Trim:
    """Return from its links whether systemd starts fstrim.timer; a query to systemd would need its bus."""
    folders = (root / "etc", root / "usr/lib", root / "lib")
    if any(os.path.lexists(folder / _TIMER_LINK) for folder in folders):
        return "enabled"
    return "disabled" if (root / "run/systemd/system").is_dir() else "unknown"


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return read_kernel_file(path).strip()
    except ProbeError:
        return ""


@dataclass(frozen=True, slots=True)
class Limits:
    write_bytes: int = 2**28  # of sequential writing; negligible for a drive's life
    write_ns: int = duration_ns("5s")  # of sequential writing
    floor_bytes: int = 2**26  # that must stay free
    grace_ns: int = duration_ns("30s")  # after which a drive that has not answered hangs


DEFAULT_LIMITS = Limits()


def drive_state(directory: str) -> DriveState:
    return read_drive_state(directory, SystemPaths())


def device_of(directory: str) -> int:
    return os.stat(directory).st_dev  # noqa: PTH116  # paths are text here


def group_by_filesystem(
    directories: Sequence[str],
    *,
    limit_ns: int = STAT_TIMEOUT_NS,
    find: Callable[[str], int] = device_of,
) -> list[tuple[str, ...]]:
    """Return the directories by filesystem; one that cannot be read, or not in time, is a group of its own.

    `measure` reports why. `find` replaces the system call in tests.
    """
    devices: dict[str, int] = {}

    def work(directory: str, _stop: Stop) -> None:
        with suppress(OSError):
            devices[directory] = find(directory)

    names = list(dict.fromkeys(directories))
    workers = [Worker("drive-stat", partial(work, name)) for name in names]
    for worker in workers:
        worker.check()
    for worker in workers:
        worker.close(limit_ns / SECOND_NS / len(workers))
    found: dict[object, list[str]] = defaultdict(list)
    seen = dict(devices)
    for name in names:
        found[seen.get(name, name)].append(name)
    return [tuple(several) for several in found.values()]


def measure(
    directories: tuple[str, ...],
    moment: Moment,
    length_ns: int,
    host: str,
    clock: Clock,
    *,
    limits: Limits = DEFAULT_LIMITS,
    read_state: Callable[[str], DriveState] = drive_state,
    sync: Sync = os.fsync,
) -> Measured:
    """Measure the drive of these directories for `length_ns`; a failure is described in `trouble`.

    `read_state` and `sync` replace system calls in tests.
    """
    plain = Measured(host, directories, moment, clock.wall_ns())
    limit_ns = length_ns + limits.grace_ns
    found: list[Measured] = []

    def work(_stop: Stop) -> None:
        found.append(_measure(plain, length_ns, clock, limits, read_state, sync))

    worker = Worker("drive-check", work)
    worker.check()
    worker.wait(limit_ns / SECOND_NS)
    worker.close(0.0)
    worker.check()  # raises an unexpected error of the thread
    if found:
        return found[0]
    return replace(plain, trouble=f"the drive has not answered within {format_duration(limit_ns)}")


def _measure(
    plain: Measured,
    length_ns: int,
    clock: Clock,
    limits: Limits,
    read_state: Callable[[str], DriveState],
    sync: Sync,
) -> Measured:
    directory = plain.directories[0]
    writing_ns = min(limits.write_ns, length_ns // 2)
    written = _written_bytes(length_ns - writing_ns, limits)
    try:
        state = read_state(directory)
        if state.filesystem in MEMORY_FILESYSTEMS:
            return replace(plain, state=state, trouble="is in memory, where a flush means nothing")
        if state.free_bytes < limits.floor_bytes + written:
            free, needed = state.free_bytes // 2**20, math.ceil(written / 2**20)
            trouble = f"not measured: {free}MiB are free, but the check would write {needed}MiB"
            trouble += f" and must leave {format_size(limits.floor_bytes)}"
            return replace(plain, state=state, trouble=trouble)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            latencies_ns = _flush(file.fileno(), length_ns - writing_ns, clock, sync)
            rate = _write(file.fileno(), writing_ns, limits.write_bytes, clock, sync)
    except (OSError, ProbeError) as error:
        return replace(plain, trouble=f"cannot be measured: {error}")
    p50_ns, p99_ns = np.quantile(latencies_ns, [0.5, 0.99], method="inverted_cdf")
    return replace(
        plain,
        state=state,
        flushes=len(latencies_ns),
        fsync_p50_seconds=float(p50_ns) / SECOND_NS,
        fsync_p99_seconds=float(p99_ns) / SECOND_NS,
        write_bytes_per_second=rate,
    )


def _written_bytes(flushing_ns: int, limits: Limits) -> int:
    """Return how many bytes are written at most: a copy-on-write filesystem may keep them a while."""
    flushed = (flushing_ns // FLUSH_EVERY_NS + 1) * PAYLOAD_BYTES
    stretch = _BLOCKS * _BLOCK_BYTES
    return flushed + math.ceil(limits.write_bytes / stretch) * stretch


def _flush(file: int, length_ns: int, clock: Clock, sync: Sync) -> list[int]:
    """Append and flush at a steady pace; return the duration of each flush, at least of one."""
    payload = os.urandom(PAYLOAD_BYTES)
    found: list[int] = []
    due_ns = clock.mono_ns()
    end_ns = due_ns + length_ns
    while due_ns < end_ns:
        clock.sleep_until(due_ns)
        begin_ns = clock.mono_ns()
        os.pwrite(file, payload, len(found) * PAYLOAD_BYTES)
        sync(file)
        done_ns = clock.mono_ns()
        found.append(done_ns - begin_ns)
        due_ns = max(due_ns + FLUSH_EVERY_NS, done_ns)
    return found


def _write(file: int, length_ns: int, max_bytes: int, clock: Clock, sync: Sync) -> float:
    """Write until time or bytes are used up; return flushed bytes a second."""
    block = os.urandom(_BLOCK_BYTES)
    begin_ns = now_ns = clock.mono_ns()
    written = 0
    while written < max_bytes and (now_ns - begin_ns < length_ns or not written):
        for _ in range(_BLOCKS):
            written += os.pwrite(file, block, written)
        sync(file)
        now_ns = clock.mono_ns()
    return written * SECOND_NS / max(1, now_ns - begin_ns)
