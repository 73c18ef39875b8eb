"""The injected drive starts, answers as commanded, and leaves nothing behind however its user ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.drive import block_device, drive
from soak.lab.drive.folder import (
    DriveFolder,
    read_status,
    registration_of,
)
from tests.support.lab.lab import remains, remains_in_time

LIMIT_SECONDS = 30.0


_USER = """
import sys, time
from pathlib import Path
from soak.lab.drive import drive
from soak.lab.drive.flash import Settings
made = drive.start_drive(Path(sys.argv[1]), capacity_bytes=2**26)
{then}
print(made.device, flush=True)
time.sleep(600)
"""


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

    assert remains_in_time(folder) == []


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

    with pytest.raises(LabError, match=r"(?s)did not start.*File exists"):
        drive.start_drive(folder)

    assert remains(folder) == []


@pytest.mark.slow
def test_it_goes_when_it_cannot_be_made_to_answer_again(folder: Path) -> None:
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
