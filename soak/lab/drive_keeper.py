"""Puts a lab's drive together and takes it apart: `python -m soak.lab.drive_keeper FOLDER BYTES FILESYSTEM`.

A process of its own, which SIGTERM ends and which gets one when its parent dies: so mounts and loop devices
do not outlive a test or a drill that was killed. What it leaves when it is killed itself, the next one in its
folder clears.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from probes import _mounts
from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab import drive_control
from soak.lab.drive import FILESYSTEMS, DriveFolder
from soak.service import children
from soak.service.signals import stop_event

PLUGIN = Path(__file__).with_name("drive_nbdkit.py")
STEP_LIMIT_SECONDS = 20.0
UNDO_STEP_SECONDS = 10.0
THREADS = 64  # so many writes may wait, and a read is still answered
_POLL_SECONDS = 0.05


def keep(folder: DriveFolder, capacity_bytes: int, filesystem: str, stop: threading.Event) -> None:
    """Hold the drive until told to stop, or until a part of it has ended.

    Raises:
        LabError: it could not be put together; what there was of it is gone again.
    """
    clear(folder)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _put_together(folder, capacity_bytes, filesystem, processes)
        while not stop.wait(_POLL_SECONDS):
            if any(process.poll() is not None for process in processes):
                raise LabError(f"a part of the drive has ended; {folder.log} says why")
    finally:
        _take_apart(folder, processes)


def clear(folder: DriveFolder) -> None:
    """Undo mounts and loop devices in this folder, whoever made them; there may be none."""
    _let_answer(folder)
    if _is_mounted(folder.mount_point) and not _try("umount", str(folder.mount_point)):
        _try("umount", "--lazy", str(folder.mount_point))  # somebody still has a file open
    for loop in _loops_on(folder.image):
        _try("losetup", "--detach", loop)
    if _is_mounted(folder.image):
        _try("umount", "--lazy", str(folder.image))


def _let_answer(folder: DriveFolder) -> bool:
    """Have the drive answer again, or what waits for it waits on; False when it cannot be told."""
    try:
        folder.ready.unlink(missing_ok=True)
        drive_control.tell(folder.control, drive_control.Told())
    except OSError as error:  # where it lies is full, or somebody was there
        print(f"cannot tell the drive to answer: {error}", file=sys.stderr)  # into its log  # noqa: T201
        return False
    return True


def _put_together(
    folder: DriveFolder,
    capacity_bytes: int,
    filesystem: str,
    processes: list[subprocess.Popen[bytes]],
) -> None:
    folder.socket.unlink(missing_ok=True)
    folder.image.touch()
    folder.mount_point.mkdir(exist_ok=True)
    kit = [
        *("nbdkit", "--foreground", "--threads", str(THREADS), "--unix", str(folder.socket)),
        *("python", str(PLUGIN), f"capacity={capacity_bytes}"),
        *(f"control={folder.control}", f"counters={folder.counters}"),
    ]
    processes.append(_spawn(kit, folder))
    _await(folder.socket.exists, processes)
    fuse = ["nbdfuse", str(folder.image), "--unix", str(folder.socket)]
    processes.append(_spawn(fuse, folder))
    _await(lambda: _is_mounted(folder.image), processes)
    loop = _run("losetup", "--find", "--show", str(folder.image)).strip()
    _run(*FILESYSTEMS[filesystem], loop)
    _run("mount", "-o", "nodiscard", loop, str(folder.mount_point))
    draft = folder.ready.with_suffix(".part")
    draft.write_text(Path(loop).name)
    draft.replace(folder.ready)


def _take_apart(folder: DriveFolder, processes: list[subprocess.Popen[bytes]]) -> None:
    """Undo everything, each step whether the one before worked or not.

    Within `UNDO_SECONDS` of `soak.lab.drive`, after which the keeper itself is killed.
    """
    if _let_answer(folder):  # else an unmount would hang until the drive is gone
        clear(folder)
    for process in reversed(processes):
        with suppress(subprocess.TimeoutExpired):
            children.stop(process, UNDO_STEP_SECONDS)
    clear(folder)
    with suppress(OSError):
        folder.socket.unlink(missing_ok=True)


def _spawn(command: list[str], folder: DriveFolder) -> subprocess.Popen[bytes]:
    path = {"PATH": os.environ.get("PATH", os.defpath)}  # nothing that turns the system's Python
    return children.spawn(command, log_path=folder.log, env=path)


def _await(is_there: Callable[[], bool], processes: list[subprocess.Popen[bytes]]) -> None:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(STEP_LIMIT_SECONDS * SECOND_NS)
    while not is_there():
        if processes[-1].poll() is not None or clock.mono_ns() > deadline_ns:
            raise LabError("a part of the drive did not start")
        clock.sleep_until(clock.mono_ns() + int(_POLL_SECONDS * SECOND_NS))


def _is_mounted(path: Path) -> bool:
    mounts = _mounts.parse(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return any(mount.point == str(path) for mount in mounts)


def _loops_on(image: Path) -> list[str]:
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parent.parent.name}" for file in loops if _said(file) == str(image)]


def _said(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:  # detached meanwhile
        return ""


def _try(*command: str) -> bool:
    try:
        _run(*command, limit_seconds=UNDO_STEP_SECONDS)
    except LabError as error:
        print(error, file=sys.stderr)  # into the drive's log  # noqa: T201
        return False
    return True


def _run(*command: str, limit_seconds: float = STEP_LIMIT_SECONDS) -> str:
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        said, wrong = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()  # and left behind: it may hang in the kernel
        raise LabError(f"cannot run {command[0]}: {error}") from error
    except OSError as error:
        raise LabError(f"cannot run {command[0]}: {error}") from error
    if process.returncode:
        raise LabError(f"{' '.join(command)} failed: {wrong.strip()}")
    return said


def main() -> None:
    folder, capacity_bytes, filesystem = sys.argv[1:]
    try:
        keep(DriveFolder(Path(folder).resolve()), int(capacity_bytes), filesystem, stop_event())
    except (LabError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
