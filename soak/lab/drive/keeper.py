"""The keeper process of an injected drive: `python -m soak.lab.drive.keeper FOLDER BYTES FILESYSTEM`.

It mounts the drive and removes it when it gets SIGTERM, which it also gets when its parent dies: so mounts
and loop devices do not outlive a test or a drill that was killed. If the keeper itself is killed, the next
one in its folder removes the drive, as does every lab that starts or ends on this machine.
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
from soak.lab.drive import block_device
from soak.lab.drive.drive import FILESYSTEMS, UNDO_SECONDS
from soak.lab.drive.folder import DriveFolder, locked, registration_of
from soak.lab.files import replace_text
from soak.service import children
from soak.service.signals import stop_event

PLUGIN = Path(__file__).with_name("nbdkit_plugin.py")
THREADS = 64  # so that reads are still answered while many writes wait
_POLL_SECONDS = 0.05


def keep(folder: DriveFolder, capacity_bytes: int, filesystem: str, stop: threading.Event) -> None:
    """Mount the drive and keep it until `stop` is set, or until one of its processes ends.

    Raises:
        LabError: the drive could not be mounted, or one of its processes ended; the drive is removed.
    """
    registration = registration_of(folder.path)
    with locked(registration, UNDO_SECONDS, stop):  # the keeper before may still be unmounting
        registration.note_folder(folder.path)
        block_device.clear(folder)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            _mount(folder, registration.socket, capacity_bytes, filesystem, processes)
            while not stop.wait(_POLL_SECONDS):
                if any(process.poll() is not None for process in processes):
                    raise LabError(f"a process of the drive has ended; see {folder.log}")
        finally:
            _unmount(folder, processes)
            if not block_device.is_in_use(folder):
                registration.remove()


def _mount(
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
    nbdkit = [
        *("nbdkit", "--foreground", "--threads", str(THREADS), "--unix", str(address)),
        *("python", str(PLUGIN), f"capacity={capacity_bytes}"),
        *(f"control={folder.control}", f"counters={folder.counters}"),
    ]
    processes.append(_spawn(nbdkit, folder))
    _await(address.exists, processes)
    nbdfuse = ["nbdfuse", str(folder.image), "--unix", str(address)]
    processes.append(_spawn(nbdfuse, folder))
    _await(lambda: block_device.is_mounted(folder.image), processes)
    loop = block_device.attach(folder.image)
    block_device.run(*FILESYSTEMS[filesystem], f"/dev/{loop}")
    block_device.mount(loop, folder)
    replace_text(folder.ready, f"{os.getpid()} {loop}")


def _unmount(folder: DriveFolder, processes: list[subprocess.Popen[bytes]]) -> None:
    """Undo every step of `_mount`, whether or not another one fails.

    It takes at most `UNDO_SECONDS`, after which the keeper itself is killed.
    """
    loops = block_device.loops_on(folder.image)
    if block_device.answer_again(folder):  # else unmounting would hang until the drive has ended
        block_device.clear(folder)
    for process in reversed(processes):
        children.stop(process, block_device.UNDO_STEP_SECONDS)
    block_device.clear(folder)
    block_device.detach_without_file(loops)


def _spawn(command: list[str], folder: DriveFolder) -> subprocess.Popen[bytes]:
    path = {"PATH": os.environ.get("PATH", os.defpath)}  # no variables for our own Python
    return children.spawn(command, log_path=folder.log, env=path)


def _await(is_ready: Callable[[], bool], processes: list[subprocess.Popen[bytes]]) -> None:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(block_device.STEP_LIMIT_SECONDS * SECOND_NS)
    while not is_ready():
        if processes[-1].poll() is not None or clock.mono_ns() > deadline_ns:
            raise LabError("a process of the drive did not start")
        clock.sleep_until(clock.mono_ns() + int(_POLL_SECONDS * SECOND_NS))


def main() -> None:
    folder, capacity_bytes, filesystem = sys.argv[1:]
    try:
        keep(DriveFolder(Path(folder).resolve()), int(capacity_bytes), filesystem, stop_event())
    except (LabError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
