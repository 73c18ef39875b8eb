"""Sums of records by second, and the backlog that they add up to."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from soak.conductor.load_records import LOAD_SOURCES, Backlog, LoadIntervals
from soak.core.journal_format import columns_line
from soak.core.model import Column, Record
from soak.core.plan.load import Consumers, process_index
from soak.runtime.recorder import quantile_column
from soak.store.journal.tail import Tail
from soak.store.journal.writer import JournalWriter
from tests.support.fakes import FakeClock

PRODUCED = (
    *(Column(f"{name}_messages") for name in ("sent", "acked", "missed", "in_flight")),
    quantile_column("publish_latency_seconds", "0.99"),
    quantile_column("schedule_lag_seconds", "0.5"),
)
ACKED = (Column("acked_messages"),)
CONSUMED = (Column("received_messages"), Column("lag_messages"))


def record_at(k: int, values: tuple[float, ...], epoch: int = 1, reason: str = "") -> Record:
    return Record(k, epoch, 0, 0, "c", values, validity={"reason": reason})


def test_messages_are_summed_and_the_slowest_latency_counts() -> None:
    intervals = LoadIntervals(Consumers(subscriptions=2, per_subscription=2))
    intervals.add("produce.0@h", record_at(7, (10, 9, 0, 1, 0.5, 0.1)), PRODUCED)
    intervals.add(
        "produce.1@h", record_at(7, (20, 18, 3, 2, 0.2, 0.3), reason="queue_full"), PRODUCED
    )
    for index, lag in enumerate((1.0, 2.0, 4.0)):
        intervals.add(f"consume.{index}@h", record_at(7, (10.0, lag)), CONSUMED)
    intervals.add("consume.4@h", record_at(7, (10.0, 9.0), reason="unplanned"), CONSUMED)

    found = intervals.at(7)

    assert (found.producers, found.consumers, found.invalid) == (2, 3, "queue_full")
    assert (found.sent, found.acked, found.skipped, found.in_flight) == (30, 27, 3, 3)
    assert (found.publish_p99, found.schedule_lag) == (0.5, 0.3)
    assert (found.received, found.lag) == ({0: 20, 1: 10}, {0: 3, 1: 4})


def test_without_acknowledgements_latency_is_infinite_only_while_messages_are_in_flight() -> None:
    intervals = LoadIntervals(Consumers())
    for k, in_flight in ((0, 0.0), (1, 5.0)):
        intervals.add(
            "produce.0@h", record_at(k, (0, 0, 0, in_flight, math.nan, math.nan)), PRODUCED
        )

    assert [intervals.at(k).publish_p99 for k in (0, 1, 2)] == [0.0, math.inf, 0.0]


def test_the_source_contains_the_number_of_the_process() -> None:
    assert [process_index(name) for name in ("consume.3@host-1.org", "produce.12@h")] == [3, 12]


def test_a_tail_yields_each_record_once_from_its_first_second(tmp_path: Path) -> None:
    """Through a restart of the daemon, new files and a late source; probes are left out."""
    clock = FakeClock()
    found: list[tuple[str, int]] = []
    tail, name = Tail(tmp_path, LOAD_SOURCES, 5), columns_line(CONSUMED).id

    def write(source: str, seconds: range) -> None:
        writer = JournalWriter(tmp_path / source, clock).open()
        for k in seconds:
            record = replace(record_at(k, (1.0, 2.0), writer.epoch), columns_id=name)
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


def backlog_of(remaining: NDArray[np.floating[Any]]) -> Backlog:
    backlog = Backlog(Consumers())
    for k, messages in enumerate(remaining.tolist()):
        backlog.note(k, messages)
    return backlog


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_drain_that_ends_in_time_is_not_given_up(seed: int) -> None:
    """100,000 messages fall by 250 a second: drained after 400 s of 600, with noise of a tenth."""
    rng = np.random.default_rng(seed)
    k = np.arange(380)
    remaining = 100_000 - 250.0 * k + rng.normal(0, 1000, k.size)
    backlog = Backlog(Consumers())
    given_up = []
    for at, messages in enumerate(remaining.tolist()):
        backlog.note(at, messages)
        given_up.append(backlog.never_drains(2000.0, 600))

    assert not any(given_up)


def test_a_trend_needs_enough_points_that_agree() -> None:
    growing = 1000 + 10.0 * np.arange(60)

    assert not backlog_of(growing[:40]).never_drains(10, 600)
    assert backlog_of(growing[:41]).never_drains(10, 600)
    assert not backlog_of(5000 - 10.0 * np.arange(60)).never_drains(10, 600)
    assert backlog_of(5000 - 1.0 * np.arange(60)).never_drains(10, 600)


def test_messages_deleted_by_retention_do_not_count_as_unread() -> None:
    """3,000 were acknowledged and 1,000 received, but the consumer itself reports a lag of 50."""
    backlog = Backlog(Consumers())
    sent = Record(20, 1, 0, 0, "", (3000.0,))
    read = Record(20, 1, 0, 0, "", (1000.0, 50.0))
    backlog.add("produce.0@h", sent, ACKED, is_building=True)
    backlog.add("consume.0@h", read, CONSUMED, is_building=False)

    assert (backlog.built, backlog.remaining()) == (3000, 2000)
    assert (backlog.remaining(drain_k=16), backlog.remaining(drain_k=15)) == (2000, 50)


def test_the_lag_before_a_catch_up_is_part_of_its_backlog() -> None:
    """50,000 were unread before; 30,000 are built, then 300 a second more are read than written."""
    backlog = Backlog(Consumers(), build_k=20)
    truth, built = 50_000.0, 0.0
    for k in range(15, 100):
        is_building = 20 <= k < 50
        received = 0.0 if is_building else 1000.0 if k < 20 else 1300.0
        truth += 1000.0 - received
        lag = math.nan if is_building else truth
        backlog.add(
            "produce.0@h", Record(k, 1, 0, 0, "", (1000.0,)), ACKED, is_building=is_building
        )
        read = Record(k, 1, 0, 0, "", (received, lag))
        backlog.add("consume.0@h", read, CONSUMED, is_building=is_building)
        if k == 49:
            built = backlog.remaining()
        if k == 52:
            assert backlog.remaining(drain_k=50) == truth

    assert (built, backlog.built, backlog.remaining(drain_k=50)) == (80_000, 80_000, truth)


def test_a_reported_lag_above_the_count_is_used() -> None:
    """The lag before the catch-up was unknown."""
    backlog = Backlog(Consumers(), build_k=20)
    backlog.add("consume.0@h", Record(30, 1, 0, 0, "", (1.0, 777.0)), CONSUMED, is_building=False)

    assert backlog.remaining(drain_k=20) == 777


def test_a_silent_consumer_makes_the_count_replace_the_reported_lag() -> None:
    """Of two consumers of a subscription one has no lag, the other has not reported for long."""
    backlog = Backlog(Consumers(per_subscription=2))
    for k, name in ((20, "consume.1@h"), (30, "consume.0@h")):
        read = Record(k, 1, 0, 0, "", (1000.0, 0.0))
        backlog.add(name, read, CONSUMED, is_building=False)
    sent = Record(30, 1, 0, 0, "", (3000.0,))
    backlog.add("produce.0@h", sent, ACKED, is_building=False)

    assert backlog.remaining(drain_k=10) == 1000


def test_a_consumer_that_the_plan_does_not_have_does_not_change_the_backlog() -> None:
    backlog = Backlog(Consumers(), build_k=1)

    for k in range(2):
        backlog.add("consume.3@h", record_at(k, (5.0, 7.0)), CONSUMED, is_building=False)

    assert backlog.remaining() == 0.0
