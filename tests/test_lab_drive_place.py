"""Where drives are known by: one holder at a time, and nothing there when the drive is gone."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab import drive_mounts, drive_place
from soak.lab.drive_place import Place, held


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "drives" / "23")


def test_a_place_is_held_by_one_at_a_time(place: Place) -> None:
    """The second is refused, and has it when the first is done."""
    with held(place, 0), pytest.raises(LabError, match="another keeper has"), held(place, 0):
        pass

    with held(place, 0):
        assert place.path.is_dir()


def test_who_waits_for_a_place_has_it_though_it_was_removed_meanwhile(place: Place) -> None:
    """It holds the new folder, not the one that is gone."""
    has_it, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        with held(place, 20):
            has_it.set()
            may_end.wait(20)

    with held(place, 0):
        place.note(place.path.parent)
        waiting = threading.Thread(target=wait)
        waiting.start()
        place.forget()
    assert has_it.wait(20)

    with pytest.raises(LabError), held(place, 0):
        pass
    may_end.set()
    waiting.join(20)


def test_a_place_that_goes_while_it_is_looked_at_is_made_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the kernel's word that it is there and the look whether it is a folder."""
    place.path.mkdir(parents=True)
    is_dir = Path.is_dir

    def removed(path: Path) -> bool:
        monkeypatch.setattr(Path, "is_dir", is_dir)
        path.rmdir()
        return False

    monkeypatch.setattr(Path, "is_dir", removed)
    with held(place, 20):
        assert place.path.is_dir()


def test_who_is_told_to_stop_waits_no_longer(place: Place) -> None:
    """As a keeper is whose user has gone."""
    stop = threading.Event()
    stop.set()

    with held(place, 0), pytest.raises(LabError), held(place, 600, stop):
        pass


def test_a_place_names_the_folder_of_its_drive(place: Place, tmp_path: Path) -> None:
    """The last one noted; forgotten, it is gone."""
    with held(place, 0):
        place.note(tmp_path / "first")
        place.note(tmp_path / "second")
        named = place.link.readlink()
        place.forget()

    assert named == tmp_path / "second"
    assert not place.path.exists()


def test_a_drive_has_a_place_of_its_own_whose_socket_has_a_short_path(tmp_path: Path) -> None:
    """However long the path of its folder is: the address of a socket has 107 bytes."""
    long = drive_place.place_of(tmp_path / ("x" * 200))

    assert len(str(long.socket)) < 107
    assert long != drive_place.place_of(tmp_path / "y")


def test_a_loop_device_is_taken_away_once_nobody_is_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked of its drive may come back after it was detached."""
    answers = [OSError(errno.EBUSY, "busy"), OSError(errno.EBUSY, "busy"), None]
    asked = []

    def ioctl(_: object, number: int, loop: int) -> None:
        asked.append((number, loop))
        answer = answers[len(asked) - 1]
        if answer:
            raise answer

    (tmp_path / "control").touch()
    monkeypatch.setattr(drive_mounts, "_CONTROL", tmp_path / "control")
    monkeypatch.setattr("fcntl.ioctl", ioctl)

    drive_mounts._remove("/dev/loop23")

    assert asked == [(0x4C81, 23)] * 3
