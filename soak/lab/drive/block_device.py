"""The block device of an injected drive: loop device, mount, dirty limit and page cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from probes.common.block_device import parse_mounts
from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.drive.folder import (
    DriveCommand,
    DriveFolder,
    locked,
    registrations,
    write_command,
)

_BLOCK_DEVICES = Path("/sys/class/block")
_BACKING_DEVICES = Path("/sys/class/bdi")
LOOP_CONTROL = Path("/dev/loop-control")
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81  # include/uapi/linux/loop.h of the kernel
STEP_LIMIT_SECONDS = 20.0
UNDO_STEP_SECONDS = 10.0
_REMOVE_LIMIT_NS = 2 * SECOND_NS


def attach(image: Path) -> str:
    """Attach a loop device to a file and return its name, such as `loop8`.

    The device is new if the kernel allows, so that its counters start at 0, as those of a new drive.

    Raises:
        LabError: as `run`.
    """
    loop = _add_loop_device()
    if loop is not None and not Path(loop).exists():  # a container's /dev may not show it
        remove_loop_device(loop)
        loop = None
    if loop is None:
        return Path(run("losetup", "--find", "--show", str(image)).strip()).name
    try:
        run("losetup", loop, str(image))
    except LabError:
        remove_loop_device(loop)
        raise
    return Path(loop).name


def mount(device: str, folder: DriveFolder) -> None:
    """Mount the filesystem on a device such as `loop0`, without discards. Raises as `run` does."""
    run("mount", "-o", "nodiscard", f"/dev/{device}", str(folder.mount_point))


def clear(folder: DriveFolder) -> None:
    """Remove all mounts and loop devices in a drive's folder.

    Only for the process that locked the drive's registration: a drive in use is removed too.
    """
    answer_again(folder)
    if is_mounted(folder.mount_point) and not _try("umount", str(folder.mount_point)):
        _try("umount", "--lazy", str(folder.mount_point))  # a process still has a file open
    for loop in loops_on(folder.image):
        _detach(loop)
    if is_mounted(folder.image):
        _try("umount", "--lazy", str(folder.image))


def clear_abandoned() -> None:
    """Remove the drives that killed keepers left anywhere on this machine; needs root, like the drives."""
    if os.geteuid() != 0:
        return
    for registration in registrations():
        # A drive in use is locked.
        with contextlib.suppress(LabError), locked(registration, 0):
            if registration.link.is_symlink():
                folder = DriveFolder(registration.link.readlink())
                clear(folder)
                if is_in_use(folder):  # the next start tries again
                    continue
            registration.remove()


def is_in_use(folder: DriveFolder) -> bool:
    """Return whether anything is mounted in this folder, or a loop device is attached to its image."""
    mounted = is_mounted(folder.mount_point) or is_mounted(folder.image)
    return mounted or bool(loops_on(folder.image))


def answer_again(folder: DriveFolder) -> bool:
    """Make the drive answer again, so that no process waits for it; return False if that fails."""
    try:
        folder.ready.unlink(missing_ok=True)
        if folder.path.exists():
            write_command(folder.control, DriveCommand())
    except OSError as error:  # its filesystem is full
        print(f"cannot make the drive answer: {error}", file=sys.stderr)  # into its log  # noqa: T201
        return False
    return True


def is_mounted(path: Path) -> bool:
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return any(mount.point == str(path) for mount in mounts)


def run(*command: str, limit_seconds: float = STEP_LIMIT_SECONDS) -> str:
    """Run a tool and return what it printed.

    Raises:
        LabError: it failed, or did not end; then it is abandoned, because it may hang in the kernel.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        output, errors = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise LabError(f"cannot run {command[0]}: {error}") from error
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error}") from error
    if process.returncode:
        raise LabError(f"{' '.join(command)} failed: {errors.strip()}")
    return output


def loops_on(image: Path) -> list[str]:
    """Return the loop devices that are attached to a file which still exists."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parent.parent.name}" for file in files if _read(file) == str(image)]


def detach_without_file(loops: list[str]) -> None:
    """Detach those of these devices whose file nbdfuse has removed: the kernel shows `/` for it."""
    for loop in loops:
        if _read(Path("/sys/block") / Path(loop).name / "loop" / "backing_file") == "/":
            _detach(loop)


def missing_dirty_limit(devices: Path = _BACKING_DEVICES) -> str:
    """Return why this machine cannot limit the dirty pages of one drive, or ""."""
    if any(devices.glob("*/strict_limit")):
        return ""
    return "a limit on the dirty pages of one drive needs Linux 6.2"


def limit_dirty(device: str, max_bytes: int) -> None:
    """Limit the dirty pages of a block device to about this many bytes; further writes wait for it.

    The kernel keeps the limit as a share of all dirty pages, and so of the memory that is free.

    Raises:
        LabError: the kernel refuses.
    """
    limits = _BLOCK_DEVICES / device / "bdi"
    try:
        (limits / "max_bytes").write_text(str(max_bytes), encoding="ascii")
        (limits / "strict_limit").write_text("1", encoding="ascii")
    except OSError as error:
        raise LabError(f"cannot limit the dirty pages of {device}: {error}") from error


def lift_dirty_limit(device: str) -> None:
    """Remove the limit, if the device and the limit exist."""
    limits = _BLOCK_DEVICES / device / "bdi"
    with contextlib.suppress(OSError):
        (limits / "strict_limit").write_text("0", encoding="ascii")
        (limits / "max_ratio").write_text("100", encoding="ascii")


def drop_from_page_cache(path: Path) -> None:
    """Drop a file from the page cache, except for pages that are not written yet."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def drop_all_from_page_cache(paths: Iterable[Path]) -> None:
    """Drop those of these files that still exist from the page cache."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            drop_from_page_cache(path)


def remove_loop_device(loop: str, control_path: Path = LOOP_CONTROL) -> None:
    """Remove a loop device as soon as it is idle: a request to its drive may still be on the way."""
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _REMOVE_LIMIT_NS
    with contextlib.suppress(OSError), control_path.open() as control:
        while True:
            try:
                fcntl.ioctl(control, LOOP_CTL_REMOVE, int(loop.removeprefix("/dev/loop")))
            except OSError as error:
                if error.errno != errno.EBUSY or clock.mono_ns() > deadline_ns:
                    raise
            else:
                return
            clock.sleep_until(clock.mono_ns() + _REMOVE_LIMIT_NS // 100)


def _add_loop_device() -> str | None:
    try:
        with LOOP_CONTROL.open() as control:
            return f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_ADD, -1)}"
    except OSError:
        return None


def _detach(loop: str) -> None:
    """Detach and remove a loop device; a busy one stays, without a file and without a limit."""
    lift_dirty_limit(Path(loop).name)
    if _try("losetup", "--detach", loop):
        remove_loop_device(loop)


def _read(file: Path) -> str:
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
