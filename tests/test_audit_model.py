"""The audit against a world of which every message is known, over random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.audit import Audit
from soak.core.model import Column, Record
from tests.audit_world import World

Fed = tuple[Record, tuple[Column, ...], int]
Action = Callable[[World], None]

FATES = st.lists(
    st.sampled_from(["kept", "kept", "kept", "twice", "refused", "unanswered", "vanished"]),
    min_size=1,
    max_size=6,
)
NUMBER = st.integers(0, 1)
COUNT = st.integers(1, 8)


def _actions(
    producers: st.SearchStrategy[int], fates: st.SearchStrategy[list[str]]
) -> st.SearchStrategy[list[Action]]:
    """What may happen to a log of one partition, with two subscriptions."""
    send = st.builds(lambda at, how: lambda world: world.send(at, 0, how), producers, fates)
    read = st.builds(lambda at, count: lambda world: world.read(at, count), NUMBER, COUNT)
    record = st.just(World.record)
    truncate = st.builds(lambda count: lambda world: world.truncate(0, count), COUNT)
    expire = st.builds(lambda count: lambda world: world.expire(0, count), COUNT)
    restarts = [
        st.builds(lambda at, how=how: lambda world: how(world, at), who)
        for how, who in (
            (World.kill_producer, producers),
            (World.end, producers),
            (World.kill_reader, NUMBER),
            (World.finish, NUMBER),
        )
    ]
    often = [send, read, record, expire] * 4
    return st.lists(st.one_of(*often, truncate, *restarts), max_size=40)


def _after(actions: Sequence[Action], producers: int) -> World:
    world = World(producers=producers, subscriptions=2, partitions=1)
    for act in actions:
        act(world)
    world.record()
    return world


def _found(world: World, records: Sequence[Fed]) -> dict[str, int]:
    audit = Audit(subscriptions=2)
    for record, columns, subscription in records:
        audit.add(record, columns, subscription)
    for producer in world.producers:
        for instance, inc in producer.ended:
            audit.ended(instance, inc)
    return _without_zeros({key: count or 0 for key, count in audit.verdict().items()})


ALONE = st.just(0)
LOST_OR_NOT = st.lists(st.sampled_from(["kept", "vanished"]), min_size=1, max_size=6)


@given(_actions(ALONE, LOST_OR_NOT))
@settings(max_examples=300)
def test_every_message_is_counted_by_its_definition(actions: list[Action]) -> None:
    """Loss, truncation, expiry, restarts of all: where a client is alone in its partition, exactly."""
    world = _after(actions, producers=1)

    assert _found(world, world.records) == _without_zeros(world.truth())


@given(_actions(NUMBER, FATES), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_no_message_is_called_lost_that_was_not(actions: list[Action], random: Random) -> None:
    """Duplicates, failures and other clients between, records in any order.

    Among lost, expired and unread only doubt may move a message, and never towards lost.
    """
    world = _after(actions, producers=2)
    shuffled = list(world.records)
    random.shuffle(shuffled)
    truth = Counter(world.truth())

    for records in (world.records, shuffled):
        found = Counter(_found(world, records))
        assert found["lost"] <= truth["lost"]
        assert _missing(found) == _missing(truth)
        assert all(found[key] == truth[key] for key in PLAIN)


PLAIN = ("acked", "received", "duplicated", "received_unacked")


def _missing(counts: Counter[str]) -> int:
    return counts["lost"] + counts["expired"] + counts["unknown"]


def _without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if count}
