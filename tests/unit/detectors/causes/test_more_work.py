"""Other clients' load, quotas and limits of drives: more to do, or less allowed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.attribution import attribute
from detectors.nearby import TimedEvent
from soak.core.model import Explanation, Series
from tests.support.detection.cause_panels import END, ONSET, STEP, K, around, channel, told

SENT = channel("produce.0@h|sent_messages", 300.0, 300.0)
RECEIVED = channel("consume.0@h|received_messages", 300.0, 300.0)
VDA = '{device="vda"}'


def taken_in(target: str, before: float, after: float) -> Series:
    name = f'probe@h|kafka_server_brokertopicmetrics_bytesin{{target="{target}"}}'
    return channel(name, before, after)


def cluster(*brokers: str) -> list[Series]:
    """Return the cluster's own list of its brokers: how many copies on each are behind."""
    return [
        channel(f'probe@h|cluster_under_replicated_partitions{{follower="{at}"}}', 0.0, 0.0)
        for at in brokers
    ]


def causes(*series: Series) -> list[str]:
    return [one.cause for one in attribute(STEP, around(*series))]


def first(*series: Series) -> Explanation:
    return attribute(STEP, around(*series))[0]


def test_what_brokers_take_in_beyond_what_we_send_is_other_clients() -> None:
    pages = taken_in("b1:7071", 3e5, 4e6), taken_in("b2:7071", 3e5, 3e5)
    found = first(SENT, RECEIVED, *cluster("b1:9092", "b2:9092"), *pages)

    assert (found.cause, found.suspect) == ("foreign_load", "b1:9092")
    assert "what we send and receive stayed" in found.evidence[0].text


def test_leaders_that_move_shift_load_between_brokers_and_add_none() -> None:
    assert causes(SENT, taken_in("b1:7071", 3e5, 6e5), taken_in("b2:7071", 3e5, 0.0)) == ["unknown"]


def led(**after: float) -> list[Series]:
    """Return the latency of each leader: 5 ms before, and so much then."""
    return [
        channel(
            f'produce.0@h|publish_latency_seconds{{leader="{at}:9092",quantile="0.99"}}', 5e-3, one
        )
        for at, one in after.items()
    ]


def test_leaders_that_move_to_the_one_broker_that_slowed_are_no_other_clients() -> None:
    """10 MB/s go from b2 to b1, whose latency alone steps; the pages of all three brokers are read."""
    latencies = led(b1=0.06, b2=5e-3, b3=5e-3)
    every = cluster("b1:9092", "b2:9092", "b3:9092")
    rest = [SENT, RECEIVED, *latencies, *every, taken_in("b3:7071", 1e7, 1e7)]
    moved = [taken_in("b1:7071", 1e7, 2e7), taken_in("b2:7071", 2e7, 1e7)]
    more = [taken_in("b1:7071", 1e7, 4e7), taken_in("b2:7071", 2e7, 2e7)]

    assert causes(*rest, *moved) == ["unknown"]
    found = first(*rest, *more)
    assert (found.cause, found.suspect) == ("foreign_load", "b1:9092")
    assert found.score > 0.85
    assert "MiB a second, then" in found.evidence[0].text


def test_leaders_may_have_moved_from_brokers_whose_pages_are_not_read() -> None:
    """Pages of two of five brokers, of which one takes in three times as much."""
    latencies = led(b1=0.06, b2=5e-3, b3=5e-3, b4=5e-3, b5=5e-3)
    pages = [taken_in("b1:7071", 1e7, 3e7), taken_in("b2:7071", 1e7, 1e7)]
    found = first(SENT, RECEIVED, *latencies, *pages)

    assert found.cause == "unknown"
    assert any("bytes in of 3 brokers more" in one.text for one in found.evidence)


def test_a_page_that_ends_at_the_onset_takes_nothing_from_the_sum() -> None:
    """Who left had 20 MB/s before, which the others have then."""
    left = taken_in("b2:7071", 2e7, 2e7)
    left = Series(left.name, left.k[: ONSET + 3], left.values[: ONSET + 3])

    assert causes(SENT, RECEIVED, taken_in("b1:7071", 1e7, 3e7), left) == ["unknown"]


def test_pages_of_two_of_three_brokers_do_not_rule_other_clients_out() -> None:
    latencies = led(b1=0.06, b2=0.06, b3=0.06)
    pages = [taken_in(f"b{at}:7071", 1e7, 1e7) for at in (1, 2, 3)]
    every = cluster("b1:9092", "b2:9092", "b3:9092")
    some, all_of_them = (first(SENT, *latencies, *every, *pages[:n]) for n in (2, 3))

    assert not any("Foreign load is ruled out" in one.text for one in some.against)
    assert any("Foreign load is ruled out" in one.text for one in all_of_them.against)


def test_pages_of_those_who_lead_our_partitions_are_of_all_brokers_only_if_the_cluster_says_so() -> (
    None
):
    """Leaders of others may have moved to them from a fourth; a list that is cut short does not say."""
    three = ["b1:9092", "b2:9092", "b3:9092"]
    seen = [SENT, RECEIVED, *led(b1=0.06, b2=0.06, b3=0.06)]
    seen += [taken_in(f"b{at}:7071", 1e7, 2e7) for at in (1, 2, 3)]
    unlisted = first(*seen)
    found = [
        first(*seen, *cluster(*three, *more)).cause
        for more in ([], ["b4:9092", "b5:9092", "b6:9092"], ["others"])
    ]
    texts = " ".join(one.text for one in unlisted.evidence)

    assert unlisted.cause == "unknown"
    assert "The 3 brokers watched (b1:7071, b2:7071 and b3:7071) had more bytes in" in texts
    assert "how many brokers there are, and bytes in of each" in texts
    assert found == ["foreign_load", "unknown", "unknown"]


def leads(broker: str, before: float, after: float) -> Series:
    name = f'probe@h|kafka_server_replicamanager_leadercount{{target="{broker}:7071"}}'
    return Series(name, K, np.where(K < ONSET, before, after))


def test_brokers_that_lead_as_many_partitions_as_before_got_none_from_those_that_nobody_knows() -> (
    None
):
    """Pages of three alone; how many brokers there are is not known."""
    seen = [SENT, RECEIVED, *led(b1=0.06, b2=0.06, b3=0.06)]
    seen += [taken_in(f"b{at}:7071", 1e7, 2e7) for at in (1, 2, 3)]
    stayed = [leads(f"b{at}", 40.0, 40.0) for at in (1, 2, 3)]
    found = first(*seen, *stayed)

    assert found.cause == "foreign_load"
    assert "They lead as many partitions as before (120)." in [one.text for one in found.evidence]
    assert causes(*seen, *stayed[1:]) == ["unknown"]
    assert causes(*seen, *stayed[1:], leads("b1", 40.0, 41.0)) == ["unknown"]
    assert causes(*seen, *stayed[1:], leads("b1", 40.0, 39.0)) == ["unknown"]


def test_pages_that_stay_do_not_rule_other_clients_out_where_nobody_says_how_many_there_are() -> (
    None
):
    pages = [taken_in(f"b{at}:7071", 1e7, 1e7) for at in (1, 2, 3)]
    found = first(SENT, *led(b1=0.06, b2=0.06, b3=0.06), *pages)

    assert not any("Foreign load is ruled out" in one.text for one in found.against)


def test_bytes_of_a_redpanda_s_public_page_are_other_clients_by_request() -> None:
    """What is written grows; what is read is another channel of the same metric."""
    page = 'probe@h|redpanda_kafka_request_bytes{redpanda_request="%s",target="b1:9644"}'
    written_more = channel(page % "produce", 1e7, 5e7)
    one_broker = Series('probe@h|redpanda_cluster_brokers{target="b1:9644"}', K, np.ones(END))
    more = SENT, one_broker, written_more

    assert causes(*more, RECEIVED) == ["foreign_load"]
    assert causes(*more, channel(page % "consume", 1e7, 1e7)) == ["foreign_load"]
    assert causes(SENT, one_broker, channel(page % "consume", 1e7, 5e7)) == ["unknown"]


def test_more_that_we_send_ourselves_is_not_foreign() -> None:
    sent = channel("produce.0@h|sent_messages", 300.0, 3000.0)

    assert causes(sent, RECEIVED, taken_in("b1:7071", 3e5, 3e6)) == ["unknown"]


def test_cpu_and_drives_that_others_keep_busy_come_after_them() -> None:
    found = causes(
        SENT,
        RECEIVED,
        *cluster("b1:9092"),
        taken_in("b1:7071", 3e5, 4e6),
        channel("probe@b1|host_cpu_ratio", 0.3, 0.97),
        channel('probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}', 0.002, 0.002),
    )

    assert found == ["foreign_load", "broker_cpu"]


def test_a_throttle_time_in_the_answers_of_a_broker_is_a_quota() -> None:
    """The column as producers write it, which has no label: an event names the broker."""
    waits = channel("produce.0@h|throttle_seconds", 0.0, 0.05)
    events = told("throttled", ONSET, broker="b2:9092", seconds=0.05)
    found = attribute(STEP, around(SENT, waits, events=events))[0]

    assert (found.cause, found.suspect) == ("quota_throttle", "b2:9092")
    assert causes(SENT, waits) == ["quota_throttle"]


@pytest.mark.parametrize(
    "metric", ['bookie_throttled_write{target="b"}', 'smart_throttled_seconds{device="nvme0"}']
)
def test_what_is_throttled_otherwise_says_nothing_of_quotas(metric: str) -> None:
    """A bookie that holds entries back for its slow drive, and a drive that is hot: grown or calm."""
    grown, calm = (channel(f"probe@b1|{metric}", 1.0, after) for after in (50.0, 1.0))
    found = first(SENT, calm)

    assert causes(SENT, grown) == ["unknown"]
    assert not any("Quota throttle is ruled out" in one.text for one in found.against)
    assert any("throttle time in the answers of brokers" in one.text for one in found.evidence)


def test_a_client_that_is_told_of_a_throttle_meets_a_quota() -> None:
    events = told("throttled", *range(ONSET, END), broker="b2:9092")
    found = attribute(STEP, around(SENT, events=events))

    assert (found[0].cause, found[0].suspect) == ("quota_throttle", "b2:9092")


def test_other_topics_whose_segments_roll_far_more_often_are_other_clients() -> None:
    """Rolls of our own topic stay; those of others come fifteen times as often."""
    ours = told("segment_roll", 50, 150, topic="soak-x")
    usual = told("segment_roll", 20, 60, topic="orders")
    more = told("segment_roll", *range(ONSET, END, 2), topic="bulk")
    flood = replace(around(SENT, events=ours + usual + more), topics=frozenset({"soak-x"}))
    calm = replace(around(SENT, events=ours + usual), topics=frozenset({"soak-x"}))

    found = attribute(STEP, flood)[0]

    assert (found.cause, found.suspect) == ("foreign_load", "topic bulk")
    assert "40 segments of bulk rolled" in found.evidence[0].text
    assert attribute(STEP, calm)[0].cause == "unknown"


def test_segments_that_new_leaders_open_are_not_what_others_write() -> None:
    """300 partitions of others, and one of ours, get new leaders; on Redpanda each opens a segment then."""
    log = channel('probe@b1|broker_log_events{kind="leader_change",log="s"}', 0.0, 1.0)
    moves = told("leader_change", ONSET, topic="soak-x", partition=0)
    for at in range(300):
        moves += told("leader_change", ONSET + at // 6, topic="orders", partition=at, term=8)
        moves += told("segment_roll", ONSET + at // 6 + 1, topic="orders", partition=at, term=8)
    moved = replace(around(SENT, log, events=moves), topics=frozenset({"soak-x"}))
    counted = channel('probe@b1|vectorized_raft_leadership_changes{target="b1"}', 0.0, 5.0)
    rolls = tuple(one for one in moves if one.event.kind == "segment_roll")
    unnamed = replace(around(SENT, counted, events=rolls), topics=frozenset({"soak-x"}))

    assert "foreign_load" not in [one.cause for one in attribute(STEP, moved)]
    assert attribute(STEP, moved)[0].cause == "leader_move"
    assert "foreign_load" not in [one.cause for one in attribute(STEP, unnamed)]


def test_segments_that_a_broker_copies_are_not_what_others_write() -> None:
    """It was away. What it writes begins at offsets that others had passed; of a flood none does."""
    passed, copied, flood = list[TimedEvent](), list[TimedEvent](), list[TimedEvent]()
    for at in range(40):
        passed += told("segment_roll", at // 2, topic="orders", log="b1", offset=100 * at)
        copied += told("segment_roll", ONSET + 2 * at, topic="orders", log="b2", offset=100 * at)
        flood += told(
            "segment_roll", ONSET + 2 * at, topic="orders", log="b2", offset=4000 + 100 * at
        )
    seen = [
        replace(around(SENT, events=(*passed, *rolls)), topics=frozenset({"soak-x"}))
        for rolls in (copied, flood)
    ]

    assert [attribute(STEP, one)[0].cause for one in seen] == ["unknown", "foreign_load"]


def test_a_topic_that_is_made_anew_is_written_though_its_log_was_longer_before() -> None:
    """Its offsets begin at 0 again, in the logs that had passed them; no broker was away."""
    trips = channel('probe@h|broker_round_trip_seconds{target="b1:9092"}', 5e-4, 5e-4)
    away = trips.k[(trips.k < ONSET - 30) | (trips.k >= ONSET)]
    returned = Series(trips.name, away, np.full(away.size, 5e-4))
    recorded = channel('probe@h|probe_lag_seconds{probe="round_trip"}', 0.01, 0.01)
    rolls = list[TimedEvent]()
    for at in range(40):
        for k in (at // 2, ONSET + 2 * at):
            rolls += told("segment_roll", k, topic="orders", log="b1", offset=100 * at)
    anew, copied_whole = (
        replace(around(SENT, recorded, one, events=tuple(rolls)), topics=frozenset({"soak-x"}))
        for one in (trips, returned)
    )

    assert attribute(STEP, anew)[0].cause == "foreign_load"
    assert "foreign_load" not in [one.cause for one in attribute(STEP, copied_whole)]


def test_a_segment_that_rolls_on_each_of_three_brokers_is_written_once() -> None:
    """Six in 20 s after four in a minute are no news; as many in one log for each of three partitions are."""
    at = [50, 60, 70, 80, *range(ONSET, ONSET + 18, 3)]
    copies, alone = list[TimedEvent](), list[TimedEvent]()
    for broker in range(3):
        copies += told("segment_roll", *at, topic="orders", partition=0, log=f"b{broker}")
        alone += told("segment_roll", *at, topic="orders", partition=broker, log="b1")
    step = replace(STEP, state="gone", resolved_k=ONSET + 20)
    found = [
        replace(around(SENT, events=tuple(rolls)), topics=frozenset({"soak-x"}))
        for rolls in (copies, alone)
    ]

    assert [attribute(step, one)[0].cause for one in found] == ["unknown", "foreign_load"]


def test_a_partition_whose_log_is_another_from_the_onset_on_is_written_as_before() -> None:
    """Its replica moved to b2, or the log of b1 ended: six in 20 s after four in a minute are no news."""
    before = told("segment_roll", 50, 60, 70, 80, topic="orders", partition=0, log="b1")
    after = told(
        "segment_roll", *range(ONSET, ONSET + 18, 3), topic="orders", partition=0, log="b2"
    )
    step = replace(STEP, state="gone", resolved_k=ONSET + 20)
    moved = replace(around(SENT, events=(*before, *after)), topics=frozenset({"soak-x"}))

    assert attribute(step, moved)[0].cause == "unknown"


GROWING = Series("produce.0@h|in_flight_messages", K, np.where(K < ONSET, 20.0, 12.0 * (K - 95)))


def held(written: Series, queue: Series = GROWING) -> list[Series]:
    """Return a drive that answers later while the client's queue goes on growing."""
    return [
        channel(f"probe@b1|disk_write_await_seconds{VDA}", 1e-3, 40e-3),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", 0.2, 1.0),
        queue,
        written,
    ]


def test_a_drive_that_takes_so_much_and_no_more_is_throttled() -> None:
    """20 MB a second with 5 % of noise before, and then 9.0 MB within a thousandth."""
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0.0, np.where(K < ONSET, 0.05, 0.001))
    name = f"probe@b1|node_disk_written_bytes{VDA}"
    plateau = Series(name, K, np.where(K < ONSET, 20e6, 9e6) * noise)
    rough = channel(name, 20e6, 9e6)
    longer = channel(GROWING.name, 20.0, 900.0)
    full = channel("produce.0@h|held_back_messages", 0.0, 50.0)

    assert causes(*held(plateau))[0] == "drive_throttled"
    assert causes(*held(plateau, full))[0] == "drive_throttled"
    assert "drive_throttled" not in causes(*held(rough))
    assert "drive_throttled" not in causes(*held(plateau, longer)), "it keeps up, by fewer flushes"


def test_a_drive_that_takes_far_more_than_before_is_not_held_back() -> None:
    """It is at its limit for what another process gives it: 1 MB a second before, 110 MB then."""
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0.0, np.where(K < ONSET, 0.2, 0.005))
    name = f"probe@b1|node_disk_written_bytes{VDA}"
    full = Series(name, K, np.where(K < ONSET, 1e6, 110e6) * noise)

    assert causes(SENT, RECEIVED, written(20.0, 20.0), *held(full)) == ["noisy_neighbour"]


def test_a_flush_that_waits_behind_half_of_a_slow_write_is_garbage_collection() -> None:
    """A busy drive: 98 ms a write, and 56 ms a flush, which waits for the write before it."""
    drive = [
        channel(f"probe@b1|disk_write_await_seconds{VDA}", 4e-3, 97.8e-3),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.2, 4.0),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", 0.3, 1.0),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 1e-3, 55.7e-3),
        channel(f"probe@b1|node_disk_written_bytes{VDA}", 4.5e6, 3e6),
    ]

    assert causes(*drive)[0] == "drive_gc"


def test_drives_of_all_hosts_that_slow_alike_are_not_collecting_garbage() -> None:
    """One drive's garbage is its own; three at one instant have another reason."""
    drives = [
        series
        for host in ("b1", "b2", "b3")
        for series in (
            channel(f"probe@{host}|disk_write_await_seconds{VDA}", 1e-3, 8e-3),
            channel(f"probe@{host}|node_disk_io_time_seconds{VDA}", 0.1, 0.6),
            channel(f"probe@{host}|node_disk_written_bytes{VDA}", 9e6, 9e6),
        )
    ]

    assert "drive_gc" not in causes(*drives)
    assert causes(*drives[:3])[0] == "drive_gc"


# --- what others write to their own topics, without a page of any broker

MISSING = "what the brokers give out to other clients"


def written(before: float, after: float, at: int = ONSET, host: str = "b1") -> Series:
    """Return what others write a second, known every five seconds as the probe polls."""
    every = channel(f"probe@{host}|cluster_other_messages", before, after, at)
    return Series(every.name, every.k[::5], every.values[::5])


def test_others_who_write_more_are_named_with_their_topic() -> None:
    grew = told("other_topic_grew", ONSET + 5, topic="bulk", before=3.0, after=4_980.0)
    (found, *_) = attribute(STEP, around(SENT, RECEIVED, written(20.0, 5_000.0), events=grew))

    assert (found.cause, found.suspect) == ("foreign_load", "topic bulk")
    assert "messages to other topics than ours went from 20 to 5," in found.evidence[0].text
    assert "most of it to bulk (3 to 4,980); we sent 3" in found.evidence[0].text
    assert found.score > 0.85


def test_others_who_write_more_are_named_where_no_topic_is() -> None:
    """A topic that grew long before is none of this."""
    grew = told("other_topic_grew", ONSET - 60, topic="early", before=3.0, after=4_980.0)
    (found, *_) = attribute(STEP, around(SENT, written(20.0, 5_000.0), events=grew))

    assert (found.cause, found.suspect) == ("foreign_load", "")


def test_what_others_write_is_weighed_against_all_that_is_written() -> None:
    """We send 300: 60 more beside 60 are less sure than 600 more."""
    small, large = first(SENT, written(60.0, 120.0)), first(SENT, written(60.0, 660.0))

    assert [one.cause for one in (small, large)] == ["foreign_load"] * 2
    assert small.score < large.score


@pytest.mark.parametrize(
    ("sent", "before", "after"),
    [(300.0, 2.0, 4.0), (300.0, 10.0, 35.0), (3.0, 2.0, 8.0), (300.0, 1000.0, 1200.0)],
    ids=["a trifle", "less than a tenth of ours", "few at all", "less than a third more"],
)
def test_a_little_more_that_others_write_is_no_load(
    sent: float, before: float, after: float
) -> None:
    ours = channel("produce.0@h|sent_messages", sent, sent)

    assert causes(ours, RECEIVED, written(before, after)) == ["unknown"]


def test_more_that_others_write_at_another_time_is_not_the_cause() -> None:
    assert causes(SENT, written(20.0, 5_000.0, ONSET - 60)) == ["unknown"]


WAVE = 300.0 * np.exp((K - ONSET) / 60.0)  # fourfold in 80 s


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (WAVE, "unknown"),
        (WAVE * np.where(K < ONSET, 1.0, 50.0), "foreign_load"),
        (np.clip(WAVE**3 / 9e4, 20.0, 300.0), "foreign_load"),
        (np.where(K < ONSET - 30, 0.0, np.where(K < ONSET, 10.0, 3_000.0)), "foreign_load"),
    ],
    ids=["grows all along", "grows and jumps", "climbs and stays", "begins and jumps"],
)
def test_what_grows_before_an_onset_as_after_it_does_not_begin_there(
    values: NDArray[np.float64], cause: str
) -> None:
    assert (
        first(SENT, Series("probe@b1|cluster_other_messages", K[::5], values[::5])).cause == cause
    )


def test_more_that_we_send_ourselves_is_not_foreign_whatever_others_do() -> None:
    sent = channel("produce.0@h|sent_messages", 300.0, 3_000.0)

    assert causes(sent, written(20.0, 5_000.0)) == ["unknown"]


def test_others_who_write_as_before_may_still_read_more() -> None:
    """So it is not ruled out: what they read would have to be measured."""
    found = first(SENT, written(120.0, 118.0))

    assert found.cause == "unknown"
    assert any(MISSING in one.text for one in found.evidence)
    assert not any("Foreign load is ruled out" in one.text for one in found.against)


def test_where_pages_say_what_brokers_take_in_and_give_out_it_is_ruled_out() -> None:
    page = taken_in("b1:7071", 3e5, 3e5)
    found = first(SENT, RECEIVED, written(120.0, 118.0), *cluster("b1:9092"), page)

    assert any("Foreign load is ruled out" in one.text for one in found.against)


def test_several_hosts_that_ask_one_cluster_count_once() -> None:
    """Each of three brokers' hosts has 12 and then 38 messages of others: not a tenth of ours together."""
    each = [written(12.0, 38.0, host=host) for host in ("b1", "b2", "b3")]

    assert causes(SENT, *each) == ["unknown"]


def test_the_host_that_asked_says_nothing_of_where_others_write() -> None:
    """It is on the one broker whose latency stayed; the topic may be on the other."""
    leaders = [
        channel(
            f'produce.0@h|publish_latency_seconds{{leader="{at}",quantile="0.99"}}', 0.004, after
        )
        for at, after in (("b1:9092", 0.004), ("b2:9092", 0.06))
    ]

    assert causes(SENT, *leaders, written(20.0, 5_000.0)) == ["foreign_load"]


def test_a_drive_that_others_fill_through_the_brokers_has_no_other_user() -> None:
    """Nor is one named where it is not known what others write: then they may be what fills it."""
    drive = [
        channel(f"probe@b1|node_disk_written_bytes{VDA}", 2e7, 8e7),
        channel(f"probe@b1|disk_write_await_seconds{VDA}", 1e-3, 2e-2),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", 0.1, 0.9),
    ]

    assert causes(SENT, RECEIVED, *drive) == ["unknown"]
    assert causes(SENT, RECEIVED, *drive, written(20.0, 20.0)) == ["noisy_neighbour"]
    assert causes(SENT, RECEIVED, *drive, written(20.0, 5_000.0)) == ["foreign_load"]


def test_a_few_more_messages_of_others_are_not_a_hundred_times_the_writes() -> None:
    """They went up by half at another time; the drive writes 1 MB a second, then 110."""
    drive = [
        channel(f"probe@b1|node_disk_written_bytes{VDA}", 1e6, 1.1e8),
        channel(f"probe@b1|disk_write_await_seconds{VDA}", 1e-3, 2e-2),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", 0.1, 0.9),
    ]
    others = written(200.0, 300.0, at=ONSET - 40)

    assert causes(SENT, RECEIVED, *drive, others) == ["noisy_neighbour"]
