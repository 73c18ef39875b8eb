"""What a consumer makes of odd offsets: read again, missing, missing while the broker says nothing."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from soak.core import header
from soak.core.audit import Audit
from soak.core.errors import BrokerError, JournalError
from soak.core.journal_format import columns_line, encode
from soak.core.model import Event, Record
from soak.core.ports import EARLIEST
from soak.load.consumer.sequence_tracker import SequenceCounts, SequenceTracker, restore_tracker
from tests.support.fakes import FakeClock, FakeConsumer

LANE = "5.1.0"
COLUMNS = columns_line(())


class SilentConsumer(FakeConsumer):
    """One whose cluster does not say where its logs begin and end."""

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        raise BrokerError(f"no bounds of {partitions}")


def _note(received: SequenceTracker, rows: Sequence[tuple[int, int]]) -> SequenceCounts:
    """Let messages (sequence, offset) of one lane arrive in partition 0."""
    block = header.headers(len(rows), 5, 1, 9)
    block["sequence"] = [sequence for sequence, _ in rows]
    offset = np.array([offset for _, offset in rows], dtype=np.int64)
    is_ours = np.ones(len(rows), dtype=np.bool_)
    return received.add(block, is_ours, np.zeros(len(rows), dtype=np.int64), offset)


def _audited(received: SequenceTracker, *events: Event) -> dict[str, int | None]:
    """Judge 100 messages that were acknowledged at offsets 0 to 99, and what of them was received."""
    audit = Audit()
    sent = {LANE: ((0, 99, 0, 99),)}
    audit.add(Record(0, 1, 0, 0, "", (), acknowledged=sent), ())
    audit.add(Record(1, 1, 0, 0, "", (), received=received.take_spans(), events=events), ())
    audit.ended(5, 1)
    return {key: count for key, count in audit.verdict().items() if count}


def _hole_of_23() -> SequenceTracker:
    received = SequenceTracker({0: EARLIEST})
    _note(received, [(at, at) for at in (*range(50), *range(73, 100))])
    return received


SILENT, CLOCK = SilentConsumer([], {}), FakeClock()


def test_what_a_log_that_was_cut_short_gives_again_is_reread_and_no_duplicate() -> None:
    """The client came back to the log's begin, in the next batch and within one."""
    received = SequenceTracker({0: EARLIEST})
    _note(received, [(at, at) for at in range(100)])

    apart = _note(received, [(at, at) for at in range(40, 90)])
    within = _note(received, [*((at, at) for at in range(100, 120)), (110, 110), (7, 7), (8, 120)])

    assert (apart.reread, apart.duplicated) == (50, 0)
    assert (within.reread, within.duplicated) == (2, 1)
    assert received.positions == {0: 121}


def test_what_is_read_again_last_in_a_lot_takes_no_position_back() -> None:
    """What follows has been read as well: it is no duplicate of the cluster's."""
    received = SequenceTracker({0: EARLIEST})
    _note(received, [(at, at) for at in (*range(100), *range(40, 60))])

    counts = _note(received, [(at, at) for at in range(60, 120)])

    assert (counts.reread, counts.duplicated) == (40, 0)
    assert received.positions == {0: 120}


def test_what_is_new_is_told_in_the_order_of_arrival() -> None:
    received = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    block = header.headers(6, 5, 1, 9)
    block["sequence"] = [0, 0, 1, 0, 1, 2]
    partition = np.array([1, 0, 1, 1, 0, 1])
    offset = np.array([0, 0, 1, 0, 1, 2])
    counts = received.add(block, np.ones(6, dtype=np.bool_), partition, offset)

    assert counts.is_new.tolist() == [True, True, True, False, True, True]


def test_a_cluster_that_lets_us_wait_is_not_asked_each_second() -> None:
    """Nothing is read meanwhile: the first question takes 5 s, and the next comes 50 s after its answer."""
    clock, asked = FakeClock(), list[int]()

    class Slow(FakeConsumer):
        def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
            asked.append(clock.mono_ns() // 10**9)
            clock.advance(5.0)
            raise BrokerError(f"no bounds of {partitions}")

    received, consumer = _hole_of_23(), Slow([], {})
    (told,) = received.take_events(consumer, clock)
    for at in range(100, 103):
        _note(received, [(at + 20, at + 20)])
        told_later = received.take_events(consumer, clock)
        clock.advance(30.0)

    assert asked == [0, 65]
    assert told.kind == "offset_gap"
    assert told_later == []


def test_a_hole_is_unknown_while_the_broker_does_not_answer() -> None:
    received = _hole_of_23()

    (told,) = received.take_events(SILENT, CLOCK)

    assert received.take_events(SILENT, CLOCK) == []
    assert _audited(received, told) == {"acked": 100, "received": 77, "unknown": 23}


@pytest.mark.parametrize(("low", "expired", "lost"), [(0, 0, 23), (60, 10, 13), (90, 23, 0)])
def test_a_hole_is_lost_or_expired_as_soon_as_the_broker_answers(
    low: int, expired: int, lost: int
) -> None:
    received = _hole_of_23()
    told = received.take_events(SILENT, CLOCK)

    told += received.take_events(FakeConsumer([], {0: (low, 100)}), CLOCK)

    verdict = _audited(received, *told)
    assert verdict.get("unknown", 0) == 0
    assert (verdict.get("expired", 0), verdict.get("lost", 0)) == (expired, lost)


def test_a_consumer_that_was_killed_asks_again_about_the_hole_that_it_told_of(
    tmp_path: Path,
) -> None:
    first = _hole_of_23()
    events = tuple(first.take_events(SILENT, CLOCK))
    record = Record(0, 1, 1, 1, COLUMNS.id, (), received=first.take_spans(), events=events)
    _journal(tmp_path, encode(COLUMNS) + encode(record))

    again, _ = restore_tracker(tmp_path, "consume.0@h", {0: EARLIEST})
    found = again.take_events(FakeConsumer([], {0: (90, 100)}), CLOCK)

    assert [event.kind for event in found] == ["offset_gap_resolved", "expired"]
    assert again.take_events(SILENT, CLOCK) == []


def test_a_journal_of_a_newer_version_is_not_taken_for_the_begin_of_a_run(tmp_path: Path) -> None:
    body = b'{"t":"c","version":9,"id":"0","columns":[]}'
    _journal(tmp_path, b"%s\t%08x\n" % (body, zlib.crc32(body)))

    with pytest.raises(JournalError, match="journal of version 9"):
        restore_tracker(tmp_path, "consume.0@h", {0: EARLIEST})


def _journal(path: Path, raw: bytes) -> None:
    folder = path / "consume.0@h"
    folder.mkdir()
    (folder / "000000.jsonl").write_bytes(raw)
