"""Measures drives while nothing else asks them: flushes at a steady pace, then a stretch of plain writing.

Everything lies in a file without a name, so that the kernel frees it whatever we die of. What may hang runs
on a thread of its own, which is left behind when it does.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from probes import _drive_state, _mounts
from probes._block_device import Places
from probes._worker import Worker
from soak.core.drive_check import Measured, Moment
from soak.core.errors import ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, duration_ns, format_duration, format_size

FLUSH_EVERY_NS = duration_ns("10ms")
PAYLOAD_BYTES = 4096
WRITE_BYTES = 2**28  # the most of plain writing: enough for any cache, nothing for a drive's life
WRITE_NS = duration_ns("5s")
FLOOR_BYTES = 2**26  # so much stays free
GRACE_NS = duration_ns("30s")  # beyond this, the drive hangs
_BLOCK_BYTES = 2**20
_BLOCKS = 16  # between two flushes of plain writing

Sync = Callable[[int], None]


def distinct(directories: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the directories by the filesystem that they lie on; what cannot be looked at stands alone."""
    found: dict[object, list[str]] = defaultdict(list)
    for directory in dict.fromkeys(directories):
        try:
            found[os.stat(directory).st_dev].append(directory)  # noqa: PTH116  # paths are text here
        except OSError:
            found[directory].append(directory)
    return [tuple(several) for several in found.values()]


def measure(
    directories: tuple[str, ...],
    moment: Moment,
    length_ns: int,
    host: str,
    clock: Clock,
    sync: Sync = os.fsync,
) -> Measured:
    """Measure the drive that holds these directories for so long; what goes wrong is told in `trouble`."""
    plain = Measured(host, directories, moment, clock.wall_ns())
    limit_ns = length_ns + GRACE_NS
    found: list[Measured] = []
    worker = Worker("drive-check", lambda _: found.append(_measure(plain, length_ns, clock, sync)))
    worker.check()
    worker.wait(limit_ns / SECOND_NS)
    worker.close(0.0)
    worker.check()  # raises a bug of the thread
    if found:
        return found[0]
    return replace(plain, trouble=f"no answer of the drive within {format_duration(limit_ns)}")


def _measure(plain: Measured, length_ns: int, clock: Clock, sync: Sync) -> Measured:
    directory = plain.directories[0]
    try:
        state = _drive_state.look(directory, Places())
        if state.filesystem in _mounts.MEMORY_KINDS:
            return replace(
                plain, state=state, trouble="lies in memory, where a flush means nothing"
            )
        if state.free_bytes < FLOOR_BYTES + WRITE_BYTES:
            least = format_size(FLOOR_BYTES + WRITE_BYTES)
            return replace(plain, state=state, trouble=f"less than {least} free: not measured")
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            writing_ns = min(WRITE_NS, length_ns // 2)
            latencies_ns = _flush(file.fileno(), length_ns - writing_ns, clock, sync)
            rate = _write(file.fileno(), writing_ns, clock, sync)
    except (OSError, ProbeError) as error:
        return replace(plain, trouble=f"cannot be measured: {error}")
    return replace(
        plain,
        state=state,
        flushes=len(latencies_ns),
        fsync_p50_seconds=_quantile(latencies_ns, 0.5) / SECOND_NS,
        fsync_p99_seconds=_quantile(latencies_ns, 0.99) / SECOND_NS,
        write_bytes_per_second=rate,
    )


def _flush(file: int, length_ns: int, clock: Clock, sync: Sync) -> list[int]:
    """Append and flush at a steady pace; return how long each took, at least one."""
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


def _write(file: int, length_ns: int, clock: Clock, sync: Sync) -> float:
    """Write on until time or WRITE_BYTES are over; return bytes a second, flushed."""
    block = os.urandom(_BLOCK_BYTES)
    begin_ns = now_ns = clock.mono_ns()
    written = 0
    while written < WRITE_BYTES and (now_ns - begin_ns < length_ns or not written):
        for _ in range(_BLOCKS):
            written += os.pwrite(file, block, written)
        sync(file)
        now_ns = clock.mono_ns()
    return written * SECOND_NS / max(1, now_ns - begin_ns)


def _quantile(values: list[int], quantile: float) -> int:
    """Return the nearest rank."""
    return sorted(values)[math.ceil(quantile * len(values)) - 1]
