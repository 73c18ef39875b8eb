"""Flushes, neighbours, backlogs, compactions, full drives: what else a drive's numbers may mean."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.incidents import group
from detectors.nearby import Nearby
from soak.core.model import Series
from tests.support.detection.cause_panels import END, ONSET, STEP, around, channel, told
from tests.support.detection.incident_world import outage

VDA = '{device="vda"}'
AWAIT = f"probe@b1|disk_write_await_seconds{VDA}"
BUSY = f"probe@b1|node_disk_io_time_seconds{VDA}"
WRITTEN = f"probe@b1|node_disk_written_bytes{VDA}"
READ = f"probe@b1|node_disk_read_bytes{VDA}"
FSYNC = 'probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}'
FSYNC_LAG = 'probe@b1|fsync_schedule_lag_seconds{directory="/d"}'
SENT = "produce.0@h|sent_messages"
OTHERS = "probe@b1|cluster_other_messages"
LAG = "consume.0@h|lag_messages"
FREE = 'probe@b1|node_filesystem_avail_bytes{mountpoint="/d",target="b1"}'


def causes(found: Nearby) -> list[str]:
    return [one.cause for one in attribute(STEP, found)]


def innocent() -> list[Series]:
    return [channel(AWAIT, 1e-3, 1e-3), channel(BUSY, 0.1, 0.1), channel(WRITTEN, 9e6, 9e6)]


def innocent_of(device: str) -> list[Series]:
    return [replace(one, name=one.name.replace("vda", device)) for one in innocent()]


def busy(written: float = 90e6, sent: float = 200.0) -> list[Series]:
    """Return a drive that others use: what clients write besides us stays, as the brokers' offsets say."""
    return [
        channel(AWAIT, 1e-3, 8e-3),
        channel(BUSY, 0.1, 0.9),
        channel(WRITTEN, 9e6, written),
        channel(OTHERS, 20.0, 20.0),
        channel(SENT, 200.0, sent),
    ]


def draining(from_k: int = ONSET, seconds: float = 60.0) -> Series:
    """A backlog of so many seconds of 200 messages a second, at its peak in `from_k`, gone after 60 s."""
    k = np.arange(END, dtype=np.int64)
    peak = 200.0 * seconds
    grown = peak * (1.0 - (from_k - k) / seconds)
    values = np.where(
        k <= from_k, np.maximum(grown, 5.0), peak * np.maximum(1 - (k - from_k) / 60, 0)
    )
    return Series(LAG, k, values)


def standing_still(completed: float = 0.5, waiting: float = 30.0) -> list[Series]:
    """Return a drive whose requests take so long that hardly one is completed; times of those are rare."""
    rare = channel(AWAIT, 5e-4, 4.0)
    known = (rare.k < ONSET) | (rare.k % 20 == 0)
    return [
        replace(rare, k=rare.k[known], values=rare.values[known]),
        channel(BUSY, 0.05, 0.99),
        channel(WRITTEN, 9e5, 4e3),
        channel(f"probe@b1|node_disk_writes_completed{VDA}", 100.0, completed),
        channel(f"probe@b1|node_disk_io_now{VDA}", 0.0, waiting),
    ]


def test_a_drive_that_stands_still_is_named_and_not_what_follows_from_it() -> None:
    """Leaders move away from the broker that waits for it."""
    moves = told("leader_change", ONSET + 1, topic="t", partition=0)
    (first, *_) = attribute(STEP, around(*standing_still(), events=moves))

    assert (first.cause, first.suspect) == ("slow_drive", "vda on b1")
    assert any("came to a standstill: it completed" in one.text for one in first.evidence)


def test_an_outage_of_one_leader_has_the_cause_of_the_outage_of_all_that_it_goes_on_from() -> None:
    """The drive stood still nine seconds before the others led without it."""
    whole = replace(outage(ONSET, 9.0, "produce.0@h"), state="gone", resolved_k=ONSET + 9)
    series = 'produce.0@h|acknowledgement_outage_seconds{leader="3"}'
    one = replace(outage(ONSET + 9, 48.0), series=series)
    moves = told("leader_change", ONSET + 9, topic="t", partition=0)
    (incident,) = group([whole, one])

    (first, *_) = attribute(incident, around(*standing_still(), events=moves))

    assert incident.headline.onset_k == ONSET + 9
    assert (first.cause, first.suspect) == ("slow_drive", "vda on b1")


def test_a_drive_that_answers_no_write_is_not_said_to_be_as_fast_as_before() -> None:
    """There is no time of a write: nothing rules it out."""
    silent = [one for one in standing_still() if "io_now" not in one.name][1:]
    (found,) = attribute(STEP, around(*silent, *innocent_of("vdb")))

    assert found.cause == "unknown"
    assert "Slow drive is ruled out" not in " ".join(one.text for one in found.against)


def test_a_drive_that_nobody_writes_to_does_not_stand_still() -> None:
    """Its broker was ended: nothing waits."""
    dead = [*standing_still(completed=0.0, waiting=0.0)]
    dead[1] = channel(BUSY, 0.05, 0.0)

    assert "slow_drive" not in causes(around(*dead))


def test_flushes_that_wait_above_an_innocent_device() -> None:
    (found,) = attribute(STEP, around(channel(FSYNC, 0.002, 0.1), *innocent()))

    assert found.cause == "slow_fsync"
    assert (
        "The device below did not slow down and its work did not grow (vda on b1)"
        in found.evidence[1].text
    )


@pytest.mark.parametrize(
    ("host", "before", "after", "is_short"),
    [
        ("probe@b1", 0.3, 0.9, True),
        ("probe@b1", 0.6, 0.76, True),
        ("probe@b1", 0.04, 0.06, False),
        ("probe@b1", 0.3, 0.5, False),
        ("probe@b2", 0.3, 0.9, False),
    ],
)
def test_flushes_come_after_what_took_the_cpu_that_they_wait_for(
    host: str, before: float, after: float, *, is_short: bool
) -> None:
    """Where that of their own host ran short: collections, on two cores. They are told still."""
    flushes = [channel(FSYNC, 0.002, 0.1), *innocent()]
    cpu = channel(f"{host}|host_cpu_ratio", before, after)

    (alone,) = attribute(STEP, around(*flushes))
    beside = attribute(STEP, around(*flushes, cpu))

    if is_short:
        assert [one.cause for one in beside] == ["broker_cpu", "slow_fsync"]
        assert "CPU of its host ran short" in beside[1].evidence[2].text
    else:
        assert alone == beside[0]


@pytest.mark.parametrize(("write", "is_named"), [(0.7e-3, True), (4e-3, False)])
def test_a_device_that_slows_by_a_trifle_is_not_behind_flushes(
    write: float, *, is_named: bool
) -> None:
    """What a limit holds up comes in bursts, which the device feels: 0.37 to 0.68 ms a write, once."""
    device = [channel(AWAIT, 0.37e-3, write), channel(WRITTEN, 9e6, 2e6)]
    found = attribute(STEP, around(channel(FSYNC, 0.002, 0.1), *device))

    assert ("slow_fsync" in [one.cause for one in found]) is is_named
    if is_named:
        assert "slowed by too little to explain the step (vda on b1)" in found[0].evidence[1].text


@pytest.mark.parametrize(
    ("write", "flush", "told_deletions", "is_named"),
    [
        (1.6e-3, 0.1, True, True),
        (1.6e-3, 0.1, False, False),
        (20e-3, 0.1, True, False),
        (1.2e-3, 0.02, True, False),
    ],
    ids=["beside", "discards of nobody known", "a device as slow", "no more than deletions do"],
)
def test_flushes_that_wait_beside_deletions_whose_discards_the_device_feels(
    write: float, flush: float, *, told_deletions: bool, is_named: bool
) -> None:
    device = [
        channel(AWAIT, 1e-3, write),
        channel(f"probe@b1|node_disk_discards_completed{VDA}", 8.0, 160.0),
        channel(WRITTEN, 9e6, 9e6),
    ]
    events = told("retention_deletion", *range(ONSET, END, 3)) if told_deletions else ()
    found = causes(around(channel(FSYNC, 0.008, flush), *device, events=events))

    assert ("slow_fsync" in found) is is_named


def test_flushes_alone_may_be_a_slow_drive() -> None:
    assert causes(around(channel(FSYNC, 0.002, 0.1))) == ["unknown"]


def elsewhere(*series: Series) -> list[Series]:
    return [replace(one, name=one.name.replace("@b1|", "@b2|")) for one in series]


def test_a_device_of_another_host_says_nothing_of_flushes() -> None:
    """Neither where it is innocent, nor where others write to it."""
    flushes = channel(FSYNC, 0.002, 0.1)

    assert causes(around(flushes, *elsewhere(*innocent()))) == ["unknown"]
    assert "slow_fsync" in causes(around(flushes, *innocent(), *elsewhere(*busy()[:3])))


JOURNAL = 'probe@load1|bookie_journal_JOURNAL_SYNC_seconds{quantile="0.99",target="bookie3:8000"}'


def drive_at(host: str) -> list[Series]:
    """Return a calm drive that is watched on its host."""
    return [replace(one, name=one.name.replace("@b1|", f"@{host}|")) for one in innocent()]


def test_flushes_that_a_page_tells_of_wait_above_the_drive_of_that_page_s_host() -> None:
    """The host that reads the page has neither the journal nor its drive."""
    (found,) = attribute(STEP, around(channel(JOURNAL, 0.002, 0.08), *drive_at("bookie3")))

    assert (found.cause, found.suspect) == ("slow_fsync", "bookie3:8000")
    assert "The device below did not slow down" in found.evidence[1].text
    assert "(vda on bookie3)" in found.evidence[1].text


def test_calm_drives_of_other_hosts_say_nothing_of_the_flushes_that_a_page_tells_of() -> None:
    """It was once enough that any drive was calm: that drive was called the device below the flushes."""
    calm = [*drive_at("b1"), *drive_at("b2"), *drive_at("load1")]
    (found,) = attribute(STEP, around(channel(JOURNAL, 0.002, 0.08), *calm))

    assert found.cause == "unknown"
    assert "the device below the flushes of bookie3:8000" in " ".join(
        one.text for one in found.evidence
    )


def test_where_all_brokers_are_on_one_machine_its_drive_is_below_the_flushes_of_its_pages() -> None:
    """As in a lab: its brokers listen at local addresses, and a page has any name."""
    journal = channel(JOURNAL.replace("load1", "box").replace("bookie3:8000", "bookie"), 0.002, 0.1)
    trips = channel('probe@box|broker_round_trip_seconds{target="127.0.0.1:9092"}', 1e-3, 1e-3)
    (found,) = attribute(STEP, around(journal, trips, *drive_at("box")))

    assert (found.cause, found.suspect) == ("slow_fsync", "bookie")


def test_a_calm_host_does_not_rule_out_that_a_broker_is_held_back_by_its_own_cgroup() -> None:
    """The kernel holds its writes back above the drive, and other processes flush as fast as ever."""
    (found,) = attribute(STEP, around(*innocent(), channel(FSYNC, 0.002, 0.002)))
    against = " ".join(one.text for one in found.against)

    assert "Drive GC is ruled out" in against
    assert "Drive throttled is ruled out" not in against
    assert "limits of the brokers' own cgroups (io.max)" in " ".join(
        one.text for one in found.evidence
    )


def test_flushes_that_are_only_started_late_are_the_cpu_s() -> None:
    late = [channel(FSYNC, 0.002, 0.1), channel(FSYNC_LAG, 0.001, 0.09)]

    assert causes(around(*late, *innocent())) == ["unknown"]


def test_flushes_that_each_wait_for_the_one_before_do_not_only_begin_late() -> None:
    """One takes half a second where the next is due after 0.2 s; one in another folder makes none late."""
    late = [channel(FSYNC, 0.005, 0.7), channel(FSYNC_LAG, 0.001, 0.5)]
    hanging = channel('probe@b1|fsync_hanging_seconds{directory="/d"}', 0.0, 0.6)
    elsewhere = replace(hanging, name=hanging.name.replace('"/d"', '"/e"'))

    assert causes(around(*late, hanging, *innocent())) == ["slow_fsync"]
    assert causes(around(*late, elsewhere, *innocent())) == ["unknown"]


def test_a_drive_that_others_write_to() -> None:
    (found,) = attribute(STEP, around(*busy()))

    assert found.cause == "noisy_neighbour"
    assert "what we send and what other clients write stayed the same" in found.evidence[2].text


def test_of_a_neighbour_only_what_was_watched_is_said_to_have_stayed() -> None:
    """First what clients send; then what a broker takes in alone, beside all that it does by itself.

    What we send alone does not name a neighbour any more: others may write through the brokers.
    """
    pages = [
        channel('probe@b1|kafka_server_brokertopicmetrics_bytesin{target="b1"}', 9e6, 9e6),
        channel(LAG, 5.0, 5.0),
        channel("probe@b1|retention_poll_age_seconds", 0.1, 0.1),
        channel('probe@b1|bookie_MAJOR_COMPACTIONS{target="b"}', 0.0, 0.0),
        channel('probe@b1|broker_log_events{kind="leader_change",log="s"}', 0.0, 0.0),
    ]
    little = around(*busy())
    much = replace(around(*busy()[:3], *pages), k1=END + 60)

    said = [
        attribute(STEP, one)[0]
        .evidence[2]
        .text.removeprefix("The brokers' own work does not explain it: ")
        for one in (little, much)
    ]

    assert said[0] == (
        "what we send and what other clients write stayed the same across the step. "
        "Backlogs, leaders and deletions were not watched."
    )
    assert said[1] == (
        "what the brokers take in stayed the same across the step, no backlog drained, "
        "no move of leaders began, no deletion began and no compaction began."
    )


def page(broker: str, before: float, after: float) -> Series:
    name = f'probe@h|kafka_server_brokertopicmetrics_bytesin{{target="{broker}:7071"}}'
    return channel(name, before, after)


def test_a_drive_has_no_other_user_where_others_may_write_through_the_brokers() -> None:
    """80 MB/s of another tenant look the same; a broker writes copies of what others lead, too."""
    alone = [one for one in busy() if one.name != OTHERS]
    leaders = [
        channel(f'produce.0@h|leader_info{{address="b{at}:9092",leader="{at}"}}', 1.0, 1.0)
        for at in (1, 2, 3)
    ]
    calm = [page(broker, 9e6, 9e6) for broker in ("b1", "b2", "b3")]
    (found,) = attribute(STEP, around(*alone))

    assert found.cause == "unknown"
    assert any("what each broker takes in" in one.text for one in found.evidence)
    assert causes(around(*alone, *leaders, calm[0])) == ["unknown"]
    assert causes(around(*alone, *leaders, *calm)) == ["noisy_neighbour"]
    assert "noisy_neighbour" not in causes(
        around(*alone, *leaders, *calm[:2], page("b3", 9e6, 9e7))
    )


def test_who_reads_a_drive_is_not_known_where_what_brokers_give_out_is_not() -> None:
    """Our own consumers keep up; others may read old data."""
    read = [*busy(9e6), channel(READ, 1e5, 5e7), channel(LAG, 5.0, 5.0)]
    given = channel('probe@h|kafka_server_brokertopicmetrics_bytesout{target="b1"}', 9e6, 9e6)

    assert causes(around(*read)) == ["unknown"]
    assert causes(around(*read, given)) == ["noisy_neighbour"]


def test_a_drive_from_which_brokers_read_what_they_give_out_more_has_no_neighbour() -> None:
    """Of 200 MB/s most is in memory; 40 MB/s more are old data, and the drive reads 50 MB/s more."""
    read = [*busy(9e6), channel(READ, 1e5, 5e7)]
    few, many = (
        channel('probe@h|kafka_server_brokertopicmetrics_bytesout{target="b1"}', 2e8, after)
        for after in (2.1e8, 2.4e8)
    )

    assert causes(around(*read, few)) == ["noisy_neighbour"]
    assert causes(around(*read, many)) == ["unknown"]


@pytest.mark.parametrize(("added", "cause"), [(0, "noisy_neighbour"), (4, "unknown")])
def test_a_drive_to_which_partitions_move_has_no_neighbour(added: int, cause: str) -> None:
    """Who moves them counts for no client of the broker."""
    k = np.arange(END, dtype=np.int64)
    name = 'probe@h|kafka_server_replicamanager_partitioncount{target="b1"}'
    partitions = Series(name, k, np.where(k < ONSET, 400.0, 400.0 + added))

    assert causes(around(*busy(), partitions)) == [cause]


@pytest.mark.parametrize("what", ["load", "unknown load", "deletions", "compaction not known"])
def test_a_drive_that_the_brokers_may_use_themselves_has_no_neighbour(what: str) -> None:
    series = busy(sent=400.0 if what == "load" else 200.0)
    if what == "unknown load":
        series = series[:-1]
    if what == "compaction not known":
        series.append(channel('probe@b1|pulsar_in_bytes{target="b"}', 1e6, 1e6))
    events = told("retention_deletion", *range(ONSET, END, 9)) if what == "deletions" else ()

    assert "noisy_neighbour" not in causes(around(*series, events=events))


@pytest.mark.parametrize("lag_seconds", [0, 60, 180])
def test_a_neighbour_is_named_once_a_compaction_would_have_been_told(lag_seconds: int) -> None:
    """It is counted when it ends, and by some pages later: until then it may be bookies that write."""
    runs = channel('probe@b1|bookie_MAJOR_COMPACTIONS{target="b"}', 0.0, 0.0)
    seen = replace(around(*busy(), runs), lag_seconds={runs.name: float(lag_seconds)})
    told_k = 103 + max(120, lag_seconds)  # 103: still at the onset
    soon, late, later = (replace(seen, k1=k1) for k1 in (ONSET + 21, told_k, told_k + 1))

    assert [causes(one)[0] for one in (soon, late, later)] == [
        "unknown",
        "unknown",
        "noisy_neighbour",
    ]


def test_a_compaction_that_goes_on_is_not_taken_for_a_neighbour() -> None:
    """What it freed is 0 until it ends, which says nothing of one that has begun."""
    ks = np.arange(END, dtype=np.int64)
    freed = np.where(ks == ONSET + 40, 1e8, 0.0)
    seen = around(*busy(), Series('probe@b1|retention_compacted_bytes{bookie="b:8000"}', ks, freed))
    first = ONSET + 21
    early = {
        name: Series(name, one.k[:first], one.values[:first]) for name, one in seen.series.items()
    }

    assert causes(replace(seen, k1=first, series=early)) == ["unknown"]
    assert causes(seen) == ["compaction"]


@pytest.mark.parametrize(("later_k", "is_named"), [((), True), ((ONSET + 40,), False)])
def test_a_compaction_that_comes_again_is_not_taken_for_a_neighbour(
    later_k: tuple[int, ...], *, is_named: bool
) -> None:
    """One was told a minute before, so that none can be said to have begun; one at the onset may have."""
    ks = np.arange(END, dtype=np.int64)
    counted = np.isin(ks, [ONSET - 60, *later_k]).astype(float)
    runs = Series('probe@b1|bookie_MINOR_COMPACTIONS{target="b"}', ks, counted)
    seen = replace(around(*busy(), runs), k1=END + 60)

    assert ("noisy_neighbour" in causes(seen)) is is_named


def test_a_backlog_that_begins_to_drain_at_the_onset() -> None:
    (found,) = attribute(STEP, around(draining(), channel(SENT, 200.0, 200.0)))

    assert found.cause == "catch_up_read"
    assert "A backlog began to drain at the onset" in found.evidence[0].text
    assert (
        "fell from 12,000 messages to 200 messages in 59 s; at this pace it is empty 1 s later."
        in found.evidence[0].text
    )


def received(standing: range) -> Series:
    """Return what the reader of the backlog received in each second but these, of which it has no record."""
    k = np.setdiff1d(np.arange(END, dtype=np.int64), np.array(standing))
    return Series(LAG.replace("lag", "received"), k, np.full(k.size, 200.0))


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (
            range(ONSET - 45, ONSET - 2),
            [
                "consume.0@h received nothing for 43 s, from 45 s before the onset on: that made the backlog."
            ],
        ),
        (range(ONSET - 4, ONSET), []),
        (range(ONSET - 60, ONSET - 30), []),
    ],
)
def test_a_consumer_that_stood_until_its_backlog_drains_is_said_to_have(
    standing: range, said: list[str]
) -> None:
    (found,) = attribute(STEP, around(draining(), channel(SENT, 200.0, 200.0), received(standing)))
    texts = [one.text for one in found.evidence]

    assert [one for one in texts if "received nothing" in one] == said


def test_a_backlog_that_is_not_read_yet_is_said_to_be_when() -> None:
    """A third of it drained in 20 s."""
    k = np.arange(ONSET + 21, dtype=np.int64)
    values = np.where(k <= ONSET, np.maximum(12_000.0 - 200.0 * (ONSET - k), 5.0), 0.0)
    values = np.where(k > ONSET, 12_000.0 - 300.0 * (k - ONSET), values)
    seen = Nearby(0, ONSET + 21, {LAG: Series(LAG, k, values)})

    (found,) = attribute(STEP, seen)

    assert found.evidence[0].text.endswith(
        "fell from 12,000 messages to 6,000 messages in 20 s; at this pace it is empty 20 s later."
    )


@pytest.mark.parametrize("from_k", [ONSET - 30, ONSET + 20])
def test_a_backlog_that_drains_from_another_time_on_is_not_the_cause(from_k: int) -> None:
    assert causes(around(draining(from_k), channel(SENT, 200.0, 200.0))) == ["unknown"]


def test_a_backlog_of_a_second_is_none() -> None:
    assert causes(around(draining(seconds=2.0), channel(SENT, 200.0, 200.0))) == ["unknown"]


@pytest.mark.parametrize("name", [LAG, 'probe@b1|pulsar_subscription_back_log{target="b1"}'])
@pytest.mark.parametrize(("seconds", "cause"), [(3, "unknown"), (30, "catch_up_read")])
def test_a_backlog_that_nobody_can_weigh_takes_its_time_to_drain(
    name: str, seconds: int, cause: str
) -> None:
    """What is sent is not known, or it is counted in entries: 500 of them may be half a second's."""
    k = np.arange(END, dtype=np.int64)
    values = np.interp(k, [0, ONSET, ONSET + seconds], [0.0, 500.0, 0.0])

    assert causes(around(Series(name, k, values))) == [cause]


def test_a_backlog_below_zero_is_none() -> None:
    """Old results of the benchmark hold such."""
    k = np.arange(END, dtype=np.int64)

    below = Series(LAG, k, (-5.0 - k % 3).astype(np.float64))

    assert causes(around(below, channel(SENT, 200.0, 200.0))) == ["unknown"]


def test_a_backlog_that_stood_and_then_drains() -> None:
    """A plateau of noise, whose largest value lies anywhere."""
    k = np.arange(END, dtype=np.int64)
    level = 50_000.0 * np.minimum(1.0, 1.0 - (k - ONSET) / 90.0)
    values = level + np.random.default_rng(0).normal(0.0, 300.0, END)
    found = around(Series(LAG, k, np.maximum(values, 0.0)), channel(SENT, 200.0, 200.0))
    late = around(Series(LAG, k + 20, np.maximum(values, 0.0)), channel(SENT, 200.0, 200.0))

    assert causes(found) == ["catch_up_read"]
    assert causes(late) == ["unknown"]


def test_a_backlog_that_a_throttled_consumer_drains_by_turns() -> None:
    """It reads twice as fast as messages come for 20 s, then nothing for ten."""
    k = np.arange(END, dtype=np.int64)
    is_reading = (k > ONSET) & ((k - ONSET) % 30 < 20)
    read = np.where(is_reading, 3.0, 0.0) * 200.0
    values = 12_000.0 + np.cumsum(np.where(k > ONSET, 200.0 - read, 0.0))
    values[k < ONSET] = 200.0 * np.maximum(60.0 - (ONSET - k[k < ONSET]), 0.0)
    found = around(Series(LAG, k, np.maximum(values, 0.0)), channel(SENT, 200.0, 200.0))

    assert causes(found) == ["catch_up_read"]


def test_samples_every_ten_seconds_tell_a_drain_as_well() -> None:
    """As in a result of the OpenMessaging Benchmark: 18 samples, 10 s apart."""
    k = np.arange(0, END, 10, dtype=np.int64)
    values = np.where(
        k <= ONSET, 2000.0 + 300.0 * k, np.maximum(32000.0 - 6000.0 * (k - ONSET) / 10, 0)
    )
    name = "omb|backlog_messages"

    assert causes(Nearby(0, END, {name: Series(name, k, values)})) == ["catch_up_read"]


GROUP = 'probe@h|kminion_kafka_consumer_group_topic_lag{group_id="%s",target="kminion"}'
EXPORTED = 'probe@h|kafka_consumergroup_lag_sum{consumergroup="%s",target="exporter"}'


def is_catch_up_ruled_out(*series: Series) -> bool:
    (found,) = attribute(STEP, around(channel(SENT, 200.0, 200.0), *series))
    return any("Catch up read is ruled out" in one.text for one in found.against)


@pytest.mark.parametrize("group", [GROUP, EXPORTED])
def test_a_reader_of_old_data_is_ruled_out_where_the_backlogs_of_all_groups_are_known(
    group: str,
) -> None:
    """Our own consumers say nothing of another group's."""
    own, others = channel(LAG, 5.0, 5.0), channel(group % "etl", 4000.0, 4000.0)
    (found,) = attribute(STEP, around(own))

    assert not is_catch_up_ruled_out(own)
    assert any("backlogs of other consumer groups" in one.text for one in found.evidence)
    assert is_catch_up_ruled_out(own, others)


def test_backlogs_of_some_brokers_groups_do_not_rule_a_reader_out() -> None:
    """Each of Redpanda's brokers reports those of the groups that it coordinates."""
    pages = [
        channel(
            f'probe@h|redpanda_kafka_consumer_group_lag_sum{{redpanda_group="g",target="b{at}:9644"}}',
            4000.0,
            4000.0,
        )
        for at in (1, 2, 3)
    ]
    k = np.arange(END, dtype=np.int64)
    size = Series('probe@h|redpanda_cluster_brokers{target="b1:9644"}', k, np.full(END, 3.0))

    assert is_catch_up_ruled_out(size, *pages)
    assert not is_catch_up_ruled_out(size, *pages[:2])
    assert not is_catch_up_ruled_out(*pages)


@pytest.mark.parametrize("group", [GROUP, EXPORTED])
def test_a_consumer_group_whose_backlog_drains_is_named(group: str) -> None:
    drained = replace(draining(), name=group % "etl")
    (found,) = attribute(STEP, around(drained, channel(LAG, 5.0, 5.0), channel(SENT, 200.0, 200.0)))

    assert (found.cause, found.suspect) == ("catch_up_read", "group etl")


def tooth(name: str, *peaks: int) -> Series:
    """Return a backlog that grows to 6,000 until each of these seconds and is read in the eight after it."""
    k = np.arange(END, dtype=np.int64)
    grown = [np.interp(k, [at - 15, at, at + 8], [0.0, 6000.0, 0.0]) for at in peaks]
    return Series(name, k, np.maximum.reduce(grown))


def test_a_backlog_that_drains_every_half_minute_is_none_of_the_onset() -> None:
    """One does so at any onset; one that is far larger than those before does not."""
    usual = tooth(LAG, 10, 40, 70, ONSET)
    large = replace(usual, values=0.1 * usual.values + draining().values)
    seen = [
        replace(around(one, channel(SENT, 200.0, 200.0)), k1=ONSET + 21)
        for one in (usual, tooth(LAG, ONSET), large)
    ]
    (found,) = attribute(STEP, seen[0])

    assert [causes(one) for one in seen] == [["unknown"], ["catch_up_read"], ["catch_up_read"]]
    assert any("Backlogs fell like that 3 times in the " in one.text for one in found.evidence)


def test_one_of_many_groups_that_each_read_at_times_drains_at_any_onset() -> None:
    groups = [tooth(GROUP % f"g{at}", ONSET - 9 * at) for at in range(10)]

    assert causes(around(groups[0], channel(SENT, 200.0, 200.0))) == ["catch_up_read"]
    assert causes(around(*groups, channel(SENT, 200.0, 200.0))) == ["unknown"]


def test_a_backlog_that_is_there_at_once_has_its_peak_for_a_level() -> None:
    """As of a subscription that was set back before the step: no sample beside the peak is near it."""
    k = np.arange(0, END, 10, dtype=np.int64)
    values = np.where(k < 30, 2000.0, np.maximum(32000.0 - 6000.0 * (k - 30) / 10, 0))
    name = "omb|backlog_messages"
    with warnings.catch_warnings(action="error"):
        found = causes(Nearby(0, END, {name: Series(name, k, values)}))

    assert found == ["unknown"]


def test_a_bookie_s_compaction_is_told_when_it_ends_and_dated_by_the_device() -> None:
    runs = Series(
        'probe@b1|bookie_MAJOR_COMPACTIONS{target="b"}',
        np.arange(END, dtype=np.int64),
        (np.arange(END) == ONSET + 40).astype(float),
    )
    (found,) = attribute(STEP, around(*busy(), channel(READ, 1e5, 5e7), runs))

    assert found.cause == "compaction"
    assert "The bookies reported a compaction 40 s after the onset" in found.evidence[0].text


def test_a_drive_without_space() -> None:
    k = np.arange(END, dtype=np.int64)
    free = Series(FREE, k, np.maximum(4e9 * (1 - k / ONSET), 1e6))
    (found,) = attribute(STEP, around(free))

    assert found.cause == "disk_full"
    assert "was down to" in found.evidence[0].text


@pytest.mark.parametrize(("full_at", "cause"), [(0, "disk_full"), (30, "unknown")])
@pytest.mark.parametrize(("spacing", "lag"), [(1, 0.0), (10, 0.0), (1, 15.0)])
def test_a_drive_that_fills_after_the_step_did_not_make_it(
    full_at: int, cause: str, spacing: int, lag: float
) -> None:
    k = np.arange(0, END, spacing, dtype=np.int64)
    free = Series(FREE, k, np.where(k < ONSET + full_at + lag, 50e9, 1e6))

    assert causes(around(free, lag=lag)) == [cause]


def test_a_probe_that_has_no_space_to_write_says_so() -> None:
    events = told("probe_failed", ONSET - 2, reason="less space is free than free_space_floor says")

    assert causes(around(events=events)) == ["disk_full"]


def test_a_drive_that_was_small_all_along_is_not_full() -> None:
    assert causes(around(channel(FREE, 1e8, 0.9e8))) == ["unknown"]


def slow_throughout(flush: float, turns: float) -> Nearby:
    return around(
        channel(FSYNC, 0.001, 0.012),
        channel(AWAIT, 1e-3, 11e-3),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.02, 0.2),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 1e-3, flush),
        channel(WRITTEN, 9e6, 9e6),
        channel(f"probe@b1|disk_turnover_ratio{VDA}", turns, turns),
    )


def test_a_new_drive_that_flushes_and_writes_later_alike_is_slow_and_collects_nothing() -> None:
    (found,) = attribute(STEP, slow_throughout(flush=11e-3, turns=0.2))
    texts = " ".join(one.text for one in found.evidence)

    assert found.cause == "slow_drive"
    assert "disk flush await (vda) of probe@b1 went from 998 us to 11 ms" in texts
    assert "The work on the drive did not grow" in texts


def on_a_page(flush: float, flushes: float = 10.0) -> Nearby:
    """What node_exporter tells of a drive: 20 writes a second that come to take 11 ms each, and flushes."""

    def told_of(metric: str, before: float, after: float) -> Series:
        return channel(f'probe@h|node_disk_{metric}{{device="vda",target="b1"}}', before, after)

    return around(
        told_of("writes_completed", 20.0, 20.0),
        told_of("write_time_seconds", 0.02, 0.22),
        told_of("written_bytes", 9e6, 9e6),
        told_of("io_time_seconds", 0.02, 0.2),
        told_of("flush_requests", flushes, flushes),
        told_of("flush_requests_time_seconds", flushes * 1e-3, flushes * flush),
    )


@pytest.mark.parametrize(("flush", "cause"), [(11e-3, "slow_drive"), (1e-3, "drive_gc")])
def test_a_page_tells_by_number_and_time_how_long_flushes_take(flush: float, cause: str) -> None:
    (found,) = attribute(STEP, on_a_page(flush))

    assert (found.cause, found.suspect) == (cause, "vda on b1")


def test_a_drive_without_flushes_is_not_said_to_need_a_newer_kernel_alone() -> None:
    """Those of most clouds cache no writes, so that none are sent to them."""
    calm = channel(FSYNC, 0.004, 0.004)
    (found,) = attribute(STEP, around(*on_a_page(0.0, flushes=0.0).series.values(), calm))

    assert found.cause == "unknown"
    assert "flushes of vda on b1 (kernel 5.5 or newer; a drive that caches no writes" in " ".join(
        one.text for one in found.evidence
    )


@pytest.mark.parametrize("before", [0.12, 0.88, 0.95])
@pytest.mark.parametrize(("flush", "cause"), [(0.15, "drive_gc"), (0.3, "slow_drive")])
def test_on_a_drive_that_is_busy_all_the_time_flushes_wait_behind_writes(
    flush: float, cause: str, before: float
) -> None:
    """As a starving drive did in a drill: 4.5 to 400 ms a write, and a flush from 0.9 to 150 ms."""
    busy = [
        channel(AWAIT, 4.5e-3, 0.4),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.2, 4.0),
        channel(f"probe@b1|node_disk_io_time_seconds{VDA}", before, 1.0),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 0.9e-3, flush),
        channel(WRITTEN, 4.5e6, 1.3e6),
        channel(f"probe@b1|disk_turnover_ratio{VDA}", 0.15, 0.15),
    ]

    assert causes(around(*busy))[0] == cause


def one_at_a_time(
    size_spread: float = 0.2, flush: float = 40e-3, number: float = 54.0, spread: float = 1.0
) -> list[Series]:
    """Return a drive, written over once, that comes to take as long for each request: so many a second.

    `spread`: by how many requests a second has more or fewer.
    """
    k = np.arange(END, dtype=np.int64)
    rng = np.random.default_rng(0)
    writes = np.where(k < ONSET, 95.0, number) * rng.lognormal(
        0.0, np.where(k < ONSET, 0.09, spread / number)
    )
    written = np.where(k < ONSET, 9e5, 4.5e5) * rng.lognormal(
        0.0, np.where(k < ONSET, 0.1, size_spread)
    )
    return [
        channel(AWAIT, 1e-3, 61e-3),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.1, 3.2),
        channel(BUSY, 0.1, 1.0),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 0.5e-3, flush),
        channel(f"probe@b1|disk_turnover_ratio{VDA}", 1.5, 1.5),
        Series("produce.0@h|in_flight_messages", k, np.where(k < ONSET, 3.0, k - 95.0)),
        channel(SENT, 100.0, 100.0),
        Series(f"probe@b1|node_disk_writes_completed{VDA}", k, writes),
        Series(WRITTEN, k, written),
    ]


def test_a_drive_that_takes_its_time_for_each_request_is_slow_before_it_is_throttled() -> None:
    """As many a second as a limit would let through; garbage would be collected for bytes."""
    found = attribute(STEP, around(*one_at_a_time()))

    assert [one.cause for one in found] == ["slow_drive", "drive_throttled"]
    assert "took the same time for each request" in " ".join(one.text for one in found[0].evidence)


def test_a_drive_that_completes_few_requests_has_one_more_or_less_in_a_second() -> None:
    """Eleven, and a flush that waits a little longer than half as long as they do."""
    assert causes(around(*one_at_a_time(0.6, 35e-3, 11.0))) == ["slow_drive"]


@pytest.mark.parametrize(("waiting", "cause"), [(2.0, "slow_drive"), (1.0, "drive_gc")])
def test_requests_that_wait_together_may_complete_in_one_second_or_the_next(
    waiting: float, cause: str
) -> None:
    """As on a drive of a drill, two at a time; its flushes waited a little longer than half as long."""
    series = one_at_a_time(0.6, 35e-3, 37.0, spread=2.5)
    at_a_time = channel(f"probe@b1|node_disk_io_now{VDA}", 0.0, waiting)
    found = attribute(STEP, around(*series, at_a_time))

    assert found[0].cause == cause


@pytest.mark.parametrize(("waiting", "is_still"), [(2.0, False), (8.0, True)])
def test_a_drive_that_completes_more_than_wait_does_not_stand_still(
    waiting: float, *, is_still: bool
) -> None:
    """Five a second: two that wait take .4 s each, eight more than a second."""
    (first, *_) = attribute(STEP, around(*standing_still(5.0, waiting)))

    assert any("standstill" in one.text for one in first.evidence) is is_still


def test_a_busy_drive_whose_requests_vary_as_their_bytes_collects_garbage_though_flushes_wait() -> (
    None
):
    """A megabyte every other second, in 16 to 27 requests; a flush waits for what was written before it."""
    k = np.arange(END, dtype=np.int64)
    rng = np.random.default_rng(0)
    is_given = (k < ONSET) | (k % 2 == 0)
    number = np.where(k < ONSET, 1200.0 * rng.lognormal(0.0, 0.1, END), rng.integers(16, 28, END))
    found = attribute(
        STEP,
        around(
            channel(AWAIT, 0.5e-3, 0.18),
            channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.5, 5.0),
            channel(BUSY, 0.6, 1.0),
            channel(f"probe@b1|disk_flush_await_seconds{VDA}", 0.35e-3, 0.15),
            channel(f"probe@b1|disk_turnover_ratio{VDA}", 0.2, 0.2),
            Series(f"probe@b1|node_disk_writes_completed{VDA}", k, number * is_given),
            Series(WRITTEN, k, np.where(k < ONSET, 7e3, 5e4) * number * is_given),
        ),
    )

    assert found[0].cause == "drive_gc"
    assert "did not take the same time for each request" in " ".join(
        one.text for one in found[0].evidence
    )


@pytest.mark.parametrize(("ratio", "seconds"), [(30.0, 10), (30.0, 30), (4.0, 20)])
def test_a_time_of_a_write_that_climbs_from_the_onset_on_is_at_the_onset(
    ratio: float, seconds: int
) -> None:
    k = np.arange(END, dtype=np.int64)
    climb = ratio ** np.clip((k - ONSET) / seconds, 0.0, 1.0)
    found = around(
        Series(AWAIT, k, channel(AWAIT, 1e-3, 1e-3).values * climb),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.1, 0.9),
        channel(BUSY, 0.1, 0.9),
        channel(WRITTEN, 9e6, 9e6),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 1e-3, 1e-3),
        channel(f"probe@b1|disk_turnover_ratio{VDA}", 1.5, 1.5),
    )

    assert causes(found)[0] == "drive_gc"


@pytest.mark.parametrize("every", [4, 5, 8])
def test_a_drive_that_takes_seconds_for_each_request_is_slow(every: int) -> None:
    """No second has more than one: that their number varies says nothing."""
    k = np.arange(END, dtype=np.int64)
    writes = np.where(k < ONSET, 3.0, (k % every == 0).astype(np.float64))
    found = around(
        channel(AWAIT, 1e-3, float(every)),
        channel(f"probe@b1|node_disk_write_time_seconds{VDA}", 0.1, 1.0),
        channel(BUSY, 0.1, 1.0),
        channel(f"probe@b1|disk_flush_await_seconds{VDA}", 1e-3, float(every)),
        channel(f"probe@b1|disk_turnover_ratio{VDA}", 0.2, 0.2),
        Series(f"probe@b1|node_disk_writes_completed{VDA}", k, writes),
        Series(WRITTEN, k, writes * 4096.0),
    )

    assert causes(found)[0] == "slow_drive"


def test_a_small_rise_before_does_not_move_the_date_of_a_large_one() -> None:
    """Most seconds that were known by then lay between the two."""
    written = channel(AWAIT, 0.5e-3, 0.2)
    values = np.where((written.k >= ONSET - 37) & (written.k < ONSET), 0.8e-3, written.values)
    is_known = (written.k < ONSET + 20) & ((written.k < ONSET) | (written.k % 2 == 0))
    first = attribute(
        STEP,
        around(
            Series(AWAIT, written.k[is_known], values[is_known]),
            channel(BUSY, 0.6, 1.0),
            channel(WRITTEN, 7e6, 2e5),
        ),
    )[0]

    dated = [one.numbers["onset_k"] for one in first.evidence if one.numbers.get("series") == AWAIT]
    assert dated == [ONSET]


def test_a_limit_on_bytes_or_one_that_flushes_do_not_feel_is_no_slow_drive() -> None:
    """Bytes as steady as requests; then flushes as fast as before beside writes that wait."""
    for held in (one_at_a_time(size_spread=0.02), one_at_a_time(flush=0.6e-3)):
        assert causes(around(*held))[0] == "drive_throttled"


@pytest.mark.parametrize("slow", ["nvme0n1", "nvme1n1"])
def test_a_volume_flushes_as_late_as_the_slowest_of_its_drives(slow: str) -> None:
    below = [
        channel(
            f'probe@b1|disk_flush_await_seconds{{device="{one}"}}',
            1e-3,
            11e-3 if one == slow else 1e-3,
        )
        for one in ("nvme0n1", "nvme1n1")
    ]
    volume = [
        replace(one, name=name.replace("vda", "md0"))
        for name, one in slow_throughout(flush=1e-3, turns=0.2).series.items()
        if "flush" not in name
    ]

    assert causes(around(*volume, *below)) == ["slow_drive"]


def test_a_drive_has_its_own_flushes_whatever_another_one_does() -> None:
    beside = channel('probe@b1|disk_flush_await_seconds{device="vdb"}', 1e-3, 0.5)
    seen = slow_throughout(flush=1e-3, turns=0.2).series.values()

    assert causes(around(*seen, beside)) == ["drive_gc"]


def test_a_drive_is_slow_whether_or_not_our_own_flushes_were_probed() -> None:
    seen = slow_throughout(flush=11e-3, turns=0.2).series
    without = [one for name, one in seen.items() if name != FSYNC]

    assert causes(around(*without)) == ["slow_drive"]


def test_a_drive_below_flushes_that_stay_as_fast_made_no_message_wait() -> None:
    """From 1.3 to 2.1 ms a write: as large a factor as that of latency, and none of its milliseconds.

    On a host with another drive, the folder that is flushed may lie on that one.
    """
    seen = [
        one for name, one in slow_throughout(flush=11e-3, turns=0.2).series.items() if name != FSYNC
    ]
    calm = channel(FSYNC, 0.004, 0.004)

    assert causes(around(*seen, calm)) == ["unknown"]
    assert causes(around(*seen, calm, *innocent_of("vdb"))) == ["slow_drive"]


def mounted(point: str, device: str = "vda") -> Series:
    return channel(f'probe@b1|disk_mount_info{{device="{device}",mountpoint="{point}"}}', 1.0, 1.0)


def flushed(folder: str) -> Series:
    return channel(FSYNC.replace("/d", folder), 0.004, 0.004)


def test_flushes_speak_for_the_drive_on_which_their_folder_lies() -> None:
    """One that another host's drive, which stayed as fast, makes likelier: it is not for want of signs."""
    seen = [
        one for name, one in slow_throughout(flush=11e-3, turns=0.2).series.items() if name != FSYNC
    ]
    peer = channel(AWAIT.replace("@b1", "@b2"), 1e-3, 1e-3)
    slow = [*seen, peer]

    assert causes(around(*slow, flushed("/data/d"), mounted("/data"))) == ["unknown"]
    for elsewhere in (
        [flushed("/data/d"), mounted("/data1")],  # on a drive that is not watched
        [flushed("/data/d"), mounted("/data", "vdb"), mounted("/")],  # on another one
        [flushed("/data/d")],  # not known where
    ):
        assert causes(around(*slow, *elsewhere)) == ["slow_drive"]


def test_as_many_folders_as_drives_may_all_lie_on_one_of_them() -> None:
    """Both that are flushed are on the second; so nothing is known of the first, which slows."""
    seen = [
        one for name, one in slow_throughout(flush=11e-3, turns=0.2).series.items() if name != FSYNC
    ]
    folders = [flushed("/data2/a"), flushed("/data2/b")]
    places = [mounted("/data1"), mounted("/data2", "vdb")]

    assert causes(around(*seen, *innocent_of("vdb"), *folders, *places)) == ["slow_drive"]


def test_a_drive_that_got_more_to_do_is_not_called_slow() -> None:
    seen = slow_throughout(flush=11e-3, turns=0.2).series
    busier = [one for name, one in seen.items() if name != WRITTEN]

    assert "slow_drive" not in causes(around(*busier, channel(WRITTEN, 9e6, 40e6)))


def test_a_new_drive_that_writes_later_but_flushes_as_before_collects_garbage() -> None:
    assert causes(slow_throughout(flush=1e-3, turns=0.2)) == ["drive_gc"]


def test_a_drive_that_was_written_over_collects_garbage_whatever_its_flushes_do() -> None:
    assert causes(slow_throughout(flush=11e-3, turns=3.0)) == ["drive_gc"]


def is_of_partition(series: str) -> bool:
    """True for what the kernel counts of a partition, too."""
    return "disk_write" in series or "disk_written" in series


@pytest.mark.parametrize("device", ["vda", "vda1"])
@pytest.mark.parametrize(("turns", "cause"), [(0.2, "slow_drive"), (3.0, "drive_gc")])
def test_of_several_drives_of_a_host_each_has_its_own_wear_and_flushes(
    device: str, turns: float, cause: str
) -> None:
    """A partition those of its drive; what the drive of another broker shows beside it does not count."""
    flush = 11e-3 if cause == "slow_drive" else 1.2e-3
    found = slow_throughout(flush=flush, turns=turns)
    own = [
        replace(one, name=name.replace("vda", device)) if is_of_partition(name) else one
        for name, one in found.series.items()
    ]
    other = [
        channel('probe@b1|disk_flush_await_seconds{device="vdb"}', 1e-3, 30e-3 - 20 * flush / 11),
        channel('probe@b1|disk_turnover_ratio{device="vdb"}', 3.0 - turns, 3.0 - turns),
    ]

    assert causes(around(*own, *other))[0] == cause


FREE_IN_FOLDER = 'probe@b2|disk_free_bytes{directory="/data2"}'
NO_SPACE = "cannot flush in /data2: less space is free than free_space_floor"


def filled_and_ended(broker: str, *free: Series, told_by: str = "") -> Nearby:
    """Return a broker that ends: connections refused, acknowledgements missing, leaders elsewhere."""
    k = np.arange(END, dtype=np.int64)
    answered = k[k < ONSET]
    rtt = f'probe@b2|broker_round_trip_seconds{{target="{broker}"}}'
    events = (
        *told("leader_change", ONSET + 4),
        *told("isr_shrink", ONSET + 5),
        *told("probe_failed", ONSET + 1, reason=f"{broker}: Connection refused"),
    )
    if told_by:
        (full,) = told("probe_failed", ONSET - 4, reason=NO_SPACE)
        events = (*events, replace(full, source=told_by))
    leaders = [
        Series(f'produce.0@h|leader_info{{address="b{at}:9092",leader="{at}"}}', k, np.ones(END))
        for at in (1, 2, 3)
    ]
    return around(
        *free,
        *leaders,
        Series(rtt, answered, np.full(answered.size, 1e-3)),
        channel('probe@b2|probe_lag_seconds{probe="round_trip"}', 0.01, 0.01),  # it asks in vain
        Series("produce.0@h|acked_messages", k, np.where((k >= ONSET) & (k < ONSET + 4), 0, 200.0)),
        channel(SENT, 200.0, 200.0),
        events=events,
    )


@pytest.mark.parametrize("broker", ["b2:9092", "127.0.0.1:9092", "10.0.0.7:9092"])
def test_a_broker_ends_because_its_drive_is_full(broker: str) -> None:
    """That it is down follows; where the cluster's addresses tell no host, it may be this drive's broker."""
    found = attribute(STEP, filled_and_ended(broker, channel(FREE_IN_FOLDER, 3e9, 1e6)))

    assert [one.cause for one in found][:2] == ["disk_full", "broker_down"]
    assert found[0].suspect == "/data2 on b2"
    assert found[1].score < 0.51
    assert "Disk full brings this about by itself." in [one.text for one in found[1].against]


def test_a_probe_s_report_of_a_full_drive_explains_the_broker_s_end_as_well() -> None:
    assert causes(filled_and_ended("b2:9092", told_by="probe@b2"))[0] == "disk_full"


@pytest.mark.parametrize("told_by", ["", "probe@b2"])
def test_a_full_drive_of_another_broker_ends_none(told_by: str) -> None:
    """The addresses of leaders say that the broker that is down lies on another host."""
    free = () if told_by else (channel(FREE_IN_FOLDER, 3e9, 1e6),)

    assert causes(filled_and_ended("b3:9092", *free, told_by=told_by))[0] == "broker_down"


def test_a_broker_that_ends_beside_a_drive_with_space_is_down() -> None:
    assert causes(filled_and_ended("b2:9092", channel(FREE_IN_FOLDER, 3e9, 2.9e9))) == [
        "broker_down"
    ]
