"""The probe daemon on a fake clock: one record a second, stable columns, bounded failures."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.core.errors import NotAvailableError, PlanError, ProbeError
from soak.core.model import Column, Reading, Record
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.runtime.context import RESTART_CODE, open_journal
from soak.runtime.grid import host_name
from soak.sampling import daemon
from soak.sampling.scheduler import Scheduler
from soak.service import children
from soak.store.journal.reader import SourceReader, read_source, sources
from soak.store.run_folder import Run, RunFolder, read_any_plan, write_run
from tests.support.fakes import FakeClock, HangingProbe

A, B = Column("a_seconds", (), "seconds"), Column("b_ratio", (), "ratio")
ABSENT = NotAvailableError("no such device")
FAILED = ProbeError("cannot read")


PLAN = "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\nprobes: {pressure: {}, host: {}}\n"


def run_folder(path: Path, start_wall_ns: int, end_k: int) -> RunFolder:
    folder = RunFolder(path)
    folder.path.mkdir(exist_ok=True)
    folder.plan.write_text(PLAN)
    write_run(folder, Run("x-1", start_wall_ns, "h", {}, "running"))
    folder.phases.write_text(decision_line("soak", 0) + decision_line("end", end_k))
    return folder


def recorded(folder: RunFolder) -> tuple[list[Record], list[tuple[Column, ...]], int]:
    (source,) = sources(folder.journal)
    reader = SourceReader(folder.journal / source)
    pairs = list(read_source(folder.journal, source, reader))
    assert reader.damage == []
    return [record for record, _ in pairs], [columns for _, columns in pairs], reader.ended_epoch


@pytest.mark.long
def test_it_records_every_second_until_the_end_phase(tmp_path: Path) -> None:
    """Records of whole seconds, then the line that ends the source."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 23)

    code = daemon.run(tmp_path, threading.Event(), clock)

    records, columns, ended_epoch = recorded(folder)
    assert (code, ended_epoch) == (0, 1)
    assert [record.k for record in records] == list(range(23))
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(columns))


def test_a_new_folder_starts_above_the_epochs_before(tmp_path: Path) -> None:
    """A host with the old records would take the new ones for old."""
    clock = FakeClock()
    start_ns = clock.wall_ns() - 23 * SECOND_NS
    run_folder(tmp_path, start_ns, 30)

    epochs = []
    for _ in range(2):
        to = open_journal(RunFolder(tmp_path), read_any_plan(RunFolder(tmp_path)), "probe", clock)
        epochs.append(to.writer.epoch)
        to.writer.close(is_end=False)

    assert epochs == [24, 25]


class SlowClock(FakeClock):
    """Loses 2.5 s right after the end of second 4, as a daemon that did not get the CPU."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if self.mono_ns() == 5 * SECOND_NS:
            self.advance(2.5)


def test_missed_seconds_are_a_gap_and_the_lag_is_recorded(tmp_path: Path) -> None:
    """They are not made up for."""
    clock = SlowClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    plan = read_any_plan(folder)
    probes = daemon.build(plan.probes, clock)
    scheduler = Scheduler(probes, clock, row_timeout_seconds=30.0)
    daemon.record(open_journal(folder, plan, "probe", clock), scheduler, threading.Event(), clock)

    records, columns, _ = recorded(folder)
    lag = columns[0].index(Column("probe_lag_seconds", (("probe", "host"),), "seconds"))

    assert [record.k for record in records] == [0, 1, 2, 3, 4, 7, 8, 9]
    assert [record.values[lag] for record in records] == [0, 0, 0, 0, 2.5, 0, 0, 0]


class SleepyClock(FakeClock):
    """The machine sleeps for a minute after the end of second 4."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if self.mono_ns() == 5 * SECOND_NS:
            self.suspend(60)


def test_after_a_suspend_the_daemon_asks_for_a_restart(tmp_path: Path) -> None:
    """The source is left open."""
    clock = SleepyClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)

    code = daemon.run(tmp_path, threading.Event(), clock)

    records, _, ended_epoch = recorded(folder)
    assert (code, ended_epoch) == (RESTART_CODE, -1)
    assert [event.kind for event in records[-1].events] == ["suspend"]


@pytest.mark.long
def test_a_daemon_that_restarts_in_its_process_serves_its_page_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The port is free by then."""
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 46)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folder.plan.write_text(PLAN + f"metrics: {{port: {port - 2}}}\n")  # the third of the plan

    for end_k in (23, 46):
        folder.phases.write_text(decision_line("soak", 0) + decision_line("end", end_k))
        daemon.run(tmp_path, threading.Event(), clock)

    assert caplog.text.count(f"metrics_served address=127.0.0.1 port={port}") == 2


def test_a_stop_ends_the_source_on_purpose(tmp_path: Path) -> None:
    """A stop within the first second: no record, but an end."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    stop = threading.Event()
    stop.set()

    code = daemon.run(tmp_path, stop, clock)

    records, _, ended_epoch = recorded(folder)
    assert (code, len(records), ended_epoch) == (0, 0, 1)


def test_an_unexpected_error_ends_the_daemon_but_not_the_source(tmp_path: Path) -> None:
    """Exit 1; a restart continues the source."""
    clock = FakeClock()
    folder = run_folder(tmp_path, clock.wall_ns(), 10)
    folder.phases.write_text('{"phase": "siesta", "from_k": 0}\n')

    code = daemon.run(tmp_path, threading.Event(), clock)

    lines = [path.read_text() for path in folder.journal.glob("*/*.jsonl")]
    assert code == 1
    assert not any('"t":"end"' in text for text in lines)


class ClosedProbe:
    """Notes that it was closed."""

    is_closed = False

    def read(self) -> Reading:
        return Reading(())

    def close(self) -> None:
        self.is_closed = True


def test_a_defect_of_the_journal_ends_the_daemon_with_its_probes_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the journal raises its error again, and the exit code is returned all the same."""

    def fail(_: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(os, "fdatasync", fail)
    clock, probe = FakeClock(), ClosedProbe()
    folder = run_folder(tmp_path, clock.wall_ns(), 23)
    to = open_journal(folder, read_any_plan(folder), "probe", clock)

    code = daemon.record(to, Scheduler({"a": probe}, clock), threading.Event(), clock)

    assert (code, probe.is_closed) == (daemon.FAILED_CODE, True)


def test_while_a_probe_hangs_every_second_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """23 seconds of a hanging reading are 23 records with its lag, and the watchdog is fed."""
    clock, hanging = FakeClock(), HangingProbe(Reading(()))
    folder = run_folder(tmp_path / "run", clock.wall_ns(), 23)
    beats: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")

        def hear() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    beats.append(manager.recv(100))

        to = open_journal(folder, read_any_plan(folder), "probe", clock)
        scheduler = Scheduler({"bad": hanging}, clock, row_timeout_seconds=0.01, close_seconds=0.01)
        code = daemon.record(to, scheduler, threading.Event(), clock, hear)
        hear()
    hanging.let_go.set()

    records, columns, _ = recorded(folder)
    lag = columns[0].index(Column("probe_lag_seconds", (("probe", "bad"),), "seconds"))
    assert code == 0
    assert [record.values[lag] for record in records] == list(range(23))
    assert beats.count(b"WATCHDOG=1") >= 23
    assert (beats[0], beats[-1]) == (b"READY=1", b"STOPPING=1")


@pytest.mark.slow
def test_the_command_records_until_it_is_terminated(tmp_path: Path) -> None:
    """A real process on the real clock: SIGTERM ends the source, exit 0."""
    folder = run_folder(tmp_path, time.time_ns(), 100)
    command = [sys.executable, "-m", "soak.cli.main", "probe", "--run-dir", str(tmp_path)]
    deadline = time.monotonic() + 60
    mortal = children.with_death_signal(command)
    with subprocess.Popen(mortal, stderr=subprocess.PIPE, text=True) as daemon_process:
        while not list(folder.journal.glob("*/*.jsonl")) and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon_process.wait(0.1)
        daemon_process.terminate()
        _, errors = daemon_process.communicate(timeout=60)

    assert (daemon_process.returncode, errors) == (0, "")
    records, _, ended_epoch = recorded(folder)
    assert (len(records) >= 1, ended_epoch) == (True, records[-1].epoch)
    assert sources(folder.journal) == [f"probe@{host_name()}"]


@pytest.mark.slow
def test_once_prints_the_values_of_this_host(tmp_path: Path) -> None:
    """A block for each probe, with its values or the reason why it has none."""
    done = subprocess.run(
        [sys.executable, "-m", "soak.cli.main", "probe", "--once", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "host_cpu_ratio" in done.stdout
    assert "not available: retention_kafka needs bootstrap_servers and topics" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("words", [[], ["plan.yaml"], ["plan.yaml", "--once"]])
def test_a_directory_without_once_is_refused(words: list[str]) -> None:
    """A plan names the folders of its probes."""
    called = ["probe", *words, "--directory", "/data"]

    refused = CliRunner().invoke(main.build(called), called).exception

    assert isinstance(refused, PlanError)
    assert str(refused).startswith("--directory needs --once alone")


@pytest.mark.long
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
    assert done.stderr == "soak: soak probe needs a PLAN, --run-dir DIR, or --once\n"
