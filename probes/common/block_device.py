"""Finds the filesystem and the block device behind a directory, and the drives below that device."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from soak.core.errors import NotAvailableError, ProbeError

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})

_LINE = re.compile(
    r"\d+ \d+ \d+:\d+ \S+ (?P<point>/\S*) (?P<own>\S+)(?: \S+)*"
    r" - (?P<kind>\S+) (?P<source>\S*) (?P<options>\S*)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    kind: str
    source: str
    options: str  # of the superblock
    own_options: str = ""  # of this mount

    def option(self, name: str) -> str:
        """Return the value of `name=value`, or ""."""
        pairs = (item.partition("=") for item in self.options.split(","))
        return next((value for key, _, value in pairs if key == name), "")


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in the kernel's order: a later one hides an earlier one on the same point.

    Raises:
        ProbeError: a line is not as the kernel writes it.
    """
    if not text.endswith("\n"):
        raise ProbeError("mountinfo ends in the middle of a line")
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ProbeError(f"cannot read this line of mountinfo: {line!r}")
        parts = ("point", "kind", "source", "options", "own")
        found.append(Mount(*(_unescaped(match[name]) for name in parts)))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount that holds an absolute path without links.

    Raises:
        ProbeError: none does.
    """
    holding = [mount for mount in mounts if _holds(mount.point, path)]
    if not holding:
        raise ProbeError(f"no mount holds {path}")
    longest = max(len(mount.point) for mount in holding)
    return [mount for mount in holding if len(mount.point) == longest][-1]


def _holds(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(point + "/")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


# --- From a directory to the block device of its filesystem, and to the drives below that.
# The two differ: a partition, volume or array has counters of its own, but the kernel counts flushes for
# whole
# drives only (Documentation/admin-guide/iostats.rst, field 16), and it is the drive that wears.

DeviceNumber = tuple[int, int]
"""Major and minor number of a device."""

SECTOR_BYTES = (
    512  # /sys/block/*/size and diskstats count these, whatever the drive's own sector size
)
_LAYERS = 8  # LVM on crypt on RAID on a partition has four


class PathNumbers(NamedTuple):
    """What stat(2) says: the device that holds a path, and the block device that the path itself is, or 0."""

    holder: int
    device: int


def stat_numbers(path: str) -> PathNumbers:
    found = os.stat(path)  # noqa: PTH116  # a source of a mount is text
    return PathNumbers(found.st_dev, found.st_rdev if stat.S_ISBLK(found.st_mode) else 0)


@dataclass(frozen=True, slots=True)
class Drive:
    """A whole drive, or whatever the kernel shows nothing below."""

    number: DeviceNumber
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class BlockDevice:
    number: DeviceNumber
    drives: tuple[Drive, ...]  # below it, by number: several below an array or a striped volume


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """Where the kernel tells of devices; `numbers` is stat(2), other ones in tests."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    numbers: Callable[[str], PathNumbers] = stat_numbers


def find_device(directory: str, places: SystemPaths) -> BlockDevice:
    """Return the device behind a directory; may block as any look at that filesystem may.

    Raises:
        NotAvailableError: no block device is behind it, or the directory is not there.
        ProbeError: what the kernel tells cannot be read.
    """
    try:
        number = _holder(directory, places)
    except OSError as error:
        raise NotAvailableError(f"cannot look at {directory}: {error.strerror}") from error
    below = sorted(_drives_below(number, places, _LAYERS))
    drives = [Drive(drive, _capacity_bytes(drive, places.sys)) for drive in below]
    return BlockDevice(number, tuple(drives))


def device_name(number: DeviceNumber, sys: Path) -> str:
    """Return what the kernel calls a device, such as `nvme0n1`."""
    return _folder(number, sys).resolve().name


def _holder(path: str, places: SystemPaths) -> DeviceNumber:
    holder = places.numbers(path).holder
    number = (os.major(holder), os.minor(holder))
    if number[0] == 0:  # btrfs, overlay and whatever has no single device of its own
        number = _behind_virtual(path, places)
    return number


def _behind_virtual(directory: str, places: SystemPaths) -> DeviceNumber:
    mounts = parse_mounts(read_kernel_file(places.proc / "self/mountinfo"))
    mount = mount_of(os.path.realpath(directory), mounts)
    upper = mount.option("upperdir") if mount.kind == "overlay" else ""
    try:
        if upper:  # where an overlay writes; in a container it is often out of sight
            holder = places.numbers(upper).holder
            number = (os.major(holder), os.minor(holder))
        else:
            device = places.numbers(mount.source).device if mount.source.startswith("/") else 0
            number = (os.major(device), os.minor(device))
    except OSError:
        number = (0, 0)
    if number[0] == 0:
        raise NotAvailableError(f"no block device is behind {directory} ({mount.kind})")
    return number


def _drives_below(number: DeviceNumber, places: SystemPaths, layers: int) -> set[DeviceNumber]:
    below = _below(number, places) if layers else []
    if not below:
        return {number}
    return {drive for each in below for drive in _drives_below(each, places, layers - 1)}


def _below(number: DeviceNumber, places: SystemPaths) -> list[DeviceNumber]:
    """Return what a device lies on: the parts of a volume or array, a partition's disk, a loop's file."""
    folder = _folder(number, places.sys)
    slaves = sorted((folder / "slaves").glob("*"))
    if slaves:
        return [_parse_number(read_kernel_file(slave.resolve() / "dev")) for slave in slaves]
    if (folder / "partition").exists():
        return [_parse_number(read_kernel_file(folder.resolve().parent / "dev"))]
    backing = folder / "loop/backing_file"
    if not backing.exists():
        return []
    try:
        return [_holder(read_kernel_file(backing).removesuffix("\n"), places)]
    except (OSError, NotAvailableError):  # the file lies in memory, or was deleted
        return []


def _capacity_bytes(drive: DeviceNumber, sys: Path) -> int:
    text = read_kernel_file(_folder(drive, sys) / "size").strip()
    if not text.isdigit():
        raise ProbeError(f"the size of device {drive[0]}:{drive[1]} is not a number: {text!r}")
    return int(text) * SECTOR_BYTES


def _folder(number: DeviceNumber, sys: Path) -> Path:
    return sys / "dev/block" / f"{number[0]}:{number[1]}"


def _parse_number(text: str) -> DeviceNumber:
    major, _, minor = text.strip().partition(":")
    if not (major.isdigit() and minor.isdigit()):
        raise ProbeError(f"not a device number: {text!r}")
    return int(major), int(minor)


def read_kernel_file(path: Path) -> str:
    """Return what a file of /proc or /sys says.

    Raises:
        ProbeError: it cannot be read.
    """
    try:
        return path.read_text(encoding="ascii", errors="surrogateescape")
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error
