"""Random histories of the small world of `audit_world`, and what an audit finds in its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from soak.core.audit import Audit
from soak.core.model import Column, Record
from tests.support.load.audit_world import World

Fed = tuple[Record, tuple[Column, ...], int]
Action = Callable[[World], None]

FATES = st.lists(
    st.sampled_from(["kept", "kept", "kept", "twice", "refused", "unanswered", "vanished"]),
    min_size=1,
    max_size=6,
)
NUMBER = st.integers(0, 1)
COUNT = st.integers(1, 8)


def actions(
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


def world_after(history: Sequence[Action], producers: int) -> World:
    world = World(producers=producers, subscriptions=2, partitions=1)
    for act in history:
        act(world)
    world.record()
    return world


def audited(world: World, records: Sequence[Fed]) -> dict[str, int]:
    audit = Audit(subscriptions=2)
    for record, columns, subscription in records:
        audit.add(record, columns, subscription)
    for producer in world.producers:
        for instance, epoch in producer.ended:
            audit.ended(instance, epoch)
    return without_zeros({key: count or 0 for key, count in audit.verdict().items()})


def without_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if count}
