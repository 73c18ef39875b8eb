"""The lab's own drive: it comes up, answers as told, and leaves nothing behind however its user ends."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.drive import block_device, drive
from soak.lab.drive.folder import (
    DriveFolder,
    Registration,
    locked,
    read_status,
    registration_of,
)

LIMIT_SECONDS = 30.0
_USER = """
import sys, time
from pathlib import Path
from soak.lab import drive
from soak.lab.drive.flash import Settings
made = drive.start_drive(Path(sys.argv[1]), capacity_bytes=2**26)
{then}
print(made.device, flush=True)
time.sleep(600)
"""


def remains(folder: Path) -> list[str]:
    """Return the mounts and loop devices of a folder."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    return [line for line in mounts if f" {folder}/" in line] + [
        str(path) for path in loops if path.read_text().startswith(f"{folder}/")
    ]


def until_gone(folder: Path) -> list[str]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while remains(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return remains(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    return tmp_path / ("drive-" + 100 * "x")  # longer than the address of a socket may be


def user_of(folder: Path, then: str = "made.stop_answering()") -> subprocess.Popen[str]:
    """Return a process that has such a drive, mounted and, unless said otherwise, hanging."""
    program = _USER.replace("{then}", then)
    user = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    assert user.stdout.readline().startswith("loop")
    return user


def test_a_machine_that_lacks_something_is_told_what() -> None:
    """The tool and the package that has it, or that root is needed."""
    assert drive.missing_drive_tools(lambda _tool: None).startswith("an injected drive needs")


def test_a_tool_that_does_not_answer_is_something_that_is_lacking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who only asks what the machine can do gets no traceback."""

    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 20)

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.access", lambda *_: True)
    monkeypatch.setattr("subprocess.run", hang)

    assert "timed out after 20 seconds" in drive.missing_drive_tools(lambda tool: tool)


def test_a_kernel_without_a_limit_for_one_drive_is_told_of(tmp_path: Path) -> None:
    """Those before Linux 6.2 have a folder a drive, and no such file in it."""
    (tmp_path / "7:0").mkdir()
    lack = block_device.missing_dirty_limit(tmp_path)
    (tmp_path / "7:0" / "strict_limit").touch()

    assert "needs Linux 6.2" in lack
    assert block_device.missing_dirty_limit(tmp_path) == ""


def test_a_drive_that_cannot_be_limited_is_named() -> None:
    block_device.lift_dirty_limit("no-such-drive")
    with pytest.raises(LabError, match="dirty pages of no-such-drive"):
        block_device.limit_dirty("no-such-drive", 2**20)


@pytest.mark.slow
def test_it_is_a_filesystem_of_its_own_and_goes_when_closed(folder: Path) -> None:
    """Written, read back, and taken apart while it does not answer; twice in one folder."""
    for _ in range(2):
        made = drive.start_drive(folder, capacity_bytes=2**26)
        file = made.mount_point / "x"
        file.write_text("23")
        assert (made.mount_point.is_mount(), file.read_text()) == (True, "23")
        made.stop_answering()
        made.close()

        assert remains(folder) == []
        assert not file.exists()


@pytest.mark.slow
def test_a_new_drive_was_never_written(folder: Path) -> None:
    """What was written to the one before would look like wear."""
    size = 2**24
    written = []
    for _ in range(2):
        made = drive.start_drive(folder, capacity_bytes=2**26)
        with (made.mount_point / "x").open("wb") as file:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())
        sectors = Path(f"/sys/block/{made.device}/stat").read_text().split()[6]
        written.append(512 * int(sectors))
        made.close()

    assert min(written) >= size
    assert max(written) < min(written) + size


@pytest.mark.slow
def test_it_goes_when_its_user_is_killed(folder: Path) -> None:
    """SIGKILL, in the middle of a hang."""
    user = user_of(folder)

    user.kill()
    user.communicate(timeout=LIMIT_SECONDS)

    assert until_gone(folder) == []


@pytest.mark.slow
def test_what_a_killed_keeper_leaves_is_cleared_by_the_next_one(folder: Path) -> None:
    """Then its drive is dead, but still mounted."""
    user = user_of(folder)
    (keeper,) = Path(f"/proc/{user.pid}/task/{user.pid}/children").read_text().split()
    os.kill(int(keeper), signal.SIGKILL)
    user.kill()
    user.communicate(timeout=LIMIT_SECONDS)
    assert remains(folder) != []

    drive.start_drive(folder, capacity_bytes=2**26).close()

    assert remains(folder) == []


@pytest.mark.slow
def test_what_a_killed_keeper_leaves_is_found_without_its_folder(folder: Path) -> None:
    """As a drill does, or `soak lab down`; a drive at work stays, and nothing is known of it afterwards."""
    made = drive.start_drive(folder.with_name("other"), capacity_bytes=2**26)
    user = user_of(folder)
    (keeper,) = Path(f"/proc/{user.pid}/task/{user.pid}/children").read_text().split()
    descriptor = os.pidfd_open(int(keeper))
    os.kill(int(keeper), signal.SIGKILL)
    select.select([descriptor], [], [], LIMIT_SECONDS)
    user.kill()
    user.communicate(timeout=LIMIT_SECONDS)

    block_device.clear_abandoned()
    is_at_work = made.mount_point.is_mount()
    made.close()

    assert remains(folder) == []
    assert is_at_work
    folders = (folder, folder.with_name("other"))
    assert not any(registration_of(path).path.exists() for path in folders)


@pytest.mark.slow
def test_the_next_drive_in_a_folder_waits_until_the_one_before_is_gone(folder: Path) -> None:
    """A write that starves holds the old one up; its keeper must not take the new one apart."""
    user = user_of(folder, "made.age(Settings(spare_ratio=0.001, collected_pages_per_second=1000))")
    writer = ["dd", "if=/dev/zero", f"of={folder}/mount/x", "bs=1M", "count=2", "conv=fsync"]
    with subprocess.Popen(writer, stderr=subprocess.DEVNULL) as starving:
        (keeper,) = Path(f"/proc/{user.pid}/task/{user.pid}/children").read_text().split()
        descriptor = os.pidfd_open(int(keeper))
        while read_status(folder / "counters.json").starved_writes == 0:
            time.sleep(0.02)
        user.kill()
        user.communicate(timeout=LIMIT_SECONDS)
        made = drive.start_drive(folder, capacity_bytes=2**26)
        has_ended = bool(select.select([descriptor], [], [], LIMIT_SECONDS)[0])
        is_there = made.mount_point.is_mount()
        starving.kill()
    made.close()

    assert has_ended
    assert is_there
    assert remains(folder) == []


@pytest.mark.slow
def test_a_drive_that_does_not_come_up_says_why(folder: Path) -> None:
    """The last lines of its log; nothing is left."""
    folder.mkdir()
    (folder / "mount").touch()

    with pytest.raises(LabError, match=r"(?s)did not come up.*File exists"):
        drive.start_drive(folder)

    assert remains(folder) == []


@pytest.mark.slow
def test_it_goes_when_it_cannot_be_told_to_answer_again(folder: Path) -> None:
    """As with a full disk below its folder: what hangs there ends with the drive."""
    made = drive.start_drive(folder, capacity_bytes=2**26)
    control = DriveFolder(folder).control
    (made.mount_point / "x").write_text("23")
    made.stop_answering()
    control.rename(folder / "kept")
    control.mkdir()
    (control / "in the way").touch()

    made.close()

    assert remains(folder) == []
    file = Path("/sys/block") / made.device / "loop" / "backing_file"
    assert not file.exists() or file.read_text().strip() != "/"  # as of one without its file


@pytest.mark.slow
def test_it_comes_up_below_a_link(folder: Path, tmp_path: Path) -> None:
    """Mounts and loop devices are known by the names that the kernel has for them."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    made = drive.start_drive(tmp_path / "link" / folder.name, capacity_bytes=2**26)
    is_mounted = made.mount_point.is_mount()
    made.close()

    assert is_mounted
    assert remains(tmp_path / "real" / folder.name) == []


def test_clearing_a_folder_without_a_drive_does_nothing(tmp_path: Path) -> None:
    """No mount, no loop device, no error."""
    block_device.clear(DriveFolder(tmp_path))

    assert remains(tmp_path) == []


@pytest.fixture
def registration(tmp_path: Path) -> Registration:
    return Registration(tmp_path / "drives" / "23")


def test_a_registration_is_locked_by_one_process_at_a_time(registration: Registration) -> None:
    """The second is refused until the first is done."""
    with (
        locked(registration, 0),
        pytest.raises(LabError, match="another keeper holds"),
        locked(registration, 0),
    ):
        pass

    with locked(registration, 0):
        assert registration.path.is_dir()


def test_a_registration_that_was_removed_can_be_locked_by_a_waiting_process(
    registration: Registration,
) -> None:
    """It locks the new folder, not the removed one."""
    has_it, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        with locked(registration, 20):
            has_it.set()
            may_end.wait(20)

    with locked(registration, 0):
        registration.note_folder(registration.path.parent)
        waiting = threading.Thread(target=wait)
        waiting.start()
        registration.remove()
    assert has_it.wait(20)

    with pytest.raises(LabError), locked(registration, 0):
        pass
    may_end.set()
    waiting.join(20)


def test_a_registration_that_is_removed_during_the_check_is_created_again(
    registration: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the answer that it exists and the check that it is a folder."""
    registration.path.mkdir(parents=True)
    is_dir = Path.is_dir

    def removed(path: Path) -> bool:
        monkeypatch.setattr(Path, "is_dir", is_dir)
        path.rmdir()
        return False

    monkeypatch.setattr(Path, "is_dir", removed)
    with locked(registration, 20):
        assert registration.path.is_dir()


def test_a_keeper_that_is_stopped_waits_no_longer_for_a_lock(registration: Registration) -> None:
    """Its user has ended."""
    stop = threading.Event()
    stop.set()

    with locked(registration, 0), pytest.raises(LabError), locked(registration, 600, stop):
        pass


def test_a_registration_links_to_the_folder_of_its_drive(
    registration: Registration, tmp_path: Path
) -> None:
    """To the last one noted, until it is removed."""
    with locked(registration, 0):
        registration.note_folder(tmp_path / "first")
        registration.note_folder(tmp_path / "second")
        named = registration.link.readlink()
        registration.remove()

    assert named == tmp_path / "second"
    assert not registration.path.exists()


def test_the_socket_of_a_drive_has_a_short_path(tmp_path: Path) -> None:
    """However long the path of its folder is: the address of a socket has 107 bytes."""
    long = registration_of(tmp_path / ("x" * 200))

    assert len(str(long.socket)) < 107
    assert long != registration_of(tmp_path / "y")


def test_a_busy_loop_device_is_removed_once_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to its drive may complete after it was detached."""
    answers = [OSError(errno.EBUSY, "busy"), OSError(errno.EBUSY, "busy"), None]
    asked = []

    def ioctl(_: object, number: int, loop: int) -> None:
        asked.append((number, loop))
        answer = answers[len(asked) - 1]
        if answer:
            raise answer

    (tmp_path / "control").touch()
    monkeypatch.setattr("fcntl.ioctl", ioctl)

    block_device.remove_loop_device("/dev/loop23", tmp_path / "control")

    assert asked == [(0x4C81, 23)] * 3
