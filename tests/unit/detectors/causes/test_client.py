"""The client as the cause: schedule lag, untrusted seconds, stolen CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import BAR, attribute, is_so_far
from detectors.nearby import Nearby
from soak.core.model import Change, Series
from tests.support.detection.cause_panels import around, channel

P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
LAG = 'produce.0@h|schedule_lag_seconds{quantile="0.99"}'
STEP = Change(P99, 106, 100, (99, 101), 0.004, 0.06, "confirmed", 0.999)


def lag(before: float, after: float) -> Nearby:
    values = np.full(160, before)
    values[100:] = after
    return Nearby(0, 160, {LAG: Series(LAG, np.arange(160, dtype=np.int64), values)})


def test_schedule_lag_that_makes_up_the_step_is_the_client() -> None:
    (explanation,) = attribute(STEP, lag(0.0004, 0.055))

    assert explanation.cause == "client"
    assert "from 400 us to 55 ms, 98% of the step" in explanation.evidence[0].text


def test_schedule_lag_that_is_a_small_part_of_the_step_is_not() -> None:
    assert [e.cause for e in attribute(STEP, lag(0.0004, 0.004))] == ["unknown"]


def test_schedule_lag_under_a_queue_that_the_cluster_keeps_full_is_not() -> None:
    k = np.arange(160, dtype=np.int64)
    held = Series("produce.0@h|held_back_messages", k, np.where(k >= 100, 500.0, 0.0))
    found = lag(0.0004, 0.055)
    found = replace(found, series={**found.series, held.name: held})

    assert [e.cause for e in attribute(STEP, found)] == ["unknown"]


def test_schedule_lag_that_was_high_before_is_not() -> None:
    assert [e.cause for e in attribute(STEP, lag(0.055, 0.055))] == ["unknown"]


def test_schedule_lag_that_was_as_often_high_before_is_noise() -> None:
    """The medians differ, as chance has it: 19 of 40 seconds were late before, 21 of 40 after."""
    k = np.arange(160, dtype=np.int64)
    is_late = np.where(k < 100, k % 40 % 2 == 1, k % 40 % 2 == 0)
    is_late[np.flatnonzero(is_late & (k % 40 == 1))] = False
    is_late[np.flatnonzero((k >= 100) & (k % 40 == 1))] = True
    found = Nearby(0, 160, {LAG: Series(LAG, k, np.where(is_late, 0.055, 0.0004))})

    assert [e.cause for e in attribute(STEP, found)] == ["unknown"]


def test_seconds_that_the_client_did_not_trust_are_the_client() -> None:
    found = Nearby(0, 160, invalid_k={"produce.0@h": np.arange(103, 130)})
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == "client"
    assert "in 27 of the 30 s after" in explanation.evidence[0].text


WAITING = "produce.0@h|process_cpu_waiting_ratio"
FLUSHED = channel('probe@h|fsync_latency_seconds{directory="/d",quantile="0.99"}', 0.002, 0.002)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [(0.02, 0.9, "client"), (0.02, 0.3, "unknown"), (0.8, 0.9, "unknown")],
)
def test_a_client_that_comes_to_wait_for_a_processor_measures_itself(
    before: float, after: float, cause: str
) -> None:
    (explanation,) = attribute(STEP, around(channel(WAITING, before, after)))

    assert explanation.cause == cause


def test_a_client_that_waits_beside_a_broker_comes_before_the_cpu_of_their_host_alone() -> None:
    """Of which a processor is taken, and after it when all of them are: then the broker has none either."""
    cpu, pressure = "probe@h|host_cpu_ratio", "probe@h|node_pressure_cpu_waiting_seconds"
    waits = channel(WAITING, 0.02, 0.9), FLUSHED, channel(pressure, 0.05, 0.9)
    one, both = (around(*waits, channel(cpu, 0.2, after)) for after in (0.6, 1.0))
    unknown = around(*waits)

    assert [e.cause for e in attribute(STEP, one)] == ["client", "broker_cpu"]
    assert [e.cause for e in attribute(STEP, both)] == ["broker_cpu", "client"]
    assert [e.cause for e in attribute(STEP, unknown)] == ["broker_cpu", "client"]


def test_a_client_that_waits_on_a_host_without_a_broker_comes_before_the_way_to_one() -> None:
    """Which is measured from that host, and so waits as well."""
    trip = channel('probe@h|broker_round_trip_seconds{target="b1:9092"}', 5e-4, 0.05)
    found = attribute(STEP, around(channel(WAITING, 0.02, 0.9), trip))

    assert found[0].cause == "client"
    assert found[0].score > 0.9


def test_a_client_that_keeps_its_processor_busy_itself_is_no_cause() -> None:
    """It is answered nothing, and its threads wait for each other; nor is one that is held back."""
    waits = channel(WAITING, 0.02, 0.9)
    spins = channel("produce.0@h|process_cpu_ratio", 0.1, 0.95)
    k = np.arange(180, dtype=np.int64)
    held = Series("produce.0@h|held_back_messages", k, np.where(k >= 100, 500.0, 0.0))

    assert [e.cause for e in attribute(STEP, around(waits, spins))] == ["unknown"]
    assert [e.cause for e in attribute(STEP, around(waits, held))] == ["unknown"]


def test_a_producer_s_latency_is_not_made_by_another_one() -> None:
    """Another producer was late in the same second: the latency of this one is not its doing."""
    other = "produce.1@h"
    found = lag(0.0004, 0.055).series[LAG]
    name = LAG.replace("produce.0@h", other)
    late = Nearby(0, 160, {name: Series(name, found.k, found.values)})
    invalid = Nearby(0, 160, invalid_k={other: np.arange(103, 130)})
    received = replace(STEP, series=P99.replace("produce.0@h|publish", "consume.0@h|end_to_end"))

    assert [attribute(STEP, one)[0].cause for one in (late, invalid)] == ["unknown", "unknown"]
    assert [attribute(received, one)[0].cause for one in (late, invalid)] == ["client", "client"]


def test_another_consumer_s_doubts_are_no_cause() -> None:
    received = replace(STEP, series=P99.replace("produce.0@h|publish", "consume.0@h|end_to_end"))
    found = Nearby(0, 160, invalid_k={"consume.1@h": np.arange(103, 130)})

    assert [e.cause for e in attribute(received, found)] == ["unknown"]


def test_seconds_that_were_untrusted_all_along_are_not() -> None:
    found = Nearby(0, 160, invalid_k={"produce.0@h": np.arange(60, 130)})

    assert [e.cause for e in attribute(STEP, found)] == ["unknown"]


def test_schedule_lag_anywhere_in_a_wide_onset_is_the_client() -> None:
    """A tail is dated to tens of seconds; what is a part of it need not rise at the likeliest of them."""
    late = replace(STEP, onset_k=70, interval=(65, 104))

    assert [e.cause for e in attribute(late, lag(0.0004, 0.055))] == ["client"]
    assert [e.cause for e in attribute(replace(late, interval=(65, 90)), lag(0.0004, 0.055))] == [
        "unknown"
    ]


@pytest.mark.parametrize(
    ("source", "before", "after", "is_named"),
    [
        ("probe@h", 0.14, 0.27, True),
        ("probe@b1", 0.14, 0.27, False),
        ("probe@h", 0.0, 0.04, False),
        ("probe@h", 0.27, 0.14, False),
    ],
)
def test_what_a_hypervisor_takes_from_the_load_s_host_is_the_client(
    source: str, before: float, after: float, *, is_named: bool
) -> None:
    found = stolen(source, before, after)
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == ("client" if is_named else "unknown")
    if is_named:
        assert "of probe@h went from 14% to 27%" in explanation.evidence[0].text


def started_again(
    daemon: str = "detect-stream",
    cores: float = 1.0,
    host: str = "h",
    seconds: int = 24,
    away: tuple[int, int] = (97, 102),
    bad: tuple[int, int] = (100, 126),
    left: float = 0.004,
    processors: float = 2.0,
    now: int = 200,
) -> Nearby:
    """Return a daemon that is away, then takes so many cores; p99 is high for a while, and then at `left`."""
    every = np.arange(now)
    k = every[(every < away[0]) | (every >= away[1])]
    name = f'probe@{host}|host_daemon_cpu_cores{{daemon="{daemon}"}}'
    took = np.where((k >= away[1]) & (k < away[1] + seconds), cores, 0.05)
    count = Series(f"probe@{host}|host_cpu_count", every, np.full(now, processors))
    high = np.where(every < bad[1], 0.06, left)
    own = Series(P99, every, np.where(every < bad[0], 0.004, high))
    return Nearby(0, now, {one.name: one for one in (Series(name, k, took), count, own)})


OURS = {
    "restart": started_again(),
    "report": started_again("report"),
    "after long away": started_again(away=(60, 102)),
    "seen before the step": started_again(away=(90, 95)),
    "takes long": started_again(seconds=60, bad=(100, 162)),
}
NOT_OURS = {
    "little": started_again(cores=0.4),
    "short": started_again(seconds=8),
    "short, after long away": started_again(seconds=8, away=(60, 102)),
    "long after the onset": started_again(away=(97, 115)),
    "the step lasts": started_again(bad=(100, 200)),
    "a part of the step lasts": started_again(left=0.025),
    "lasts, and takes long": started_again("report", seconds=80, bad=(100, 200)),
    "one second was bad": started_again(bad=(100, 104)),
    "latency was bad only when it was calm": started_again(away=(94, 97), bad=(122, 130)),
    "a broker's host": started_again(host="b1"),
    "load": started_again("produce.0"),
    "a client of the cluster": started_again("ship"),
    "no name of ours": started_again("lab"),
    "no processors": started_again(processors=0.0),
}


@pytest.mark.parametrize("found", OURS.values(), ids=OURS)
def test_a_step_that_comes_and_goes_with_the_start_of_one_that_watches_is_ours(
    found: Nearby,
) -> None:
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == "client"
    assert BAR < explanation.score < 0.6
    assert not is_so_far([explanation])


@pytest.mark.parametrize("found", NOT_OURS.values(), ids=NOT_OURS)
def test_any_other_step_is_not(found: Nearby) -> None:
    """What the load takes may follow the cluster."""
    assert attribute(STEP, found)[0].cause == "unknown"


def test_what_it_took_is_told() -> None:
    assert attribute(STEP, started_again())[0].evidence[0].text == (
        "detect-stream of soakd itself took 0.81 cores of the 2 processors of h in 30 s from 2 s after the "
        "onset on, and 0.05 cores in the 30 s before what may be the onset."
    )


def test_while_it_takes_the_cpu_that_is_a_word_for_the_time_being() -> None:
    """The step may outlast it."""
    found = attribute(STEP, started_again(now=121))
    last = attribute(STEP, started_again(now=121), is_last=True)

    assert [one.cause for one in found] == ["client"]
    assert is_so_far(found)
    assert [one.cause for one in last] == ["unknown"]


def test_a_restart_within_a_wide_onset_is_ours() -> None:
    """A tail is dated to tens of seconds, and may be over before they are."""
    tail = replace(STEP, kind="tail", interval=(65, 104))
    found = started_again(away=(66, 70), bad=(72, 96))
    after = started_again(away=(66, 70), bad=(98, 112))

    assert attribute(tail, found)[0].cause == "client"
    assert attribute(tail, after)[0].cause == "unknown"
    assert attribute(replace(tail, kind="spikes"), found)[0].cause == "unknown"


def test_what_was_measured_of_the_cluster_comes_before_a_start_of_ours() -> None:
    restart, cluster = started_again(), stolen("probe@b1", 0.14, 0.27)
    fsync = Series("probe@b1|fsync_latency_seconds", np.arange(160), np.full(160, 0.001))
    both = replace(restart, series={**cluster.series, **restart.series, fsync.name: fsync})

    assert [one.cause for one in attribute(STEP, both)] == ["broker_cpu", "client"]


def test_what_it_takes_from_a_host_with_a_broker_is_that_broker_s() -> None:
    found = stolen("probe@h", 0.14, 0.27)
    fsync = Series("probe@h|fsync_latency_seconds", np.arange(160), np.full(160, 0.001))
    beside = replace(found, series={**found.series, fsync.name: fsync})

    explanation = attribute(STEP, beside)[0]
    assert explanation.cause == "broker_cpu"
    assert explanation.evidence[0].numbers["series"] == "probe@h|host_cpu_steal_ratio"


def stolen(source: str, before: float, after: float) -> Nearby:
    k = np.arange(160, dtype=np.int64)
    calm = lag(0.0004, 0.0004).series
    steal = Series(f"{source}|host_cpu_steal_ratio", k, np.where(k < 100, before, after))
    return Nearby(0, 160, {**calm, steal.name: steal})


def test_what_else_changed_is_told_when_no_cause_passes() -> None:
    warned = replace(STEP, series="probe@h|host_cpu_steal_ratio", state="warning")
    other = Change("probe@h|host_cpu_ratio", 107, 98, (97, 99), 0.2, 0.9, "confirmed", 0.99)
    (explanation,) = attribute(STEP, Nearby(0, 160, changes=(STEP, warned, other)))

    assert explanation.cause == "unknown"
    assert explanation.evidence[0].text == (
        "host CPU of probe@h went from 20% to 90%, 2 s before the onset."
    )
