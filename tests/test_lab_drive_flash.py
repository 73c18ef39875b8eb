"""The injected drive as a flash drive: it starves when its model says so, and a trim ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.core.errors import LabError
from soak.lab import drive, drive_nbdkit
from soak.lab.drive_control import Said, Told, ask, tell
from soak.lab.flash import Settings

CAPACITY = 2**26
PAGE = 4096
SPARE = 0.02
POOL_BYTES = CAPACITY * SPARE


@pytest.fixture(params=["ext4", "xfs"])
def injected(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[drive.Drive]:
    lack = drive.missing(filesystem=request.param)
    if lack:
        pytest.skip(lack)
    capacity = max(CAPACITY, drive.LEAST_BYTES[request.param])
    made = drive.start(tmp_path / "drive", capacity_bytes=capacity, filesystem=request.param)
    yield made
    made.close()


def flushed(file: int, at: int) -> float:
    """Write a page through to the drive; return how long that took."""
    begun = time.perf_counter()
    os.pwrite(file, bytes([at % 251 + 1]) * PAGE, at % 64 * PAGE)
    os.fdatasync(file)
    return time.perf_counter() - begun


def newly(made: drive.Drive, is_it: object) -> Said:
    """Return what the drive says once a page of its counters is new: it says so twice a second."""
    assert callable(is_it)
    deadline = time.monotonic() + 20
    while not is_it(made.said()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return made.said()


def test_what_it_is_told_and_says_comes_through_files_as_a_whole(tmp_path: Path) -> None:
    """And a drive that has said nothing yet has done nothing."""
    tell(tmp_path / "control", Told(delay_seconds=0.01, flash=Settings(spare_ratio=0.1)))

    assert '"spare_ratio": 0.1' in (tmp_path / "control").read_text()
    assert ask(tmp_path / "counters") == Said()


@pytest.mark.slow
def test_it_starves_when_its_pool_is_written_and_recovers_by_a_trim(injected: drive.Drive) -> None:
    """The bytes written at onset are within 10 % of pool and collection; while it starves a flush waits."""
    file = os.open(injected.mount_point / "x", os.O_CREAT | os.O_RDWR)
    try:
        for at in range(64):
            flushed(file, at)
        capacity = _size(injected.device)
        aging = Settings(spare_ratio=POOL_BYTES / capacity, collected_pages_per_second=1500)
        quick = sorted(flushed(file, at) for at in range(23))[11]
        injected.age(aging)
        begun = time.monotonic()
        at = 0
        while injected.said().starved_writes == 0 and at < 20_000:
            flushed(file, at)
            at += 1
        starving = sorted(flushed(file, at) for at in range(9))[4]
        lasted = time.monotonic() - begun
        said = newly(injected, lambda found: found.erased_pages < 0)
        injected.trim()
        newly(injected, lambda found: found.erased_pages > 1000)
        after = sorted(flushed(file, at) for at in range(23))[11]
    finally:
        os.close(file)

    assert said.aged_written_bytes is not None
    assert said.starved_written_bytes is not None
    written = said.starved_written_bytes - said.aged_written_bytes
    # Stale is at most the pool, so the collection gives at most this beside it.
    most = POOL_BYTES / (POOL_BYTES + capacity) * aging.collected_pages_per_second * PAGE * lasted
    assert 0.9 * POOL_BYTES <= written <= 1.1 * (POOL_BYTES + most)
    assert starving > 4 * quick
    assert after < starving / 2


def _size(device: str) -> int:
    return int((Path("/sys/block") / device / "size").read_text()) * 512


@pytest.mark.slow
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_a_drive_that_failed_is_written_again_once_it_is_mounted_anew(
    filesystem: str, tmp_path: Path
) -> None:
    """Before that its filesystem refuses, though the drive answers; what was flushed is still there."""
    lack = drive.missing(filesystem=filesystem)
    if lack:
        pytest.skip(lack)
    capacity = drive.LEAST_BYTES[filesystem]
    made = drive.start(tmp_path / "drive", capacity_bytes=capacity, filesystem=filesystem)
    try:
        file = os.open(made.mount_point / "x", os.O_CREAT | os.O_RDWR)
        flushed(file, 0)
        os.fsync(file)
        made.fail("ENOSPC")
        with pytest.raises(OSError, match=r"Input/output|No space|Read-only"):
            flushed(file, 1)
        os.close(file)
        made.answer()
        made.remount()
        file = os.open(made.mount_point / "x", os.O_RDWR)
        kept = os.pread(file, 1, 0)
        flushed(file, 1)
        os.close(file)
    finally:
        made.close()

    assert kept == b"\x01"


def test_zeros_are_written_as_anything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count, take pages, and fail when the drive is told to."""
    monkeypatch.setitem(sys.modules, "nbdkit", SimpleNamespace(set_error=lambda _: None))
    monkeypatch.setattr("time.sleep", lambda _: None)
    made = drive_nbdkit.Drive()
    made.capacity_bytes, made.control, made.counters = CAPACITY, tmp_path / "a", tmp_path / "b"
    tell(made.control, Told(delay_seconds=23.0, flash=Settings(is_full=False)))
    drive_nbdkit.zero(made, 10 * PAGE, 0, 0)
    made.say()
    tell(made.control, Told(error="EIO"))
    with pytest.raises(OSError, match="told to fail"):
        drive_nbdkit.zero(made, PAGE, 0, 0)

    said = ask(made.counters)
    assert (said.written_bytes, said.valid_pages, said.waited_seconds) == (10 * PAGE, 10, 23.0)


@pytest.mark.slow
def test_a_drive_that_fails_fails_its_user_and_still_goes(tmp_path: Path) -> None:
    """EIO of a flush; nothing is left after it."""
    lack = drive.missing()
    if lack:
        pytest.skip(lack)
    made = drive.start(tmp_path / "drive", capacity_bytes=CAPACITY)
    file = os.open(made.mount_point / "x", os.O_CREAT | os.O_RDWR)
    try:
        flushed(file, 0)
        made.fail("EIO")

        with pytest.raises(OSError, match="Input/output error"):
            flushed(file, 1)
    finally:
        os.close(file)
        made.close()

    assert f" {tmp_path}/" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    ("filesystem", "least"), [("ext4", "16MiB"), ("xfs", "300MiB")], ids=["ext4", "xfs"]
)
def test_a_drive_too_small_for_its_filesystem_is_refused(
    filesystem: str, least: str, tmp_path: Path
) -> None:
    """Before anything is mounted."""
    lack = drive.missing(filesystem=filesystem)
    if lack:
        pytest.skip(lack)

    with pytest.raises(LabError, match=f"with {filesystem} needs {least}, not 1MiB"):
        drive.start(tmp_path / "drive", capacity_bytes=2**20, filesystem=filesystem)
