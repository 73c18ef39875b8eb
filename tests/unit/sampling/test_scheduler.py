"""The scheduler of probes on a fake clock: stable columns, periods, hanging probes, bounded failures."""

from __future__ import annotations

import math
import time

import pytest

from soak.core.errors import NotAvailableError, PartialReadingError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.plan import Sampling
from soak.core.units import SECOND_NS
from soak.sampling.scheduler import RETRY_ABSENT_SECONDS, Scheduler
from tests.support.fakes import FakeClock, FakeProbe, HangingProbe

A, B, C = (Column(f"{name}_seconds", (), "seconds") for name in "abc")
ABSENT = NotAvailableError("no such device")
FAILED = ProbeError("cannot read")
PATIENT = 30.0  # a fake probe answers at once: the row comes when all have

Row = tuple[dict[str, float], list[Event]]


def reading(*columns: Column, events: tuple[Event, ...] = ()) -> Reading:
    return Reading(tuple((column, 23.0) for column in columns), events, 0.002)


def one(scheduler: Scheduler, clock: FakeClock) -> Row:
    """Return the row of the second that ends now, and let the next one pass."""
    samples, events = scheduler.read(clock.mono_ns() // SECOND_NS, clock.mono_ns())
    clock.advance(1)
    return {column.name: value for column, value in samples}, events


def rounds(scheduler: Scheduler, clock: FakeClock, times: int) -> list[Row]:
    found = [one(scheduler, clock) for _ in range(times)]
    scheduler.close()
    return found


def patient(probes: dict[str, FakeProbe], clock: FakeClock, **sampling: Sampling) -> Scheduler:
    return Scheduler(probes, clock, sampling, row_timeout_seconds=PATIENT)


def test_columns_grow_at_the_end_and_missing_values_are_nan() -> None:
    """The order of a record's values never changes."""
    clock = FakeClock()
    probe = FakeProbe(reading(A), reading(B), reading(A, B))
    found = rounds(patient({"x": probe}, clock), clock, 3)

    first, second, third = ([*row] for row, _ in found)

    assert second[: len(first)] == first
    assert third == second
    assert math.isnan(found[1][0]["a_seconds"])
    assert found[2][0]["b_seconds"] == 23.0


def test_success_cost_and_lag_of_each_probe_are_recorded() -> None:
    """A probe reports its cost, threads included."""
    clock = FakeClock()
    ((row, _),) = rounds(patient({"x": FakeProbe(reading(A))}, clock), clock, 1)

    assert row['probe_success{probe="x"}'] == 1.0
    assert row['probe_duration_seconds{probe="x"}'] == 0.002
    assert row['probe_lag_seconds{probe="x"}'] == 0.0


def test_a_failing_probe_is_reported_once_a_minute() -> None:
    """130 failures are three events, each with the failures since the last."""
    clock = FakeClock()
    scheduler = patient({"bad": FakeProbe(FAILED), "good": FakeProbe(reading(A))}, clock)
    found = rounds(scheduler, clock, 130)

    events = [event for _, events in found for event in events]

    assert all(row['probe_success{probe="bad"}'] == 0.0 for row, _ in found)
    assert all(row["a_seconds"] == 23.0 for row, _ in found)
    assert [event.kind for event in events] == ["probe_failed"] * 3
    assert [event.fields["failures"] for event in events] == [1, 60, 60]


def test_what_a_reading_measured_before_it_failed_is_recorded() -> None:
    """One drive of several: the reading has failed, and the numbers of the others are there."""
    clock = FakeClock()
    failed = PartialReadingError("cannot flush in /1", reading(A, events=(Event("noted", 1, 0),)))

    ((row, events),) = rounds(patient({"x": FakeProbe(failed)}, clock), clock, 1)

    assert row["a_seconds"] == 23.0
    assert row['probe_success{probe="x"}'] == 0.0
    assert [event.kind for event in events] == ["noted", "probe_failed"]


def test_an_unavailable_probe_is_reported_once_and_tried_once_a_minute() -> None:
    """It has not failed: there is no success of 0."""
    clock = FakeClock()
    probe = FakeProbe(ABSENT)
    found = rounds(patient({"x": probe}, clock), clock, 125)

    (event,) = [event for _, events in found for event in events]

    assert event.kind == "probe_not_available"
    assert event.fields == {"probe": "x", "reason": "no such device"}
    assert probe.reads == 3
    assert found[-1][0] == {}


def test_an_unavailable_probe_that_becomes_available_is_read_every_second() -> None:
    """Such as a drive that is mounted later."""
    clock = FakeClock()
    scheduler = patient({"x": FakeProbe(ABSENT, reading(A))}, clock)

    found = rounds(scheduler, clock, RETRY_ABSENT_SECONDS + 3)

    assert [row["a_seconds"] for row, _ in found[RETRY_ABSENT_SECONDS:]] == [23.0] * 3


def test_a_probe_with_a_period_is_read_at_once_and_then_at_multiples() -> None:
    """From second 7 on, every 5 s: at 7, and then at multiples of 5, as on every host."""
    clock = FakeClock(mono_ns=7 * SECOND_NS)
    scheduler = patient({"x": FakeProbe(reading(A))}, clock, x=Sampling(period=5 * SECOND_NS))

    found = rounds(scheduler, clock, 15)

    seconds = [7 + at for at, (row, _) in enumerate(found) if row["a_seconds"] == 23.0]
    assert seconds == [7, 10, 15, 20]


def test_columns_are_bounded() -> None:
    """Ever new labels must not fill the memory; this is reported once."""
    clock = FakeClock()
    endless = [
        reading(*(Column("x", (("id", str(second * 100 + at)),)) for at in range(20)))
        for second in range(5)
    ]
    scheduler = Scheduler(
        {"x": FakeProbe(*endless)}, clock, max_columns=23, row_timeout_seconds=PATIENT
    )
    found = rounds(scheduler, clock, 5)

    assert [len(row) for row, _ in found[1:]] == [23] * 4
    assert [event.kind for _, events in found for event in events] == ["probe_columns_full"]


def test_closing_closes_every_probe() -> None:
    """Each may hold a file or a thread; one was never read."""
    probes = {"x": FakeProbe(reading(A)), "y": FakeProbe(FAILED)}
    clock = FakeClock()
    unread = FakeProbe(reading(A))

    rounds(patient(probes, clock), clock, 1)
    patient({"z": unread}, clock).close()

    assert [probe.is_closed for probe in (*probes.values(), unread)] == [True] * 3


def test_an_unexpected_error_in_a_probe_does_not_affect_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is reported as a failure."""
    clock = FakeClock()
    broken = FakeProbe(ZeroDivisionError("a bug"))
    scheduler = patient({"x": broken, "good": FakeProbe(reading(A))}, clock)

    row, events = one(scheduler, clock)

    assert row['probe_success{probe="x"}'] == 0.0
    assert is_measured(row, A)
    assert [event.fields["reason"] for event in events] == ["ZeroDivisionError: a bug"]
    assert "Traceback" in caplog.text


def test_an_infinite_value_is_left_out() -> None:
    """A record cannot hold it."""
    clock = FakeClock()
    infinite = Reading(((A, math.inf), (B, 2.0)))
    scheduler = patient({"x": FakeProbe(infinite)}, clock)

    row, _ = one(scheduler, clock)

    assert is_measured(row, B)
    assert not is_measured(row, A)


def test_the_values_of_a_late_reading_are_not_overwritten() -> None:
    """It has emptied its source, so the next reading would have none."""
    clock = FakeClock()
    slow = HangingProbe(Reading(((A, 7.0),)), Reading(((A, 0.0),)))
    scheduler = Scheduler({"slow": slow}, clock, row_timeout_seconds=0.02)

    one(scheduler, clock)
    slow.let_go.set()
    found = until_it_comes(scheduler, clock, A)
    scheduler.close()

    assert found[-1][0][A.name] == 7.0


def until_it_comes(scheduler: Scheduler, clock: FakeClock, column: Column) -> list[Row]:
    """Return rows up to the first with this column, while time stands still: no limit is passed."""
    rows: list[Row] = []
    k = clock.mono_ns() // SECOND_NS
    while not rows or not is_measured(rows[-1][0], column):
        samples, events = scheduler.read(k + len(rows), clock.mono_ns())
        rows.append(({at.name: value for at, value in samples}, events))
    return rows


class PatientProbe(FakeProbe):
    """Takes all the time that a row waits while `is_slow`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(reading(C))
        self._clock = clock
        self.is_slow = True

    def read(self) -> Reading:
        if self.is_slow:
            self._clock.advance(PATIENT)
        return super().read()


def test_a_hanging_probe_delays_no_other_and_recovers() -> None:
    """Its lag grows until it counts as failed; a later answer adds events, but no values."""
    clock = FakeClock()
    hanging = HangingProbe(reading(B, events=(Event("seen", 0, 0),)), reading(A))
    good = PatientProbe(clock)
    scheduler = patient(
        {"bad": hanging, "good": good}, clock, bad=Sampling(timeout=120 * SECOND_NS)
    )

    found = [one(scheduler, clock) for _ in range(10)]
    hanging.let_go.set()
    good.is_slow = False
    after = until_it_comes(scheduler, clock, A)
    scheduler.close()

    step = 1 + PATIENT
    recorded = [event for _, events in (*found, *after) for event in events]
    assert [row["c_seconds"] for row, _ in found] == [23.0] * 10
    assert [row['probe_lag_seconds{probe="bad"}'] for row, _ in found] == [
        PATIENT + step * at for at in range(10)
    ]
    assert [row.get('probe_success{probe="bad"}') for row, _ in found] == [None] * 3 + [0.0] * 7
    assert [event.fields.get("reason") for event in recorded] == ["no answer within 2min", None]
    assert not any(is_measured(row, B) for row, _ in (*found, *after))
    assert after[-1][0]['probe_success{probe="bad"}'] == 1.0


def is_measured(row: dict[str, float], column: Column) -> bool:
    return not math.isnan(row.get(column.name, math.nan))


def test_a_reading_that_comes_late_is_recorded_with_its_lag() -> None:
    """Within its limit it counts in the second in which it came."""
    clock = FakeClock()
    slow = HangingProbe(reading(B), reading(A))
    scheduler = Scheduler({"slow": slow}, clock, row_timeout_seconds=0.02)

    first = [one(scheduler, clock) for _ in range(3)]
    slow.let_go.set()
    found = until_it_comes(scheduler, clock, B)
    scheduler.close()

    assert not any(is_measured(row, B) for row, _ in first)
    assert found[-1][0]['probe_success{probe="slow"}'] == 1.0
    assert found[-1][0]['probe_lag_seconds{probe="slow"}'] >= 2.0


def test_probes_take_turns() -> None:
    """They are read one after another, although asked at once."""
    clock = FakeClock()
    reading_now: list[str] = []
    met: list[str] = []

    class Watchful(FakeProbe):
        def read(self) -> Reading:
            reading_now.append("one")
            time.sleep(0)  # others may run
            met.extend(reading_now[1:])
            reading_now.pop()
            return super().read()

    probes = {name: Watchful(reading(A)) for name in "abcdefgh"}
    scheduler = Scheduler(probes, clock, row_timeout_seconds=PATIENT, turn_seconds=PATIENT)

    rounds(scheduler, clock, 20)

    assert met == []
