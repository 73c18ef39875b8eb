"""The files of an injected drive: its folder, its registration below /run, and the control file that sets its faults."""

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


@dataclass(frozen=True, slots=True)
class DriveFolder:
    """Paths only; nothing is created by looking."""

    path: Path

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    @property
    def counters(self) -> Path:
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


# --- Where drives are known by: a folder each below `/run`, which a boot empties as it ends mounts.
# It is locked for as long as somebody puts the drive together, keeps it or takes it apart. So two never
# work on
# one drive, and what is there without its lock was left by a keeper that was killed. It also holds the
# drive's
# socket: the address of one has 107 bytes at most, more than the path of a run may leave.

ROOT = Path("/run/soakd/drives")
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one drive; nothing is created by looking."""

    path: Path

    @property
    def link(self) -> Path:
        """Return what leads to the drive's folder, as long as something of it may be there."""
        return self.path / "folder"

    @property
    def socket(self) -> Path:
        return self.path / "nbd.sock"

    def note(self, folder: Path) -> None:
        """Name the drive's folder, before anything is done there."""
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(folder)

    def forget(self) -> None:
        """Remove it, by who holds it: nothing of the drive is there any more."""
        for name in (self.socket, self.link):
            name.unlink(missing_ok=True)
        self.path.rmdir()


def place_of(folder: Path) -> Place:
    """Return the place of the drive whose folder has this path, as the kernel has it."""
    return Place(ROOT / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16])


def places() -> list[Place]:
    """Return all that are there now."""
    return [Place(path) for path in sorted(ROOT.glob("*"))]


@contextlib.contextmanager
def held(place: Place, limit_seconds: float, stop: threading.Event | None = None) -> Iterator[None]:
    """Hold a place while the block runs, which may `forget` it; the kernel frees it with the process.

    Raises:
        LabError: somebody else held it for so long, or until `stop` was set.
    """
    clock, told = SystemClock(), stop or threading.Event()
    deadline_ns = clock.mono_ns() + int(limit_seconds * SECOND_NS)
    while (descriptor := _taken(place.path)) is None:
        if clock.mono_ns() >= deadline_ns or told.wait(_POLL_SECONDS):
            raise LabError("another keeper has the drive of this folder, or takes it apart still")
    try:
        yield
    finally:
        os.close(descriptor)


def _taken(path: Path) -> int | None:
    """Return a descriptor that holds the folder, made if it is not there; None when another has it."""
    with contextlib.suppress(FileExistsError):  # also of one that is removed while it is looked at
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo, contextlib.suppress(BlockingIOError, FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # else it was removed meanwhile
            undo.pop_all()
            return descriptor
    return None


# --- What a lab's drive is told while it works, and what it says of itself: two files in its folder.


@dataclass(frozen=True, slots=True)
class DriveCommand:
    """How the drive answers from now on."""

    delay_seconds: float = 0.0  # more for every write and every flush
    is_stopped: bool = False  # no request is answered
    error: Literal["", "EIO", "ENOSPC"] = ""  # what every write and every flush fails with
    read_seconds_per_mib: float = 0.0  # in which the drive does nothing else
    write_seconds_per_mib: float = 0.0  # the same
    flash: Settings | None = None  # the erased pages it lives on; without them it never starves


@dataclass(frozen=True, slots=True)
class DriveStatus:
    """What the drive has done since it came up; the pages are those of `Told.flash`, 0 without."""

    written_bytes: int = 0
    read_bytes: int = 0
    flushes: int = 0
    trimmed_bytes: int = 0
    waited_seconds: float = 0.0  # of all requests together
    erased_pages: float = 0.0  # below 0: writes wait for so many
    valid_pages: int = 0
    starved_writes: int = 0
    aged_written_bytes: int | None = None  # written by when it was told of its pages
    starved_written_bytes: int | None = None  # and by when the first write waited for one
    starved_wall_ns: int | None = None
    blocked_wall_ns: int | None = None  # when a write or flush first waited for trims or reads


def write_command(path: Path, told: DriveCommand) -> None:
    """Let the drive read this with its next request."""
    replace_text(path, json.dumps(asdict(told)))


def read_status(path: Path) -> DriveStatus:
    """Return what it said last, at most half a second ago; nothing yet is all zeros."""
    try:
        return TypeAdapter(DriveStatus).validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return DriveStatus()
