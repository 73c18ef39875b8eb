"""The injected drive as a flash drive: it starves when its model says so, and a trim ends it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.core.errors import LabError
from soak.lab.drive import drive, nbdkit_plugin
from soak.lab.drive.flash import Settings
from soak.lab.drive.folder import DriveCommand, DriveStatus, read_status, write_command

CAPACITY = 2**26


PAGE = 4096


def test_commands_and_answers_come_through_files_as_a_whole(tmp_path: Path) -> None:
    """And a drive that has said nothing yet has done nothing."""
    write_command(
        tmp_path / "control", DriveCommand(delay_seconds=0.01, flash=Settings(spare_ratio=0.1))
    )

    assert '"spare_ratio": 0.1' in (tmp_path / "control").read_text()
    assert read_status(tmp_path / "counters") == DriveStatus()


def test_zeros_are_written_as_anything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count, take pages, and fail if the command is to fail."""
    monkeypatch.setitem(sys.modules, "nbdkit", SimpleNamespace(set_error=lambda _: None))
    monkeypatch.setattr("time.sleep", lambda _: None)
    made = nbdkit_plugin.Drive()
    made.set_capacity(CAPACITY)
    made.control, made.counters = tmp_path / "a", tmp_path / "b"
    write_command(made.control, DriveCommand(delay_seconds=23.0, flash=Settings(is_full=False)))
    nbdkit_plugin.zero(made, 10 * PAGE, 0, 0)
    made.write_status()
    write_command(made.control, DriveCommand(error="EIO"))
    with pytest.raises(OSError, match="injected error"):
        nbdkit_plugin.zero(made, PAGE, 0, 0)

    said = read_status(made.counters)
    assert (said.written_bytes, said.valid_pages, said.waited_seconds) == (10 * PAGE, 10, 23.0)


def test_a_drive_has_one_memory_from_before_its_first_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come at once, and what one of them writes must not be in a memory of its own."""
    made = Line(tmp_path, monkeypatch).commanded(DriveCommand())
    maps: list[object] = []
    monkeypatch.setattr("mmap.mmap", maps.append)

    nbdkit_plugin.pwrite(made, b"\x17" * PAGE, 0, 0)
    nbdkit_plugin.pwrite(made, b"\x2a" * PAGE, PAGE, 0)

    assert maps == []
    assert made.memory[: 2 * PAGE] == b"\x17" * PAGE + b"\x2a" * PAGE


class Line:
    """A drive in this process under a clock of ours, which goes on as long as it is slept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.sleep", self._sleep)
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.drive = nbdkit_plugin.Drive()
        self.drive.set_capacity(CAPACITY)
        self.drive.control, self.drive.counters = folder / "control", folder / "counters"

    def commanded(self, command: DriveCommand) -> nbdkit_plugin.Drive:
        write_command(self.drive.control, command)
        return self.drive

    def status(self) -> DriveStatus:
        self.drive.write_status()
        return read_status(self.drive.counters)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_what_is_written_while_a_drive_discards_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trim, a second's work, is answered at once; a flush 0.5 s later waits for the other half."""
    line = Line(tmp_path, monkeypatch)
    flash = Settings(is_full=False, kept_ratio=0.5, spare_ratio=0.0, trim_seconds_per_mib=0.5)
    made = line.commanded(DriveCommand(flash=flash))
    nbdkit_plugin.pwrite(made, bytes(2**20), 0, 0)
    before = line.status().blocked_wall_ns
    nbdkit_plugin.trim(made, 2**20, 0, 0)
    at_once = line.now
    line.now += 0.5
    nbdkit_plugin.flush(made, 0)
    after_flush = line.now
    nbdkit_plugin.pwrite(made, bytes(PAGE), 0, 0)

    assert (before, at_once) == (None, 100.0)
    assert after_flush == 101.0  # half of it is kept, so 1 MiB is the work of 2
    assert line.now == after_flush
    assert line.status().blocked_wall_ns is not None


def test_what_is_written_while_a_drive_reads_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read takes its time and delays writes, if the command says so."""
    line = Line(tmp_path, monkeypatch)
    piece = bytearray(2**19)
    nbdkit_plugin.pread(line.commanded(DriveCommand()), piece, 0, 0)
    free = line.now
    made = line.commanded(DriveCommand(read_seconds_per_mib=2.0))
    monkeypatch.setattr("time.sleep", lambda _: None)  # as if it were another thread that reads
    nbdkit_plugin.pread(made, piece, 0, 0)
    nbdkit_plugin.pread(made, piece, 0, 0)
    nbdkit_plugin.pwrite(made, bytes(PAGE), 0, 0)

    assert free == 100.0
    assert line.status().waited_seconds == 2.0
    assert line.status().blocked_wall_ns is not None


def test_a_write_waits_for_what_others_write_at_a_limited_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a MiB takes half a second at 1 MiB/s, and the flush after two of them waits for both."""
    line = Line(tmp_path, monkeypatch)
    made = line.commanded(DriveCommand(write_seconds_per_mib=1.0))
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)  # as if they came at once, from other threads
    nbdkit_plugin.pwrite(made, bytes(2**19), 0, 0)
    nbdkit_plugin.pwrite(made, bytes(2**19), 2**19, 0)
    nbdkit_plugin.flush(made, 0)

    assert slept == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("filesystem", "least"), [("ext4", "16MiB"), ("xfs", "300MiB")], ids=["ext4", "xfs"]
)
def test_a_drive_too_small_for_its_filesystem_is_refused(
    filesystem: str, least: str, tmp_path: Path
) -> None:
    """Before anything is mounted."""
    lack = drive.missing_drive_tools(filesystem=filesystem)
    if lack:
        pytest.skip(lack)

    with pytest.raises(LabError, match=f"with {filesystem} needs {least}, not 1MiB"):
        drive.start_drive(tmp_path / "drive", capacity_bytes=2**20, filesystem=filesystem)
