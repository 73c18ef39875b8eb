"""From a directory to the block device of its filesystem, and to the drive below that.

The two differ: a partition or LVM volume has counters of its own, but the kernel counts flushes for whole
drives only (Documentation/admin-guide/iostats.rst, field 16), and it is the drive that wears.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from probes import _mounts
from soak.core.errors import NotAvailableError, ProbeError

Number = tuple[int, int]
"""Major and minor number of a device."""

SECTOR_BYTES = (
    512  # /sys/block/*/size and diskstats count these, whatever the drive's own sector size
)
_LAYERS = 8  # LVM on crypt on RAID on a partition has four


class Numbers(NamedTuple):
    """What stat(2) says: the device that holds a path, and the device that the path itself is."""

    holder: int
    device: int


def stat_numbers(path: str) -> Numbers:
    found = os.stat(path)  # noqa: PTH116  # a source of a mount is text
    return Numbers(found.st_dev, found.st_rdev)


@dataclass(frozen=True, slots=True)
class BlockDevice:
    number: Number
    drive: Number
    capacity_bytes: int  # of the drive


def find(
    directory: str, proc: Path, sys: Path, numbers: Callable[[str], Numbers] = stat_numbers
) -> BlockDevice:
    """Return the device behind a directory; may block as any look at that filesystem may.

    Raises:
        NotAvailableError: no block device is behind it, or the directory is not there.
        ProbeError: the mount table cannot be read.
    """
    try:
        holder = numbers(directory).holder
    except OSError as error:
        raise NotAvailableError(f"cannot look at {directory}: {error.strerror}") from error
    number = (os.major(holder), os.minor(holder))
    if number[0] == 0:  # btrfs, overlay and whatever has no single device of its own
        number = _behind_virtual(directory, proc, numbers)
    drive = _drive_below(number, sys)
    return BlockDevice(number, drive, _capacity_bytes(drive, sys))


def _behind_virtual(directory: str, proc: Path, numbers: Callable[[str], Numbers]) -> Number:
    mounts = _mounts.parse(read_text(proc / "self/mountinfo"))
    mount = _mounts.mount_of(os.path.realpath(directory), mounts)
    upper = mount.option("upperdir") if mount.kind == "overlay" else ""
    try:
        if upper:  # where an overlay writes; in a container it is often out of sight
            holder = numbers(upper).holder
            number = (os.major(holder), os.minor(holder))
        else:
            device = numbers(mount.source).device if mount.source.startswith("/") else 0
            number = (os.major(device), os.minor(device))
    except OSError:
        number = (0, 0)
    if number[0] == 0:
        raise NotAvailableError(f"no block device is behind {directory} ({mount.kind})")
    return number


def _drive_below(number: Number, sys: Path) -> Number:
    """Follow a partition to its disk and a volume to the one device it lies on; stop where it forks."""
    for _ in range(_LAYERS):
        folder = _folder(number, sys)
        slaves = sorted((folder / "slaves").glob("*")) if (folder / "slaves").is_dir() else []
        if len(slaves) == 1:
            below = slaves[0].resolve() / "dev"
        elif (folder / "partition").exists():
            below = folder.resolve().parent / "dev"
        else:
            break
        number = _parse_number(read_text(below))
    return number


def _capacity_bytes(drive: Number, sys: Path) -> int:
    text = read_text(_folder(drive, sys) / "size").strip()
    if not text.isdigit():
        raise ProbeError(f"the size of device {drive[0]}:{drive[1]} is not a number: {text!r}")
    return int(text) * SECTOR_BYTES


def _folder(number: Number, sys: Path) -> Path:
    return sys / "dev/block" / f"{number[0]}:{number[1]}"


def _parse_number(text: str) -> Number:
    major, _, minor = text.strip().partition(":")
    if not (major.isdigit() and minor.isdigit()):
        raise ProbeError(f"not a device number: {text!r}")
    return int(major), int(minor)


def read_text(path: Path) -> str:
    """Return what a file of /proc or /sys says.

    Raises:
        ProbeError: it cannot be read.
    """
    try:
        return path.read_text(encoding="ascii", errors="surrogateescape")
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error
