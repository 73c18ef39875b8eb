"""CPU, pauses, leaders, a broker that ends or stands still, the way to it, and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import Hypothesis
from detectors.causes.locking import coupling
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Series
from tests.support.detection.cause_panels import E2E, END, ONSET, P99, STEP, around, channel, told

CPU = "probe@b1|host_cpu_ratio"
WAITING = "probe@b1|node_pressure_cpu_waiting_seconds"
FSYNC = 'probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}'
RETRANSMITTED = "probe@b1|node_netstat_Tcp_RetransSegs"
POLL = "probe@b1|retention_poll_age_seconds"
UP = 'probe@b1|up{target="b1"}'
COPIES = 'probe@b1|kafka_server_replicamanager_underreplicatedpartitions{target="b2"}'
ACKED, SENT = "produce.0@h|acked_messages", "produce.0@h|sent_messages"


def causes(found: Nearby, change: Change = STEP) -> list[str]:
    return [one.cause for one in attribute(change, found)]


def calm() -> list[Series]:
    """A broker's host on which nothing changes."""
    return [
        channel(FSYNC, 0.002, 0.002),
        channel(CPU, 0.3, 0.3),
        channel(RETRANSMITTED, 1.0, 1.0),
    ]


def silent(name: str, value: float, *seconds: int) -> Series:
    k = np.arange(END, dtype=np.int64)
    return Series(name, k, np.where(np.isin(k, seconds), 0.0, value))


def test_a_broker_s_host_that_runs_out_of_cpu() -> None:
    one = around(channel(CPU, 0.3, 0.97), channel(FSYNC, 0.002, 0.002))
    two = around(*one.series.values(), channel(WAITING, 0.02, 0.6))

    assert causes(one) == causes(two) == ["broker_cpu"]
    assert attribute(STEP, two)[0].score > attribute(STEP, one)[0].score


def test_a_host_with_cpu_left_does_not_rule_out_a_limit_of_the_broker_s_own() -> None:
    """As in Kubernetes: `cpu.max` holds a broker back on an idle host, and pressure alone counts the wait."""
    pressure = channel("probe@b1|node_pressure_cpu_waiting_seconds", 0.02, 0.02)
    ruled_out = [
        any("CPU is ruled out" in one.text for one in attribute(STEP, around(*seen))[0].against)
        for seen in (calm(), [*calm(), pressure])
    ]
    waiting = channel("probe@b1|node_pressure_cpu_waiting_seconds", 0.02, 0.6)

    assert ruled_out == [False, True]
    assert causes(around(*calm(), waiting)) == ["broker_cpu"]


def test_cpu_that_was_nearly_as_short_before_the_step_is_not_enough() -> None:
    assert causes(around(channel(WAITING, 0.74, 0.96), channel(FSYNC, 0.002, 0.002))) == ["unknown"]


@pytest.mark.parametrize(("spun", "cause"), [(0.95, "unknown"), (0.5, "broker_cpu")])
def test_a_host_s_cpu_that_is_our_own_daemons_is_no_broker_s(spun: float, cause: str) -> None:
    """Of the 1.34 processors more that are at work, most or the fewer are the producer's."""
    found = around(
        channel(CPU, 0.3, 0.97),
        channel(WAITING, 0.02, 0.6),
        channel(FSYNC, 0.002, 0.002),
        channel("probe@b1|host_cpu_count", 2.0, 2.0),
        channel('probe@b1|host_daemon_cpu_cores{daemon="produce.0"}', 0.05, 0.05 + spun),
    )

    assert causes(found) == [cause]


def test_cpu_that_rises_and_suffices_is_no_cause() -> None:
    assert causes(around(channel(CPU, 0.2, 0.5), channel(FSYNC, 0.002, 0.002))) == ["unknown"]


def test_the_cpu_of_a_host_without_a_broker_is_none() -> None:
    assert causes(around(channel("probe@load|host_cpu_ratio", 0.3, 0.97))) == ["unknown"]


def by_mode(**after: float) -> list[Series]:
    """Return what node_exporter counts of four cores: 3.4 idle before, and so much in each mode then."""
    before = {"user": 0.4, "idle": 3.4, "iowait": 0.1, "steal": 0.1}
    return [
        channel(
            f'probe@load|node_cpu_seconds{{mode="{mode}",target="n1"}}', was, after.get(mode, was)
        )
        for mode, was in before.items()
    ]


def test_a_host_that_a_page_of_node_exporter_shows_may_run_short_of_cpu() -> None:
    """By what is used of its cores, and by what a hypervisor took."""
    (used,) = attribute(STEP, around(*by_mode(user=3.9, idle=0.0, iowait=0.0)))
    (stolen,) = attribute(STEP, around(*by_mode(steal=0.8, idle=2.7)))

    assert (used.cause, used.suspect) == ("broker_cpu", "n1")
    assert "CPU (n1) of probe@load went from 1" in used.evidence[0].text
    assert stolen.cause == "broker_cpu"


@pytest.mark.parametrize(("used", "is_taken"), [(0.85, True), (0.97, False)])
def test_a_drive_is_slow_where_the_hypervisor_takes_the_cpu_and_no_more_is_done_on_it(
    used: float, *, is_taken: bool
) -> None:
    """Of 85 % in use others take 30 %, so as much work is done as before; of 97 % it is more."""
    stolen = channel("probe@b1|host_cpu_steal_ratio", 0.0, 0.3)
    drive = channel('probe@b1|disk_write_await_seconds{device="sda"}', 0.0005, 0.0024)

    first, *others = attribute(STEP, around(channel(CPU, 0.55, used), stolen, drive))

    words = "b1 did no more work than before: its hypervisor withheld CPU"
    assert any(one.text.startswith(words) for one in first.evidence) == is_taken
    assert not is_taken or first.cause == "broker_cpu"
    assert not is_taken or all(one.score < first.score - 0.2 for one in others)


def test_cpu_that_is_withheld_on_one_host_is_no_reason_where_another_ran_short_too() -> None:
    stolen = channel("probe@b2|host_cpu_steal_ratio", 0.0, 0.3)
    used = channel("probe@b2|host_cpu_ratio", 0.5, 0.8)
    b2 = channel(FSYNC.replace("@b1", "@b2"), 0.002, 0.002)

    one = attribute(STEP, around(stolen, used, b2))
    both = attribute(
        STEP, around(stolen, used, b2, channel(FSYNC, 0.002, 0.002), channel(CPU, 0.3, 0.97))
    )

    assert [(found[0].cause, "hypervisor" in str(found[0].evidence)) for found in (one, both)] == [
        ("broker_cpu", True),
        ("broker_cpu", False),
    ]


@pytest.mark.parametrize(
    ("other", "suspect", "is_effect"),
    [
        ("slow_drive", "sda on b1", True),
        ("slow_drive", "sda on b2", False),
        ("slow_drive", "sda on ab1", False),
        ("network", "eth0 on b1", False),
    ],
)
def test_what_a_host_slows_is_on_it(other: str, suspect: str, *, is_effect: bool) -> None:
    slowed = Hypothesis("broker_cpu", explains=frozenset({"slow_drive"}), explains_on="b1")

    assert slowed.has_as_effect(Hypothesis(other, suspect=suspect)) is is_effect


def test_a_host_that_idles_or_waits_for_a_drive_is_not_short_of_cpu() -> None:
    """Each mode is a channel of its own: that more is idle is no work."""
    for modes in (by_mode(idle=3.9, user=0.01), by_mode(iowait=3.0, idle=0.5)):
        facts = Facts(STEP, around(*modes))

        assert causes(facts.nearby) == ["unknown"]
        assert facts.is_cpu_innocent


@pytest.mark.parametrize(
    ("used", "cause"), [(0.2, "unknown"), (None, "unknown"), (0.97, "broker_cpu")]
)
def test_request_handlers_that_are_not_idle_may_wait_for_a_drive(
    used: float | None, cause: str
) -> None:
    """Idle for 80 % of the time and then 10 %: the CPU of the host says whether they work."""
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
    handlers = channel(f'probe@b1|{name}{{target="b1:7071"}}', 0.8, 0.1)
    host = [] if used is None else [channel(CPU, 0.2, used), channel(FSYNC, 0.002, 0.002)]

    assert causes(around(handlers, *host)) == [cause]


def pauses(*ks: int, seconds: float) -> tuple[TimedEvent, ...]:
    return told("gc_pause", *ks, pause_seconds=seconds)


def stepped(high: list[int]) -> Series:
    y = np.log10(0.004) + np.random.default_rng(0).normal(0.0, 0.1, END)
    y[high] += np.log10(15.0)
    return Series(P99, np.arange(END, dtype=np.int64), 10.0**y)


def test_long_pauses_that_latency_is_locked_to() -> None:
    ks = [k for k in range(ONSET, END) if k % 3 != 1]
    usual = pauses(*range(3, END, 7), seconds=0.004)
    found = around(stepped(ks), events=(*usual, *pauses(*ks, seconds=0.06)))
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == "gc_pause"
    assert explanation.score > 0.9
    assert "60 ms in the median" in explanation.evidence[-1].text


def test_pauses_too_short_to_matter_are_no_cause() -> None:
    ks = [k for k in range(ONSET, END) if k % 3 != 1]

    assert causes(around(stepped(ks), events=pauses(*ks, seconds=0.004))) == ["unknown"]


def test_the_sums_of_a_log_count_like_its_pauses() -> None:
    ks = [k for k in range(ONSET, END) if k % 3 != 1]
    stopped = silent(
        'probe@b1|jvm_gc_pause_seconds{log="gc.log"}', 0.06, *set(range(END)) - set(ks)
    )

    assert causes(around(stepped(ks), stopped)) == ["gc_pause"]


def test_of_the_sums_of_two_logs_the_longer_counts() -> None:
    ks = [k for k in range(ONSET, END) if k % 3 != 1]
    free = set(range(END)) - set(ks)
    logs = [
        silent(f"probe@{host}|jvm_gc_pause_seconds", 0.5 / n, *free)
        for n, host in ((1, "b1"), (25, "b2"))
    ]
    (found,) = attribute(STEP, around(stepped(ks), *logs))

    assert "500 ms in the median" in found.evidence[-1].text


def test_the_time_in_collections_of_a_page_counts_where_there_is_no_log() -> None:
    name = 'probe@b1|jvm_gc_collection_seconds{target="b1"}'

    assert causes(around(channel(name, 0.004, 0.15))) == ["gc_pause"]
    assert causes(around(channel(name, 0.002, 0.006))) == ["unknown"]


def test_collections_that_take_far_less_than_the_step_do_not_explain_it() -> None:
    """A step of almost a second, and no pause in a second is longer than all of them together."""
    name = 'probe@b1|jvm_gc_collection_seconds{target="b1"}'
    second = replace(STEP, before=0.02, after=1.0)

    assert causes(around(channel(name, 0.01, 0.15)), second) == ["unknown"]
    assert causes(around(channel(name, 0.01, 0.4)), second) == ["gc_pause"]


def test_a_page_that_is_read_each_10_s_may_tell_of_one_pause_in_them() -> None:
    """Of a second, a tenth of the time, for a step of a second; of one of a minute it is no part."""
    name = 'probe@b1|jvm_gc_collection_seconds{target="b1"}'
    page = channel(name, 0.01, 0.1)
    seldom = Series(name, page.k[::10], page.values[::10])
    second, minute = (replace(STEP, before=0.02, after=after) for after in (1.0, 60.0))

    assert causes(around(seldom), second) == ["gc_pause"]
    assert causes(around(page), second) == ["unknown"]
    assert causes(around(seldom), minute) == ["unknown"]


def test_a_page_tells_of_the_longest_steps_as_far_as_it_can() -> None:
    """A second is stopped for no longer than a second, however long the pause is."""
    name = 'probe@b1|jvm_gc_collection_seconds{target="b1"}'
    far = replace(STEP, before=0.02, after=8.0)

    assert causes(around(channel(name, 0.01, 0.9)), far) == ["gc_pause"]
    assert causes(around(channel(name, 0.01, 0.3)), far) == ["unknown"]


@pytest.mark.parametrize(("many", "cause"), [(8, "unknown"), (40, "gc_pause")])
def test_short_pauses_matter_together_where_they_take_much_of_a_second(
    many: int, cause: str
) -> None:
    """So many of 4 ms in two seconds of three, told one by one and as their sum."""
    ks = [k for k in range(ONSET, END) if k % 3 != 1]
    short = pauses(*sorted(ks * many), seconds=0.004)
    name = 'probe@b1|jvm_gc_pause_seconds{log="gc.log"}'
    stopped = silent(name, 0.004 * many, *set(range(END)) - set(ks))

    assert causes(around(stepped(ks), stopped, events=short)) == [cause]


def test_leaders_that_move_at_the_onset() -> None:
    (found,) = attribute(STEP, around(events=told("leader_change", ONSET, topic="t", partition=3)))

    assert found.cause == "leader_move"
    assert "at the onset (topic t, partition 3)" in found.evidence[0].text


@pytest.mark.parametrize("ks", [range(0, END, 5), [ONSET - 30], [ONSET + 10]], ids=str)
def test_leaders_that_move_all_the_time_or_at_another_are_no_cause(ks: range) -> None:
    assert causes(around(events=told("leader_change", *ks))) == ["unknown"]


def test_leaders_that_move_come_after_what_kept_a_broker_from_being_heard() -> None:
    """Redpanda elects others within two seconds: of a lost packet, or a processor that is not there."""
    moved = told("leader_change", ONSET, topic="t", partition=3)
    page = channel('probe@b1|jvm_gc_collection_seconds{target="b1"}', 0.004, 0.15)
    lost = late_answers(3, *range(ONSET, END, 9))
    short = [channel(CPU, 0.3, 0.97), channel(FSYNC, 0.002, 0.002)]

    assert causes(around(page, events=moved)) == ["gc_pause", "leader_move"]
    assert causes(around(lost, events=moved)) == ["network", "leader_move"]
    assert causes(around(*short, events=moved)) == ["broker_cpu", "leader_move"]


def test_leaders_that_somebody_moves_bring_cpu_with_them() -> None:
    """No broker was silent: all that are asked answer as soon as before."""
    moved = told("leader_change", ONSET, topic="t", partition=3)
    trip = channel('probe@h|broker_round_trip_seconds{target="b1:9092"}', 1e-3, 1e-3)
    short = [channel(CPU, 0.3, 0.97), channel(FSYNC, 0.002, 0.002)]

    assert causes(around(*short, trip, events=moved)) == ["leader_move", "broker_cpu"]


@pytest.mark.parametrize(
    ("added", "cause"), [(0, "leader_move"), (5, "unknown"), (100, "metadata_storm")]
)
def test_elections_that_are_counted_are_no_moves_where_partitions_are_added(
    added: int, cause: str
) -> None:
    """The counters of Redpanda have the elections of all topics, also the first of a new partition."""
    k = np.arange(END, dtype=np.int64)
    name = 'probe@b1|redpanda_raft_leadership_changes{target="b1"}'
    elected = Series(name, k, np.where((k == ONSET) | (k == ONSET + 1), 30.0, 0.0))
    name = 'probe@b1|redpanda_cluster_partitions{target="b1"}'
    partitions = Series(name, k, np.where(k < ONSET, 400.0, 400.0 + added))

    assert causes(around(elected, partitions)) == [cause]


def test_a_broker_that_does_not_answer_any_more() -> None:
    events = told("leader_change", ONSET + 1)
    found = around(silent(UP, 1.0, *range(ONSET, END)), events=events)
    first, *_ = attribute(STEP, found)

    assert first.cause == "broker_down"
    assert "stopped answering at the onset" in first.evidence[0].text


def test_a_page_that_alone_is_silent_is_no_broker_s_end() -> None:
    assert causes(around(silent(UP, 1.0, *range(ONSET, END)))) == ["unknown"]


@pytest.mark.parametrize(("seconds", "cause"), [(1, "unknown"), (4, "broker_down")])
def test_beside_a_silent_page_a_second_without_acknowledgements_is_no_broker_s_end(
    seconds: int, cause: str
) -> None:
    page = silent(UP, 1.0, *range(ONSET, END))

    assert causes(around(page, *missing(1.0, seconds))) == [cause]


def test_copies_leaders_and_acknowledgements_together_are_a_broker_s_end() -> None:
    stop = range(ONSET, ONSET + 4)
    series = [silent(ACKED, 200.0, *stop), channel(SENT, 200.0, 200.0), channel(COPIES, 0.0, 8.0)]
    zero = Series(COPIES, series[2].k, np.where(series[2].k < ONSET, 0.0, 8.0))
    found = around(*series[:2], zero, events=told("leader_change", ONSET + 1))

    assert causes(found)[0] == "broker_down"


def test_a_broker_that_stands_still_answers_simple_questions_late() -> None:
    (found,) = attribute(STEP, around(channel(POLL, 0.1, 0.3), *calm()))

    assert found.cause == "broker_pause"
    assert "retention poll age of probe@b1 was 300 ms in 95% of the" in found.evidence[0].text
    assert found.evidence[-1].text.startswith("Flushes, CPU and network were measured")


def stall(broker: str, during: float) -> Series:
    return channel(f'probe@b1|broker_stall_seconds{{target="{broker}"}}', 0.008, during)


def test_a_broker_that_stands_still_for_a_part_of_each_second_is_the_one_that_answers_late() -> (
    None
):
    """Most of its answers are as soon as ever, and so are all of another's."""
    (found,) = attribute(STEP, around(stall("b1:9092", 0.3), stall("b2:9092", 0.008), *calm()))

    assert (found.cause, found.suspect) == ("broker_pause", "b1:9092")
    assert found.score > 0.85


def test_all_brokers_that_answer_late_at_once_do_not_stand_still() -> None:
    """It is what they share: the host that asks, or its way. Of one that alone is asked it may be either."""
    both = around(stall("b1:9092", 0.3), stall("b2:9092", 0.3), *calm())
    only = around(stall("b1:9092", 0.3), *calm())

    assert causes(both) == ["unknown"]
    assert attribute(STEP, only)[0].cause == "broker_pause"
    assert attribute(STEP, only)[0].score < 0.65


def asked_by(host: str, *during: float | None) -> list[Series]:
    """Return the stalls of b1, b2 and so on as one host sees them; None: too few to compare."""
    found = []
    for at, one in enumerate(during, start=1):
        every = channel(
            f'probe@{host}|broker_stall_seconds{{target="b{at}:9092"}}', 8e-3, one or 8e-3
        )
        is_kept = every.k < (ONSET if one is None else END)
        found.append(replace(every, k=every.k[is_kept], values=every.values[is_kept]))
    return found


def test_a_load_host_that_is_slow_itself_makes_no_broker_stand_still() -> None:
    """It gets late answers from all three brokers; another host gets them as soon as ever."""
    slow, calm_host = asked_by("l1", 0.3, 0.31, 0.32), asked_by("l2", 8e-3, 8e-3, 8e-3)

    assert causes(around(*slow, *calm_host, *calm())) == ["unknown"]
    assert causes(around(*slow, *calm())) == ["unknown"]


def test_a_broker_that_is_late_to_one_host_alone_does_not_stand_still() -> None:
    """Another host asks it meanwhile: it is the way of the first."""
    late, soon = asked_by("l1", 0.3, 8e-3, 8e-3), asked_by("l2", 8e-3, 8e-3, 8e-3)

    assert causes(around(*late, *soon, *calm())) == ["unknown"]


def test_a_broker_that_is_late_to_each_host_that_can_tell_is_the_one_that_stands_still() -> None:
    """A host that gets late answers from all says nothing against it, nor for another."""
    hosts = [asked_by("l1", 0.3, 0.31, 0.32), asked_by("l2", 8e-3, 0.3, 8e-3)]
    (found,) = attribute(STEP, around(*hosts[0], *hosts[1], *calm()))

    assert (found.cause, found.suspect) == ("broker_pause", "b2:9092")
    assert found.score > 0.85


@pytest.mark.parametrize(
    "during",
    [(0.3, 0.31, 8e-3), (0.3, None, None)],
    ids=["two of three", "the others are down"],
)
def test_no_broker_is_named_where_it_is_not_the_only_one_that_is_late(
    during: tuple[float | None, ...],
) -> None:
    """One that is down, or of which little is known, did not answer as soon as before."""
    (found,) = attribute(STEP, around(*asked_by("l1", *during), *calm()))

    assert (found.cause, found.suspect) == ("broker_pause", "")
    assert found.score < 0.65
    assert "as soon as before" not in " ".join(one.text for one in found.evidence)


def test_a_late_broker_whose_own_latency_stayed_is_not_the_one_that_stands_still() -> None:
    """Latency of what broker 2 leads steps; 1 answers late, and what it leads is acknowledged as ever."""
    both = [*calm(), *(replace(one, name=one.name.replace("@b1", "@b2")) for one in calm())]
    for at, after in ((1, 4e-3), (2, 0.06)):
        quantile = f'publish_latency_seconds{{leader="{at}",quantile="0.99"}}'
        address = f'leader_info{{address="b{at}:9092",leader="{at}"}}'
        both += [
            channel(f"produce.0@h|{quantile}", 4e-3, after),
            channel(f"produce.0@h|{address}", 1.0, 1.0),
        ]
    untouched, touched = (
        causes(around(*both, *asked_by("l1", *during))) for during in ((0.3, 8e-3), (8e-3, 0.3))
    )

    assert untouched == ["unknown"]
    assert touched == ["broker_pause"]


@pytest.mark.parametrize("name", [FSYNC, CPU, RETRANSMITTED])
def test_nobody_is_said_to_stand_still_unless_all_else_is_known_and_calm(name: str) -> None:
    late = channel(POLL, 0.1, 0.3)
    without = [one for one in calm() if one.name != name]
    risen = channel(name, 0.002, 0.1) if name == FSYNC else channel(name, 0.3, 0.6)

    assert "broker_pause" not in causes(around(late, *without))
    assert "broker_pause" not in causes(around(late, *without, risen))


def test_acknowledgements_that_stop_for_seconds_where_leaders_are_watched() -> None:
    acked = silent(ACKED, 200.0, *range(ONSET, ONSET + 3), *range(ONSET + 9, ONSET + 12))
    sent = channel(SENT, 200.0, 200.0)
    watched = silent('probe@b1|broker_log_events{kind="leader_change",log="s"}', 0.0)
    hung = channel('probe@b1|fsync_hanging_seconds{directory="/d"}', 1e-9, 2.0)

    assert causes(around(acked, sent, watched, *calm())) == ["broker_pause"]
    assert causes(around(acked, sent, *calm())) == ["unknown"]
    assert causes(around(acked, sent, watched, hung, *calm())) == ["unknown"]


def test_a_longer_way_delays_the_median_as_well() -> None:
    late = channel(POLL, 0.1, 0.3)
    p50 = channel(P99.replace("0.99", "0.5"), 0.002, 0.058)

    assert causes(around(late, p50, channel(P99, 0.004, 0.06), *calm())) == ["unknown"]


def test_packets_that_are_sent_again_beside_calm_brokers() -> None:
    rest = [one for one in calm() if one.name != RETRANSMITTED]

    assert causes(around(channel(RETRANSMITTED, 1.0, 5.0), *rest)) == ["network"]
    assert causes(around(channel(RETRANSMITTED, 1.0, 5.0))) == ["unknown"]
    assert causes(around(channel(RETRANSMITTED, 1.0, 80.0))) == ["network"]


def test_packets_of_one_side_that_stay_do_not_rule_out_the_way_to_it() -> None:
    """A host counts what it sends again itself; what clients send is lost on their side."""
    trip = channel("probe@h|broker_round_trip_seconds", 1e-3, 1e-3)
    ruled_out = [
        any("Network is ruled out" in one.text for one in attribute(STEP, around(*seen))[0].against)
        for seen in (calm(), [*calm(), trip])
    ]

    assert ruled_out == [False, True]


def test_a_channel_that_stays_the_same_is_followed_by_nothing() -> None:
    """Latency goes on rising after the onset, and the channel has one value: that is no correlation."""
    k = np.arange(END, dtype=np.int64)
    rising = Series(P99, k, np.where(k < ONSET, 0.004, 0.06 + 1e-4 * np.maximum(0, k - ONSET)))
    still = Series(RETRANSMITTED, k, np.where(k < ONSET, 1.0, 5.0))
    around_it = Nearby(0, END, {P99: rising, RETRANSMITTED: still})
    found = coupling(still, Facts(STEP, around_it))

    assert found is not None
    assert not found.is_following


def test_round_trips_as_long_as_the_step() -> None:
    assert causes(around(channel("probe@b1|broker_round_trip_seconds", 0.001, 0.05))) == ["network"]


def test_a_message_s_way_through_the_cluster_is_no_round_trip() -> None:
    """KMinion's, whatever it is called: it waits for the brokers' drives, as every message does."""
    name = 'probe@b1|kminion_end_to_end_roundtrip_latency_seconds{quantile="0.99",target="k"}'

    assert causes(around(channel(name, 0.005, 0.06))) == ["unknown"]


def test_round_trips_that_are_a_small_part_of_the_step_are_no_cause() -> None:
    """Three times as long, and a millisecond of fifty-six: a busy broker answers a little later too."""
    assert causes(around(channel("probe@b1|broker_round_trip_seconds", 5e-4, 1.5e-3))) == [
        "unknown"
    ]


def test_round_trips_add_up_where_nothing_else_rose() -> None:
    """A message waits for its own trip, those of its copies, and those of the requests before it."""
    late = channel('probe@b1|broker_round_trip_seconds{target="b1:9092"}', 1e-3, 7e-3)

    assert causes(around(late, *calm())) == ["network"]
    assert causes(around(late)) == ["unknown"]


def led(*hosts: str) -> list[Series]:
    """Return the names that a producer has of the brokers: each leads partitions."""
    return [
        channel(f'produce.0@h|leader_info{{address="{host}:9092",leader="{at}"}}', 1.0, 1.0)
        for at, host in enumerate(hosts)
    ]


def test_what_is_watched_of_one_broker_rules_nothing_out_for_the_others() -> None:
    """It is said what is missing, and the drives of all are not taken for calm."""
    trip = channel('probe@b1|broker_round_trip_seconds{target="b2:9092"}', 1e-3, 7e-3)
    log = channel('probe@b1|jvm_gc_pause_seconds{log="gc.log"}', 0.0, 0.0)
    alone, among = (
        attribute(STEP, around(trip, log, *calm(), *led(*hosts)))
        for hosts in (("b1",), ("b1", "b2", "b3"))
    )

    assert [one.cause for one in alone] == ["network"]
    (found,) = among
    said = " ".join(one.text for one in found.evidence)
    assert found.cause == "unknown"
    assert "pauses of the JVM of 2 of 3 brokers" in said
    assert "CPU of 2 of 3 brokers" in said
    assert "flushes of 2 of 3 brokers" in said
    assert not [
        one.text for one in found.against if one.text.startswith(("gc_pause", "broker_cpu"))
    ]


def test_single_answers_that_are_late_beside_calm_brokers() -> None:
    """Others to the same question at the same instant were not: a lost packet holds one connection up."""
    lone = channel('probe@b1|broker_lone_delay_seconds{target="b1:9092"}', 5e-4, 0.05)

    assert causes(around(lone, *calm())) == ["network"]
    assert causes(around(lone)) == ["unknown"]


def late_answers(*late_ks: int) -> Series:
    """Return a broker's single late answers: 3 ms but for these seconds, as late as a packet sent again."""
    calm = channel('probe@b1|broker_lone_delay_seconds{target="b2:9092"}', 3e-3, 3e-3)
    return Series(calm.name, calm.k, np.where(np.isin(calm.k, late_ks), 0.201, calm.values))


def test_a_few_answers_as_late_as_a_lost_packet_are_the_network_though_their_median_stays() -> None:
    (found,) = attribute(STEP, around(late_answers(3, *range(ONSET, END, 9))))

    assert (found.cause, found.suspect) == ("network", "b2:9092")
    assert found.evidence[0].text == (
        "One of several connections to b2:9092 was answered 201 ms later than the others, as when a lost "
        "packet is sent again: in 7 of 65 seconds from 4 s before the onset on, and in 1 of 96 before."
    )


@pytest.mark.parametrize("late", [range(0, END, 9), range(ONSET - 30, END, 9), (ONSET, ONSET + 9)])
def test_answers_as_late_at_the_same_rate_before_or_by_chance_are_not(late: Sequence[int]) -> None:
    assert causes(around(late_answers(*late))) == ["unknown"]


def test_innocent_brokers_alone_do_not_make_it_the_network() -> None:
    assert causes(around(*calm())) == ["unknown"]


def test_a_clock_set_by_as_much_as_end_to_end_latency_steps() -> None:
    """Sent on one host and received on another."""
    change = replace(STEP, series=E2E)
    event = told("clock_step", ONSET, seconds=0.055)
    sent = P99.replace("@h|", "@h2|")

    assert causes(around(channel(sent, 0.004, 0.004), events=event), change) == ["clock"]
    assert causes(around(channel(sent, 0.004, 0.06), events=event), change) == ["unknown"]
    assert causes(around(channel(P99, 0.004, 0.004), events=event)) == ["unknown"]  # publishing
    assert causes(around(events=told("clock_step", ONSET, seconds=5.0)), change) == ["unknown"]


def test_no_clock_that_is_set_is_felt_by_what_is_sent_and_received_on_one_host() -> None:
    """There both ends read one clock that nobody sets; one producer elsewhere is enough."""
    change = replace(STEP, series=E2E)
    event = told("clock_step", ONSET, seconds=0.055)
    here = channel(P99, 0.004, 0.004)
    elsewhere = channel("produce.1@h2|sent_messages", 200.0, 200.0)

    assert causes(around(here, events=event), change) == ["unknown"]
    assert causes(around(here, elsewhere, events=event), change) == ["clock"]


@pytest.mark.parametrize(
    ("source", "forward", "cause"),
    [
        ("produce.1@h2", -0.055, "clock"),
        ("produce.1@h2", 0.055, "unknown"),
        ("probe@h2", -0.055, "clock"),
        ("consume.0@h", 0.055, "clock"),
        ("consume.0@h", -0.055, "unknown"),
        ("probe@h", 0.055, "clock"),
        ("probe@b1", 0.055, "unknown"),
        ("probe@b1", -0.055, "unknown"),
        ("", -0.055, "clock"),
    ],
)
def test_a_clock_steps_a_latency_set_forward_where_it_is_received_or_back_where_it_is_sent(
    source: str, forward: float, cause: str
) -> None:
    """Of a source that nobody knows it may be either; a host that takes no part may do as it likes."""
    (event,) = told("clock_step", ONSET, seconds=forward)
    sent = channel("produce.1@h2|sent_messages", 200.0, 200.0)
    found = around(channel(P99, 0.004, 0.004), sent, events=(replace(event, source=source),))

    assert causes(found, replace(STEP, series=E2E)) == [cause]


def test_a_consumer_that_is_away_is_the_client() -> None:
    change = replace(STEP, series=E2E)
    away = channel("consume.0@h|consumer_pause_seconds", 0.002, 0.056)
    (found,) = attribute(change, around(away))

    assert found.cause == "client"
    assert "The consumer consume.0@h was late to serve its own client" in found.evidence[0].text


def test_a_step_down_has_no_cause() -> None:
    down = replace(STEP, before=0.06, after=0.004)

    assert causes(around(channel(CPU, 0.3, 0.97), channel(FSYNC, 0.002, 0.002)), down) == [
        "unknown"
    ]


def test_a_broker_stopped_every_few_seconds_stands_still_as_well() -> None:
    """Two seconds of every six: the offsets of its log are told late in a third of the seconds."""
    poll = channel(POLL, 0.1, 0.1)
    is_stopped = (poll.k >= ONSET) & ((poll.k - ONSET) % 6 < 2)
    late = Series(POLL, poll.k, np.where(is_stopped, 1.5, poll.values))

    assert causes(around(late, *calm())) == ["broker_pause"]


@pytest.mark.parametrize(("moved_k", "first"), [(2, "broker_down"), (0, "leader_move")])
def test_a_killed_broker_s_leaders_move_after_a_while_an_ended_one_s_at_once(
    moved_k: int, first: str
) -> None:
    """Nothing is acknowledged for four seconds in either case; copies are not watched."""
    k = np.arange(END, dtype=np.int64)
    acked = Series(ACKED, k, np.where((k >= ONSET) & (k < ONSET + 4), 10.0, 200.0))
    moved = told("leader_change", ONSET + moved_k)

    assert causes(around(acked, channel(SENT, 200.0, 200.0), events=moved))[0] == first


def test_a_third_of_the_acknowledgements_missing_until_leaders_move_is_a_broker_s_end() -> None:
    k = np.arange(END, dtype=np.int64)
    acked = Series(ACKED, k, np.where((k >= ONSET) & (k < ONSET + 9), 130.0, 200.0))
    series = [acked, channel(SENT, 200.0, 200.0)]
    killed = (*told("leader_change", ONSET + 9), *told("isr_shrink", ONSET + 9))

    assert causes(around(*series, events=killed)) == ["broker_down"]
    assert causes(around(*series)) == ["unknown"]


def missing(share: float, seconds: int, sent: float = 200.0) -> list[Series]:
    """Return what is sent and acknowledged, of which a share is missing from the onset on."""
    k = np.arange(END, dtype=np.int64)
    is_short = (k >= ONSET) & (k < ONSET + seconds)
    sending = np.where(k < ONSET, 200.0, sent)
    acked = np.where(is_short, (1.0 - share) * sending, sending)
    return [Series(ACKED, k, acked), Series(SENT, k, sending)]


def test_acknowledgements_are_said_to_stop_only_where_there_was_none() -> None:
    watched = silent('probe@b1|broker_log_events{kind="leader_change",log="s"}', 0.0)
    said = [
        attribute(STEP, around(*missing(share, 12), watched, *calm()))[0].evidence[0].text
        for share in (0.3, 0.999, 1.0)
    ]
    onset = "for 12 s, beginning at the onset, and then they came again."

    assert said == [
        f"30% of the usual acknowledgements were missing {onset}",
        f"99% of the usual acknowledgements were missing {onset}",
        f"Acknowledgements stopped {onset}",
    ]


def test_a_page_silent_for_seconds_is_said_to_answer_again() -> None:
    (found,) = attribute(STEP, around(silent(UP, 1.0, *range(ONSET, ONSET + 9)), *calm()))

    assert found.evidence[0].text == (
        "The metrics page of b1 gave no answer for 9 s, beginning at the onset, "
        "and then it gave some again."
    )


@pytest.mark.parametrize(("share", "first"), [(0.0, "leader_move"), (0.3, "broker_down")])
def test_less_that_we_send_ourselves_is_no_stop(share: float, first: str) -> None:
    """All of 120 messages a second are acknowledged, where it was 200; a leader moves beside it."""
    moved = told("leader_change", ONSET + 3)

    assert causes(around(*missing(share, 12, sent=120.0), events=moved))[0] == first


def test_less_that_is_sent_because_the_queue_is_full_is_a_stop() -> None:
    k = np.arange(END, dtype=np.int64)
    held = Series("produce.0@h|held_back_messages", k, np.where(k < ONSET, 0.0, 50.0))
    moved = told("leader_change", ONSET + 3)

    assert causes(around(*missing(0.0, 12, sent=120.0), held, events=moved))[0] == "broker_down"


def away(begin: int, end: int) -> Nearby:
    """Return a broker that answers no question between two seconds, and whose copies are behind as long."""
    k = np.arange(END, dtype=np.int64)
    is_away = (k >= begin) & (k < end)
    trip = 'probe@h|broker_round_trip_seconds{target="b1:9092"}'
    behind = 'probe@h|cluster_under_replicated_partitions{follower="b1:9092"}'
    return around(
        Series(trip, k[~is_away], np.full(np.count_nonzero(~is_away), 1e-3)),
        Series(behind, k, np.where(is_away, 62.0, 0.0)),
    )


def test_a_broker_that_comes_back_copies_what_it_missed() -> None:
    """It answers short questions again 4 s after the onset."""
    (found,) = attribute(STEP, away(30, ONSET + 4))

    assert (found.cause, found.suspect) == ("under_replicated", "b1:9092")
    assert "Broker b1:9092 answers again, 4 s after the onset" in found.evidence[1].text


@pytest.mark.parametrize(("begin", "end"), [(ONSET, ONSET + 8), (5, 30)], ids=["gone", "long ago"])
def test_a_broker_that_was_away_at_another_time_is_no_reason_to_copy(begin: int, end: int) -> None:
    """One that falls silent at the onset and goes on soon; one that came back more than a minute before."""
    assert "under_replicated" not in causes(away(begin, end))


def test_the_cpu_of_a_load_host_is_no_broker_s_though_it_reads_the_pages_of_their_hosts() -> None:
    page = channel('probe@load|node_disk_io_time_seconds{device="sda",target="b1:9100"}', 0.1, 0.1)

    assert causes(around(channel("probe@load|host_cpu_ratio", 0.3, 0.97), page)) == ["unknown"]


def waits(at: str, after: float) -> Series:
    """Return what a server knows of the tasks that wait for CPU on a host."""
    name = f'probe@w|node_pressure_cpu_waiting_seconds{{instance="{at}:9100",target="all"}}'
    return channel(name, 0.02, after)


@pytest.mark.parametrize(("host", "cause"), [("h", "unknown"), ("b1", "broker_cpu")])
def test_a_page_of_the_load_s_own_host_is_none_of_a_broker(host: str, cause: str) -> None:
    """A server knows the hosts of all; the producer is on h, and the brokers are elsewhere."""
    hosts = [waits(at, 0.02) for at in ("b1", "b2", "h")]

    assert causes(around(*hosts, waits(host, 0.6), *led("b1", "b2"))) == [cause]


def test_a_page_of_our_own_host_may_be_a_broker_s_where_brokers_go_by_other_names() -> None:
    """Clients have addresses, the server has names; or a broker's own page is of that host."""
    hosts, short = [waits(at, 0.02) for at in ("b1", "b2")], waits("h", 0.6)
    page = 'probe@w|kafka_server_replicamanager_leadercount{instance="h:9404",target="all"}'

    assert causes(around(*hosts, short, *led("10.0.0.1", "10.0.0.2"))) == ["broker_cpu"]
    assert causes(around(*hosts, short, channel(page, 40.0, 40.0), *led("b1", "b2"))) == [
        "broker_cpu"
    ]


def test_the_host_of_a_broker_is_one_though_no_file_of_it_is_watched() -> None:
    short = channel(CPU, 0.3, 0.97)
    trip = channel('probe@b1|broker_round_trip_seconds{target="localhost:9092"}', 4e-4, 4e-4)

    assert causes(around(short)) == ["unknown"]
    assert causes(around(short, trip)) == ["broker_cpu"]


def test_of_two_hosts_that_run_short_the_one_whose_cpu_rose_more_is_suspected() -> None:
    b1 = [channel(CPU, 0.55, 0.8), channel(FSYNC, 0.002, 0.002)]
    b2 = [
        channel(CPU.replace("@b1", "@b2"), 0.3, 0.99),
        channel(FSYNC.replace("@b1", "@b2"), 0.002, 0.002),
    ]
    found = attribute(STEP, around(*b1, *b2))

    assert (found[0].cause, found[0].suspect) == ("broker_cpu", "b2")


def test_an_exporter_whose_page_is_late_is_no_broker_that_stands_still() -> None:
    """It has more to tell, of more partitions."""
    late = channel('probe@b1|scrape_duration_seconds{target="kminion"}', 0.1, 0.3)
    shown = channel('probe@b1|kminion_end_to_end_messages_produced{target="kminion"}', 10.0, 10.0)

    assert causes(around(late, *calm())) == ["broker_pause"]
    assert causes(around(late, shown, *calm())) == ["unknown"]
