"""The block device of an injected drive: loop device, mount, dirty limit and page cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from probes.common import block_device
from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.drive import folder as drive_control
from soak.lab.drive.folder import DriveFolder

_BLOCK = Path("/sys/class/block")
_BACKING_DEVICES = Path("/sys/class/bdi")


def missing_dirty_limit(drives: Path = _BACKING_DEVICES) -> str:
    """Return what keeps this machine from limiting it, or ""."""
    if any(drives.glob("*/strict_limit")):
        return ""
    return "a limit on what the kernel holds back from one drive needs Linux 6.2"


def limit_dirty(device: str, most_bytes: int) -> None:
    """Let about so much be held back from a block device, and who writes more wait for it.

    The kernel keeps it as a share of what it may hold back from all, and so of the memory that is free.

    Raises:
        LabError: it refuses.
    """
    limits = _BLOCK / device / "bdi"
    try:
        (limits / "max_bytes").write_text(str(most_bytes), encoding="ascii")
        (limits / "strict_limit").write_text("1", encoding="ascii")
    except OSError as error:
        raise LabError(f"cannot limit what is held back from {device}: {error}") from error


def lift_dirty_limit(device: str) -> None:
    """Undo it; nothing where there is none, or no such device."""
    limits = _BLOCK / device / "bdi"
    with contextlib.suppress(OSError):
        (limits / "strict_limit").write_text("0", encoding="ascii")
        (limits / "max_ratio").write_text("100", encoding="ascii")


# --- Has the kernel forget files, as it would have forgotten them in the hours that a drill does not have.


def drop_from_page_cache(path: Path) -> None:
    """Have the kernel keep nothing of a file in memory; what is not yet written to the drive stays."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def drop_all_from_page_cache(paths: Iterable[Path]) -> None:
    """Do so with each that is still there."""
    for path in paths:
        with suppress(FileNotFoundError):  # deleted meanwhile
            drop_from_page_cache(path)


# --- Mounts and loop devices of a drive: what of them there is in its folder, and how it goes.

_CONTROL, _ADD, _REMOVE = Path("/dev/loop-control"), 0x4C80, 0x4C81
"""LOOP_CTL_ADD and LOOP_CTL_REMOVE of the kernel's include/uapi/linux/loop.h."""
STEP_LIMIT_SECONDS = 20.0
UNDO_STEP_SECONDS = 10.0
_REMOVE_LIMIT_NS = 2 * SECOND_NS


def attach(image: Path) -> str:
    """Make a loop device on a file and return its name, such as `loop8`.

    It is a new one where the kernel makes one, so that it counts from nothing, as a new drive does.

    Raises:
        LabError: as `run`.
    """
    loop = _made()
    if loop is not None and not Path(loop).exists():  # a container's /dev may not show it
        _remove(loop)
        loop = None
    if loop is None:
        return Path(run("losetup", "--find", "--show", str(image)).strip()).name
    try:
        run("losetup", loop, str(image))
    except LabError:
        _remove(loop)
        raise
    return Path(loop).name


def _made() -> str | None:
    try:
        with _CONTROL.open() as control:
            return f"/dev/loop{fcntl.ioctl(control, _ADD, -1)}"
    except OSError:
        return None


def mount(device: str, folder: DriveFolder) -> None:
    """Mount the filesystem of `loop0`, or another; nothing is trimmed unless told. Raises as `run` does."""
    run("mount", "-o", "nodiscard", f"/dev/{device}", str(folder.mount_point))


def clear(folder: DriveFolder) -> None:
    """Undo mounts and loop devices in this folder, whoever made them; there may be none.

    For who holds the drive's place: it would take a drive that is at work apart too.
    """
    let_answer(folder)
    if is_mounted(folder.mount_point) and not _try("umount", str(folder.mount_point)):
        _try("umount", "--lazy", str(folder.mount_point))  # somebody still has a file open
    for loop in loops_on(folder.image):
        _detach(loop)
    if is_mounted(folder.image):
        _try("umount", "--lazy", str(folder.image))


def clear_left() -> None:
    """Undo what killed keepers have left anywhere on this machine; only root has such drives."""
    if os.geteuid() != 0:
        return
    for place in drive_control.places():
        with contextlib.suppress(LabError), drive_control.held(place, 0):  # else it is at work
            if place.link.is_symlink():
                folder = DriveFolder(place.link.readlink())
                clear(folder)
                if is_left(folder):  # the next one tries again
                    continue
            place.forget()


def is_left(folder: DriveFolder) -> bool:
    """Return whether something is mounted in this folder, or a loop device leads to it."""
    mounted = is_mounted(folder.mount_point) or is_mounted(folder.image)
    return mounted or bool(loops_on(folder.image))


def let_answer(folder: DriveFolder) -> bool:
    """Have the drive answer again, or what waits for it waits on; False when it cannot be told."""
    try:
        folder.ready.unlink(missing_ok=True)
        if folder.path.exists():
            drive_control.write_command(folder.control, drive_control.DriveCommand())
    except OSError as error:  # where it lies is full, or somebody was there
        print(f"cannot tell the drive to answer: {error}", file=sys.stderr)  # into its log  # noqa: T201
        return False
    return True


def is_mounted(path: Path) -> bool:
    mounts = block_device.parse_mounts(
        Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    )
    return any(mount.point == str(path) for mount in mounts)


def run(*command: str, limit_seconds: float = STEP_LIMIT_SECONDS) -> str:
    """Run a tool and return what it printed.

    Raises:
        LabError: it failed, or did not end; then it is left behind, as it may hang in the kernel.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        said, wrong = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise LabError(f"cannot run {command[0]}: {error}") from error
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error}") from error
    if process.returncode:
        raise LabError(f"{' '.join(command)} failed: {wrong.strip()}")
    return said


def loops_on(image: Path) -> list[str]:
    """Return the loop devices on a file, as long as it has a name: see `detach_nameless`."""
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parent.parent.name}" for file in loops if _said(file) == str(image)]


def detach_nameless(loops: list[str]) -> None:
    """Detach those of these whose file nbdfuse took away when it ended: to the kernel it is `/` then."""
    for loop in loops:
        if _said(Path("/sys/block") / Path(loop).name / "loop" / "backing_file") == "/":
            _detach(loop)


def _detach(loop: str) -> None:
    """Detach a loop device and take it away; one that stays busy stays, with nothing on it and no limit."""
    lift_dirty_limit(Path(loop).name)
    if _try("losetup", "--detach", loop):
        _remove(loop)


def _remove(loop: str) -> None:
    """Take a loop device away as soon as nobody is at it: what was asked of its drive may come back late."""
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _REMOVE_LIMIT_NS
    with contextlib.suppress(OSError), _CONTROL.open() as control:
        while True:
            try:
                fcntl.ioctl(control, _REMOVE, int(loop.removeprefix("/dev/loop")))
            except OSError as error:
                if error.errno != errno.EBUSY or clock.mono_ns() > deadline_ns:
                    raise
            else:
                return
            clock.sleep_until(clock.mono_ns() + _REMOVE_LIMIT_NS // 100)


def _said(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:  # detached meanwhile
        return ""


def _try(*command: str) -> bool:
    try:
        run(*command, limit_seconds=UNDO_STEP_SECONDS)
    except LabError as error:
        print(error, file=sys.stderr)  # into the drive's log  # noqa: T201
        return False
    return True
