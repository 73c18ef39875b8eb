"""The files of an injected drive: its folder, its registration below /run, its commands and its status."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.drive.flash import Settings
from soak.lab.files import replace_text

REGISTRATIONS = Path("/run/soakd/drives")
"""One folder a drive; a boot empties it, as it ends mounts."""

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class DriveFolder:
    """The paths of a drive's files."""

    path: Path

    @property
    def control(self) -> Path:
        """Return the file that holds the last `DriveCommand`."""
        return self.path / "control.json"

    @property
    def counters(self) -> Path:
        """Return the file that holds the last `DriveStatus`."""
        return self.path / "counters.json"

    @property
    def ready(self) -> Path:
        """Return the file that names the keeper and the device once the drive is mounted."""
        return self.path / "device"

    @property
    def image(self) -> Path:
        return self.path / "image"

    @property
    def mount_point(self) -> Path:
        return self.path / "mount"

    @property
    def log(self) -> Path:
        return self.path / "drive.log"


@dataclass(frozen=True, slots=True)
class DriveCommand:
    """How the drive answers from now on."""

    delay_seconds: float = 0.0  # added to every write and every flush
    is_stopped: bool = False  # no request is answered
    error: Literal["", "EIO", "ENOSPC"] = ""  # every write and every flush fails with it
    read_seconds_per_mib: float = 0.0  # during which the drive does nothing else
    write_seconds_per_mib: float = 0.0  # as above
    flash: Settings | None = None  # the model of its erased pages; None: it never runs out of them


@dataclass(frozen=True, slots=True)
class DriveStatus:
    """Counters since the drive started; those of pages are 0 without a model of erased pages."""

    written_bytes: int = 0
    read_bytes: int = 0
    flushes: int = 0
    trimmed_bytes: int = 0
    waited_seconds: float = 0.0  # sum over all requests
    erased_pages: float = 0.0  # below 0: writes wait for this many
    valid_pages: int = 0
    starved_writes: int = 0
    aged_written_bytes: int | None = None  # written when the model of erased pages was set
    starved_written_bytes: int | None = None  # written when a write first waited for an erased page
    starved_wall_ns: int | None = None
    blocked_wall_ns: int | None = None  # when a write or flush first waited for trims or reads


def write_command(path: Path, command: DriveCommand) -> None:
    """Write a command, which the drive reads with its next request."""
    replace_text(path, json.dumps(asdict(command)))


def read_status(path: Path) -> DriveStatus:
    """Return the last status, at most half a second old; zeros before the first one."""
    try:
        return TypeAdapter(DriveStatus).validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return DriveStatus()


@dataclass(frozen=True, slots=True)
class Registration:
    """A folder by which every process of this machine knows a drive.

    A process locks it while it mounts, keeps or unmounts the drive, so that no two do so at once. What
    exists without a lock was left by a keeper that was killed. It also holds the drive's socket, whose
    address may have 107 bytes at most: less than the path of a run may need.
    """

    path: Path

    @property
    def link(self) -> Path:
        """Return the link to the drive's folder; it exists while parts of the drive may exist."""
        return self.path / "folder"

    @property
    def socket(self) -> Path:
        return self.path / "nbd.sock"

    def note_folder(self, folder: Path) -> None:
        """Link to the drive's folder; call this before the drive is mounted."""
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(folder)

    def remove(self) -> None:
        """Remove the registration of a drive that is unmounted; only while it is locked."""
        for name in (self.socket, self.link):
            name.unlink(missing_ok=True)
        self.path.rmdir()


def registration_of(folder: Path) -> Registration:
    """Return the registration of the drive in a folder, given by its resolved path."""
    return Registration(REGISTRATIONS / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16])


def registrations() -> list[Registration]:
    """Return the registrations of all drives that exist now."""
    return [Registration(path) for path in sorted(REGISTRATIONS.glob("*"))]


@contextlib.contextmanager
def locked(
    registration: Registration, limit_seconds: float, stop: threading.Event | None = None
) -> Iterator[None]:
    """Lock a registration for the block, which may remove it; the kernel unlocks it if the process dies.

    Raises:
        LabError: another process held the lock for the whole time, or until `stop` was set.
    """
    clock, stopped = SystemClock(), stop or threading.Event()
    deadline_ns = clock.mono_ns() + int(limit_seconds * SECOND_NS)
    while (descriptor := _try_lock(registration.path)) is None:
        if clock.mono_ns() >= deadline_ns or stopped.wait(_POLL_SECONDS):
            raise LabError("another keeper holds the drive of this folder, or still unmounts it")
    try:
        yield
    finally:
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    """Create the folder if needed and return a descriptor that locks it; None if another process does."""
    with contextlib.suppress(FileExistsError):  # raised too if it is removed at the same time
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo, contextlib.suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # not removed meanwhile
            undo.pop_all()
            return descriptor
    return None
