"""Finds the filesystem and the block device behind a directory, and the drives below that device.

Device and drives differ: a partition, volume or array has counters of its own, but the kernel counts
flushes for whole drives only (Documentation/admin-guide/iostats.rst, field 16), and it is the drive that
wears.
"""

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
SECTOR_BYTES = 512  # of /sys/block/*/size and diskstats, whatever the drive's own sector size is

DeviceNumber = tuple[int, int]
"""Major and minor number of a device."""

_LAYERS = 8  # LVM on crypt on RAID on a partition has four

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
        ProbeError: a line is not in the kernel's format.
    """
    if not text.endswith("\n"):
        raise ProbeError("the last line of mountinfo is incomplete")
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ProbeError(f"cannot read this line of mountinfo: {line!r}")
        parts = ("point", "kind", "source", "options", "own")
        found.append(Mount(*(_unescaped(match[name]) for name in parts)))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount of an absolute path without symbolic links.

    Raises:
        ProbeError: no mount contains it.
    """
    holding = [mount for mount in mounts if _holds(mount.point, path)]
    if not holding:
        raise ProbeError(f"no mount contains {path}")
    longest = max(len(mount.point) for mount in holding)
    return [mount for mount in holding if len(mount.point) == longest][-1]


def find_mount(directory: str, proc: Path) -> Mount:
    """Return the mount of a directory; raises `ProbeError` if the mount table cannot be read."""
    mounts = parse_mounts(read_kernel_file(proc / "self/mountinfo"))
    return mount_of(os.path.realpath(directory), mounts)


def _holds(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(point + "/")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


class PathNumbers(NamedTuple):
    """From stat(2): the device that a path lies on, and the block device that the path is itself, or 0."""

    holder: int
    device: int


def stat_numbers(path: str) -> PathNumbers:
    found = os.stat(path)  # noqa: PTH116  # the source of a mount is text
    return PathNumbers(found.st_dev, found.st_rdev if stat.S_ISBLK(found.st_mode) else 0)


@dataclass(frozen=True, slots=True)
class Drive:
    """A whole drive, or a device below which the kernel shows none."""

    number: DeviceNumber
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class BlockDevice:
    number: DeviceNumber
    drives: tuple[Drive, ...]  # by number; several below an array or a striped volume


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """Where the kernel shows devices; tests replace these, `numbers` is stat(2)."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    numbers: Callable[[str], PathNumbers] = stat_numbers


def find_device(directory: str, paths: SystemPaths) -> BlockDevice:
    """Return the device behind a directory; may block if the filesystem hangs.

    Raises:
        NotAvailableError: there is no block device behind it, or no such directory.
        ProbeError: a file of the kernel cannot be read.
    """
    try:
        number = _holder(directory, paths)
    except OSError as error:
        raise NotAvailableError(f"cannot stat {directory}: {error.strerror}") from error
    below = sorted(_drives_below(number, paths, _LAYERS))
    drives = [Drive(drive, _capacity_bytes(drive, paths.sys)) for drive in below]
    return BlockDevice(number, tuple(drives))


def device_name(number: DeviceNumber, sys: Path) -> str:
    """Return the kernel's name of a device, such as `nvme0n1`."""
    return _folder(number, sys).resolve().name


def _holder(path: str, paths: SystemPaths) -> DeviceNumber:
    holder = paths.numbers(path).holder
    number = (os.major(holder), os.minor(holder))
    if number[0] == 0:  # btrfs, overlay and others without a single device of their own
        number = _behind_virtual(path, paths)
    return number


def _behind_virtual(directory: str, paths: SystemPaths) -> DeviceNumber:
    mount = find_mount(directory, paths.proc)
    upper = mount.option("upperdir") if mount.kind == "overlay" else ""
    try:
        if upper:  # where an overlay writes; often not visible in a container
            holder = paths.numbers(upper).holder
            number = (os.major(holder), os.minor(holder))
        else:
            device = paths.numbers(mount.source).device if mount.source.startswith("/") else 0
            number = (os.major(device), os.minor(device))
    except OSError:
        number = (0, 0)
    if number[0] == 0:
        raise NotAvailableError(f"there is no block device behind {directory} ({mount.kind})")
    return number


def _drives_below(number: DeviceNumber, paths: SystemPaths, layers: int) -> set[DeviceNumber]:
    below = _below(number, paths) if layers else []
    if not below:
        return {number}
    return {drive for each in below for drive in _drives_below(each, paths, layers - 1)}


def _below(number: DeviceNumber, paths: SystemPaths) -> list[DeviceNumber]:
    """Return the devices below: parts of a volume or array, a partition's disk, what holds a loop's file."""
    folder = _folder(number, paths.sys)
    slaves = sorted((folder / "slaves").glob("*"))
    if slaves:
        return [_parse_number(read_kernel_file(slave.resolve() / "dev")) for slave in slaves]
    if (folder / "partition").exists():
        return [_parse_number(read_kernel_file(folder.resolve().parent / "dev"))]
    backing = folder / "loop/backing_file"
    if not backing.exists():
        return []
    try:
        return [_holder(read_kernel_file(backing).removesuffix("\n"), paths)]
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
    """Return the text of a file of /proc or /sys.

    Raises:
        ProbeError: it cannot be read.
    """
    try:
        return path.read_text(encoding="ascii", errors="surrogateescape")
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error
