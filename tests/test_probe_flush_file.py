"""The file that the fsync probe flushes: bounded, alone in its names, and gone at the end."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from probes._flush_file import FILE_NAME, FlushFile, How, Way


def way(sync: How = "fsync", *, is_appending: bool = False, floor_bytes: int = 0) -> Way:
    return Way(
        sync=sync,
        payload_bytes=1000,
        is_appending=is_appending,
        limit_bytes=23_000,
        floor_bytes=floor_bytes,
    )


def test_an_appended_file_grows_to_its_limit_and_begins_anew(tmp_path: Path) -> None:
    """Never more than told, however long it goes on; the change of files lies between two flushes."""
    file = FlushFile(tmp_path, way(is_appending=True), sync=lambda _: None)
    file.open()
    sizes = []
    for _ in range(60):
        file.flush()
        sizes.append((tmp_path / FILE_NAME).stat().st_size)
        file.renew()
    file.close()

    assert sizes == [1000 * (count % 23 + 1) for count in range(60)]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_sync_flushes_the_folder_after_a_new_name(tmp_path: Path) -> None:
    """As at a roll of segments: a folder in which nothing changed would flush in no time."""
    seen = []

    def sync(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_ino, [path.name for path in tmp_path.iterdir()]))

    file = FlushFile(tmp_path, way("directory"), sync)
    file.open()
    for _ in range(3):
        file.flush()
    file.close()

    assert {number for number, _ in seen} == {tmp_path.stat().st_ino}
    assert [names for _, names in seen] == [
        [f"{FILE_NAME}.moved"],
        [FILE_NAME],
        [f"{FILE_NAME}.moved"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_probe_left_is_replaced(tmp_path: Path) -> None:
    """Both of its names, so that nothing stays and nothing adds up."""
    for name in (FILE_NAME, f"{FILE_NAME}.moved"):
        (tmp_path / name).write_bytes(b"x" * 5000)

    file = FlushFile(tmp_path, way(), sync=lambda _: None)
    file.open()
    file.flush()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    file.close()

    assert sizes == [1000]
    assert list(tmp_path.iterdir()) == []


def test_below_the_floor_of_free_space_nothing_is_written(tmp_path: Path) -> None:
    """The broker needs the rest more than we do."""
    file = FlushFile(tmp_path, way(floor_bytes=2**62), sync=lambda _: pytest.fail("flushed"))
    file.open()
    with pytest.raises(OSError, match="free_space_floor"):
        file.flush()
    size = (tmp_path / FILE_NAME).stat().st_size
    file.close()

    assert size == 0


def test_it_goes_where_the_folder_is_now(tmp_path: Path) -> None:
    """A drive mounted over it after the start, or a folder that is made anew: never the old one."""
    folder, aside = tmp_path / "data", tmp_path / "aside"
    folder.mkdir()
    file = FlushFile(folder, way(is_appending=True), sync=lambda _: None)
    file.open()
    file.flush()
    folder.rename(aside)
    with pytest.raises(OSError, match="No such file"):
        file.flush()
    folder.mkdir()
    with pytest.raises(OSError, match="another folder has taken its place"):
        file.flush()
    file.renew()
    file.flush()
    sizes = [path.stat().st_size for path in folder.iterdir()]
    file.close()

    assert sizes == [1000]
    assert [*aside.iterdir(), *folder.iterdir()] == []


def test_a_file_that_could_not_be_renewed_is_tried_again(tmp_path: Path) -> None:
    """Something of this name is in the way, and goes."""
    file = FlushFile(tmp_path, way(is_appending=True), sync=lambda _: None)
    file.open()
    for _ in range(23):
        file.flush()
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        file.renew()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.flush()
    (tmp_path / FILE_NAME).rmdir()
    file.renew()
    file.flush()
    size = (tmp_path / FILE_NAME).stat().st_size
    file.close()

    assert size == 1000


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_nothing_is_held_open_on_a_filesystem_that_is_broken(tmp_path: Path, code: int) -> None:
    """Who is to check it or to mount it anew could not unmount it; afterwards the probe goes on."""
    is_broken = True

    def sync(_: int) -> None:
        if is_broken:
            raise OSError(code, os.strerror(code))

    def held() -> list[str]:
        links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [str(link) for link in links if link.is_relative_to(tmp_path)]

    file = FlushFile(tmp_path, way(), sync)
    file.open()
    before = len(held())
    with pytest.raises(OSError, match=os.strerror(code)):
        file.flush()
    during = held()
    is_broken = False
    file.renew()
    file.flush()
    file.close()

    assert (before, during) == (2, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sync", ["fsync", "directory"])
def test_a_file_that_somebody_removed_is_made_again(tmp_path: Path, sync: How) -> None:
    """A cleaner, or an administrator: at most one flush fails."""
    file = FlushFile(tmp_path, way(sync), sync=lambda _: None)
    file.open()
    file.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    with suppress(FileNotFoundError):
        file.flush()
    file.renew()
    file.flush()
    file.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sync", ["fsync", "directory"])
def test_a_second_probe_in_the_folder_leaves_the_first_its_file(tmp_path: Path, sync: How) -> None:
    """As `soak probe --once` with the plan of a probe that runs."""
    first, second = (FlushFile(tmp_path, way(sync), sync=lambda _: None) for _ in range(2))
    first.open()
    first.flush()
    (name,) = [path.name for path in tmp_path.iterdir()]
    second.open()
    second.flush()
    both = len(list(tmp_path.iterdir()))
    second.close()
    left = [path.name for path in tmp_path.iterdir()]
    first.flush()
    first.close()

    assert (both, left) == (2, [name])
    assert list(tmp_path.iterdir()) == []
