"""Shipping: lines are sent unchanged and in order, and the waiting ones are bounded."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from soak.core.journal_format import MAX_LINE_BYTES, columns_line, encode
from soak.core.model import Column, Record
from soak.core.units import SECOND_NS
from soak.shipping.ingest import Ingest
from soak.shipping.sender import (
    PERIOD_SECONDS,
    REPEAT_BYTES,
    REPEAT_NS,
    STORE_PERIOD_NS,
    Shipper,
)
from soak.store.journal.reader import segments
from soak.store.run_folder import RunFolder
from tests.support.fakes import FakeClock
from tests.support.shipping.shipped_run import FlakyTarget, Host, folder_of, records

SOURCE = "probe@b"


def shipper_of(folder: RunFolder, target: FlakyTarget, clock: FakeClock | None = None) -> Shipper:
    return Shipper(folder, target, clock or FakeClock(), "b")


def journal_text(folder: RunFolder) -> bytes:
    return b"".join(path.read_bytes() for path in segments(folder.journal / SOURCE))


def test_lines_of_this_host_are_sent_unchanged(tmp_path: Path) -> None:
    """The lines of other hosts, which were received, are not sent on."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    Host(folder, SOURCE).write(23)
    Host(folder, "probe@a").write(5)

    assert shipper_of(folder, target).send_batch() == PERIOD_SECONDS

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert {line.source for line in target.taken} == {SOURCE}


def test_after_a_restart_shipping_resumes_at_the_stored_position(tmp_path: Path) -> None:
    """No line is missing or sent twice."""
    folder, clock = folder_of(tmp_path), FakeClock(mono_ns=STORE_PERIOD_NS)
    host, target = Host(folder, SOURCE), FlakyTarget()
    host.write(23)
    shipper_of(folder, target, clock).send_batch()
    before = len(target.taken)
    host.write(5)

    shipper_of(folder, target, clock).send_batch()

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert before < len(target.taken)


def test_an_unreachable_cluster_is_retried_with_back_off_and_misses_nothing(tmp_path: Path) -> None:
    """Each failure doubles the wait, up to a limit; the first success ends it."""
    folder, target = folder_of(tmp_path), FlakyTarget([0] * 7)
    host = Host(folder, SOURCE)
    host.write(3)
    shipper = shipper_of(folder, target)

    waits = [shipper.send_batch() for _ in range(8)]

    assert waits == [1, 2, 4, 8, 16, 30, 30, PERIOD_SECONDS]
    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert shipper.waiting_bytes() == 0


def test_a_torn_line_is_never_sent(
    tmp_path: Path,
) -> None:
    """It may be complete with the next write, or never, when its writer was killed."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    host.write(3)
    whole = journal_text(folder)
    with segments(folder.journal / SOURCE)[-1].open("ab") as file:
        file.write(b'{"t":"r","c":')
    shipper = shipper_of(folder, target)

    shipper.send_batch()
    taken = b"".join(line.raw + b"\n" for line in target.taken)
    host.close(is_end=False)
    host.restart()
    host.write(2)
    shipper.send_batch()

    newest = segments(folder.journal / SOURCE)[-1].read_bytes()
    assert taken == whole
    assert b"".join(line.raw + b"\n" for line in target.taken) == whole + newest


def test_more_than_a_batch_is_sent_at_once_in_order(tmp_path: Path) -> None:
    """There is no wait while there is more, and a line longer than a batch goes alone."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    host.write(23)
    host.close(is_end=True)
    shipper = Shipper(folder, target, FakeClock(), "b", batch_bytes=100)

    waits = [shipper.send_batch() for _ in range(40)]

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert waits[0] == 0.0
    assert waits[-1] == PERIOD_SECONDS


def test_a_line_too_long_for_any_reader_takes_little_memory(tmp_path: Path) -> None:
    """The target refuses its first piece, as it would the whole; the lines around it are sent."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    host.write(3)
    host.close(is_end=False)
    before = journal_text(folder).splitlines()
    file = segments(folder.journal / SOURCE)[-1]
    os.truncate(file, file.stat().st_size + 4 * MAX_LINE_BYTES)
    with file.open("ab") as journal:
        journal.write(b"\n" + before[-1] + b"\n")
    shipper = shipper_of(folder, target)

    while shipper.send_batch() != PERIOD_SECONDS:
        pass
    taken = [line.raw for line in target.taken]

    assert MAX_LINE_BYTES < max(map(len, taken)) < 2 * MAX_LINE_BYTES
    assert (taken[: len(before)], taken[-1]) == (before, before[-1])
    assert shipper.waiting_bytes() == 0


def test_the_journal_of_a_probe_host_is_bounded(tmp_path: Path) -> None:
    """The oldest files go first, sent or not; the newest stays, and unsent bytes are counted."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    for at in range(5):
        host.write(10)
        host.close(is_end=False)
        newest = segments(folder.journal / SOURCE)[-1]
        os.utime(newest, ns=(at, at))
        host.restart()
    files = segments(folder.journal / SOURCE)
    dropped = sum(path.stat().st_size for path in files[:3])
    shipper = shipper_of(folder, target)

    shipper.trim(int(2.5 * files[-1].stat().st_size))
    shipper.send_batch()

    left = segments(folder.journal / SOURCE)
    assert left == files[3:]
    assert shipper.dropped_bytes == dropped
    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)


def test_files_are_deleted_in_order_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """A file that is missing before others is a gap."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    shipper = shipper_of(folder, target)
    for at in (30, 20, 10):
        host.write(10)
        host.close(is_end=False)
        os.utime(segments(folder.journal / SOURCE)[-1], ns=(at, at))
        host.restart()
        shipper.send_batch()
    files = segments(folder.journal / SOURCE)

    shipper.trim(sum(path.stat().st_size for path in files[1:]))

    assert segments(folder.journal / SOURCE) == files[1:]


@pytest.mark.parametrize("changed_ns", [0, 2**62])
def test_lines_behind_a_missing_file_are_sent(tmp_path: Path, changed_ns: int) -> None:
    """Such as one that an administrator deleted, or that a repaired filesystem lost.

    The clock may have been set back since the file before it was written.
    """
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    shipper = shipper_of(folder, target)
    host.write(10)
    shipper.send_batch()
    for _ in range(2):
        host.close(is_end=False)
        host.restart()
        host.write(10)
    _, missing, _ = segments(folder.journal / SOURCE)
    missing.unlink()
    os.utime(folder.journal / SOURCE, ns=(changed_ns, changed_ns))

    shipper.send_batch()

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert shipper.waiting_bytes() == 0


def test_a_damaged_position_starts_from_the_beginning(tmp_path: Path) -> None:
    """A line that is sent twice is received once."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    Host(folder, SOURCE).write(3)
    (folder.path / "ship.json").write_text("[1]")
    shipper = shipper_of(folder, target)

    waits = [shipper.send_batch() for _ in range(2)]

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert waits == [PERIOD_SECONDS] * 2
    assert json.loads((folder.path / "ship.json").read_text()).keys() == {SOURCE}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_columns_are_repeated_every_minute(tmp_path: Path, *, is_restarted: bool) -> None:
    """A reader that comes after retention deleted the first ones needs them; also after a restart."""
    folder, clock, target = folder_of(tmp_path), FakeClock(), FlakyTarget()
    host, shipper = Host(folder, SOURCE), shipper_of(folder, target, clock)
    host.write(2)
    shipper.send_batch()
    columns = target.taken[-2]
    if is_restarted:
        shipper.send_batch()  # stores the position
        shipper = shipper_of(folder, target, clock)

    sent = []
    for seconds in (1.0, REPEAT_NS / SECOND_NS, 1.0):
        clock.advance(seconds)
        target.taken = []
        host.write(1)
        shipper.send_batch()
        sent.append(target.taken)

    assert [len(lines) for lines in sent] == [1, 2, 1]
    assert sent[1][0] == columns


def test_columns_are_repeated_after_some_bytes(tmp_path: Path) -> None:
    """A host that sends hours of records at once does so in seconds."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    shipper, columns = shipper_of(folder, target), columns_line((Column("a"),))
    head = encode(columns)
    padding = {"x": "A" * 2**20}
    file = folder.journal / SOURCE / "000000.jsonl"
    file.parent.mkdir(parents=True)

    def append(k: int) -> None:
        with file.open("ab") as journal:
            journal.write(encode(Record(k, 1, k, 1, columns.id, (1.0,), histograms=padding)))

    file.write_bytes(head)
    for k in range(REPEAT_BYTES // 2**20 + 2):
        append(k)
        shipper.send_batch()
    repeated = [line.raw for line in target.taken].count(head.rstrip(b"\n"))

    assert repeated == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_the_receiver_has_every_record_once_whatever_fails(tmp_path: Path, seed: int) -> None:
    """Partial failures and restarts of both sides at random."""
    dice = random.Random(seed)
    here, there = folder_of(tmp_path / "here"), folder_of(tmp_path / "there")
    host, clock = Host(here, SOURCE), FakeClock()
    target = FlakyTarget([dice.choice([None, 0, 3, 7]) for _ in range(20)])
    shipper, ingest = shipper_of(here, target, clock), Ingest(there, clock, "a")
    for _ in range(40):
        host.write(dice.randrange(4))
        clock.advance(2)
        if dice.random() < 0.2:
            host.close(is_end=False)
            host.restart()
        if dice.random() < 0.2:
            shipper = shipper_of(here, target, clock)
        if dice.random() < 0.2:
            ingest.close()
            ingest = Ingest(there, clock, "a")
        shipper.send_batch()
        ingest.write(target.taken)
        target.taken = target.taken[-dice.randrange(1, 5) :]  # and some of it again
    host.write(1)
    while shipper.send_batch() != PERIOD_SECONDS:
        pass
    ingest.write(target.taken)
    ingest.close()

    assert records(there, SOURCE) == records(here, SOURCE)
