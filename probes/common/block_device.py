"""Finds the filesystem and the block device behind a directory, and the drives below that device.

Device and drives differ: a partition, volume or array has counters of its own, but the kernel counts
flushes for whole drives only (Documentation/admin-guide/iostats.rst, field 16), and it is the drive that
wears.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from soak.core.errors import NotAvailableError, ProbeError

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
_OF_OTHER_MACHINES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "virtiofs", "fuse.glusterfs"}
)
SECTOR_BYTES = 512  # of /sys/block/*/size and diskstats, whatever the drive's own sector size is

DeviceNumber = tuple[int, int]
"""Major and minor number of a device."""

_LAYERS = 8  # LVM on crypt on RAID on a partition has four

_MOUNT = re.compile(r"\d+ \d+ \d+:\d+ \S+ (?P<point>/\S*) (?P<own>\S+)(?P<more>(?: .*)?)")
_FILESYSTEM = re.compile(  # some drivers do not escape the blanks in their options
    r"(?: \S+)*? - (?P<kind>\S+) (?P<source>\S*) (?P<options>.*)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    kind: str  # empty if the rest of the line cannot be read
    source: str = ""
    options: str = ""  # of the superblock, as the kernel escapes them
    own_options: str = ""  # of this mount

    def option(self, name: str) -> str:
        """Return the value of `name=value`, or ""."""
        pairs = (item.partition("=") for item in self.options.split(","))
        return next((_unescaped(value) for key, _, value in pairs if key == name), "")


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in the kernel's order: a later one hides an earlier one on the same point.

    A mount whose filesystem cannot be read has no `kind`; what does not begin as a mount does is the rest of
    an option that holds a line break.

    Raises:
        ProbeError: the text was cut.
    """
    if not text.endswith("\n"):
        raise ProbeError("the last line of mountinfo is incomplete")
    found = []
    for line in text.split("\n"):
        head = _MOUNT.fullmatch(line)
        if head is not None:
            point, own = _unescaped(head["point"]), head["own"]
            rest = _FILESYSTEM.fullmatch(head["more"])
            found.append(
                Mount(point, "", own_options=own)
                if rest is None
                else Mount(point, rest["kind"], _unescaped(rest["source"]), rest["options"], own)
            )
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount of an absolute path without symbolic links.

    Raises:
        ProbeError: no mount contains it, or the line of the one that does cannot be read.
    """
    holding = [mount for mount in mounts if _holds(mount.point, path)]
    if not holding:
        raise ProbeError(f"no mount contains {path}")
    longest = max(len(mount.point) for mount in holding)
    found = [mount for mount in holding if len(mount.point) == longest][-1]
    if not found.kind:
        raise ProbeError(f"cannot read the line of {found.point} in mountinfo")
    return found


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
    capacity_bytes: int  # 0 if unknown


@dataclass(frozen=True, slots=True)
class BlockDevices:
    """What holds a directory, and the drives below; each by number."""

    holders: tuple[DeviceNumber, ...]  # several if the filesystem spreads over devices by itself
    drives: tuple[Drive, ...]  # several below an array or a striped volume


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """Where the kernel shows devices; tests replace these, `numbers` is stat(2)."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    numbers: Callable[[str], PathNumbers] = stat_numbers


def find_devices(directory: str, paths: SystemPaths) -> BlockDevices:
    """Return the devices behind a directory; may block if the filesystem hangs.

    Raises:
        NotAvailableError: there is no block device behind it, or no such directory.
        ProbeError: a file of the kernel cannot be read.
    """
    try:
        holders = sorted(_holders(directory, paths, _LAYERS))
    except OSError as error:
        raise NotAvailableError(f"cannot stat {directory}: {error.strerror}") from error
    below = {drive for holder in holders for drive in _drives_below(holder, paths, _LAYERS)}
    drives = tuple(Drive(drive, _capacity_bytes(drive, paths.sys)) for drive in sorted(below))
    return BlockDevices(tuple(holders), drives)


def is_counting(number: DeviceNumber, sys: Path) -> bool:
    """Return False if the statistics of a device are switched off; some drivers count nevertheless."""
    folder = _folder(number, sys).resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    try:
        return read_kernel_file(folder / "queue/iostats").strip() != "0"
    except ProbeError:  # an old kernel, or a container that hides it
        return True


def device_name(number: DeviceNumber, sys: Path) -> str:
    """Return the name of a device as in diskstats, such as `nvme0n1`; /sys has no `/` in `cciss/c0d0`."""
    return _folder(number, sys).resolve().name.replace("!", "/")


def ways_to(drive: DeviceNumber, sys: Path) -> list[str]:
    """Return the names of the devices by which a drive can be asked: the ways of a multipath, or itself."""
    folder = _folder(drive, sys)
    ways = _numbers(sorted((folder / "slaves").glob("*"))) if _is_multipath(folder) else []
    return [device_name(way, sys) for way in ways or [drive]]


def _holders(path: str, paths: SystemPaths, layers: int) -> set[DeviceNumber]:
    holder = paths.numbers(path).holder
    number = (os.major(holder), os.minor(holder))
    if number[0]:
        return {number}
    return _behind_virtual(path, paths, layers)  # btrfs, overlay and others without a number


def _behind_virtual(path: str, paths: SystemPaths, layers: int) -> set[DeviceNumber]:
    """Return the devices behind a path whose filesystem has none in its own name.

    Raises:
        NotAvailableError: there is none, or none that can be seen from here.
    """
    mount = find_mount(path, paths.proc)
    upper = mount.option("upperdir") if mount.kind == "overlay" else ""
    try:
        if upper and layers:
            return _holders(upper, paths, layers - 1)
        found = _sources(mount, paths)
    except OSError:  # that folder is not visible from here
        found = set()
    if not found:
        hidden = f"; {upper}, where it writes, is not visible from here" if upper else ""
        raise NotAvailableError(
            f"there is no block device behind {path} ({mount.kind}){hidden}: {_remedy(mount)}"
        )
    return found


def _remedy(mount: Mount) -> str:
    """Return why the drives behind a mount cannot be found, and what to do about it."""
    is_remote = mount.kind in _OF_OTHER_MACHINES
    host = "it" if is_remote else "this host"
    exporter = f"let the probe prometheus read node_exporter of {host}, which shows every drive"
    if mount.kind in MEMORY_FILESYSTEMS:
        return "it lies in memory; name a folder on a drive in `directory`"
    if mount.kind == "overlay":
        return "name the folder of a volume in `directory`, or run the probe on the host itself"
    if is_remote:
        return f"its drives are those of another machine ({mount.source}); {exporter}"
    if mount.kind == "zfs":
        pool = mount.source.partition("/")[0]
        return (
            f"ZFS does not tell the kernel which drives the pool {pool} has; `zpool status {pool}` lists "
            f"them. The plan has no key for drives: {exporter}"
        )
    return f"{mount.kind} does not tell the kernel which drives it has; {exporter}"


def _sources(mount: Mount, paths: SystemPaths) -> set[DeviceNumber]:
    """Return the devices that a mount names: btrfs names one of its own, bcachefs all with colons.

    btrfs goes on naming one that was removed, whose link is left in its volume.
    """
    found = _named(mount.source, paths) if mount.source.startswith("/") else set()
    if mount.kind == "btrfs":
        for volume in (paths.sys / "fs/btrfs").glob("*/devices"):
            links = list(volume.iterdir())
            members = set(_numbers(links))
            is_removed = not found and Path(mount.source).name in {link.name for link in links}
            if is_removed or not members.isdisjoint(found):
                return members
    return found


def _named(source: str, paths: SystemPaths) -> set[DeviceNumber]:
    """Return the devices of one name, which may have colons (/dev/disk/by-path), or of several.

    None where one of them is not known.
    """
    several = [name for name in source.split(":") if name.startswith("/")]
    for names in ([source], several):
        found = {name: number for name in names if (number := _device_named(name, paths))}
        if len(found) == len(set(names)):
            return set(found.values())
    return set()


def _device_named(name: str, paths: SystemPaths) -> DeviceNumber | None:
    """Return the block device of a name; a container without its node has the kernel's names in /sys."""
    try:
        device = paths.numbers(name).device
    except OSError:
        return _device_in_sys(name, paths.sys)
    return (os.major(device), os.minor(device)) if os.major(device) else None


def _device_in_sys(name: str, sys: Path) -> DeviceNumber | None:
    """Return the device of a name below /dev: a drive or partition, or a volume of device-mapper."""
    short = name.removeprefix("/dev/")
    folder = sys / "class/block" / short.replace("/", "!")
    if not folder.exists():
        mapped = short.removeprefix("mapper/")
        if mapped == short:  # VG/LV of LVM, which doubles the dashes of both
            mapped = "-".join(part.replace("-", "--") for part in short.split("/"))
        volumes = (one.parent.parent for one in (sys / "class/block").glob("dm-*/dm/name"))
        named = (one for one in volumes if read_kernel_file(one / "dm/name").strip() == mapped)
        folder = next(named, folder)
    return _parse_number(read_kernel_file(folder / "dev")) if folder.exists() else None


def _drives_below(number: DeviceNumber, paths: SystemPaths, layers: int) -> set[DeviceNumber]:
    below = _below(number, paths) if layers else []
    if not below:
        return {number}
    return {drive for each in below for drive in _drives_below(each, paths, layers - 1)}


def _below(number: DeviceNumber, paths: SystemPaths) -> list[DeviceNumber]:
    """Return the devices below: parts of a volume or array, a partition's disk, what holds a loop's file."""
    folder = _folder(number, paths.sys)
    if _is_multipath(folder):  # its parts are ways to one drive
        return []
    slaves = sorted((folder / "slaves").glob("*"))
    if slaves:
        return _numbers(slaves)
    if (folder / "partition").exists():
        return [_parse_number(read_kernel_file(folder.resolve().parent / "dev"))]
    backing = folder / "loop/backing_file"
    if not backing.exists():
        return []
    try:
        return sorted(_holders(read_kernel_file(backing).removesuffix("\n"), paths, _LAYERS))
    except (OSError, NotAvailableError):  # the file lies in memory, or was deleted
        return []


def _numbers(links: Iterable[Path]) -> list[DeviceNumber]:
    """Return the numbers of linked devices, without those that were removed: their links may be left."""
    numbers = (link.resolve() / "dev" for link in links)
    return [_parse_number(read_kernel_file(number)) for number in numbers if number.exists()]


def _is_multipath(folder: Path) -> bool:
    uuid = folder / "dm/uuid"
    return uuid.exists() and read_kernel_file(uuid).startswith("mpath-")


def _capacity_bytes(drive: DeviceNumber, sys: Path) -> int:
    """Return the size of a drive, 0 where a container hides it."""
    path = _folder(drive, sys) / "size"
    if not path.exists():
        return 0
    text = read_kernel_file(path).strip()
    if not (text.isascii() and text.isdigit()):
        raise ProbeError(f"the size of device {drive[0]}:{drive[1]} is not a number: {text!r}")
    return int(text) * SECTOR_BYTES


def _folder(number: DeviceNumber, sys: Path) -> Path:
    return sys / "dev/block" / f"{number[0]}:{number[1]}"


def _parse_number(text: str) -> DeviceNumber:
    major, _, minor = text.strip().partition(":")
    if not (text.isascii() and major.isdigit() and minor.isdigit()):
        raise ProbeError(f"not a device number: {text!r}")
    return int(major), int(minor)


def read_kernel_file(path: Path) -> str:
    """Return the text of a file of /proc or /sys.

    Raises:
        ProbeError: it cannot be read.
    """
    try:
        return os.fsdecode(path.read_bytes())  # names in it are those of files
    except OSError as error:
        raise ProbeError(f"cannot read {path}: {error.strerror}") from error
