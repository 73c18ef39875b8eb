"""Puts a lab's drive together and takes it apart: `python -m soak.lab.drive.keeper FOLDER BYTES FILESYSTEM`.

A process of its own, which SIGTERM ends and which gets one when its parent dies: so mounts and loop devices
do not outlive a test or a drill that was killed. What it leaves when it is killed itself, the next one in its
folder clears, and every lab that starts or ends on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.drive import block_device as mounts
from soak.lab.drive import folder as drive_place
from soak.lab.drive.drive import FILESYSTEMS, UNDO_SECONDS
from soak.lab.drive.folder import DriveFolder
from soak.lab.files import replace_text
from soak.service import children
from soak.service.signals import stop_event

PLUGIN = Path(__file__).with_name("drive_nbdkit.py")
THREADS = 64  # so many writes may wait, and a read is still answered
_POLL_SECONDS = 0.05


def keep(folder: DriveFolder, capacity_bytes: int, filesystem: str, stop: threading.Event) -> None:
    """Hold the drive until told to stop, or until a part of it has ended.

    Raises:
        LabError: it could not be put together; what there was of it is gone again.
    """
    place = drive_place.place_of(folder.path)
    with drive_place.held(place, UNDO_SECONDS, stop):  # a keeper before may still be at it
        place.note(folder.path)
        mounts.clear(folder)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            _put_together(folder, place.socket, capacity_bytes, filesystem, processes)
            while not stop.wait(_POLL_SECONDS):
                if any(process.poll() is not None for process in processes):
                    raise LabError(f"a part of the drive has ended; {folder.log} says why")
        finally:
            _take_apart(folder, processes)
            if not mounts.is_left(folder):
                place.forget()


def _put_together(
    folder: DriveFolder,
    address: Path,
    capacity_bytes: int,
    filesystem: str,
    processes: list[subprocess.Popen[bytes]],
) -> None:
    for old in (address, folder.counters):
        old.unlink(missing_ok=True)
    folder.image.touch()
    folder.mount_point.mkdir(exist_ok=True)
    kit = [
        *("nbdkit", "--foreground", "--threads", str(THREADS), "--unix", str(address)),
        *("python", str(PLUGIN), f"capacity={capacity_bytes}"),
        *(f"control={folder.control}", f"counters={folder.counters}"),
    ]
    processes.append(_spawn(kit, folder))
    _await(address.exists, processes)
    fuse = ["nbdfuse", str(folder.image), "--unix", str(address)]
    processes.append(_spawn(fuse, folder))
    _await(lambda: mounts.is_mounted(folder.image), processes)
    loop = mounts.attach(folder.image)
    mounts.run(*FILESYSTEMS[filesystem], f"/dev/{loop}")
    mounts.mount(loop, folder)
    replace_text(folder.ready, f"{os.getpid()} {loop}")


def _take_apart(folder: DriveFolder, processes: list[subprocess.Popen[bytes]]) -> None:
    """Undo everything, each step whether the one before worked or not.

    Within `UNDO_SECONDS` of `soak.lab.drive.drive`, after which the keeper itself is killed.
    """
    loops = mounts.loops_on(folder.image)
    if mounts.let_answer(folder):  # else an unmount would hang until the drive is gone
        mounts.clear(folder)
    for process in reversed(processes):
        children.stop(process, mounts.UNDO_STEP_SECONDS)
    mounts.clear(folder)
    mounts.detach_nameless(loops)


def _spawn(command: list[str], folder: DriveFolder) -> subprocess.Popen[bytes]:
    path = {"PATH": os.environ.get("PATH", os.defpath)}  # nothing that turns the system's Python
    return children.spawn(command, log_path=folder.log, env=path)


def _await(is_there: Callable[[], bool], processes: list[subprocess.Popen[bytes]]) -> None:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(mounts.STEP_LIMIT_SECONDS * SECOND_NS)
    while not is_there():
        if processes[-1].poll() is not None or clock.mono_ns() > deadline_ns:
            raise LabError("a part of the drive did not start")
        clock.sleep_until(clock.mono_ns() + int(_POLL_SECONDS * SECOND_NS))


def main() -> None:
    folder, capacity_bytes, filesystem = sys.argv[1:]
    try:
        keep(DriveFolder(Path(folder).resolve()), int(capacity_bytes), filesystem, stop_event())
    except (LabError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
