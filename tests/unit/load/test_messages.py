"""Messages before they are sent: partition by key, sequence number, size, and compressible share."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core import header
from soak.core.plan.load import Keys, Load, SizeShare
from soak.core.ports import Topics
from soak.core.units import SECOND_NS
from soak.load.producer.messages import (
    MAX_BLOCK_MESSAGES,
    STICKY_NS,
    Messages,
    message_bodies,
)
from tests.support.fakes import FakeBroker


def _messages(load: Load, topics: Topics, clients: int = 1) -> Messages:
    return Messages(load, topics, list(range(5, 5 + clients)), 1, 9, FakeBroker())


@pytest.mark.long
@settings(max_examples=25)
@given(
    st.sampled_from(["none", "round_robin", "random", "zipf"]),
    st.integers(1, 3),
    st.integers(1, 7),
    st.lists(
        st.tuples(st.integers(1, MAX_BLOCK_MESSAGES), st.integers(0, MAX_BLOCK_MESSAGES)),
        max_size=7,
    ),
)
def test_streams_are_numbered_without_gaps_whatever_the_client_accepts(
    kind: str, names: int, partitions: int, chunks: list[tuple[int, int]]
) -> None:
    topics = Topics(tuple(f"t{number}" for number in range(names)), partitions)
    keys = Keys(kind=kind, count=11)  # type: ignore[arg-type]  # sampled
    messages = _messages(Load(keys=keys), topics, clients=2)
    sent: dict[int, list[int]] = defaultdict(list)
    for turn, (count, refused) in enumerate(chunks):
        block = messages.block(turn % 2, np.arange(count) * 1000, turn * 7_000_000)
        accepted = max(0, count - refused)
        for part in (accepted // 3, accepted - accepted // 3):  # in two sends
            delay_ns = np.full(part, 5 + turn)
            out = block.stamped(delay_ns, 77 + turn, token=0)
            heads, is_ours = header.parse([bytes(one) for one in out.payload])
            assert is_ours.all()
            assert heads["sequence"].tolist() == block.sequence[block.sent :][:part].tolist()
            assert heads["intended_mono_ns"].tolist() == [
                1000 * at for at in range(block.sent, block.sent + part)
            ]
            assert set(heads["delay_ns"]) <= {5 + turn}
            assert set(heads["sent_wall_ns"]) <= {77 + turn}
            block.sent += part
        messages.drop(block)
        for stream, sequence, partition in zip(
            block.stream[:accepted].tolist(), block.sequence.tolist(), block.partition, strict=False
        ):
            assert stream == (turn % 2) * topics.total + partition
            sent[stream].append(sequence)

    assert all(numbers == list(range(len(numbers))) for numbers in sent.values())
    following = messages.next_sequences
    assert {stream: int(following[stream]) for stream in np.flatnonzero(following).tolist()} == {
        stream: len(numbers) for stream, numbers in sent.items()
    }


@pytest.mark.parametrize("clients", [2, 40, 300])
def test_a_block_of_one_client_stays_valid_while_others_prepare_theirs(clients: int) -> None:
    messages = _messages(Load(message_size=64 * 2**10), Topics(("t",), 2), clients)
    kept = messages.block(0, np.arange(MAX_BLOCK_MESSAGES), 0)
    for _ in range(3):
        for client in range(1, clients):
            messages.block(client, 1000 + np.arange(MAX_BLOCK_MESSAGES), 0)

    out = kept.stamped(np.zeros(kept.remaining, dtype=np.int64), 0, token=0)

    heads, _ = header.parse([bytes(one[: header.SIZE]) for one in out.payload])
    assert set(heads["instance"]) == {5}
    assert heads["intended_mono_ns"].tolist() == list(range(kept.remaining))


def test_a_key_goes_to_the_partition_of_the_client_librarys_partitioner() -> None:
    topics = Topics(("a", "b"), 5)
    messages = _messages(Load(keys=Keys(kind="round_robin", count=3)), topics)

    chunk = messages.block(0, np.arange(12), 0)

    assert chunk.key is not None
    assert list(chunk.key) == [f"key-{turn // 2 % 3}".encode() for turn in range(12)]
    assert [at // 5 for at in chunk.partition] == [0, 1] * 6
    assert all(at % 5 == sum(key) % 5 for at, key in zip(chunk.partition, chunk.key, strict=True))


@pytest.mark.parametrize("kind", ["round_robin", "random"])
def test_keys_and_topics_of_dropped_messages_get_their_turn_again(
    kind: Literal["round_robin", "random"],
) -> None:
    """A full queue accepts 20 of each block; still all 64 keys, or topics, are used equally."""
    is_turns = kind == "round_robin"
    topics = Topics(("t",) if is_turns else tuple(f"t{at}" for at in range(64)), 1)
    messages = _messages(Load(keys=Keys(kind=kind, count=64)), topics)
    sent: Counter[object] = Counter()
    for turn in range(160):
        block = messages.block(0, turn + np.arange(MAX_BLOCK_MESSAGES), 0)
        sent.update((block.key or ())[:20] if is_turns else block.partition[:20])
        block.sent = 20
        messages.drop(block)

    assert set(sent.values()) == {50}
    assert len(sent) == 64


def test_turns_of_a_paused_partition_go_to_the_others() -> None:
    """For 10 ms; messages dropped from the block get their turns again."""
    messages = _messages(Load(keys=Keys(kind="round_robin", count=5)), Topics(("t",), 3))
    block = messages.block(0, np.arange(9), 0)
    keys, partition = list(block.key or ()), list(block.partition)
    block.sent, full = 2, partition[2]
    messages.drop(block)
    is_another_open = messages.pause_partition(0, full, 0)
    after = messages.block(0, np.arange(4), 9_999_999)
    expected = [one for one, at in zip(keys[2:] * 2, partition[2:] * 2, strict=True) if at != full]
    messages.drop(after)

    assert is_another_open
    assert list(after.key or ()) == expected[:4]
    assert full in messages.block(0, np.arange(9), 10_000_000).partition


def test_when_all_partitions_are_paused_messages_are_still_laid_out() -> None:
    """`pause_partition` returns False when no other partition is open, or it was paused already."""
    messages = _messages(Load(keys=Keys(kind="round_robin", count=5)), Topics(("t",), 2))

    assert messages.pause_partition(0, 0, 0)
    assert not messages.pause_partition(0, 0, 5)
    assert not messages.pause_partition(0, 1, 5)
    assert len(messages.block(0, np.arange(4), 6).partition) == 4


def test_zipf_gives_the_first_key_its_share() -> None:
    """With exponent 1 and 10 keys the first has 1 / (1 + 1/2 + ... + 1/10) = 34.1 % of the messages."""
    messages = _messages(Load(keys=Keys(kind="zipf", count=10)), Topics(("t",), 1))
    seen: Counter[bytes] = Counter()
    for turn in range(100):
        seen.update(messages.block(0, np.arange(200), turn).key or ())

    assert seen[b"key-0"] / seen.total() == pytest.approx(0.341, abs=0.02)


def test_sizes_have_their_shares() -> None:
    load = Load(message_sizes=(SizeShare(size=128, share=3), SizeShare(size=1024, share=1)))
    made = Counter(
        len(body) + header.SIZE for body in message_bodies(load, np.random.default_rng(7))
    )

    assert made[128] == 3 * made[1024]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_compression_achieves_the_compressible_share(share: float) -> None:
    pool = message_bodies(Load(compressible=share), np.random.default_rng(7))[:97]

    packed = len(zlib.compress(b"".join(pool)))

    assert packed / sum(map(len, pool)) == pytest.approx(1 - share, abs=0.08)


def test_clients_without_keys_use_partitions_equally_each_in_its_own_order() -> None:
    messages = _messages(Load(), Topics(("a", "b"), 4), clients=5)
    partitions = [
        [messages.block(client, np.arange(3), slot * STICKY_NS).partition for slot in range(24)]
        for client in range(5)
    ]

    for one in partitions:
        assert all(len(set(partition)) == 1 for partition in one)
        assert Counter(partition[0] for partition in one) == dict.fromkeys(range(8), 3)
    assert len({tuple(partition[0] for partition in one) for one in partitions}) == 5


def test_a_block_ends_with_its_slot_and_holds_at_least_one_message() -> None:
    """With a message every millisecond, the remainder of a slot; then a message due long after it."""
    messages = _messages(Load(), Topics(("t",), 8))

    blocks = [messages.block(0, np.arange(100) * 1_000_000, 0) for _ in range(2)]
    late = messages.block(0, np.arange(100) * SECOND_NS + SECOND_NS, 0)

    assert [block.remaining for block in blocks] == [blocks[0].remaining] * 2
    assert 1 <= blocks[0].remaining <= 10
    assert late.remaining == 1
