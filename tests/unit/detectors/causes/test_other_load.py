"""What comes along with a fault and is not its cause: CPU of our own or of a collector, late answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.nearby import TimedEvent
from soak.core.model import Change, Series
from tests.support.detection.cause_panels import END, ONSET, P99, STEP, around, channel, told

CPU = "probe@b1|host_cpu_ratio"
WAITING = "probe@b1|node_pressure_cpu_waiting_seconds"
FSYNC = 'probe@b1|fsync_latency_seconds{directory="/d",quantile="0.99"}'
TRIP = 'probe@b1|broker_round_trip_seconds{target="b1:9092"}'
LONE = 'probe@b1|broker_lone_delay_seconds{target="b1:9092"}'
LATE = channel("probe@b1|retention_poll_age_seconds", 0.1, 0.3)
CALM = (channel(FSYNC, 0.002, 0.002), channel(TRIP, 5e-4, 5e-4))


def causes(*series: Series, events: tuple[TimedEvent, ...] = ()) -> list[str]:
    return [one.cause for one in attribute(STEP, around(*series, events=events))]


def test_a_broker_stands_still_though_our_own_producer_spins_meanwhile() -> None:
    """Of the 0.9 processors more that are at work, most or the fewer are the producer's."""
    host = channel(CPU, 0.3, 0.75), channel("probe@b1|host_cpu_count", 2.0, 2.0)
    name = 'probe@b1|host_daemon_cpu_cores{daemon="produce.0"}'

    assert causes(LATE, *CALM, *host, channel(name, 0.1, 0.9)) == ["broker_pause"]
    assert "broker_pause" not in causes(LATE, *CALM, *host, channel(name, 0.1, 0.3))


def test_answers_a_little_late_are_no_news_of_the_network() -> None:
    """Who goes on answers its connections one after the other; a fifth of the step would be news."""
    still = LATE, *CALM, channel(CPU, 0.3, 0.3)

    assert causes(*still, channel(LONE, 1e-3, 6e-3)) == ["broker_pause"]
    assert "broker_pause" not in causes(*still, channel(LONE, 1e-3, 0.03))


def test_nobody_can_tell_a_broker_that_answers_nothing_from_no_way_to_it() -> None:
    """The offsets of its log and short questions are answered by neither for 20 s, and then again."""
    is_silent = (LATE.k >= ONSET) & (LATE.k < ONSET + 20)
    cut = Series(TRIP, LATE.k[~is_silent], np.full(END - 20, 5e-4))
    poll = Series(LATE.name, LATE.k, np.where(is_silent, LATE.k - ONSET + 1.5, 0.5))
    rest = poll, CALM[0], channel(CPU, 0.3, 0.3)

    assert causes(*rest, CALM[1]) == ["broker_pause"]
    assert causes(*rest, cut) == ["unknown"]


@pytest.mark.parametrize(
    ("begin", "cause"), [(-40, "broker_pause"), (25, "unknown"), (60, "broker_pause")]
)
def test_answers_lost_long_before_or_after_the_onset_say_nothing_of_it(
    begin: int, cause: str
) -> None:
    """A word that was said on what the first seconds show stays true when more is known."""
    is_lost = (LATE.k >= ONSET + begin) & (LATE.k < ONSET + begin + 7)
    trips = Series(TRIP, LATE.k[~is_lost], np.full(END - 7, 5e-4))

    assert causes(LATE, CALM[0], trips, channel(CPU, 0.3, 0.3)) == [cause]


def test_who_waits_for_a_processor_answers_single_questions_late() -> None:
    """Latency follows these answers second by second, as both follow the processor."""
    busy = channel(CPU, 0.3, 0.97)
    rng = np.random.default_rng(1)
    wave = np.where(busy.k < ONSET, 1.0, rng.lognormal(0.0, 0.5, END))
    lone = Series(LONE, busy.k, np.where(busy.k < ONSET, 1e-3, 0.03) * wave)
    latency = Series(STEP.series, busy.k, np.where(busy.k < ONSET, 0.004, 0.06) * wave)

    assert causes(latency, lone, *CALM, channel(CPU, 0.3, 0.3)) == ["network"]
    assert causes(latency, lone, *CALM, busy) == ["broker_cpu"]


def test_garbage_is_named_before_the_cpu_that_collecting_it_takes() -> None:
    """A collection of 100 ms in each second, on a host whose processors are at work by then."""
    pauses = told("gc_pause", *range(ONSET, END), pause_seconds=0.1)

    assert beside_busy_processors(pauses) == ["gc_pause", "broker_cpu"]


def test_rolls_all_the_time_are_named_before_the_cpu_that_they_take() -> None:
    """Some in each second, where there was none before."""
    rolls = told("segment_roll", *range(ONSET, END), topic="t")

    assert beside_busy_processors(rolls) == ["segment_roll", "broker_cpu"]


def test_cpu_that_runs_short_is_named_before_the_collections_that_it_makes_longer() -> None:
    """By a page 60 ms a second, where it was 20; by a log a pause of 20 ms in each second."""
    pauses = told("gc_pause", *range(ONSET, END), pause_seconds=0.02)
    page = channel('probe@b1|jvm_gc_collection_seconds{target="b1"}', 0.02, 0.06)

    assert causes(page, CALM[0], channel(CPU, 0.3, 0.97)) == ["broker_cpu", "gc_pause"]
    assert beside_busy_processors(pauses) == ["broker_cpu", "gc_pause"]


def collections(gc: str) -> Series:
    """Return 50 ms and then 300 ms a second of one collector; "" where the page does not name it."""
    label = f'gc="{gc}",' if gc else ""
    return channel(f'probe@b1|jvm_gc_collection_seconds{{{label}target="b1"}}', 0.05, 0.3)


@pytest.mark.parametrize(
    "gc", ["ZGC Cycles", "ZGC Major Cycles", "G1 Concurrent GC", "Shenandoah Cycles"]
)
def test_cycles_beside_the_threads_of_a_broker_are_cpu_and_no_pause(gc: str) -> None:
    """ZGC stops threads for microseconds, whatever its cycles take; the CPU that they take is told."""
    busy = channel(CPU, 0.3, 0.97)
    (found,) = attribute(STEP, around(collections(gc), CALM[0], busy))

    assert found.cause == "broker_cpu"
    assert any("jvm gc collection" in one.text for one in found.evidence)
    assert causes(collections(gc)) == ["unknown"]


def test_collections_are_named_before_the_cpu_where_the_collector_stops_all_threads() -> None:
    """One that is not known comes after it: its time may be that of cycles.

    Before, any 300 ms a second were a pause, those of cycles as well, and came first.
    """
    busy = channel(CPU, 0.3, 0.97)

    assert causes(collections("G1 Old Generation"), CALM[0], busy) == ["gc_pause", "broker_cpu"]
    for unknown in ("", "global"):
        assert causes(collections(unknown), CALM[0], busy) == ["broker_cpu", "gc_pause"]


def test_a_page_is_not_believed_before_the_log() -> None:
    """300 ms a second by the page, and pauses of 20 us by the log."""
    short = told("gc_pause", *range(3, END, 4), pause_seconds=2e-5)
    busy = channel(CPU, 0.3, 0.97)
    page = collections("G1 Young Generation")

    assert causes(page, CALM[0], busy) == ["gc_pause", "broker_cpu"]
    assert causes(page, CALM[0], busy, events=short) == ["broker_cpu", "gc_pause"]


def test_a_log_of_one_host_says_nothing_of_a_page_of_another() -> None:
    """It does of a page that is read from this host, or that is of the log's."""
    short = told("gc_pause", *range(3, END, 4), pause_seconds=2e-5)
    near, far = (
        tuple(replace(one, source=f"probe@{host}") for one in short) for host in ("b1", "b2")
    )
    page, afar = (
        channel(f'probe@b1|jvm_gc_collection_seconds{{gc="Copy",target="{at}:7071"}}', 0.05, 0.3)
        for at in ("b1", "b2.example.org")
    )
    busy = channel(CPU, 0.3, 0.97)

    assert causes(page, CALM[0], busy, events=near) == ["broker_cpu", "gc_pause"]
    assert causes(page, CALM[0], busy, events=far) == ["gc_pause", "broker_cpu"]
    assert causes(afar, CALM[0], busy, events=far) == ["broker_cpu", "gc_pause"]


def beside_busy_processors(events: tuple[TimedEvent, ...]) -> list[str]:
    busy = channel(CPU, 0.3, 0.97), channel(WAITING, 0.02, 0.9)
    found = around(*busy, channel(STEP.series, 0.004, 0.06), CALM[0], events=events)
    return [one.cause for one in attribute(STEP, found)]


def test_a_cause_that_was_over_before_that_was_known_keeps_its_name() -> None:
    """Latency was up for 26 s and known to be back only 48 s after the onset: half of that was calm."""
    until = ONSET + 26

    def short(name: str, before: float, during: float) -> Series:
        up, down = channel(name, before, during), channel(name, during, before, until)
        return Series(name, up.k, np.where(up.k < until, up.values, down.values))

    trip = short(TRIP, 5e-4, 0.2)
    latency = short(P99, 0.06, 0.3)
    change = replace(STEP, before=0.06, after=0.3, state="gone", resolved_k=ONSET + 48)

    found = attribute(change, around(latency, trip), is_last=True)

    assert found[0].cause == "network"


def saturated(after: float = 0.6) -> tuple[Series, ...]:
    """Return a drive whose writes became slow, and questions that wait for its broker as well."""
    vda = '{device="vda"}'
    return (
        channel(f"probe@b1|disk_write_await_seconds{vda}", 5e-4, 0.04),
        channel(f"probe@b1|node_disk_io_time_seconds{vda}", 0.1, 0.95),
        channel(f"probe@b1|node_disk_written_bytes{vda}", 9e6, 9e6),
        channel(TRIP, 4e-4, 0.3 * after),
        channel(STEP.series, 0.008, after),
    )


def causes_of(change: Change, *series: Series) -> list[str]:
    return [one.cause for one in attribute(change, around(*series))]


def test_questions_that_wait_in_the_queue_of_a_broker_with_a_slow_drive_are_no_network() -> None:
    """Its handlers wait for the drive, so even the shortest answer of a second is late."""
    change = replace(STEP, before=0.008, after=0.6)
    resent = channel("probe@b1|node_netstat_Tcp_RetransSegs", 1.0, 80.0)

    assert causes_of(change, *saturated()) == ["drive_gc"]
    assert "network" in causes_of(change, *saturated(), resent)


def test_round_trips_alone_are_named_by_their_part_of_the_step() -> None:
    """Where neither drives nor CPU are measured; of a third of the step the rest is not known."""
    part, whole = (replace(STEP, before=0.008, after=after) for after in (0.6, 0.2))
    trip = channel(TRIP, 4e-4, 0.18)

    assert causes_of(part, trip) == ["unknown"]
    assert causes_of(whole, trip) == ["network"]
    assert causes_of(part, trip, channel(CPU, 0.3, 0.3), channel(FSYNC, 2e-3, 2e-3)) == ["network"]


def test_a_host_that_was_busy_is_not_innocent_when_the_rest_of_its_cpu_goes() -> None:
    """From 83 % to all of it: answers wait for a processor, though no share grows by a third from there."""
    change = replace(STEP, before=0.067, after=0.167)
    late = channel(TRIP, 1.9e-3, 12e-3), CALM[0]

    assert causes_of(change, *late, channel(CPU, 0.83, 0.83)) == ["network"]
    assert "network" not in causes_of(change, *late, channel(CPU, 0.83, 0.998))


def test_questions_of_a_host_without_cpu_are_no_news_of_the_network() -> None:
    """Its probe waits for a processor, whichever broker it asks; no broker is on that host."""
    trip = channel('probe@load|broker_round_trip_seconds{target="b1:9092"}', 4e-4, 0.05)

    assert causes(trip) == ["network"]
    assert causes(trip, channel("probe@load|host_cpu_ratio", 0.3, 0.97)) == ["unknown"]
