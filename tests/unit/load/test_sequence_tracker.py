"""What a consumer has received: rereads, duplicates, and gaps while the broker does not answer."""

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

STREAM = "5.1.0"
COLUMNS = columns_line(())


class SilentConsumer(FakeConsumer):
    """A client whose cluster does not answer requests for the bounds of its logs."""

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        raise BrokerError(f"no bounds of {partitions}")


SILENT, CLOCK = SilentConsumer([], {}), FakeClock()


def add(
    tracker: SequenceTracker, rows: Sequence[tuple[int, int]], instances: Sequence[int] = (5,)
) -> SequenceCounts:
    """Add messages (sequence, offset) of partition 0."""
    block = header.headers(len(rows), 5, 1, 9).copy()
    block["sequence"] = [sequence for sequence, _ in rows]
    block["instance"] = np.resize(instances, len(rows))
    offset = np.array([offset for _, offset in rows], dtype=np.int64)
    is_ours = np.ones(len(rows), dtype=np.bool_)
    return tracker.add(block, is_ours, np.zeros(len(rows), dtype=np.int64), offset)


def audited(tracker: SequenceTracker, *events: Event) -> dict[str, int | None]:
    """Judge 100 messages that were acknowledged at offsets 0 to 99 by what the tracker received."""
    audit = Audit()
    sent = {STREAM: ((0, 99, 0, 99),)}
    audit.add(Record(0, 1, 0, 0, "", (), acknowledged=sent), ())
    audit.add(Record(1, 1, 0, 0, "", (), received=tracker.take_spans(), events=events), ())
    audit.ended(5, 1)
    return {key: count for key, count in audit.verdict().items() if count}


def with_gap_of_23() -> SequenceTracker:
    tracker = SequenceTracker({0: EARLIEST})
    add(tracker, [(at, at) for at in (*range(50), *range(73, 100))])
    return tracker


def test_every_instance_number_has_a_stream_of_its_own() -> None:
    """An instance number is a crc32, so half of them have the highest bit set."""
    tracker = SequenceTracker({0: EARLIEST})

    add(tracker, [(0, 0), (1, 1)], [2**32 - 1, 2**31])

    assert set(tracker.take_spans()) == {f"{2**32 - 1}.1.0", f"{2**31}.1.0"}


def test_messages_of_a_truncated_log_are_reread_and_not_duplicated() -> None:
    """The client went back to the start of the log, in the next batch and within one."""
    tracker = SequenceTracker({0: EARLIEST})
    add(tracker, [(at, at) for at in range(100)])

    apart = add(tracker, [(at, at) for at in range(40, 90)])
    within = add(tracker, [*((at, at) for at in range(100, 120)), (110, 110), (7, 7), (8, 120)])

    assert (apart.reread, apart.duplicated) == (50, 0)
    assert (within.reread, within.duplicated) == (2, 1)
    assert tracker.positions == {0: 121}


def test_reread_messages_at_the_end_of_a_batch_do_not_move_the_position_back() -> None:
    tracker = SequenceTracker({0: EARLIEST})
    add(tracker, [(at, at) for at in (*range(100), *range(40, 60))])

    counts = add(tracker, [(at, at) for at in range(60, 120)])

    assert (counts.reread, counts.duplicated) == (40, 0)
    assert tracker.positions == {0: 120}


def test_new_messages_are_marked_in_order_of_arrival() -> None:
    tracker = SequenceTracker({0: EARLIEST, 1: EARLIEST})
    block = header.headers(6, 5, 1, 9)
    block["sequence"] = [0, 0, 1, 0, 1, 2]
    partition = np.array([1, 0, 1, 1, 0, 1])
    offset = np.array([0, 0, 1, 0, 1, 2])
    counts = tracker.add(block, np.ones(6, dtype=np.bool_), partition, offset)

    assert counts.is_new.tolist() == [True, True, True, False, True, True]


def test_with_sparse_offsets_only_whole_blocks_can_be_expired() -> None:
    """Blocks of 16: offsets 3 and 9 are in block 0, 37 in block 2, with which the log now begins."""
    tracker = SequenceTracker({0: EARLIEST}, block_bits=4)

    add(tracker, [(0, 3), (1, 9), (5, 37), (6, 44)])
    events = tracker.take_events(FakeConsumer([], {0: (32, 48)}), CLOCK)

    assert [dict(event.fields) for event in events] == [
        {"partition": 0, "from_offset": 10, "to_offset": 32}
    ]


def test_a_slow_cluster_is_not_asked_every_second() -> None:
    """The request blocks the consumer: it takes 5 s, and the next one follows after 50 s."""
    clock, asked = FakeClock(), list[int]()

    class SlowConsumer(FakeConsumer):
        def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
            asked.append(clock.mono_ns() // 10**9)
            clock.advance(5.0)
            raise BrokerError(f"no bounds of {partitions}")

    tracker, consumer = with_gap_of_23(), SlowConsumer([], {})
    (first,) = tracker.take_events(consumer, clock)
    for at in range(100, 103):
        add(tracker, [(at + 20, at + 20)])
        later = tracker.take_events(consumer, clock)
        clock.advance(30.0)

    assert asked == [0, 65]
    assert first.kind == "offset_gap"
    assert later == []


def test_messages_in_a_gap_are_unknown_while_the_broker_does_not_answer() -> None:
    tracker = with_gap_of_23()

    (event,) = tracker.take_events(SILENT, CLOCK)

    assert tracker.take_events(SILENT, CLOCK) == []
    assert audited(tracker, event) == {"acked": 100, "received": 77, "unknown": 23}


@pytest.mark.parametrize(("low", "expired", "lost"), [(0, 0, 23), (60, 10, 13), (90, 23, 0)])
def test_messages_in_a_gap_are_lost_or_expired_once_the_broker_answers(
    low: int, expired: int, lost: int
) -> None:
    tracker = with_gap_of_23()
    events = tracker.take_events(SILENT, CLOCK)

    events += tracker.take_events(FakeConsumer([], {0: (low, 100)}), CLOCK)

    verdict = audited(tracker, *events)
    assert verdict.get("unknown", 0) == 0
    assert (verdict.get("expired", 0), verdict.get("lost", 0)) == (expired, lost)


def test_a_restarted_consumer_asks_again_about_a_recorded_gap(tmp_path: Path) -> None:
    first = with_gap_of_23()
    events = tuple(first.take_events(SILENT, CLOCK))
    record = Record(0, 1, 1, 1, COLUMNS.id, (), received=first.take_spans(), events=events)
    write_journal(tmp_path, encode(COLUMNS) + encode(record))

    again, _ = restore_tracker(tmp_path, "consume.0@h", {0: EARLIEST})
    found = again.take_events(FakeConsumer([], {0: (90, 100)}), CLOCK)

    assert [event.kind for event in found] == ["offset_gap_resolved", "expired"]
    assert again.take_events(SILENT, CLOCK) == []


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """It must not be taken for the journal of a run that has just begun."""
    body = b'{"t":"c","version":9,"id":"0","columns":[]}'
    write_journal(tmp_path, b"%s\t%08x\n" % (body, zlib.crc32(body)))

    with pytest.raises(JournalError, match="journal of version 9"):
        restore_tracker(tmp_path, "consume.0@h", {0: EARLIEST})


def write_journal(path: Path, raw: bytes) -> None:
    folder = path / "consume.0@h"
    folder.mkdir()
    (folder / "000000.jsonl").write_bytes(raw)
