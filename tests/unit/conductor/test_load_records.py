from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from soak.conductor.load_records import LOAD_SOURCES, LoadIntervals
from soak.core.journal_format import columns_line
from soak.core.model import Column, Record
from soak.core.plan.load import process_index
from soak.runtime.recorder import quantile_column
from soak.store.journal.tail import Tail
from soak.store.journal.writer import JournalWriter
from tests.support.fakes import FakeClock

PRODUCED = (
    *(Column(f"{name}_messages") for name in ("sent", "acked", "missed", "in_flight")),
    quantile_column("publish_latency_seconds", "0.99"),
    quantile_column("schedule_lag_seconds", "0.5"),
)
CONSUMED = (Column("received_messages"), Column("lag_messages"))


def _record(k: int, values: tuple[float, ...], epoch: int = 1, reason: str = "") -> Record:
    return Record(k, epoch, 0, 0, "c", values, validity={"reason": reason})


def test_messages_are_summed_and_latencies_are_the_slowest() -> None:
    seconds = LoadIntervals(lambda index: index // 2)
    seconds.add("produce.0@h", _record(7, (10, 9, 0, 1, 0.5, 0.1)), PRODUCED)
    seconds.add("produce.1@h", _record(7, (20, 18, 3, 2, 0.2, 0.3), reason="queue_full"), PRODUCED)
    for index, lag in enumerate((1.0, 2.0, 4.0)):
        seconds.add(f"consume.{index}@h", _record(7, (10.0, lag)), CONSUMED)

    found = seconds.at(7)

    assert (found.producers, found.consumers, found.invalid) == (2, 3, "queue_full")
    assert (found.sent, found.acked, found.skipped, found.in_flight) == (30, 27, 3, 3)
    assert (found.publish_p99, found.schedule_lag) == (0.5, 0.3)
    assert (found.received, found.lag) == ({0: 20, 1: 10}, {0: 3, 1: 4})


def test_silence_is_an_endless_latency_only_while_something_is_out() -> None:
    seconds = LoadIntervals(lambda index: index)
    for k, out in ((0, 0.0), (1, 5.0)):
        seconds.add("produce.0@h", _record(k, (0, 0, 0, out, math.nan, math.nan)), PRODUCED)

    assert [seconds.at(k).publish_p99 for k in (0, 1, 2)] == [0.0, math.inf, 0.0]


def test_the_number_of_a_process_stands_in_its_source() -> None:
    assert [process_index(name) for name in ("consume.3@host-1.org", "produce.12@h")] == [3, 12]


def test_a_tail_gives_each_record_once_from_its_second_on(tmp_path: Path) -> None:
    """Through a restart of the daemon, new files and a source that begins late; no probe among them."""
    clock = FakeClock()
    found: list[tuple[str, int]] = []
    tail, name = Tail(tmp_path, LOAD_SOURCES, 5), columns_line(CONSUMED).id

    def write(source: str, seconds: range) -> None:
        writer = JournalWriter(tmp_path / source, clock).open()
        for k in seconds:
            record = replace(_record(k, (1.0, 2.0), writer.epoch), columns_id=name)
            writer.append(record, CONSUMED)
            found.extend((one, read.k) for one, read, _ in tail.poll())
        writer.close(is_end=False)

    write("consume.0@h", range(9))
    write("probe@h", range(9))
    write("consume.0@h", range(9, 12))
    write("produce.0@h", range(8, 11))

    assert found == [
        *(("consume.0@h", k) for k in range(5, 12)),
        *(("produce.0@h", k) for k in range(8, 11)),
    ]
    assert [record.k for _, record, _ in Tail(tmp_path, ("consume.",), 10).poll()] == [10, 11]
