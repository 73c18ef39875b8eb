"""The injected drive starts, answers as commanded, and leaves nothing behind however its user ends."""

from __future__ import annotations

import errno
import subprocess
import threading
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.drive import block_device, drive
from soak.lab.drive.folder import (
    DriveFolder,
    Registration,
    locked,
    registration_of,
)
from tests.support.lab.lab import remains


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    return tmp_path / ("drive-" + 100 * "x")  # longer than the address of a socket may be


def test_a_machine_that_lacks_something_names_it() -> None:
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


def test_a_kernel_without_a_limit_for_one_drive_is_reported(tmp_path: Path) -> None:
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
