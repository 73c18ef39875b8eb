"""Messages of others in the topic of a run: bounded streams, linear work, and nothing odd in a record."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from soak.core import header
from soak.core.ports import EARLIEST
from soak.load.consumer.sequence_tracker import MAX_PRODUCERS, SequenceTracker
from tests.support.hostile_servers import rounds

BATCH = 2000


def forged(instances: NDArray[np.int64]) -> NDArray[np.void]:
    block = header.headers(instances.size, 0, 1, 1, run=7)
    block["instance"] = instances
    return block


def received(tracker: SequenceTracker, block: NDArray[np.void], offset: int) -> int:
    """Take a batch as a consumer does; return how many messages count as of the run."""
    parsed, is_ours = header.parse(block.view(f"V{header.SIZE}"), 7)
    is_ours = tracker.admitted(parsed, is_ours)
    offsets = np.arange(offset, offset + block.size, dtype=np.int64)
    tracker.add(parsed, is_ours, np.zeros(block.size, dtype=np.int64), offsets)
    tracker.take_spans()
    return int(is_ours.sum())


@pytest.mark.long
def test_a_hundred_thousand_foreign_producers_cost_linear_time_and_bounded_memory() -> None:
    """The first ones are kept, as they may be of the run; the streams of the run itself go on."""
    tracker = SequenceTracker({0: EARLIEST})
    own = header.headers(1, 2**31, 1, 1, run=7)
    received(tracker, own, 0)
    seconds = []
    for number in range(50):
        begin = time.perf_counter()
        received(tracker, forged(np.arange(BATCH) + number * BATCH), 1 + number * BATCH)
        seconds.append(time.perf_counter() - begin)
    own["sequence"] = 1

    assert len(tracker.streams) == MAX_PRODUCERS
    assert received(tracker, own, 1 + 50 * BATCH) == 1
    assert min(seconds[40:]) < 20 * min(seconds[:5]) + 0.05


@pytest.mark.long
@pytest.mark.parametrize("is_own", [False, True])
def test_a_producer_of_the_plan_may_start_anew_after_a_flood(*, is_own: bool) -> None:
    """Its messages would be lost ones otherwise; strangers have no room left."""
    tracker = SequenceTracker({0: EARLIEST}, own=frozenset({2**31}))
    for number in range(12):
        received(tracker, forged(np.arange(BATCH) + number * BATCH), number * BATCH)
    block = forged(np.full(3, 2**31 if is_own else 2**31 + 1))
    block["epoch"] = (1, 2, 3)

    assert received(tracker, block, 12 * BATCH) == (3 if is_own else 0)


@pytest.mark.long
def test_the_room_of_the_producers_of_the_plan_has_a_bound_too() -> None:
    """A stranger may use their name, with any epoch."""
    tracker = SequenceTracker({0: EARLIEST}, own=frozenset({2**31}))
    for number in range(30):
        block = forged(np.full(BATCH, 2**31))
        block["epoch"] = np.arange(BATCH) + number * BATCH
        received(tracker, block, number * BATCH)

    assert len(tracker.streams) == MAX_PRODUCERS


def test_a_sequence_number_of_no_producer_is_not_of_the_run() -> None:
    """It would be negative in a record, which no report reads."""
    tracker = SequenceTracker({0: EARLIEST})
    block = header.headers(3, 1, 1, 1, run=7)
    block["sequence"] = (0, 2**63, 2**64 - 1)

    assert received(tracker, block, 0) == 1
    assert tracker.streams["1.1.0"].maximum == 0


def test_any_bytes_are_foreign_or_of_the_run() -> None:
    """Random headers, some with the marks of the run: spans ascend, and none is negative."""
    for source in rounds("messages", 30):
        rng = np.random.default_rng(source.getrandbits(32))
        heads = rng.integers(0, 256, (64, header.SIZE), dtype=np.uint8)
        heads[: source.randint(0, 64), :4] = np.frombuffer(
            header.headers(1, 0, 0, 0, run=7).tobytes()[:4], dtype=np.uint8
        )
        block, is_ours = header.parse(heads.reshape(-1).view(f"V{header.SIZE}"), 7)
        tracker = SequenceTracker({0: EARLIEST})
        tracker.add(
            block, tracker.admitted(block, is_ours), np.zeros(64, dtype=np.int64), np.arange(64)
        )
        spans = [span for every in tracker.take_spans().values() for span in every]
        assert all(0 <= first <= last for first, last, *_ in spans)
