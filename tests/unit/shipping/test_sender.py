"""Shipping: lines go as they are, once taken they are not sent again, and what waits is bounded."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from soak.core.units import SECOND_NS
from soak.shipping import sender
from soak.shipping.ingest import Ingest
from soak.shipping.sender import REPEAT_NS, ROUND_SECONDS, Shipper
from soak.store.journal.reader import segments
from soak.store.run_folder import RunFolder
from tests.support.fakes import FakeClock
from tests.support.shipped_run import FlakyTarget, Host, folder_of, records

SOURCE = "probe@b"


def shipper_of(folder: RunFolder, target: FlakyTarget, clock: FakeClock | None = None) -> Shipper:
    return Shipper(folder, target, clock or FakeClock(), "b")


def journal_text(folder: RunFolder) -> bytes:
    return b"".join(path.read_bytes() for path in segments(folder.journal / SOURCE))


def test_lines_go_as_they_are_and_only_those_of_this_host(tmp_path: Path) -> None:
    """What came here from another host is not ours to send."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    Host(folder, SOURCE).write(23)
    Host(folder, "probe@a").write(5)

    assert shipper_of(folder, target).round() == ROUND_SECONDS

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert {line.source for line in target.taken} == {SOURCE}


def test_after_a_restart_it_goes_on_where_the_cluster_had_taken_all(tmp_path: Path) -> None:
    """The position is kept beside the journal."""
    folder, clock = folder_of(tmp_path), FakeClock(mono_ns=sender.KEEP_NS)
    host, target = Host(folder, SOURCE), FlakyTarget()
    host.write(23)
    shipper_of(folder, target, clock).round()
    before = len(target.taken)
    host.write(5)

    shipper_of(folder, target, clock).round()

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert before < len(target.taken)


def test_a_cluster_that_is_away_is_asked_ever_later_and_misses_nothing(tmp_path: Path) -> None:
    """Each failure doubles the wait, up to a limit; the first success ends it."""
    folder, target = folder_of(tmp_path), FlakyTarget([0] * 7)
    host = Host(folder, SOURCE)
    host.write(3)
    shipper = shipper_of(folder, target)

    waits = [shipper.round() for _ in range(8)]

    assert waits == [1, 2, 4, 8, 16, 30, 30, ROUND_SECONDS]
    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert shipper.waiting_bytes() == 0


def test_a_line_that_is_being_written_waits_and_one_torn_by_a_kill_is_passed_over(
    tmp_path: Path,
) -> None:
    """A torn tail is complete once there is a newer file: it never will be."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    host.write(3)
    whole = journal_text(folder)
    with segments(folder.journal / SOURCE)[-1].open("ab") as file:
        file.write(b'{"t":"r","c":')
    shipper = shipper_of(folder, target)

    shipper.round()
    taken = b"".join(line.raw + b"\n" for line in target.taken)
    host.close(is_end=False)
    host.restart()
    host.write(2)
    shipper.round()

    newest = segments(folder.journal / SOURCE)[-1].read_bytes()
    assert taken == whole
    assert b"".join(line.raw + b"\n" for line in target.taken) == whole + newest


def test_more_than_a_batch_goes_at_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No wait while there is more; a line longer than a batch goes alone."""
    monkeypatch.setattr(sender, "BATCH_BYTES", 100)
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    host.write(23)
    host.close(is_end=True)
    shipper = shipper_of(folder, target)

    waits = [shipper.round() for _ in range(40)]

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert waits[0] == 0.0
    assert waits[-1] == ROUND_SECONDS


def test_the_journal_of_a_lone_host_is_bounded_and_what_was_lost_is_said(tmp_path: Path) -> None:
    """Oldest files first, sent or not; the newest stays, and shipping goes on behind them."""
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
    shipper.round()

    left = segments(folder.journal / SOURCE)
    assert left == files[3:]
    assert shipper.dropped_bytes == dropped
    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)


def test_files_go_in_their_order_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """Behind a gap in their numbers nothing would ever be sent again."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    host = Host(folder, SOURCE)
    shipper = shipper_of(folder, target)
    for at in (30, 20, 10):
        host.write(10)
        host.close(is_end=False)
        os.utime(segments(folder.journal / SOURCE)[-1], ns=(at, at))
        host.restart()
        shipper.round()
    files = segments(folder.journal / SOURCE)

    shipper.trim(sum(path.stat().st_size for path in files[1:]))

    assert segments(folder.journal / SOURCE) == files[1:]


def test_a_damaged_position_begins_anew(tmp_path: Path) -> None:
    """Sent twice is received once."""
    folder, target = folder_of(tmp_path), FlakyTarget()
    Host(folder, SOURCE).write(3)
    (folder.path / "ship.json").write_text("[1]")
    shipper = shipper_of(folder, target)

    waits = [shipper.round() for _ in range(2)]

    assert b"".join(line.raw + b"\n" for line in target.taken) == journal_text(folder)
    assert waits == [ROUND_SECONDS] * 2
    assert json.loads((folder.path / "ship.json").read_text()).keys() == {SOURCE}


@pytest.mark.parametrize("is_anew", [False, True])
def test_columns_go_again_every_minute(tmp_path: Path, *, is_anew: bool) -> None:
    """Who comes when the topic has lost the first ones can read on; also after a restart in between."""
    folder, clock, target = folder_of(tmp_path), FakeClock(), FlakyTarget()
    host, shipper = Host(folder, SOURCE), shipper_of(folder, target, clock)
    host.write(2)
    shipper.round()
    columns = target.taken[-2]
    if is_anew:
        shipper.round()  # keeps the position
        shipper = shipper_of(folder, target, clock)

    went = []
    for seconds in (1.0, REPEAT_NS / SECOND_NS, 1.0):
        clock.advance(seconds)
        target.taken = []
        host.write(1)
        shipper.round()
        went.append(target.taken)

    assert [len(lines) for lines in went] == [1, 2, 1]
    assert went[1][0] == columns


@pytest.mark.parametrize("seed", range(10))
def test_whatever_fails_and_restarts_the_other_host_has_every_record_once(
    tmp_path: Path, seed: int
) -> None:
    """Partial failures, new shippers and new receivers at random: equal records, in order, none twice."""
    dice = random.Random(seed)
    here, there = folder_of(tmp_path / "here"), folder_of(tmp_path / "there")
    host, clock = Host(here, SOURCE), FakeClock()
    target = FlakyTarget([dice.choice([None, 0, 3, 7]) for _ in range(20)])
    shipper, intake = shipper_of(here, target, clock), Ingest(there, clock, "a")
    for _ in range(40):
        host.write(dice.randrange(4))
        clock.advance(2)
        if dice.random() < 0.2:
            host.close(is_end=False)
            host.restart()
        if dice.random() < 0.2:
            shipper = shipper_of(here, target, clock)
        if dice.random() < 0.2:
            intake.close()
            intake = Ingest(there, clock, "a")
        shipper.round()
        intake.take(target.taken)
        target.taken = target.taken[-dice.randrange(1, 5) :]  # and some of it again
    host.write(1)
    while shipper.round() != ROUND_SECONDS:
        pass
    intake.take(target.taken)
    intake.close()

    assert records(there, SOURCE) == records(here, SOURCE)
