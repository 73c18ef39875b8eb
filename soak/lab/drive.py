"""A drive of the lab's own with a filesystem on it, whose delay is set while somebody is at work there.

nbdkit serves the drive, nbdfuse makes a file of it, and a loop device a block device of that, so the kernel
counts its requests as any drive's. A keeper, a process of its own, puts it together, and takes it apart when
told to or when this process ends, however it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.service import children

START_LIMIT_NS = 60 * SECOND_NS
UNDO_SECONDS = 30.0
_POLL_NS = SECOND_NS // 20
_TOOLS = {
    "nbdkit": "nbdkit",
    "nbdfuse": "libnbd-bin",
    "fusermount3": "fuse3",
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
}
"""What is called, and the Debian package that has it."""


@dataclass(frozen=True, slots=True)
class DriveFolder:
    """Where the parts of a drive lie; nothing is created by looking."""

    path: Path

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    @property
    def ready(self) -> Path:
        """Return the file that names the device once the drive is mounted."""
        return self.path / "device"

    @property
    def socket(self) -> Path:
        return self.path / "nbd.sock"

    @property
    def image(self) -> Path:
        return self.path / "image"

    @property
    def mount_point(self) -> Path:
        return self.path / "mount"

    @property
    def log(self) -> Path:
        return self.path / "drive.log"


def missing(which: Callable[[str], str | None] = shutil.which) -> str:
    """Return what keeps this machine from having such a drive, or ""."""
    if os.geteuid() != 0:
        return "a drive of the lab's own needs root, for its mounts and its loop device"
    if not (os.access("/dev/fuse", os.W_OK) and os.access("/dev/loop-control", os.W_OK)):
        return "a drive of the lab's own needs /dev/fuse and loop devices, which this machine lacks"
    absent = [f"{tool} (Debian: {package})" for tool, package in _TOOLS.items() if not which(tool)]
    if absent:
        return f"a drive of the lab's own needs {', '.join(absent)}"
    shown = subprocess.run(
        ["nbdkit", "--dump-plugin", "python"],  # noqa: S607  # found by name just before
        capture_output=True,
        timeout=20,
        check=False,
    )
    if shown.returncode:
        return "a drive of the lab's own needs nbdkit's Python (Debian: nbdkit-plugin-python)"
    return ""


def start(folder: Path, *, capacity_bytes: int = 2**29) -> Drive:
    """Put a drive together below `folder`, mounted and empty; from the main thread.

    What an earlier drive in this folder left behind is cleared away first.

    Raises:
        LabError: this machine lacks something, or it did not come up; nothing is left then.
    """
    lack = missing()
    if lack:
        raise LabError(lack)
    drive = Drive(DriveFolder(folder.absolute()))
    drive.begin(capacity_bytes)
    return drive


class Drive:
    """The drive at work."""

    def __init__(self, folder: DriveFolder) -> None:
        self._folder = folder
        self._clock = SystemClock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self.device = ""  # as diskstats names it

    @property
    def mount_point(self) -> Path:
        return self._folder.mount_point

    def begin(self, capacity_bytes: int) -> None:
        self._folder.path.mkdir(parents=True, exist_ok=True)
        self._folder.ready.unlink(missing_ok=True)
        self.answer()
        module = "soak.lab.drive_keeper"
        command = [sys.executable, "-m", module, str(self._folder.path), str(capacity_bytes)]
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
        self._tell(delay_seconds, is_stopped=False)

    def stop_answering(self) -> None:
        """From now on no request is answered, until `answer`."""
        self._tell(0.0, is_stopped=True)

    def close(self) -> None:
        """Take everything apart; may be called twice."""
        self.answer()
        if self._keeper is not None:
            children.stop(self._keeper, UNDO_SECONDS)

    def _tell(self, delay_seconds: float, *, is_stopped: bool) -> None:
        write_control(self._folder, delay_seconds, is_stopped=is_stopped)

    def _await_ready(self, keeper: subprocess.Popen[bytes]) -> str:
        deadline_ns = self._clock.mono_ns() + START_LIMIT_NS
        while keeper.poll() is None and self._clock.mono_ns() < deadline_ns:
            if self._folder.ready.exists():
                return self._folder.ready.read_text().strip()
            self._clock.sleep_until(self._clock.mono_ns() + _POLL_NS)
        said = children.log_tail(self._folder.log)
        raise LabError(f"the drive in {self._folder.path} did not come up:\n{said}")


def write_control(folder: DriveFolder, delay_seconds: float, *, is_stopped: bool) -> None:
    """Replace what the drive is told as a whole, so that it never reads a half."""
    draft = folder.control.with_suffix(".part")
    draft.write_text(json.dumps({"delay_seconds": delay_seconds, "is_stopped": is_stopped}))
    draft.replace(folder.control)
