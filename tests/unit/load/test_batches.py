"""Merging and splitting batches."""

from __future__ import annotations

import dataclasses

import numpy as np

from soak.core import header
from soak.core.ports import Batch, Heads
from soak.load.consumer.interval import merge_batches, split_batch

WALL_AHEAD_NS = 10**18


def batch(heads: Heads, at_ns: int, came_ns: list[int] | None = None) -> Batch:
    numbers = np.arange(len(heads))
    came = None if came_ns is None else np.array(came_ns)
    wall_ns = at_ns + WALL_AHEAD_NS
    return Batch(heads, numbers, numbers, at_ns, wall_ns, came_mono_ns=came)


def test_each_message_keeps_its_arrival_time() -> None:
    """One batch that arrived at once, and one that was collected over a while."""
    merged = merge_batches([batch([b"a", b"b"], 7), batch([b"c", b"d", b"e"], 30, [11, 11, 29])])

    assert merged.heads == [b"a", b"b", b"c", b"d", b"e"]
    assert merged.at_mono_ns.tolist() == [7, 7, 11, 11, 29]
    assert (merged.at_wall_ns - merged.at_mono_ns).tolist() == [WALL_AHEAD_NS] * 5


def test_counts_of_a_whole_batch_go_with_the_later_part() -> None:
    whole = dataclasses.replace(batch([b"a", b"b", b"c"], 30, [11, 19, 20]), redelivered=3)
    before, after = split_batch(whole, 20)

    assert (list(before.heads), before.redelivered) == ([b"a", b"b"], 0)
    assert (list(after.heads), after.redelivered) == ([b"c"], 3)
    assert merge_batches([before, after]).at_mono_ns.tolist() == [11, 19, 20]
    assert merge_batches([before, after]).offset.tolist() == [0, 1, 2]


def test_a_batch_that_arrived_at_once_is_not_split() -> None:
    whole = batch([b"a", b"b"], 30)

    assert [len(part.heads) for part in split_batch(whole, 30)] == [0, 2]
    assert [len(part.heads) for part in split_batch(whole, 31)] == [2, 0]


def test_heads_in_arrays_stay_one_array() -> None:
    block = header.headers(5, instance=3, epoch=1, boot=9)
    heads = block.view(np.dtype((np.void, header.SIZE)))

    merged = merge_batches([batch(heads[:2], 1), batch(heads[2:], 2)])

    found, is_ours = header.parse(merged.heads)
    assert is_ours.all()
    assert found.tobytes() == block.tobytes()
