"""An injected drive: a mounted filesystem whose drive can be slowed down or broken while it is in use.

nbdkit serves the drive, nbdfuse presents it as a file, and a loop device turns that into a block device, so
the kernel counts its requests like those of any drive. A keeper process mounts it, and removes it on SIGTERM
or when this process ends for any reason.
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
from soak.lab.drive.flash import Settings
from soak.lab.drive.folder import (
    DriveCommand,
    DriveFolder,
    DriveStatus,
    read_status,
    write_command,
)
from soak.service import children

TRIM_SECONDS = 30.0
UNDO_SECONDS = 140.0  # above the sum of the time limits of the keeper's steps
START_LIMIT_NS = int(60 + UNDO_SECONDS) * SECOND_NS  # the keeper before may have to end first
REMOUNT_LIMIT_NS = 10 * SECOND_NS
_POLL_NS = SECOND_NS // 20
_NBDKIT_SECONDS = 20
_TOOLS = {
    "nbdkit": "nbdkit",
    "nbdfuse": "libnbd-bin",
    "fusermount3": "fuse3",
    "losetup": "mount",
    "fstrim": "util-linux",
}
"""The tools that are run, and their Debian packages."""

FILESYSTEMS = {
    "ext4": (
        "mkfs.ext4",
        "-q",
        "-m",
        "0",  # no blocks reserved for root
        "-b",
        "4096",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
    ),
    "xfs": ("mkfs.xfs", "-q", "-K"),
}
"""How each is made: lazy initialisation would write during the load."""

_PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
MIN_BYTES = {"ext4": 2**24, "xfs": 300 * 2**20}
"""What their tools require, with room for a journal."""


def missing_drive_tools(
    which: Callable[[str], str | None] = shutil.which, *, filesystem: str = "ext4"
) -> str:
    """Return why this machine cannot have an injected drive, or ""."""
    if os.geteuid() != 0:
        return "an injected drive needs root, for its mounts and its loop device"
    if not (os.access("/dev/fuse", os.W_OK) and os.access("/dev/loop-control", os.W_OK)):
        return "an injected drive needs /dev/fuse and loop devices, which this machine lacks"
    tools = {**_TOOLS, FILESYSTEMS[filesystem][0]: _PACKAGES[filesystem]}
    absent = [f"{tool} (Debian: {package})" for tool, package in tools.items() if not which(tool)]
    if absent:
        return f"an injected drive needs {', '.join(absent)}"
    try:
        shown = subprocess.run(
            ["nbdkit", "--dump-plugin", "python"],  # noqa: S607  # found by name just before
            capture_output=True,
            timeout=_NBDKIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"an injected drive needs an nbdkit that lists its plug-ins: {error}"
    if shown.returncode:
        return "an injected drive needs nbdkit's Python (Debian: nbdkit-plugin-python)"
    return ""


def start_drive(folder: Path, *, capacity_bytes: int = 2**29, filesystem: str = "ext4") -> Drive:
    """Start a drive below `folder`, mounted and empty; from the main thread.

    Parts of an earlier drive in this folder are removed first.

    Raises:
        LabError: this machine lacks something, or the drive did not start; nothing of it remains.
    """
    lack = missing_drive_tools(filesystem=filesystem)
    if lack:
        raise LabError(lack)
    if capacity_bytes < MIN_BYTES[filesystem]:
        least = format_size(MIN_BYTES[filesystem])
        raise LabError(
            f"a drive with {filesystem} needs {least}, not {format_size(capacity_bytes)}"
        )
    drive = Drive(DriveFolder(folder.resolve()), capacity_bytes)
    drive.start_keeper(filesystem)
    return drive


class Drive:
    """A drive that is in use."""

    def __init__(self, folder: DriveFolder, capacity_bytes: int) -> None:
        self._folder = folder
        self.capacity_bytes = capacity_bytes
        self._clock = SystemClock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._command = DriveCommand()
        self.device = ""  # as diskstats names it

    @property
    def mount_point(self) -> Path:
        return self._folder.mount_point

    @property
    def control(self) -> Path:
        """Return the file that controls the drive; it holds a `DriveCommand`."""
        return self._folder.control

    def start_keeper(self, filesystem: str) -> None:
        self._folder.path.mkdir(parents=True, exist_ok=True)
        self._send(DriveCommand())
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
        """Answer from now on, every write and every flush with this delay."""
        self._send(replace(self._command, delay_seconds=delay_seconds, is_stopped=False, error=""))

    def stop_answering(self) -> None:
        """Answer no request until `answer` is called."""
        self._send(replace(self._command, delay_seconds=0.0, is_stopped=True))

    def fail(self, error: Literal["EIO", "ENOSPC"]) -> None:
        """Fail every write and every flush with this error until `answer` is called."""
        self._send(replace(self._command, error=error))

    def age(self, settings: Settings) -> None:
        """Set the model of its erased pages; another call changes only how fast the drive is."""
        self._send(replace(self._command, flash=settings))

    def renew(self) -> None:
        """Drop the model of its erased pages: no write waits for one any more."""
        self._send(replace(self._command, flash=None))

    def read_slowly(self, seconds_per_mib: float) -> None:
        """Delay reads from now on, and writes while the drive reads; 0 ends that."""
        self._send(replace(self._command, read_seconds_per_mib=seconds_per_mib))

    def write_slowly(self, bytes_per_second: int) -> None:
        """Limit the rate of writes from now on: one write waits for another."""
        self._send(replace(self._command, write_seconds_per_mib=2**20 / bytes_per_second))

    def limit_dirty(self, max_bytes: int) -> None:
        """Limit the dirty pages of the drive to about this many bytes; further writes wait for the drive.

        The limit ends with the loop device.

        Raises:
            LabError: this kernel has no limit for a single drive (before Linux 6.2).
        """
        block_device.limit_dirty(self.device, max_bytes)

    def drop_page_cache(self) -> None:
        """Drop the drive from the page cache, below the pages of its filesystem."""
        block_device.drop_from_page_cache(self._folder.image)

    def discard_deleted(self) -> None:
        """Let its ext4 discard the blocks of deleted files at once, until `keep_deleted` is called.

        Raises:
            LabError: the filesystem refuses.
        """
        block_device.run("mount", "-o", "remount,discard", str(self.mount_point))

    def keep_deleted(self) -> None:
        """Stop discarding; raises as `discard_deleted` does."""
        block_device.run("mount", "-o", "remount,nodiscard", str(self.mount_point))

    def trim(self) -> None:
        """Discard the blocks that its filesystem does not use, as fstrim does.

        Raises:
            LabError: fstrim failed, or the drive is too slow for it.
        """
        block_device.run("fstrim", str(self.mount_point), limit_seconds=TRIM_SECONDS)

    def remount(self) -> None:
        """Mount its filesystem again, because one that has seen an error of its drive accepts no writes.

        Raises:
            LabError: a process keeps a file open there.
        """
        deadline_ns = self._clock.mono_ns() + REMOUNT_LIMIT_NS
        while True:
            try:
                block_device.run("umount", str(self.mount_point))
                break
            except LabError:  # a probe that has seen the error will soon close its file
                if self._clock.mono_ns() > deadline_ns:
                    raise
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        block_device.mount(self.device, self._folder)

    def status(self) -> DriveStatus:
        """Return its status, at most half a second old."""
        return read_status(self._folder.counters)

    def close(self) -> None:
        """Remove the drive; may be called twice."""
        with suppress(OSError):  # its filesystem is full; the keeper removes it all the same
            self._send(DriveCommand())
        if self._keeper is not None:
            children.stop(self._keeper, UNDO_SECONDS)

    def _send(self, command: DriveCommand) -> None:
        self._command = command
        write_command(self._folder.control, command)

    def _await_ready(self, keeper: subprocess.Popen[bytes]) -> str:
        deadline_ns = self._clock.mono_ns() + START_LIMIT_NS
        while keeper.poll() is None and self._clock.mono_ns() < deadline_ns:
            with suppress(FileNotFoundError, ValueError):
                keeper_pid, device = self._folder.ready.read_text().split()
                if int(keeper_pid) == keeper.pid:  # not an earlier one, which is about to end
                    return device
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        reason = children.log_tail(self._folder.log)
        raise LabError(f"the drive in {self._folder.path} did not start:\n{reason}")
