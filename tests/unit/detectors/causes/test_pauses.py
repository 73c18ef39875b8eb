"""Pauses of a JVM that last for seconds: its log has them when they are over, its broker looks as if down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Explanation, Series
from tests.support.detection.cause_panels import END, ONSET, P99, STEP, K, around, channel, told

OUTAGE = Change(
    "produce.0@h|acknowledgement_outage_seconds",
    ONSET + 5,
    ONSET,
    (ONSET - 1, ONSET),
    0.0,
    12.0,
    "gone",
    0.999,
    "outage",
    resolved_k=ONSET + 12,
)
LOG = channel('probe@b1|jvm_gc_pause_seconds{log="gc.log"}', 0.0, 0.0)


def pause(seconds: float, *ends: int, host: str = "b1") -> tuple[TimedEvent, ...]:
    """Return pauses as a log has them: in the second in which each is over."""
    found = told("gc_pause", *ends, pause_seconds=seconds, log="kafkaServer-gc.log")
    return tuple(replace(one, source=f"probe@{host}") for one in found)


def stopped(seconds: int, broker: str = "b1:9092") -> list[Series]:
    """Return a broker that answers nothing for so long, so that nothing is acknowledged and sends fail."""
    is_out = (K >= ONSET) & (ONSET + seconds > K)
    answered = K[~is_out]
    leaders = [
        Series(f'produce.0@h|leader_info{{address="b{at}:9092",leader="{at}"}}', K, np.ones(END))
        for at in (1, 2, 3)
    ]
    return [
        *leaders,
        channel('probe@h|probe_lag_seconds{probe="round_trip"}', 0.01, 0.01),
        Series(
            f'probe@h|broker_round_trip_seconds{{target="{broker}"}}',
            answered,
            np.full(answered.size, 5e-4),
        ),
        Series("produce.0@h|sent_messages", K, np.full(END, 300.0)),
        Series("produce.0@h|acked_messages", K, np.where(is_out, 0.0, 300.0)),
        Series("produce.0@h|failed_messages", K, np.where(K == ONSET + 10, 900.0, 0.0)),
    ]


def seconds_high(ks: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Series:
    """Return a latency of 4 ms with noise, and of seconds where it is high."""
    noise = np.random.default_rng(0).normal(0.0, 0.1, END)
    return Series(P99, K, np.where(ks, 2.0, 0.004) * 10.0**noise)


def causes(found: Nearby, change: Change = OUTAGE) -> list[str]:
    return [one.cause for one in attribute(change, found)]


def texts(found: list[Explanation]) -> str:
    return " ".join(text.text for one in found for text in (*one.evidence, *one.against))


MOVED = told("leader_change", ONSET + 9, topic="soak-t", partition=1, epoch=3)


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_broker_that_one_full_collection_stops_is_not_down(late: int) -> None:
    """The log has it when the outage is over, a poll later maybe; leaders moved meanwhile."""
    events = (*MOVED, *pause(12.0, ONSET + 12 + late))
    found = attribute(OUTAGE, around(*stopped(12), events=events))

    assert [one.cause for one in found][:2] == ["gc_pause", "broker_down"]
    assert found[0].suspect == "JVM of kafkaServer-gc.log on b1"
    assert found[0].score > 0.9
    assert "12 of the 12 s in which acknowledgements were missing, for up to 12 s" in texts(found)
    assert found[1].score < 0.51


def test_a_second_outage_by_a_pause_is_one_as_well() -> None:
    """Five pauses as long came before: it is not the first at the onset."""
    before = pause(12.0, *range(20, 90, 16))
    found = attribute(OUTAGE, around(*stopped(12), events=(*before, *pause(12.0, ONSET + 12))))

    assert found[0].cause == "gc_pause"


def test_a_pause_of_a_small_part_of_an_outage_does_not_make_it() -> None:
    events = (*MOVED, *pause(2.0, ONSET + 2))

    found = causes(around(*stopped(12), events=events))

    assert (found[0], "gc_pause" in found) == ("broker_down", False)


@pytest.mark.parametrize("host", ["b1", "b2"])
def test_the_pause_of_another_broker_than_the_silent_one_does_not_stop_it(host: str) -> None:
    events = (*MOVED, *pause(12.0, ONSET + 12, host=host))

    first = causes(around(*stopped(12, "b2:9092"), events=events))[0]

    assert first == ("gc_pause" if host == "b2" else "broker_down")


def test_a_process_that_is_gone_is_down_though_it_paused_before() -> None:
    """As where memory runs out: it collects for long, and then it ends."""
    refused = told("target_failed", ONSET + 1, target="b1:9092", reason="Connection refused")
    events = (*refused, *MOVED, *pause(12.0, ONSET + 12))

    assert causes(around(*stopped(12), events=events))[0] == "broker_down"


def test_a_pause_that_goes_on_is_not_ruled_out() -> None:
    """Nothing was acknowledged since the onset, and a log has no line of a pause before its end."""
    going_on = replace(OUTAGE, after=float(END - ONSET), resolved_k=None, state="confirmed")
    still, over = (
        attribute(change, around(*stopped(seconds)[-3:-1], LOG))
        for change, seconds in ((going_on, END - ONSET), (OUTAGE, 12))
    )

    assert "GC pause is ruled out" not in texts(still)
    assert "the end of a pause that may still go on" in texts(still)
    assert "GC pause is ruled out" in texts(over)


def test_one_pause_in_most_of_the_slow_seconds_is_named() -> None:
    """Some messages were acknowledged all along, by other brokers."""
    short = replace(STEP, before=0.004, after=4.0, resolved_k=ONSET + 8, state="gone")
    events = pause(5.0, ONSET + 5)

    assert causes(around(events=events), short) == ["gc_pause"]
    assert causes(around(events=events), replace(short, resolved_k=None)) == ["unknown"]


def test_pauses_of_seconds_are_dated_by_their_begin() -> None:
    """The first is over when the seconds that count as the onset are, too."""
    ends = range(ONSET + 6, END, 16)
    is_held = np.isin(K, [k - back for k in ends for back in range(7)])
    slow = replace(STEP, after=2.0)
    (found,) = attribute(slow, around(seconds_high(is_held), events=pause(6.0, *ends)))

    assert (found.cause, found.score > 0.9) == ("gc_pause", True)
    assert "came at the onset" in found.evidence[0].text


def test_latency_that_is_high_when_pauses_end_is_locked_to_their_ends() -> None:
    """What waited for one of several brokers is acknowledged then, and counted then."""
    ends = range(ONSET + 3, END, 8)
    slow = replace(STEP, after=2.0)
    high = seconds_high(np.isin(K, list(ends)))
    (found,) = attribute(slow, around(high, events=pause(3.0, *ends)))

    assert (found.cause, found.score > 0.9) == ("gc_pause", True)


@pytest.mark.parametrize(
    ("stopped_ratio", "said"),
    [(0.7, "each pause of the JVM by itself"), (0.01, "GC pause is ruled out")],
)
def test_a_page_that_may_sum_up_one_long_pause_rules_none_out(
    stopped_ratio: float, said: str
) -> None:
    """Read each 15 s: 0.7 of them are a pause of 10 s, or many short ones."""
    ks = K[::15]
    name = 'probe@h|jvm_gc_collection_seconds{gc="G1 Old Generation",target="b1"}'
    page = Series(name, ks, np.where(ks == 105, stopped_ratio, 0.01))
    found = attribute(STEP, around(page))

    assert said in texts(found)
    assert ("GC pause is ruled out" in texts(found)) == said.startswith("GC pause")


@pytest.mark.parametrize("seconds", [1, 2, 4])
def test_a_pause_that_is_no_outage_is_named_before_the_standstill_that_it_makes(
    seconds: int,
) -> None:
    """Nothing else rose: without the log a broker stood still."""
    short = replace(STEP, after=0.9 * seconds, resolved_k=ONSET + 10, state="gone")
    watched = (
        *stopped(seconds)[-3:-1],
        channel('probe@b1|broker_log_events{kind="leader_change",log="server.log"}', 0.0, 0.0),
        channel('probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}', 2e-3, 2e-3),
        channel("probe@b1|host_cpu_ratio", 0.3, 0.3),
        channel("probe@b1|node_netstat_Tcp_RetransSegs", 1.0, 1.0),
    )
    paused = around(*watched, LOG, events=pause(float(seconds), ONSET + seconds))

    assert causes(around(*watched), short) == ["broker_pause"]
    assert causes(paused, short) == ["gc_pause", "broker_pause"]


@pytest.mark.parametrize(("share", "expected"), [(0.36, "gc_pause"), (0.03, "unknown")])
def test_many_short_pauses_are_named_if_they_take_much_of_the_time(
    share: float, expected: str
) -> None:
    """Each is no longer than those of the other JVMs before."""
    others = told("gc_pause", *range(0, END, 3), pause_seconds=0.07, log="other.log")
    one = channel('probe@b1|jvm_gc_pause_seconds{log="gc.log"}', 0.004, share)

    assert attribute(STEP, around(one, events=others))[0].cause == expected
