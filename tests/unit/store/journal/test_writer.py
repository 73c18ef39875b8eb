"""Writing a journal: nothing is lost while the drive is full, fails or hangs, and a defect is raised."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.core.errors import JournalError, RunFolderError
from soak.core.journal_format import Columns, columns_line, decode, encode
from soak.core.model import Column, Record
from soak.store.journal.reader import SourceReader, last_record, read_source, segments
from soak.store.journal.writer import BackgroundJournalWriter, JournalWriter
from tests.support.fakes import FakeClock

COLUMNS = (Column("a_seconds", (("quantile", "0.5"),), "seconds", 1.5), Column("b_messages"))
SYNC_S = 6


def record(k: int, epoch: int = 1) -> Record:
    return Record(k, epoch, 0, 10**9, columns_line(COLUMNS).id, (float(k), 0.0))


def open_writer(folder: Path, clock: FakeClock | None = None) -> JournalWriter:
    return JournalWriter(folder, clock or FakeClock()).open()


def ks(journal: Path) -> list[int]:
    return [record.k for record, _ in read_source(journal, "s")]


class Drive:
    """Takes `room` bytes, and hangs in each write until `may_go_on`."""

    def __init__(self, room: int = 10**9, *, is_hanging: bool = False) -> None:
        self.room = room
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        if not is_hanging:
            self.may_go_on.set()

    def write(self, descriptor: int, raw: bytes) -> int:
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = raw[: self.room]
        self.room -= len(part)
        return os.write(descriptor, part)


def fail_with(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def refuse(*_: object) -> int:
    raise fail_with(errno.EIO)


def test_appended_records_are_read_back_once_each(tmp_path: Path) -> None:
    """A record that is appended twice is read once, and the end is read too."""
    source = tmp_path / "s"
    writer = open_writer(source)
    for k in (0, 1, 1, 2):
        writer.append(record(k), COLUMNS)
    writer.close(is_end=True)

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]

    assert (found, reader.ended_epoch, reader.damage) == ([0, 1, 2], 1, [])


def test_a_restart_gets_a_new_epoch_and_a_new_file(tmp_path: Path) -> None:
    """The epoch is on disk before it is used."""
    first = open_writer(tmp_path)
    first.append(record(0), COLUMNS)
    first.close(is_end=False)
    second = open_writer(tmp_path)
    second.append(record(1, second.epoch), COLUMNS)
    second.close(is_end=False)

    assert (first.epoch, second.epoch, len(segments(tmp_path))) == (1, 2, 2)


@pytest.mark.parametrize("kept", [b"\0" * 20, b"0000x"])
def test_a_source_that_lost_its_epoch_begins_above_all_earlier_ones(
    tmp_path: Path, kept: bytes
) -> None:
    """A power cut may leave the lock file like this."""
    (tmp_path / "lock").write_bytes(kept)
    writer = JournalWriter(tmp_path, FakeClock()).open(first_epoch=130)
    writer.close(is_end=False)

    assert writer.epoch == 130


def test_two_writers_never_share_a_source(tmp_path: Path) -> None:
    """The second one is refused while the first one holds the lock."""
    writer = open_writer(tmp_path)

    with pytest.raises(RunFolderError, match="is written by another process"):
        open_writer(tmp_path)

    writer.close(is_end=False)


def test_a_full_segment_is_followed_by_one_that_begins_with_the_columns(tmp_path: Path) -> None:
    """After an hour."""
    clock = FakeClock()
    writer = open_writer(tmp_path, clock)
    writer.append(record(0), COLUMNS)
    clock.advance(3600)
    writer.append(record(3600), COLUMNS)
    writer.close(is_end=False)

    files = segments(tmp_path)
    assert [path.name for path in files] == ["000000.jsonl", "000001.jsonl"]
    for path in files:
        assert isinstance(decode(path.read_bytes().splitlines()[0]), Columns)


def test_a_full_disk_keeps_records_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk takes half a line, then nothing for 22 records, then everything; the reason is logged once."""
    drive = Drive()
    writer = JournalWriter(tmp_path / "s", FakeClock(), write=drive.write).open()
    writer.append(record(0), COLUMNS)
    drive.room = 20
    for k in range(1, 23):
        writer.append(record(k), COLUMNS)
    was_behind = writer.is_behind
    drive.room = 10**9
    writer.append(record(23), COLUMNS)
    writer.close(is_end=False)

    reader = SourceReader(tmp_path / "s")
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]
    assert (found, reader.damage, writer.dropped_lines) == (list(range(24)), [], 0)
    assert was_behind
    assert caplog.text.count("No space left on device") == 1


def test_a_disk_that_stays_full_costs_the_oldest_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten records wait in memory, and no more."""
    drive, room = Drive(), 10 * len(encode(record(100)))
    folder = tmp_path / "s"
    writer = JournalWriter(folder, FakeClock(), write=drive.write, max_pending_bytes=room).open()
    writer.append(record(100), COLUMNS)
    drive.room = 0
    for k in range(101, 200):
        writer.append(record(k), COLUMNS)
    drive.room = 10**9
    writer.append(record(200), COLUMNS)
    writer.close(is_end=True)

    assert ks(tmp_path) == [100, *range(191, 201)]
    assert writer.dropped_lines == 90
    assert "journal_full" in caplog.text


def test_below_the_floor_records_wait_as_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe host may have nowhere else to write than on the drive of its broker."""
    free = [1000]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    writer = JournalWriter(tmp_path / "s", FakeClock(), floor_bytes=1000).open()
    writer.append(record(0), COLUMNS)
    free[0] = 999
    for k in range(1, 23):
        writer.append(record(k), COLUMNS)
    within, is_behind = last_record(tmp_path, "s"), writer.is_behind
    free[0] = 1000
    writer.append(record(23), COLUMNS)
    writer.close(is_end=False)

    assert within is not None
    assert (within[0].k, is_behind) == (0, True)
    assert ks(tmp_path) == list(range(24))


def test_a_torn_line_that_cannot_be_cut_off_damages_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drive takes half a line and then fails: the next lines go into another file."""
    drive, source = Drive(), tmp_path / "s"
    writer = JournalWriter(source, FakeClock(), write=drive.write).open()
    writer.append(record(0), COLUMNS)
    drive.room = 20
    with monkeypatch.context() as failing:
        failing.setattr(os, "ftruncate", refuse)
        writer.append(record(1), COLUMNS)
    drive.room = 10**9
    writer.append(record(2), COLUMNS)
    writer.close(is_end=False)

    reader = SourceReader(source)
    found = [record.k for record, _ in read_source(tmp_path, "s", reader)]
    assert (found, reader.damage, len(segments(source))) == ([0, 1, 2], [], 2)


def test_a_full_segment_is_used_until_the_next_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a spare descriptor each attempt would leave another file, and keep another descriptor."""
    clock, source = FakeClock(), tmp_path / "s"
    writer = open_writer(source, clock)
    writer.append(record(0), COLUMNS)
    clock.advance(3600)
    with monkeypatch.context() as failing:
        failing.setattr(os, "dup", refuse)
        for k in range(1, 4):
            writer.append(record(k), COLUMNS)
        within = len(segments(source))
    writer.append(record(4), COLUMNS)
    writer.close(is_end=False)

    assert (within, len(segments(source))) == (1, 2)
    assert ks(tmp_path) == [0, 1, 2, 3, 4]


def test_a_flush_that_hangs_delays_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush of the first record does not end; the later records are written all the same."""
    is_hanging, may_end = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        is_hanging.set()
        may_end.wait(30)

    monkeypatch.setattr(os, "fdatasync", hang)
    clock = FakeClock()
    writer = open_writer(tmp_path / "s", clock)
    for k in range(20):
        clock.advance(SYNC_S)
        writer.append(record(k), COLUMNS)
        assert is_hanging.wait(30)

    assert ks(tmp_path) == list(range(20))
    may_end.set()
    writer.close(is_end=True)


def test_a_flush_that_hangs_delays_closing_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines are written by then, and the drive may have them or not."""
    may_end = threading.Event()
    writer = JournalWriter(tmp_path / "s", FakeClock(), sync_close_seconds=0.05).open()
    writer.append(record(0), COLUMNS)
    monkeypatch.setattr(os, "fdatasync", lambda _: may_end.wait(30))
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("the drive was waited for"))

    writer.close(is_end=False)

    assert not may_end.is_set()
    assert ks(tmp_path) == [0]
    may_end.set()


def test_a_flush_that_fails_is_logged_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a failed flush the kernel may have dropped what it held: somebody has to know."""
    monkeypatch.setattr(os, "fdatasync", refuse)
    clock = FakeClock()
    writer = open_writer(tmp_path / "s", clock)
    for k in range(3):
        clock.advance(SYNC_S)
        writer.append(record(k), COLUMNS)
    writer.close(is_end=True)

    assert caplog.text.count("journal_not_flushed") == 1
    assert ks(tmp_path) == [0, 1, 2]


def test_a_defect_in_the_flushing_thread_is_raised_where_records_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is released all the same."""

    def fail(_: int) -> None:
        raise fail_with(errno.EBADF)

    monkeypatch.setattr(os, "fdatasync", fail)
    clock = FakeClock()
    clock.advance(SYNC_S)
    writer = open_writer(tmp_path / "s", clock)
    writer.append(record(0), COLUMNS)

    with pytest.raises(JournalError, match="Bad file descriptor"):
        writer.close(is_end=True)
    open_writer(tmp_path / "s").close(is_end=False)


@pytest.mark.parametrize("is_duplicate", [True, False])
def test_a_failure_that_closing_reports_is_survived(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_duplicate: bool,
) -> None:
    """A network drive may report failed writes when a file is closed, or the descriptor that flushed it."""
    clock, source = FakeClock(), tmp_path / "s"
    close = os.close

    def close_and_fail(descriptor: int) -> None:
        is_segment = Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".jsonl"
        is_flush = threading.current_thread().name == "journal-sync"
        close(descriptor)
        if is_segment and is_flush == is_duplicate:
            raise fail_with(errno.EDQUOT)

    writer = open_writer(source, clock)
    with monkeypatch.context() as failing:
        failing.setattr(os, "close", close_and_fail)
        for k in range(3):
            writer.append(record(k), COLUMNS)
            clock.advance(3600)
        writer.close(is_end=True)

    assert ks(tmp_path) == [0, 1, 2]
    assert "journal_not_flushed" in caplog.text
    open_writer(source).close(is_end=False)


def test_a_flush_that_cannot_be_requested_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records written in between do not make it new."""
    clock = FakeClock()
    writer = open_writer(tmp_path / "s", clock)
    with monkeypatch.context() as failing:
        failing.setattr(os, "dup", refuse)
        for k in range(23):
            writer.append(record(k), COLUMNS)
            clock.advance(SYNC_S / 2)
    writer.close(is_end=True)

    assert caplog.text.count("Input/output error") == 1
    assert ks(tmp_path) == list(range(23))


FAILING_MEDIA = [
    *(errno.ENODATA, errno.ENOLINK, errno.EILSEQ, errno.EBADE, errno.ETIME),
    *(errno.EUCLEAN, errno.EBADMSG, errno.ECONNABORTED),
]


@pytest.mark.parametrize("number", FAILING_MEDIA)
def test_records_wait_for_media_that_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The drive under test may fail; the records are written when it takes them again."""
    is_failing = True

    def write(descriptor: int, raw: bytes) -> int:
        if is_failing:
            raise fail_with(number)
        return os.write(descriptor, raw)

    writer = JournalWriter(tmp_path / "s", FakeClock(), write=write).open()
    for k in range(3):
        writer.append(record(k), COLUMNS)
    was_behind, is_failing = writer.is_behind, False
    writer.close(is_end=True)

    assert (was_behind, ks(tmp_path)) == (True, [0, 1, 2])
    assert caplog.text.count("journal_not_written") == 1


@pytest.mark.parametrize(
    "error", [fail_with(errno.EBADF), fail_with(errno.EACCES), RuntimeError("a defect")]
)
def test_an_error_that_is_none_of_the_drive_is_raised(tmp_path: Path, error: Exception) -> None:
    """It would never go away: the records would wait in memory until they are dropped."""

    def write(*_: object) -> int:
        raise error

    writer = JournalWriter(tmp_path / "s", FakeClock(), write=write).open()

    with pytest.raises(type(error), match=str(error.args[-1])):
        writer.append(record(0), COLUMNS)


def test_a_removed_folder_is_an_error(tmp_path: Path) -> None:
    """Nobody will read these records, and no room in memory replaces the folder."""
    clock, source = FakeClock(), tmp_path / "s"
    writer = open_writer(source, clock)
    writer.append(record(0), COLUMNS)
    shutil.rmtree(source)
    clock.advance(3600)

    with pytest.raises(FileNotFoundError):
        writer.append(record(1), COLUMNS)


def test_a_write_that_hangs_delays_no_caller_and_loses_nothing(tmp_path: Path) -> None:
    """A hundred records wait for the thread until the drive answers."""
    drive = Drive(is_hanging=True)
    writer = JournalWriter(tmp_path / "s", FakeClock(), write=drive.write)
    journal = BackgroundJournalWriter(writer.open())
    for k in range(100):
        journal.append(record(k), COLUMNS)
    assert drive.has_begun.wait(30)
    before = journal.is_behind, ks(tmp_path)

    drive.may_go_on.set()
    journal.close(is_end=True)

    assert before == (True, [])
    assert ks(tmp_path) == list(range(100))
    assert not journal.is_behind


def test_records_that_wait_for_a_hanging_drive_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten wait behind the first one, and the four dropped ones are logged."""
    drive = Drive(is_hanging=True)
    writer = JournalWriter(tmp_path / "s", FakeClock(), write=drive.write)
    journal = BackgroundJournalWriter(writer.open(), max_queued=10)
    journal.append(record(0), COLUMNS)
    assert drive.has_begun.wait(30)
    for k in range(1, 15):
        journal.append(record(k), COLUMNS)
    drive.may_go_on.set()
    journal.close(is_end=True)

    assert ks(tmp_path) == list(range(11))
    assert "journal_hangs k=14 dropped=4" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("a defect"), fail_with(errno.EBADF)])
def test_a_defect_in_the_thread_is_raised_by_the_next_call(
    tmp_path: Path, error: Exception
) -> None:
    """Each later call raises it again, and closing releases the source."""
    has_failed = threading.Event()

    def write(*_: object) -> int:
        has_failed.set()
        raise error

    writer = JournalWriter(tmp_path / "s", FakeClock(), write=write)
    journal = BackgroundJournalWriter(writer.open())
    journal.append(record(0), COLUMNS)
    assert has_failed.wait(30)
    for thread in threading.enumerate():
        if thread.name == "journal":
            thread.join(30)

    for _ in range(2):
        with pytest.raises(JournalError, match=str(error.args[-1])):
            journal.append(record(1), COLUMNS)
    with pytest.raises(JournalError, match=str(error.args[-1])):
        journal.close(is_end=True)
    open_writer(tmp_path / "s").close(is_end=False)


def test_a_source_that_wrote_nothing_can_be_closed(tmp_path: Path) -> None:
    """Neither thread was started."""
    journal = BackgroundJournalWriter(open_writer(tmp_path / "s"))
    journal.close(is_end=True)

    assert open_writer(tmp_path / "s").epoch == journal.epoch + 1
