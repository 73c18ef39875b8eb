"""The whole cluster as `retention_kafka` sees it: copies that are behind, and what others write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.common.polling import ReadingBuffer
from probes.retention_kafka.cluster import (
    GREW,
    MAX_FOLLOWED,
    MAX_FOLLOWERS,
    Choose,
    Cluster,
    Failed,
    Listing,
    OtherWrites,
)
from probes.retention_kafka.log_starts import Partition
from soak.core.errors import ProbeError
from soak.core.model import Event, Reading
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

OURS = "soak-1"
PERIOD = 5
BEHIND = "cluster_under_replicated_partitions"
WRITTEN = "cluster_other_messages"


class FakeCluster:
    """Topics by name with their newest offsets; a partition without a leader has none."""

    def __init__(self) -> None:
        self.addresses = {1: "b1:9092", 2: "b2:9092", 3: "b3:9092"}
        self.behind: dict[int, int] = {}
        self.topics: dict[str, dict[int, int]] = {OURS: {0: 0}}
        self.leaderless: set[Partition] = set()
        self.refused: set[str] = set()
        self.error: ProbeError | None = None
        self.listed = 0
        self.asked: list[Sequence[Partition]] = []

    def listing(self, choose: Choose) -> Listing:
        self.listed += 1
        if self.error is not None:
            raise self.error
        counts = {name: len(ends) for name, ends in self.topics.items()}
        followed = [(name, at) for name in choose(counts) for at in self.topics[name]]
        led = [one for one in followed if one not in self.leaderless]
        return Listing(dict(self.addresses), dict(self.behind), sum(counts.values()), led)

    def latest(self, partitions: Sequence[Partition], failed: Failed) -> dict[Partition, int]:
        self.asked.append(partitions)
        found = {(t, at): self.topics[t][at] for t, at in partitions if t not in self.refused}
        if not found:
            raise ProbeError("Topic authorization failed")
        if len(found) < len(partitions):
            failed(ProbeError("Topic authorization failed"))
        return found


class Watch:
    """The probe's second thread, polled by hand each period, after which others have written."""

    def __init__(self) -> None:
        self.clock = FakeClock(mono_ns=5 * SECOND_NS)
        self.cluster = FakeCluster()
        self.buffer = ReadingBuffer(self.clock)
        self.restart()

    def restart(self) -> None:
        self.part = Cluster([OURS], PERIOD * SECOND_NS, self.clock, self.buffer)

    def poll(self, **written: int) -> Reading:
        """Let others write so many messages, and poll."""
        for topic, messages in written.items():
            ends = self.cluster.topics[topic]
            for at in ends:
                ends[at] += messages // len(ends)
        self.part.poll(self.cluster)
        self.clock.advance(PERIOD)
        return self.buffer.take(self.clock.mono_ns())


def values(reading: Reading) -> dict[str, float]:
    """Return the values by metric, of copies by the broker that holds them."""
    return {
        dict(column.labels).get("follower", column.metric): value
        for column, value in reading.samples
    }


def grew(reading: Reading) -> list[Mapping[str, object]]:
    return [event.fields for event in reading.events if event.kind == GREW]


def rate(reading: Reading) -> float | None:
    return values(reading).get(WRITTEN)


# --- copies


def test_partitions_are_counted_by_the_broker_whose_copies_are_behind() -> None:
    watch = Watch()
    watch.cluster.behind = {2: 7}

    reading = watch.poll()

    assert values(reading) == {"b1:9092": 0, "b2:9092": 7, "b3:9092": 0, WRITTEN: 0}
    assert {column.metric for column, _ in reading.samples} == {BEHIND, WRITTEN}


def test_a_broker_that_went_away_keeps_its_name() -> None:
    """The cluster no longer says where it was."""
    watch = Watch()
    watch.poll()
    del watch.cluster.addresses[2]
    watch.cluster.behind = {2: 23}

    assert values(watch.poll())["b2:9092"] == 23


def test_a_broker_that_was_never_up_is_known_by_its_number_ever_after() -> None:
    watch = Watch()
    del watch.cluster.addresses[2]
    watch.cluster.behind = {2: 23}
    first = values(watch.poll())
    watch.cluster.addresses[2] = "b2:9092"
    watch.cluster.behind = {}
    later = values(watch.poll())

    assert (first["2"], later["2"]) == (23, 0)
    assert "b2:9092" not in later


def test_brokers_beyond_the_first_sixteen_share_a_column() -> None:
    watch = Watch()
    watch.cluster.addresses = {at: f"b{at}:9092" for at in range(23)}
    watch.cluster.behind = {3: 1, 20: 2, 22: 3}

    found = values(watch.poll())

    assert (found["b3:9092"], found["others"]) == (1, 5)
    assert len(found) == MAX_FOLLOWERS + 2  # and what others write


def test_copies_are_reported_while_nobody_answers_for_the_offsets() -> None:
    watch = Watch()
    watch.cluster.topics["orders"] = {0: 0}
    watch.cluster.refused = {"orders"}
    watch.cluster.behind = {3: 4}

    with pytest.raises(ProbeError, match="authorization"):
        watch.part.poll(watch.cluster)

    found = values(watch.buffer.take(watch.clock.mono_ns()))
    assert found == {"b1:9092": 0, "b2:9092": 0, "b3:9092": 4}


# --- what others write


def test_what_others_write_is_the_growth_of_their_newest_offsets() -> None:
    """Internal topics are topics of others: who commits after each message loads the brokers, too."""
    watch = Watch()
    watch.cluster.topics |= {"orders": {0: 1000, 1: 9}, "__consumer_offsets": {0: 50}}

    found = [watch.poll(), watch.poll(orders=100, __consumer_offsets=10), watch.poll()]

    assert [rate(one) for one in found] == [None, 22.0, 0.0]
    assert watch.cluster.asked[0] == [("orders", 0), ("orders", 1), ("__consumer_offsets", 0)]


def test_what_we_write_is_not_counted() -> None:
    watch = Watch()
    watch.poll()
    watch.cluster.topics[OURS][0] = 10**6

    assert rate(watch.poll()) == 0.0
    assert watch.cluster.asked == []


def test_a_topic_that_comes_into_view_with_old_offsets_has_not_grown() -> None:
    watch = Watch()
    watch.cluster.topics["orders"] = {0: 0}
    watch.poll()
    watch.poll(orders=50)
    watch.cluster.topics["old"] = {0: 10**9}

    found = [watch.poll(orders=50), watch.poll(orders=50, old=100)]

    assert [rate(one) for one in found] == [10.0, 30.0]


def test_a_topic_that_is_deleted_or_made_anew_has_no_negative_rate() -> None:
    watch = Watch()
    watch.cluster.topics |= {"orders": {0: 0}, "short": {0: 500}, "gone": {0: 500}}
    watch.poll()
    watch.poll(orders=50, short=50, gone=50)
    watch.cluster.topics["short"] = {0: 3}
    del watch.cluster.topics["gone"]

    found = [watch.poll(orders=50), watch.poll(orders=50, short=25)]

    assert [rate(one) for one in found] == [10.0, 15.0]


def test_a_partition_that_had_no_leader_begins_anew() -> None:
    """What was written before it was lost, and by whom since, is no jump of this round."""
    watch = Watch()
    watch.cluster.topics["orders"] = {0: 0, 1: 0}
    watch.poll()
    watch.cluster.leaderless = {("orders", 1)}
    lost = watch.poll(orders=100)
    watch.cluster.leaderless = set()
    back, after = watch.poll(orders=100), watch.poll(orders=100)

    assert [rate(one) for one in (lost, back, after)] == [10.0, 10.0, 20.0]


def test_what_is_refused_is_said_once_and_the_rest_counts() -> None:
    watch = Watch()
    watch.cluster.topics |= {"orders": {0: 0}, "secret": {0: 0}}
    watch.cluster.refused = {"secret"}

    found = [watch.poll(), *(watch.poll(orders=50, secret=50) for _ in range(10))]

    reported = [event for one in found for event in one.events]
    assert {rate(one) for one in found[1:]} == {10.0}
    assert [event.kind for event in reported] == ["retention_failed"]
    assert "what others write is not known of all topics" in str(reported[0].fields["reason"])


def test_a_round_without_an_answer_is_covered_by_the_next() -> None:
    watch = Watch()
    watch.cluster.topics["orders"] = {0: 0}
    watch.poll()
    watch.cluster.error = ProbeError("no answer in time")
    with pytest.raises(ProbeError):
        watch.part.poll(watch.cluster)
    watch.clock.advance(PERIOD)
    watch.cluster.error = None

    assert rate(watch.poll(orders=100)) == 10.0


def test_a_restart_is_no_jump() -> None:
    watch = Watch()
    watch.cluster.topics["orders"] = {0: 0}
    watch.poll()
    watch.poll(orders=50)
    watch.restart()

    assert [rate(watch.poll(orders=50)) for _ in range(2)] == [None, 10.0]


@pytest.mark.long
@given(
    rounds=st.lists(
        st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), st.integers(0, 50))
    )
)
def test_no_rate_is_negative_and_all_are_growth_that_was_seen(
    rounds: list[dict[Partition, int]],
) -> None:
    """Whatever appears, disappears, falls and comes back: the slow way, pair by pair."""
    written = OtherWrites()
    for number, ends in enumerate(rounds):
        last = rounds[number - 1] if number else {}
        both = [ends[one] - last[one] for one in ends.keys() & last.keys()]
        expected = sum(step for step in both if step >= 0) / PERIOD

        found, _ = written.take(ends, (number + 1) * PERIOD * SECOND_NS)

        assert found is None or found == pytest.approx(expected)


# --- which topic


def test_the_topic_that_others_begin_to_flood_is_named_once() -> None:
    watch = Watch()
    watch.cluster.topics |= {"orders": {0: 0}, "bulk": {0: 0}}
    quiet = [watch.poll(orders=100, bulk=10) for _ in range(6)]
    flood = [watch.poll(orders=110, bulk=5_000) for _ in range(6)]

    assert [grew(one) for one in quiet] == [[]] * 6
    assert grew(flood[0]) == [{"topic": "bulk", "before": 2.0, "after": 1000.0}]
    assert [grew(one) for one in flood[1:]] == [[]] * 5


def test_a_jump_lies_between_two_questions() -> None:
    watch = Watch()
    watch.cluster.topics["bulk"] = {0: 0}
    for _ in range(5):
        watch.poll()
    asked_ns = watch.clock.wall_ns()
    (event,) = [one for one in watch.poll(bulk=5_000).events if isinstance(one, Event)]

    assert (event.since_ns, event.at_ns) == (asked_ns - PERIOD * SECOND_NS, asked_ns)


def test_a_few_messages_more_are_no_news() -> None:
    """Ten times as many as before, and still a trifle."""
    watch = Watch()
    watch.cluster.topics["heartbeats"] = {0: 0}
    found = [watch.poll(heartbeats=4) for _ in range(6)] + [watch.poll(heartbeats=40)]

    assert [grew(one) for one in found] == [[]] * 7


# --- how often, and how many


@pytest.mark.parametrize(("partitions", "seconds"), [(1000, 5), (2000, 10), (20_000, 90)])
def test_many_partitions_are_asked_less_often(partitions: int, seconds: int) -> None:
    """So that what the questions cost stays below a hundredth of a processor."""
    watch = Watch()
    watch.cluster.topics["many"] = dict.fromkeys(range(partitions), 0)
    for _ in range(10 * seconds // PERIOD):
        watch.poll()

    assert watch.cluster.listed == 10


def test_of_too_many_partitions_the_same_topics_are_followed_whatever_else_there_is() -> None:
    watch = Watch()
    topics = {f"t{at}": dict.fromkeys(range(1000), 0) for at in range(30)}
    watch.cluster.topics |= topics
    first = watch.poll()
    while watch.cluster.listed < 2:
        watch.cluster.topics = dict(reversed(watch.cluster.topics.items()))
        watch.poll()
    one, other = watch.cluster.asked

    assert len(one) == MAX_FOLLOWED
    assert sorted(one) == sorted(other)
    assert [event.fields["reason"] for event in first.events] == [
        "of 30000 partitions of other topics 20000 are followed"
    ]
