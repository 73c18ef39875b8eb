"""The probe daemon on a fake clock: one record a second, stable columns, troubles told and bounded."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading, Record
from soak.core.phases import to_line
from soak.core.units import SECOND_NS
from soak.daemons import probe as daemon
from soak.daemons.context import RESTART_CODE, host_name
from soak.daemons.probe import SAY_AGAIN_NS, Panel
from soak.store.journal_reader import SourceReader, read_source, sources
from soak.store.run_folder import Run, RunFolder, write_run
from tests.fakes import FakeClock, FakeProbe

A, B = Column("a_seconds", (), "seconds"), Column("b_ratio", (), "ratio")
ABSENT = NotAvailableError("no such device")
FAILED = ProbeError("cannot read")


def reading(*columns: Column, events: tuple[Event, ...] = ()) -> Reading:
    return Reading(tuple((column, 23.0) for column in columns), events, 0.002)


def rounds(
    panel: Panel, clock: FakeClock, count: int
) -> list[tuple[dict[str, float], list[Event]]]:
    found = []
    for _ in range(count):
        samples, events = panel.read(clock.mono_ns())
        found.append(({column.name: value for column, value in samples}, events))
        clock.advance(1)
    return found


def test_columns_grow_at_the_end_and_a_silent_one_is_missing() -> None:
    """The order of a record's values never changes; NaN says that nothing was measured."""
    clock = FakeClock()
    probe = FakeProbe(reading(A), reading(B), reading(A, B))
    found = rounds(Panel({"x": probe}, clock), clock, 3)

    first, second, third = ([*row] for row, _ in found)

    assert second[: len(first)] == first
    assert third == second
    assert math.isnan(found[1][0]["a_seconds"])
    assert found[2][0]["b_ratio"] == 23.0


def test_each_probe_is_told_of_success_and_cost() -> None:
    """The daemon adds both; a probe says what it cost, threads included."""
    clock = FakeClock()
    ((row, _),) = rounds(Panel({"x": FakeProbe(reading(A))}, clock), clock, 1)

    assert row['probe_success{probe="x"}'] == 1.0
    assert row['probe_duration_seconds{probe="x"}'] == 0.002
    assert row["probe_lag_seconds"] == 0.0


def test_a_failing_probe_is_counted_told_once_a_minute_and_stops_no_other() -> None:
    """130 failures: three events, each with the failures since the last."""
    clock = FakeClock()
    panel = Panel({"bad": FakeProbe(FAILED), "good": FakeProbe(reading(A))}, clock)
    found = rounds(panel, clock, 130)

    events = [event for _, events in found for event in events]

    assert all(row['probe_success{probe="bad"}'] == 0.0 for row, _ in found)
    assert all(row["a_seconds"] == 23.0 for row, _ in found)
    assert [event.kind for event in events] == ["probe_failed"] * 3
    assert [event.fields["failures"] for event in events] == [1, 60, 60]


def test_an_absent_probe_is_said_once_and_asked_once_a_minute() -> None:
    """Absent is not failed: no success of 0."""
    clock = FakeClock()
    probe = FakeProbe(ABSENT)
    found = rounds(Panel({"x": probe}, clock), clock, 125)

    (event,) = [event for _, events in found for event in events]

    assert event.kind == "probe_not_available"
    assert event.fields == {"probe": "x", "reason": "no such device"}
    assert probe.reads == 3
    assert set(found[-1][0]) == {"probe_lag_seconds"}


def test_an_absent_probe_that_comes_is_read_every_second() -> None:
    """A drive that is mounted later."""
    clock = FakeClock()
    probe = FakeProbe(ABSENT, reading(A))
    panel = Panel({"x": probe}, clock)
    rounds(panel, clock, SAY_AGAIN_NS // SECOND_NS)

    found = rounds(panel, clock, 3)

    assert [row["a_seconds"] for row, _ in found] == [23.0] * 3


def test_columns_are_bounded() -> None:
    """Labels without end must not fill the memory; it is said once."""
    clock = FakeClock()
    endless = [
        reading(*(Column("x", (("id", str(second * 100 + at)),)) for at in range(20)))
        for second in range(5)
    ]
    found = rounds(Panel({"x": FakeProbe(*endless)}, clock, max_columns=23), clock, 5)

    assert [len(row) for row, _ in found[1:]] == [23] * 4
    assert [event.kind for _, events in found for event in events] == ["probe_columns_full"]


def test_closing_closes_every_probe() -> None:
    """Each may hold a file or a thread."""
    probes = {"x": FakeProbe(reading(A)), "y": FakeProbe(FAILED)}

    Panel(probes, FakeClock()).close()

    assert [probe.is_closed for probe in probes.values()] == [True, True]


PLAN = "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\nprobes: {pressure: {}, host: {}}\n"


def run_folder(path: Path, start_wall_ns: int, end_k: int) -> RunFolder:
    folder = RunFolder(path)
    folder.path.mkdir(exist_ok=True)
    folder.plan.write_text(PLAN)
    write_run(folder, Run("x-1", start_wall_ns, "h", {}, "running"))
    folder.phases.write_text(to_line("soak", 0) + to_line("end", end_k))
    return folder


def recorded(folder: RunFolder) -> tuple[list[Record], list[tuple[Column, ...]], int]:
    (source,) = sources(folder.journal)
    reader = SourceReader(folder.journal / source)
    pairs = list(read_source(folder.journal, source, reader))
    assert reader.damage == []
    return [record for record, _ in pairs], [columns for _, columns in pairs], reader.ended_inc


def test_it_records_every_second_until_the_end_phase(tmp_path: Path) -> None:
    """Records of whole seconds, then the line that says it ended on purpose."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 23)

    code = daemon.run(tmp_path, threading.Event(), clock)

    records, columns, ended_inc = recorded(folder)
    assert (code, ended_inc) == (0, 1)
    assert [record.k for record in records] == list(range(23))
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(columns))


class SlowClock(FakeClock):
    """Loses 2.5 s right after the end of second 4, as a daemon that did not get the CPU."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if self.mono_ns() == 5 * SECOND_NS:
            self.advance(2.5)


def test_seconds_that_were_missed_are_a_gap_and_the_lag_is_told(tmp_path: Path) -> None:
    """Nothing is made up afterwards."""
    clock = SlowClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    daemon.run(tmp_path, threading.Event(), clock)

    records, columns, _ = recorded(folder)
    lag = columns[0].index(Column("probe_lag_seconds", (), "seconds"))

    assert [record.k for record in records] == [0, 1, 2, 3, 4, 7, 8, 9]
    assert [record.values[lag] for record in records] == [0, 0, 0, 0, 2.5, 0, 0, 0]


class SleepyClock(FakeClock):
    """The machine sleeps for a minute after the end of second 4."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if self.mono_ns() == 5 * SECOND_NS:
            self.suspend(60)


def test_after_a_suspend_a_new_incarnation_is_asked_for(tmp_path: Path) -> None:
    """The journal is left open-ended: the source goes on."""
    clock = SleepyClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)

    code = daemon.run(tmp_path, threading.Event(), clock)

    records, _, ended_inc = recorded(folder)
    assert (code, ended_inc) == (RESTART_CODE, -1)
    assert [event.kind for event in records[-1].events] == ["suspend"]


def test_a_stop_ends_the_source_on_purpose(tmp_path: Path) -> None:
    """Told to stop before the first second is over: no record, but an end."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    stop = threading.Event()
    stop.set()

    code = daemon.run(tmp_path, stop, clock)

    records, _, ended_inc = recorded(folder)
    assert (code, len(records), ended_inc) == (0, 0, 1)


def test_a_bug_ends_the_daemon_but_not_the_source(tmp_path: Path) -> None:
    """Exit 1 with what was recorded kept; the source is left open, so that a restart goes on with it."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    folder.phases.write_text('{"phase": "siesta", "from_k": 0}\n')

    code = daemon.run(tmp_path, threading.Event(), clock)

    lines = [path.read_text() for path in folder.journal.glob("*/*.jsonl")]
    assert code == 1
    assert not any('"t":"end"' in text for text in lines)


def test_the_command_records_until_it_is_terminated(tmp_path: Path) -> None:
    """A process of its own on the real clock: SIGTERM ends the source on purpose, exit 0."""
    folder = run_folder(tmp_path, time.time_ns(), 100)
    command = [sys.executable, "-m", "soak.cli.main", "probe", "--run-dir", str(tmp_path)]
    deadline = time.monotonic() + 60
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon_process:
        while not list(folder.journal.glob("*/*.jsonl")) and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon_process.wait(0.1)
        daemon_process.terminate()
        _, errors = daemon_process.communicate(timeout=60)

    assert (daemon_process.returncode, errors) == (0, "")
    records, _, ended_inc = recorded(folder)
    assert (len(records) >= 1, ended_inc) == (True, 1)
    assert sources(folder.journal) == [f"probe@{host_name()}"]


def test_once_prints_what_this_machine_can_give(tmp_path: Path) -> None:
    """A table, and a line for each probe that is not available here."""
    done = subprocess.run(
        [sys.executable, "-m", "soak.cli.main", "probe", "--once", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "host_cpu_ratio" in done.stdout
    assert "retention_kafka: retention_kafka needs bootstrap_servers and topics" in done.stdout


def test_without_a_run_the_command_says_what_it_needs() -> None:
    """Exit 2, one line."""
    done = subprocess.run(
        [sys.executable, "-m", "soak.cli.main", "probe"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr == "soak: soak probe needs --run-dir DIR, or --once\n"
