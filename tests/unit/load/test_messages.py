"""What a message is made of: partition by key, number in its lane, size, and a compressible share."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from itertools import combinations
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from soak.brokers.kafka.producer import fnv1a, murmur2, partition_of
from soak.core import header
from soak.core.errors import BrokerError, SettingError
from soak.core.plan.load import Keys, Load, SizeShare
from soak.core.ports import Topics
from soak.core.units import SECOND_NS
from soak.load.latency import LatencyByLeader
from soak.load.leaders import Leaders
from soak.load.producer.messages import (
    MAX_BLOCK_MESSAGES,
    STICKY_NS,
    Messages,
    PartitionChoice,
    message_bodies,
)
from tests.support.fakes import FakeBroker


def _messages(load: Load, topics: Topics, clients: int = 1) -> Messages:
    return Messages(load, topics, list(range(5, 5 + clients)), 1, 9, FakeBroker())


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_the_java_clients(key: bytes, hashed: int) -> None:
    """Values of the Java client's own test, as signed 32-bit numbers."""
    assert murmur2(key) == hashed % 2**32


def test_each_partitioner_is_the_clients_own() -> None:
    assert fnv1a(b"foobar") == 0xBF9CF968
    assert partition_of(b"foobar", 7, "murmur2_random") == (-790332482 & 0x7FFFFFFF) % 7
    assert partition_of(b"foobar", 7, "consistent_random") == zlib.crc32(b"foobar") % 7
    with pytest.raises(SettingError, match="gives a key no partition"):
        partition_of(b"foobar", 7, "random")


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
def test_lanes_are_numbered_without_a_gap_whatever_the_client_takes(
    kind: str, names: int, partitions: int, chunks: list[tuple[int, int]]
) -> None:
    topics = Topics(tuple(f"t{number}" for number in range(names)), partitions)
    keys = Keys(kind=kind, count=11)  # type: ignore[arg-type]  # sampled
    messages = _messages(Load(keys=keys), topics, clients=2)
    sent: dict[int, list[int]] = defaultdict(list)
    for turn, (count, refused) in enumerate(chunks):
        block = messages.block(turn % 2, np.arange(count) * 1000, turn * 7_000_000)
        taken = max(0, count - refused)
        for part in (taken // 3, taken - taken // 3):  # sent at two times
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
            block.stream[:taken].tolist(), block.sequence.tolist(), block.partition, strict=False
        ):
            assert stream == (turn % 2) * topics.total + partition
            sent[stream].append(sequence)

    assert all(numbers == list(range(len(numbers))) for numbers in sent.values())
    following = messages.next_sequences
    assert {stream: int(following[stream]) for stream in np.flatnonzero(following).tolist()} == {
        stream: len(numbers) for stream, numbers in sent.items()
    }


@pytest.mark.parametrize("clients", [2, 40, 300])
def test_what_one_client_has_laid_out_stays_while_others_lay_out_theirs(clients: int) -> None:
    messages = _messages(Load(message_size=64 * 2**10), Topics(("t",), 2), clients)
    kept = messages.block(0, np.arange(MAX_BLOCK_MESSAGES), 0)
    for _ in range(3):
        for client in range(1, clients):
            messages.block(client, 1000 + np.arange(MAX_BLOCK_MESSAGES), 0)

    out = kept.stamped(np.zeros(kept.remaining, dtype=np.int64), 0, token=0)

    heads, _ = header.parse([bytes(one[: header.SIZE]) for one in out.payload])
    assert set(heads["instance"]) == {5}
    assert heads["intended_mono_ns"].tolist() == list(range(kept.remaining))


def test_a_key_always_goes_to_the_partition_that_the_client_would_choose() -> None:
    topics = Topics(("a", "b"), 5)
    messages = _messages(Load(keys=Keys(kind="round_robin", count=3)), topics)

    chunk = messages.block(0, np.arange(12), 0)

    assert chunk.key is not None
    assert list(chunk.key) == [f"key-{turn // 2 % 3}".encode() for turn in range(12)]
    assert [at // 5 for at in chunk.partition] == [0, 1] * 6
    assert all(at % 5 == sum(key) % 5 for at, key in zip(chunk.partition, chunk.key, strict=True))


@pytest.mark.parametrize("kind", ["round_robin", "random"])
def test_what_was_dropped_had_no_turn(kind: Literal["round_robin", "random"]) -> None:
    """A full queue takes 20 of each block: all 64 keys, or topics, have their turn all the same."""
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


def test_turns_of_a_partition_that_is_left_out_go_to_the_others() -> None:
    """For 10 ms; what was dropped of the block that met it has its turns again."""
    messages = _messages(Load(keys=Keys(kind="round_robin", count=5)), Topics(("t",), 3))
    block = messages.block(0, np.arange(9), 0)
    keys, partition = list(block.key or ()), list(block.partition)
    block.sent, full = 2, partition[2]
    messages.drop(block)
    is_others_left = messages.pause_partition(0, full, 0)
    after = messages.block(0, np.arange(4), 9_999_999)
    expected = [one for one, at in zip(keys[2:] * 2, partition[2:] * 2, strict=True) if at != full]
    messages.drop(after)

    assert is_others_left
    assert list(after.key or ()) == expected[:4]
    assert full in messages.block(0, np.arange(9), 10_000_000).partition


def test_who_finds_no_other_partition_waits() -> None:
    """Told so when all are left out, or the one that is met was; then what is due is tried as it comes."""
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
def test_the_compressible_share_is_what_a_compressor_finds(share: float) -> None:
    pool = message_bodies(Load(compressible=share), np.random.default_rng(7))[:97]

    packed = len(zlib.compress(b"".join(pool)))

    assert packed / sum(map(len, pool)) == pytest.approx(1 - share, abs=0.08)


def test_clients_without_keys_use_every_partition_alike_and_each_in_an_order_of_its_own() -> None:
    messages = _messages(Load(), Topics(("a", "b"), 4), clients=5)
    ways = [
        [messages.block(client, np.arange(3), slot * STICKY_NS).partition for slot in range(24)]
        for client in range(5)
    ]

    for way in ways:
        assert all(len(set(partition)) == 1 for partition in way)
        assert Counter(partition[0] for partition in way) == dict.fromkeys(range(8), 3)
    assert len({tuple(partition[0] for partition in way) for way in ways}) == 5


def test_a_block_ends_with_its_slot_and_holds_at_least_one_message() -> None:
    """Due every millisecond: what a slot of 10 ms has left, and one that is due long after it."""
    messages = _messages(Load(), Topics(("t",), 8))

    blocks = [messages.block(0, np.arange(100) * 1_000_000, 0) for _ in range(2)]
    late = messages.block(0, np.arange(100) * SECOND_NS + SECOND_NS, 0)

    assert [block.remaining for block in blocks] == [blocks[0].remaining] * 2
    assert 1 <= blocks[0].remaining <= 10
    assert late.remaining == 1


def test_a_latency_is_recorded_under_the_leaders_name() -> None:
    """Its number may be another one in each process."""
    leaders = Leaders(FakeBroker([7, 3]), Topics(("t",), 2))
    leaders.refresh()
    by_leader = LatencyByLeader("publish_latency_seconds")

    by_leader.record_ns(leaders, np.array([0, 1, 1]), np.array([10**6] * 3))

    assert list(by_leader.histograms()) == [
        'publish_latency_seconds{leader="broker3:8080"}',
        'publish_latency_seconds{leader="broker7:8080"}',
    ]


def test_leaders_are_kept_when_the_cluster_does_not_answer() -> None:
    broker = FakeBroker([1, 2, 3])
    leaders = Leaders(broker, Topics(("t",), 6))
    before = leaders.several
    leaders.refresh()
    broker.error = BrokerError("gone")
    leaders.refresh()

    assert before == ()
    assert leaders.several == (1, 2, 3)
    assert leaders.of(np.array([0, 4, 5])).tolist() == [1, 2, 3]


# --- Where clients without keys send to: all partitions alike, and no client as another does.

SEEDS = st.integers(0, 2**32 - 1)


def _walked(partitions: int, seed: int, slots: int, step_ns: int = STICKY_NS) -> NDArray[np.int64]:
    walk = PartitionChoice(partitions, seed)
    return np.array([walk.partition(number * step_ns) for number in range(slots)])


@given(SEEDS, st.integers(1, 40), st.integers(1, 5), st.integers(STICKY_NS, 50 * STICKY_NS))
def test_every_round_visits_each_partition_once(
    seed: int, partitions: int, rounds: int, step_ns: int
) -> None:
    """Also when it sends so seldom that most slots pass unused: ten a second are not all one partition's."""
    found = _walked(partitions, seed, rounds * partitions, step_ns).reshape(rounds, partitions)

    assert all(sorted(one) == list(range(partitions)) for one in found.tolist())


@given(SEEDS, st.integers(0, 10**18))
def test_a_partition_is_kept_until_its_slot_is_over(seed: int, now_ns: int) -> None:
    walk = PartitionChoice(1000, seed)
    until_ns = walk.until_ns(now_ns)

    first, last = walk.partition(now_ns), walk.partition(until_ns - 1)

    assert 0 < until_ns - now_ns <= STICKY_NS
    assert (first, walk.until_ns(until_ns - 1)) == (last, until_ns)
    assert walk.partition(until_ns) != first


@given(SEEDS)
def test_a_seed_gives_one_walk(seed: int) -> None:
    assert _walked(12, seed, 40).tolist() == _walked(12, seed, 40).tolist()


def test_two_clients_meet_at_a_broker_as_often_as_chance_has_it() -> None:
    """Leaders placed in turn on three brokers: a third of the slots, for every pair; it was all or none."""
    walked = [_walked(288, seed, 2880) % 3 for seed in range(40)]

    shares = [np.mean(one == other) for one, other in combinations(walked, 2)]

    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.002)
    assert max(abs(share - 1 / 3) for share in shares) < 0.05


def test_no_broker_draws_all_the_clients_for_long() -> None:
    """Of four clients three or more are at one of three brokers in a third of the slots, in any run."""
    for run in range(20):
        brokers = np.array([_walked(288, 100 * run + client, 2880) % 3 for client in range(4)])
        most = np.max([np.sum(brokers == one, axis=0) for one in range(3)], axis=0)

        assert np.mean(most >= 3) == pytest.approx(27 / 81, abs=0.05)


def test_clients_do_not_change_partition_at_the_same_moment() -> None:
    """Who changes ends a batch early: together they would all do so, a hundred times a second."""
    ends = Counter(PartitionChoice(8, seed).until_ns(0) // 1_000_000 for seed in range(1000))

    assert max(ends.values()) < 150
