from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from soak.core.journal_text import columns_line
from soak.core.model import Column, Record
from soak.store import journal_thread
from soak.store.journal import JournalWriter
from soak.store.journal_reader import read_source
from soak.store.journal_thread import JournalThread
from tests.fakes import FakeClock

COLUMNS = (Column("a_seconds"),)


def _record(k: int) -> Record:
    return Record(k, 1, 0, 10**9, columns_line(COLUMNS).id, (float(k),))


def _ks(folder: Path) -> list[int]:
    return [record.k for record, _ in read_source(folder, "s")]


class Drive:
    """A drive whose writes hang from the first on until `go_on`."""

    def __init__(self) -> None:
        self.is_hanging = threading.Event()
        self.go_on = threading.Event()

    def write(self, descriptor: int, raw: bytes) -> int:
        self.is_hanging.set()
        assert self.go_on.wait(30)
        return os.write(descriptor, raw)


def test_a_write_that_hangs_holds_nobody_up_and_loses_nothing(tmp_path: Path) -> None:
    drive = Drive()
    journal = JournalThread(JournalWriter(tmp_path / "s", FakeClock(), write=drive.write).open())
    for k in range(100):
        journal.append(_record(k), COLUMNS)
    assert drive.is_hanging.wait(30)
    assert journal.is_behind
    assert _ks(tmp_path) == []

    drive.go_on.set()
    journal.close(is_end=True)

    assert _ks(tmp_path) == list(range(100))
    assert not journal.is_behind


def test_what_waits_for_a_drive_that_hangs_is_bounded_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_thread, "MOST_WAITING", 10)
    drive = Drive()
    journal = JournalThread(JournalWriter(tmp_path / "s", FakeClock(), write=drive.write).open())
    journal.append(_record(0), COLUMNS)
    assert drive.is_hanging.wait(30)
    for k in range(1, 15):
        journal.append(_record(k), COLUMNS)
    drive.go_on.set()
    journal.close(is_end=True)

    assert _ks(tmp_path) == list(range(11))
    assert "journal_hangs k=14 dropped=4" in caplog.text


def test_a_defect_in_the_thread_is_raised_where_records_come_from(tmp_path: Path) -> None:
    def write(descriptor: int, raw: bytes) -> int:
        raise RuntimeError(f"a defect at {len(raw)} bytes for {descriptor}")

    journal = JournalThread(JournalWriter(tmp_path / "s", FakeClock(), write=write).open())
    journal.append(_record(0), COLUMNS)

    with pytest.raises(RuntimeError, match="a defect"):
        journal.close(is_end=True)


def test_a_source_that_wrote_nothing_is_closed(tmp_path: Path) -> None:
    journal = JournalThread(JournalWriter(tmp_path / "s", FakeClock()).open())
    journal.close(is_end=True)

    assert JournalWriter(tmp_path / "s", FakeClock()).open().inc == journal.inc + 1
