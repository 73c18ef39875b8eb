"""A drive of the lab's own with a filesystem on it, whose faults are set while somebody is at work there.

nbdkit serves the drive, nbdfuse makes a file of it, and a loop device a block device of that, so the kernel
counts its requests as any drive's. A keeper, a process of its own, puts it together, and takes it apart when
told to or when this process ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS, format_size
from soak.lab.drive import block_device
from soak.lab.drive import folder as drive_control
from soak.lab.drive.flash import Settings
from soak.lab.drive.folder import DriveCommand, DriveFolder, DriveStatus
from soak.service import children

UNDO_SECONDS = 140.0  # above the sum of the keeper's steps, should each take as long as it may
START_LIMIT_NS = int(60 + UNDO_SECONDS) * SECOND_NS  # a keeper before may have to end first
REMOUNT_LIMIT_NS = 10 * SECOND_NS
_POLL_NS = SECOND_NS // 20
_TELL_SECONDS = 20
_TOOLS = {
    "nbdkit": "nbdkit",
    "nbdfuse": "libnbd-bin",
    "fusermount3": "fuse3",
    "losetup": "mount",
    "fstrim": "util-linux",
}
"""What is called, and the Debian package that has it."""

FILESYSTEMS = {
    "ext4": (
        "mkfs.ext4",
        "-q",
        "-m",
        "0",  # nothing is kept back for root: full is full
        "-b",
        "4096",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
    ),
    "xfs": ("mkfs.xfs", "-q", "-K"),
}
"""How each is made: what is left for later would be written beside the load; in a drive's pages."""

_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
LEAST_BYTES = {"ext4": 2**24, "xfs": 300 * 2**20}
"""What their tools ask for, and room for a journal."""


def missing(which: Callable[[str], str | None] = shutil.which, *, filesystem: str = "ext4") -> str:
    """Return what keeps this machine from having such a drive, or ""."""
    if os.geteuid() != 0:
        return "a drive of the lab's own needs root, for its mounts and its loop device"
    if not (os.access("/dev/fuse", os.W_OK) and os.access("/dev/loop-control", os.W_OK)):
        return "a drive of the lab's own needs /dev/fuse and loop devices, which this machine lacks"
    tools = {**_TOOLS, FILESYSTEMS[filesystem][0]: _PACKAGES[filesystem]}
    absent = [f"{tool} (Debian: {package})" for tool, package in tools.items() if not which(tool)]
    if absent:
        return f"a drive of the lab's own needs {', '.join(absent)}"
    try:
        shown = subprocess.run(
            ["nbdkit", "--dump-plugin", "python"],  # noqa: S607  # found by name just before
            capture_output=True,
            timeout=_TELL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a drive of the lab's own needs an nbdkit that says what it can do: {error}"
    if shown.returncode:
        return "a drive of the lab's own needs nbdkit's Python (Debian: nbdkit-plugin-python)"
    return ""


def start(folder: Path, *, capacity_bytes: int = 2**29, filesystem: str = "ext4") -> Drive:
    """Put a drive together below `folder`, mounted and empty; from the main thread.

    What an earlier drive in this folder left behind is cleared away first.

    Raises:
        LabError: this machine lacks something, or it did not come up; nothing is left then.
    """
    lack = missing(filesystem=filesystem)
    if lack:
        raise LabError(lack)
    if capacity_bytes < LEAST_BYTES[filesystem]:
        least = format_size(LEAST_BYTES[filesystem])
        raise LabError(
            f"a drive with {filesystem} needs {least}, not {format_size(capacity_bytes)}"
        )
    drive = Drive(DriveFolder(folder.resolve()), capacity_bytes)
    drive.begin(filesystem)
    return drive


class Drive:
    """The drive at work."""

    def __init__(self, folder: DriveFolder, capacity_bytes: int) -> None:
        self._folder = folder
        self.capacity_bytes = capacity_bytes
        self._clock = SystemClock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._told = DriveCommand()
        self.device = ""  # as diskstats names it

    @property
    def mount_point(self) -> Path:
        return self._folder.mount_point

    @property
    def control(self) -> Path:
        """Return the file that it heeds, which holds a `drive_control.Told`."""
        return self._folder.control

    def begin(self, filesystem: str) -> None:
        self._folder.path.mkdir(parents=True, exist_ok=True)
        self._tell(DriveCommand())
        command = [
            *(sys.executable, "-m", "soak.lab.drive.keeper"),
            *(str(self._folder.path), str(self.capacity_bytes), filesystem),
        ]
        self._keeper = children.spawn(
            command, log_path=self._folder.log, death_signal=signal.SIGTERM
        )
        try:
            self.device = self._await_ready(self._keeper)
        except BaseException:  # an interrupt too must leave nothing behind
            self.close()
            raise

    def answer(self, *, delay_seconds: float = 0.0) -> None:
        """From now on every write and every flush takes this much longer; what was stopped goes on."""
        self._tell(replace(self._told, delay_seconds=delay_seconds, is_stopped=False, error=""))

    def stop_answering(self) -> None:
        """From now on no request is answered, until `answer`."""
        self._tell(replace(self._told, delay_seconds=0.0, is_stopped=True))

    def fail(self, error: Literal["EIO", "ENOSPC"]) -> None:
        """From now on every write and every flush fails so, until `answer`."""
        self._tell(replace(self._told, error=error))

    def age(self, settings: Settings) -> None:
        """Let it live on a pool of erased pages; called again, only how fast it is changes."""
        self._tell(replace(self._told, flash=settings))

    def read_slowly(self, seconds_per_mib: float) -> None:
        """From now on a read takes so long, and what is written meanwhile waits."""
        self._tell(replace(self._told, read_seconds_per_mib=seconds_per_mib))

    def write_slowly(self, bytes_per_second: int) -> None:
        """From now on no more is written in a second: one write waits for another."""
        self._tell(replace(self._told, write_seconds_per_mib=2**20 / bytes_per_second))

    def limit_dirty(self, most_bytes: int) -> None:
        """Let the kernel hold back about so much of what is written: then who writes waits for the drive.

        The limit goes with the loop device.

        Raises:
            LabError: this kernel has none for one drive alone (before Linux 6.2).
        """
        block_device.limit_dirty(self.device, most_bytes)

    def drop_page_cache(self) -> None:
        """Have the kernel keep nothing of the drive in memory, below the filesystem's own pages."""
        block_device.drop_from_page_cache(self._folder.image)

    def discard_deleted(self) -> None:
        """Have its ext4 tell the drive at once of the blocks that a deletion frees, until `keep_deleted`.

        Raises:
            LabError: it refuses.
        """
        block_device.run("mount", "-o", "remount,discard", str(self.mount_point))

    def keep_deleted(self) -> None:
        """End that; raises as `discard_deleted` does."""
        block_device.run("mount", "-o", "remount,nodiscard", str(self.mount_point))

    def trim(self) -> None:
        """Tell the drive what its filesystem does not use.

        Raises:
            LabError: it could not be told.
        """
        block_device.run("fstrim", str(self.mount_point), limit_seconds=UNDO_SECONDS)

    def remount(self) -> None:
        """Mount its filesystem anew: after an error of the drive none is written to any more.

        Raises:
            LabError: it cannot be, as long as somebody has a file open there.
        """
        deadline_ns = self._clock.mono_ns() + REMOUNT_LIMIT_NS
        while True:
            try:
                block_device.run("umount", str(self.mount_point))
                break
            except LabError:  # a probe that has seen the error is about to close its file
                if self._clock.mono_ns() > deadline_ns:
                    raise
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        block_device.mount(self.device, self._folder)

    def status(self) -> DriveStatus:
        """Return its counters, at most half a second old."""
        return drive_control.read_status(self._folder.counters)

    def close(self) -> None:
        """Take everything apart; may be called twice."""
        with suppress(OSError):  # where it lies is full: the keeper takes it apart all the same
            self._tell(DriveCommand())
        if self._keeper is not None:
            children.stop(self._keeper, UNDO_SECONDS)

    def _tell(self, told: DriveCommand) -> None:
        self._told = told
        drive_control.write_command(self._folder.control, told)

    def _await_ready(self, keeper: subprocess.Popen[bytes]) -> str:
        deadline_ns = self._clock.mono_ns() + START_LIMIT_NS
        while keeper.poll() is None and self._clock.mono_ns() < deadline_ns:
            with suppress(FileNotFoundError, ValueError):
                kept_by, device = self._folder.ready.read_text().split()
                if int(kept_by) == keeper.pid:  # not one before, that was about to end
                    return device
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        said = children.log_tail(self._folder.log)
        raise LabError(f"the drive in {self._folder.path} did not come up:\n{said}")
