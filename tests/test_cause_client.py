"""The client as the cause: schedule lag, untrusted seconds, stolen CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.nearby import Nearby
from soak.core.model import Change, Series

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
    found = Nearby(0, 160, untrusted_k={"produce.0@h": np.arange(103, 130)})
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == "client"
    assert "in 27 of the 30 s after" in explanation.evidence[0].text


def test_a_producer_s_latency_is_not_made_by_another_one() -> None:
    """Another producer was late in the same second: the latency of this one is not its doing."""
    other = "produce.1@h"
    found = lag(0.0004, 0.055).series[LAG]
    name = LAG.replace("produce.0@h", other)
    late = Nearby(0, 160, {name: Series(name, found.k, found.values)})
    untrusted = Nearby(0, 160, untrusted_k={other: np.arange(103, 130)})
    received = replace(STEP, series=P99.replace("produce.0@h|publish", "consume.0@h|end_to_end"))

    assert [attribute(STEP, one)[0].cause for one in (late, untrusted)] == ["unknown", "unknown"]
    assert [attribute(received, one)[0].cause for one in (late, untrusted)] == ["client", "client"]


def test_another_consumer_s_doubts_are_no_cause() -> None:
    received = replace(STEP, series=P99.replace("produce.0@h|publish", "consume.0@h|end_to_end"))
    found = Nearby(0, 160, untrusted_k={"consume.1@h": np.arange(103, 130)})

    assert [e.cause for e in attribute(received, found)] == ["unknown"]


def test_seconds_that_were_untrusted_all_along_are_not() -> None:
    found = Nearby(0, 160, untrusted_k={"produce.0@h": np.arange(60, 130)})

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
    until: int = 126,
    processors: float = 2.0,
) -> Nearby:
    """Return a daemon that is away, then takes so many cores; p99 is high from 100 to `until`."""
    every = np.arange(200)
    k = every[(every < away[0]) | (every >= away[1])]
    name = f'probe@{host}|host_daemon_cpu_cores{{daemon="{daemon}"}}'
    took = np.where((k >= away[1]) & (k < away[1] + seconds), cores, 0.05)
    count = Series(f"probe@{host}|host_cpu_count", every, np.full(200, processors))
    own = Series(P99, every, np.where((every >= 100) & (every < until), 0.06, 0.004))
    return Nearby(0, 200, {one.name: one for one in (Series(name, k, took), count, own)})


@pytest.mark.parametrize(
    ("found", "is_named"),
    [
        (started_again(), True),
        (started_again("report"), True),
        (started_again(cores=0.4), False),
        (started_again(seconds=8), False),
        (started_again(seconds=8, away=(60, 102)), False),
        (started_again(away=(60, 102)), True),
        (started_again(away=(97, 115)), False),
        (started_again(until=200), False),
        (started_again(host="b1"), False),
        (started_again("produce.0"), False),
        (started_again("ship"), False),
        (started_again("lab"), False),
        (started_again(processors=0.0), False),
    ],
    ids=[
        "restart",
        "report",
        "little",
        "short",
        "short, after long away",
        "after long away",
        "long after the onset",
        "the step lasts",
        "a broker's host",
        "load",
        "a client of the cluster",
        "no name of ours",
        "no processors",
    ],
)
def test_what_a_daemon_that_only_watches_takes_from_the_load_s_host_is_the_client(
    found: Nearby, *, is_named: bool
) -> None:
    """A step at second 100, as one is started again; what the load takes may follow the cluster."""
    (explanation,) = attribute(STEP, found)

    assert explanation.cause == ("client" if is_named else "unknown")
    if is_named:
        text = explanation.evidence[0].text
        assert (
            "soakd itself took 0.81 cores of the 2 processors of h in 30 s from 2 s after" in text
        )


def test_a_restart_within_a_wide_onset_is_the_client() -> None:
    """A tail is dated to tens of seconds, and may be over before they are."""
    tail = replace(STEP, kind="tail", interval=(65, 104))
    found = started_again(away=(66, 70), until=100)

    assert attribute(tail, found)[0].cause == "client"
    assert attribute(replace(tail, kind="spikes"), found)[0].cause == "unknown"


def test_what_was_measured_comes_before_a_restart_of_ours() -> None:
    found = started_again()
    steal = Series(
        "probe@h|host_cpu_steal_ratio", np.arange(200), np.where(np.arange(200) < 100, 0.14, 0.27)
    )
    both = replace(found, series={**found.series, steal.name: steal})

    assert "from 14% to 27%" in attribute(STEP, both)[0].evidence[0].text


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
    assert [e.text for e in explanation.evidence] == [
        "host CPU of probe@h went from 20% to 90%, 2 s before the onset of the step."
    ]
