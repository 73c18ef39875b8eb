"""Offsets in a topic: whatever happens to it, every record is read once, and a loss is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.sources.topic_offsets import (
    REREAD_RECORDS,
    Ends,
    Offset,
    Range,
    Scanned,
    capped,
    chunks,
    first_offset,
    lag,
    newest,
    ranges,
    shares,
)

COUNTS = st.dictionaries(st.integers(0, 20), st.integers(0, 1000), max_size=9)


def offset(places: dict[int, int], topic: str = "one") -> Offset:
    return first_offset(Ends(topic, places))


@given(waiting=COUNTS, limit=st.integers(1, 2000))
def test_shares_use_the_limit_and_no_more(waiting: dict[int, int], limit: int) -> None:
    found = shares(waiting, limit)

    assert sum(found.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= found[at] <= count for at, count in waiting.items())


@given(waiting=COUNTS, limit=st.integers(1, 2000))
def test_no_partition_waits_for_one_that_is_flooded(waiting: dict[int, int], limit: int) -> None:
    """Who does not get all gets no less than any other, but for rounding."""
    found = shares(waiting, limit)

    short = [found[at] for at, count in waiting.items() if found[at] < count]
    assert not short or min(short) >= max(found.values()) - 1


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.sampled_from(["grow", "silent"])),
    max_size=30,
)


@given(steps=STEPS, limit=st.integers(1, 40))
def test_every_offset_is_read_once(steps: list[tuple[int, int, str]], limit: int) -> None:
    """In batches of any size, from a topic that grows, gets partitions, and answers in parts."""
    ends = {0: 0}
    place = offset(ends)
    read: list[tuple[int, int]] = []

    def batch(now: Ends) -> None:
        nonlocal place
        end = newest(place, now, limit)
        for one in ranges(place, end):
            read.extend((one.partition, at) for at in range(one.begin, one.end))
        place = end

    for partition, count, what in steps:
        if what == "grow":
            ends[partition] = ends.get(partition, 0) + count
            batch(Ends("one", dict(ends)))
        else:
            batch(Ends("one", {at: end for at, end in ends.items() if at != partition}))
    while newest(place, Ends("one", ends), limit) != place:
        batch(Ends("one", ends))

    assert len(read) == len(set(read))
    assert set(read) == {(at, one) for at, end in ends.items() for one in range(end)}
    assert lag(place, Ends("one", ends)) == 0


def test_an_added_partition_is_read_from_its_beginning_and_said() -> None:
    start = offset({0: 7})

    end = newest(start, Ends("one", {0: 7, 1: 5}), None)

    assert ranges(start, end) == [Range(1, 0, 5, "partition 1 is new")]


def test_a_topic_created_anew_is_read_from_its_beginning() -> None:
    """The batch that finds it says so and reads nothing; the next has its limit as any."""
    start, now = offset({0: 7, 1: 9}), Ends("two", {0: 100, 1: 3})

    first = newest(start, now, 10)
    second = newest(first, now, 10)
    (found,) = ranges(start, first)

    assert (found.begin, found.end) == (0, 0)
    assert "created again; offsets read of the old one were 0: 7, 1: 9" in found.note
    assert ranges(first, second) == [Range(0, 0, 7), Range(1, 0, 3)]


@pytest.mark.parametrize(
    ("topic", "end", "moved"),
    [("one", 5, 0), ("one", REREAD_RECORDS + 23, 23), ("", REREAD_RECORDS + 23, 0)],
)
def test_a_log_that_became_shorter_is_read_on(topic: str, end: int, moved: int) -> None:
    """An unclean election cuts it; without an id of the topic it may be another one."""
    start, now = offset({0: 2 * REREAD_RECORDS}, topic), Ends(topic, {0: end})

    first = newest(start, now, None)
    second = newest(first, now, None)
    (found,) = ranges(start, first)

    assert first["next"] == {"0": moved}
    assert (found.begin, found.end, bool(found.note)) == (moved, moved, True)
    assert second["next"] == {"0": end}


def test_brokers_that_learn_of_ids_are_no_other_topic() -> None:
    """After an upgrade of the cluster, or when a user may not see them any more."""
    start = offset({0: 7}, "")

    named = newest(start, Ends("one", {0: 9}), None)
    unnamed = newest(named, Ends("", {0: 12}), None)

    assert ranges(start, named) == [Range(0, 7, 9)]
    assert ranges(named, unnamed) == [Range(0, 9, 12)]
    assert unnamed["topic"] == "one"


@pytest.mark.long
@given(ends=COUNTS, later=COUNTS, limit=st.integers(1, 100))
def test_a_query_of_what_is_available_ends(
    ends: dict[int, int], later: dict[int, int], limit: int
) -> None:
    """At the ends of its start, whatever is written meanwhile."""
    target = Ends("one", ends)
    now = capped(
        Ends("one", {at: ends.get(at, 0) + later.get(at, 0) for at in {*ends, *later}}), target
    )
    assert now is not None
    place = offset(dict.fromkeys(ends, 0))
    while (end := newest(place, now, limit)) != place:
        place = end

    assert place == offset(ends)


def test_a_query_of_what_is_available_ends_with_the_topic() -> None:
    """Or else it would wait for one that was deleted."""
    assert capped(Ends("two", {0: 9}), Ends("one", {0: 7})) is None


STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(stretches=STRETCHES, begin=st.integers(0, 60), end=st.integers(0, 60))
def test_holes_are_what_was_not_scanned(
    stretches: list[tuple[int, int]], begin: int, end: int
) -> None:
    scanned, slow = Scanned(), set(range(begin, end))
    for low, high in stretches:
        scanned.add(low, high)
        slow -= set(range(low, high))
    holes = scanned.holes(begin, end)

    assert [at for low, high in reversed(holes) for at in range(low, high)] == sorted(slow)
    assert holes == sorted(holes, reverse=True)


@given(begin=st.integers(0, 500), length=st.integers(0, 500), first=st.integers(1, 50))
def test_chunks_cover_a_hole_from_its_end(begin: int, length: int, first: int) -> None:
    found = list(chunks((begin, begin + length), first))

    covered = [at for low, high in reversed(found) for at in range(low, high)]
    assert covered == list(range(begin, begin + length))


def test_scanned_stretches_are_bounded() -> None:
    """The newest are kept."""
    scanned = Scanned(max_stretches=2)
    for at in range(0, 50, 10):
        scanned.add(at, at + 1)

    assert scanned.holes(0, 50) == [(41, 50), (31, 40), (0, 30)]
