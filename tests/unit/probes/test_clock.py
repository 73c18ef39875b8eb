"""The clock probe: the state of the kernel and of chronyd, and steps that are too small for the recorder."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.clock import (
    LARGEST_STEP_NS,
    ClockProbe,
    Config,
    Timex,
    TimexStruct,
    ask_chrony,
    parse_chrony_bound,
    read_timex,
)
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Event
from soak.core.units import SECOND_NS
from soak.runtime import recorder
from tests.support.examples import examples
from tests.support.fakes import FakeClock

KEPT = Timex(
    is_synchronised=True,
    offset_seconds=-0.000123,
    maxerror_seconds=0.023,
    estimated_error_seconds=0.0005,
    frequency_adjustment_ratio=1.0000125,
)
TRACKING = (
    "A29FC87B,162.159.200.123,4,1795285573.123456789,-0.000123000,0.000045000,0.000067000,"
    "12.345,0.010,0.250,0.001200000,0.004500000,64.5,Normal\n"
)
NO_SOURCE = (
    "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,1.000000000,1.000000000,0.0,Not synchronised\n"
)
ITSELF = (  # chronyd 4.3 with `local stratum 10` and no source
    "7F7F0101,,10,1795289832.191339233,0.000000000,0.000000000,0.000000000,"
    "0.000,0.000,0.000,0.000000000,0.000000000,0.0,Normal\n"
)


def without_chrony() -> str:
    raise ProbeError("cannot ask chronyc")


def readings(kernel: Timex = KEPT, chrony: Callable[[], str] = without_chrony) -> dict[str, float]:
    """Return what is known once chronyd has been asked."""
    probe = ClockProbe(Config(), FakeClock(), kernel=lambda: kernel, chrony=chrony)
    probe.read()
    probe.close()
    return {column.name: value for column, value in probe.read().samples}


def test_kernel_state_has_the_metric_names_of_node_exporter() -> None:
    """Without chronyd the kernel's maximum error is the bound, and the label says so."""
    assert readings() == {
        "node_timex_sync_status": 1.0,
        "node_timex_offset_seconds": -0.000123,
        "node_timex_maxerror_seconds": 0.023,
        "node_timex_estimated_error_seconds": 0.0005,
        "node_timex_frequency_adjustment_ratio": 1.0000125,
        'clock_offset_bound_seconds{source="kernel"}': 0.023,
    }


def test_a_clock_that_is_not_synchronised_has_no_bound() -> None:
    """The kernel's number means nothing then."""
    found = readings(Timex(False, 0.0, 16.0, 16.0, 1.0, False))  # as the kernel gives it

    assert found["node_timex_sync_status"] == 0.0
    assert not any(name.startswith("clock_offset_bound") for name in found)


@pytest.mark.parametrize(
    ("maxerror", "estimated"),
    [
        (0.0005, 0.0),  # systemd-timesyncd, a second after its last poll
        (0.0005, 16.0),  # phc2sys, which leaves the estimate as it was at boot
    ],
)
def test_a_maximum_error_that_counts_up_from_0_is_no_bound(
    maxerror: float, estimated: float
) -> None:
    """The kernel adds 500 us a second to what the daemon set; the clock may be off by more."""
    kernel = replace(KEPT, maxerror_seconds=maxerror, estimated_error_seconds=estimated)

    found = readings(kernel)

    assert found["node_timex_maxerror_seconds"] == maxerror
    assert not any(name.startswith("clock_offset_bound") for name in found)


def test_the_bound_of_chronyd_is_preferred() -> None:
    """Offset, root dispersion and half the root delay."""
    found = readings(chrony=lambda: TRACKING)

    assert found['clock_offset_bound_seconds{source="chrony"}'] == pytest.approx(
        0.000123 + 0.0045 + 0.0006
    )
    assert 'clock_offset_bound_seconds{source="kernel"}' not in found


@pytest.mark.parametrize("answer", [NO_SOURCE, ITSELF])
def test_without_a_source_of_chronyd_the_bound_is_the_kernels(answer: str) -> None:
    """Also if chronyd serves its own clock, which it calls exact."""
    assert parse_chrony_bound(answer) is None


def test_kernel_units_become_seconds() -> None:
    """Offsets are in ns if STA_NANO is set, else in us; frequencies are ppm with a 16-bit fraction."""

    def call(raw: TimexStruct) -> int:
        raw.offset, raw.freq, raw.maxerror, raw.status = -1234, 65_536 * 25, 5000, 0x2000
        return 0

    assert read_timex(call) == Timex(True, -1.234e-6, 0.005, 0.0, 1.000025)  # as above


@pytest.mark.parametrize(
    ("maxerror", "status", "is_synchronised"),
    [
        (9776, 0x2001, True),
        (9776, 0x2041, True),  # by chronyd without `rtcsync`, which leaves STA_UNSYNC set
        (16_000_000, 0x2041, False),  # since boot, or not set for nine hours
    ],
)
def test_a_clock_whose_largest_error_is_kept_small_is_synchronised(
    maxerror: int, status: int, *, is_synchronised: bool
) -> None:
    """As timedatectl tells it; TIME_ERROR, which goes with the flag, is no failure of the call."""

    def call(raw: TimexStruct) -> int:
        raw.maxerror, raw.status = maxerror, status
        return 5 if status & 0x40 else 0

    found = read_timex(call)

    assert found.is_synchronised is is_synchronised
    assert found.is_marked is not bool(status & 0x40)


def test_a_refused_call_is_not_available() -> None:
    """A container's filter of system calls may refuse it."""
    ctypes.set_errno(1)

    with pytest.raises(NotAvailableError, match="adjtimex is refused: Operation not permitted"):
        read_timex(lambda _: -1)


def test_the_kernel_of_this_host_answers() -> None:
    """The layout of the structure is right: all values are plausible."""
    found = read_timex()

    assert 0.0 <= found.maxerror_seconds <= 16.0
    assert 0.0 <= found.estimated_error_seconds <= 16.0
    assert abs(found.frequency_adjustment_ratio - 1.0) <= 0.001


def steps(*jumps: float) -> list[Event]:
    """Return the events of readings a second apart; before each the wall clock jumps."""
    fake = FakeClock()
    probe = ClockProbe(Config(), fake, kernel=lambda: KEPT, chrony=without_chrony)
    probe.read()
    found: list[Event] = []
    for jump in jumps:
        fake.advance(1)
        fake.step_wall(jump)
        found += probe.read().events
    probe.close()
    return found


def test_a_small_step_is_one_event_with_its_size() -> None:
    """Its interval is the second in which it happened."""
    (event,) = steps(0.0, 0.23, 0.0)

    assert (event.kind, event.fields) == ("clock_step", {"seconds": 0.23})
    assert event.at_ns - event.since_ns == 1.23 * SECOND_NS


def test_lost_and_regained_synchronisation_are_one_event_each() -> None:
    """The state at the start is no event."""
    fake = FakeClock()
    lost = replace(KEPT, is_synchronised=False, maxerror_seconds=16.0)
    words = iter([lost, KEPT, KEPT, lost, lost, KEPT])
    probe = ClockProbe(Config(), fake, kernel=lambda: next(words), chrony=without_chrony)
    found: list[Event] = []
    for _ in range(6):
        found += probe.read().events
        fake.advance(1)
    probe.close()

    kinds = [event.kind for event in found]
    assert kinds == ["clock_synchronised", "clock_unsynchronised", "clock_synchronised"]
    assert found[1].fields == {"maxerror_seconds": 16.0}
    assert found[1].at_ns - found[1].since_ns == SECOND_NS


def test_steps_that_the_recorder_reports_are_not_reported_twice() -> None:
    """The recorder's lower bound is this probe's upper one."""
    assert LARGEST_STEP_NS == recorder.CLOCK_STEP_NS
    assert steps(-0.51, 0.0005, 3600.0) == []


class InterruptedClock(FakeClock):
    """Another process got the CPU between two looks at the clocks."""

    is_interrupted = False

    def wall_ns(self) -> int:
        if self.is_interrupted:
            self.advance(0.023)
        return super().wall_ns()


def test_an_interrupted_reading_of_the_clocks_is_no_step() -> None:
    """Nor is the next one."""
    fake = InterruptedClock()
    probe = ClockProbe(Config(), fake, kernel=lambda: KEPT, chrony=without_chrony)
    found: list[Event] = []
    for is_interrupted in (False, True, False):
        fake.is_interrupted = is_interrupted
        found += probe.read().events
        fake.advance(1)
    probe.close()

    assert found == []


def test_output_that_is_not_text_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end the thread."""
    tool = tmp_path / "chronyc"
    tool.write_bytes(b"#!/bin/sh\nprintf '\\377\\n'\n")
    tool.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    with pytest.raises(ProbeError, match="cannot read this output"):
        parse_chrony_bound(ask_chrony())


@settings(max_examples=examples(200))
@given(at=st.integers(0, len(TRACKING) - 1), junk=st.text(max_size=6))
@example(at=116, junk="-")  # a root delay below zero
def test_damaged_output_of_chronyc_is_an_error_or_a_number(at: int, junk: str) -> None:
    """Or no bound."""
    try:
        found = parse_chrony_bound(TRACKING[:at] + junk + TRACKING[at + len(junk) :])
    except ProbeError:
        return

    assert found is None or found >= 0


@given(cut=st.integers(0, len(TRACKING) - 1))
def test_cut_output_of_chronyc_is_an_error(cut: int) -> None:
    """A cut number must not be taken for another."""
    with pytest.raises(ProbeError):
        parse_chrony_bound(TRACKING[:cut])
