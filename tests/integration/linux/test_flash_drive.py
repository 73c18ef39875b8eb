"""The injected drive as a flash drive: it starves when its model says so, and a trim ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soak.lab.drive import block_device, drive
from soak.lab.drive.flash import Settings
from soak.lab.drive.folder import DriveStatus
from soak.lab.faults.clients import drop_segments

CAPACITY = 2**26


PAGE = 4096


SPARE = 0.02


POOL_BYTES = CAPACITY * SPARE


def started(tmp_path: Path, filesystem: str = "ext4") -> drive.Drive:
    lack = drive.missing_drive_tools(filesystem=filesystem)
    if lack:
        pytest.skip(lack)
    capacity = max(CAPACITY, drive.MIN_BYTES[filesystem])
    return drive.start_drive(tmp_path / "drive", capacity_bytes=capacity, filesystem=filesystem)


@pytest.fixture(params=["ext4", "xfs"])
def injected(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[drive.Drive]:
    made = started(tmp_path, request.param)
    yield made
    made.close()


def flushed(file: int, at: int) -> float:
    """Write a page through to the drive; return how long that took."""
    begun = time.perf_counter()
    os.pwrite(file, bytes([at % 251 + 1]) * PAGE, at % 64 * PAGE)
    os.fdatasync(file)
    return time.perf_counter() - begun


def come_and_gone(path: Path, size: int) -> None:
    """Have so many bytes on the drive, and delete them."""
    with path.open("wb") as file:
        file.write(os.urandom(size))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def newly(made: drive.Drive, is_it: Callable[[DriveStatus], bool]) -> DriveStatus:
    """Return what the drive says once a page of its counters is new: it says so twice a second."""
    deadline = time.monotonic() + 20
    while not is_it(made.status()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return made.status()


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
        while injected.status().starved_writes == 0 and at < 20_000:
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
def test_who_writes_waits_for_the_drive_once_no_more_may_be_held_back(tmp_path: Path) -> None:
    """Without a flush and a limit the kernel accepts 8 MiB at once, however slow the drive is."""
    if lack := block_device.missing_dirty_limit():
        pytest.skip(lack)
    made = started(tmp_path)
    limits = Path("/sys/class/block") / made.device / "bdi"
    try:
        made.answer(delay_seconds=0.2)
        plain = written(made.mount_point / "plain")
        made.answer()
        with (made.mount_point / "plain").open("rb+") as file:
            os.fsync(file)  # what was blocked is on the drive
        made.limit_dirty(2**20)
        is_strict = (limits / "strict_limit").read_text().strip()
        made.answer(delay_seconds=0.2)
        limited = written(made.mount_point / "limited")
    finally:
        made.close()

    assert limited > 10 * plain
    assert is_strict == "1"
    assert not (limits / "strict_limit").exists() or (limits / "strict_limit").read_text() == "0\n"


def written(path: Path) -> float:
    """Write 8 MiB in pages and flush nothing; return how long that took."""
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(2**23 // PAGE):
            file.write(bytes(PAGE))
    return time.perf_counter() - begun


@pytest.mark.slow
@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_a_drive_that_failed_is_written_again_once_it_is_mounted_anew(
    filesystem: str, tmp_path: Path
) -> None:
    """Before that its filesystem refuses, though the drive answers; what was flushed is still there."""
    lack = drive.missing_drive_tools(filesystem=filesystem)
    if lack:
        pytest.skip(lack)
    capacity = drive.MIN_BYTES[filesystem]
    made = drive.start_drive(tmp_path / "drive", capacity_bytes=capacity, filesystem=filesystem)
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


@pytest.mark.slow
def test_a_deletion_on_a_full_drive_holds_up_the_next_flush(tmp_path: Path) -> None:
    """Where ext4 discards what is deleted; on a drive of the same fill that keeps it, it does not."""
    made = started(tmp_path)
    file = os.open(made.mount_point / "x", os.O_CREAT | os.O_RDWR)
    try:
        made.age(Settings(is_full=False, kept_ratio=0.5, trim_seconds_per_mib=0.02))
        come_and_gone(made.mount_point / "kept", 2**22)
        os.fsync(file)
        kept = made.status()
        made.discard_deleted()
        come_and_gone(made.mount_point / "discarded", 2**22)
        os.ftruncate(file, PAGE // 2)  # so that the journal, which holds the deletion, is flushed
        os.fsync(file)
        flushed(file, 1)
        said = newly(made, lambda found: found.blocked_wall_ns is not None)
        made.keep_deleted()
    finally:
        os.close(file)
        made.close()

    assert kept.blocked_wall_ns is None
    assert said.trimmed_bytes >= 2**22
    assert said.blocked_wall_ns is not None


@pytest.mark.slow
def test_what_the_kernel_forgot_is_read_from_the_drive(tmp_path: Path) -> None:
    """A segment that was just written is in memory, through all that lies between file and drive."""
    made = started(tmp_path)
    try:
        partition = made.mount_point / "data" / "soak-x-0"
        partition.mkdir(parents=True)
        with (partition / "00.log").open("wb") as segment:
            segment.write(os.urandom(2**22))
            segment.flush()
            os.fsync(segment.fileno())
        before = newly(made, lambda found: found.written_bytes >= 2**22)
        (partition / "00.log").read_bytes()
        drop_segments(made.mount_point / "data", "soak-*")
        made.drop_page_cache()
        (partition / "00.log").read_bytes()
        after = newly(made, lambda found: found.read_bytes >= before.read_bytes + 2**22)
    finally:
        made.close()

    assert 2**22 <= after.read_bytes - before.read_bytes < 2 * 2**22


@pytest.mark.slow
def test_a_drive_that_fails_fails_its_user_and_still_goes(tmp_path: Path) -> None:
    """EIO of a flush; nothing is left after it."""
    made = started(tmp_path)
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
