"""Several processes of a kind as one service: ready together, a hung one replaced, ended together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.plan.phases import decision_line
from soak.core.ports import Clock
from soak.store.run_folder import Run, RunFolder, write_run
from soak.supervisor import pool
from tests.support.fakes import FakeClock

LIMIT_SECONDS = 120


def folder_of(path: Path, servers: str, producers: int) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.path.mkdir()
    folder.plan.write_text(
        f"name: pool\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
        f"topic: {{name: pool, partitions: 3}}\nload: {{rate: 30/s, producers: {producers}}}\n"
    )
    folder.phases.write_text(decision_line("soak", 0))
    write_run(folder, Run("pool", SystemClock().wall_ns(), "h", {}, "running", "pool"))
    return folder


def test_a_single_process_runs_in_the_service_itself(tmp_path: Path) -> None:
    """There is no process between it and the service manager."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 1)
    called = []

    def single(run_dir: Path, index: int, _stop: threading.Event, _clock: Clock) -> int:
        called.append((run_dir, index))
        return 75

    code = pool.run(folder.path, "produce", single, threading.Event(), FakeClock())

    assert (code, called) == (75, [(folder.path, 0)])


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(LIMIT_SECONDS)
        yield found


@pytest.mark.long
def test_a_service_whose_run_is_over_was_ready_first(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host restarts after the end: the processes exit at once, and the manager must not restart them."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 3)
    folder.phases.write_text(decision_line("end", 0))
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.getsockname()))
    several = (folder.path, "produce", never, threading.Event(), SystemClock())

    code = pool.run(*several, program=["true"])

    assert (code, manager.recv(4096)) == (0, b"READY=1")


LOGS = ["sh", "-c", "echo logged by $2 $3 >&2", "sh"]


@pytest.mark.long
def test_processes_of_a_service_log_to_its_journal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in the run folder would grow for weeks."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 2)
    folder.phases.write_text(decision_line("end", 0))
    (tmp_path / "current").symlink_to(folder.path.name)
    pool.run(folder.path, "produce", never, threading.Event(), SystemClock(), program=LOGS)
    written = capfd.readouterr().err

    assert {line for line in written.splitlines() if line.startswith("logged by")} == {
        "logged by --index 0",
        "logged by --index 1",
    }
    assert list(folder.logs.iterdir()) == []


@pytest.mark.long
def test_processes_of_other_runs_log_to_a_file_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "127.0.0.1:9", 2)
    folder.phases.write_text(decision_line("end", 0))
    pool.run(folder.path, "produce", never, threading.Event(), SystemClock(), program=LOGS)
    logs = {path.name: path.read_text() for path in folder.logs.iterdir()}

    assert "logged by" not in capfd.readouterr().err
    assert logs == {f"produce.{n}.log": f"logged by --index {n}\n" for n in range(2)}


def never(*_: object) -> int:
    raise AssertionError("a pool has more than one process")
