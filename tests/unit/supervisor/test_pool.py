"""Several processes of a kind as one service: ready together, a hung one replaced, ended together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.ports import Clock
from soak.lab.ports import Running
from soak.runtime.context import connect, topics_of
from soak.service import children
from soak.store.run_folder import Run, RunFolder, write_run
from soak.supervisor import pool
from tests.support.fakes import FakeClock

LIMIT_SECONDS = 120


def folder_of(path: Path, servers: str, producers: int) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.path.mkdir()
    folder.plan.write_text(
        f"name: crew\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
        f"topic: {{name: crew, partitions: 3}}\nload: {{rate: 30/s, producers: {producers}}}\n"
    )
    folder.phases.write_text(decision_line("soak", 0))
    write_run(folder, Run("crew", SystemClock().wall_ns(), "h", {}, "running", "crew"))
    return folder


def test_a_single_one_needs_no_parent(tmp_path: Path) -> None:
    """It is the service itself: nothing between it and the manager."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 1)
    called = []

    def single(run_dir: Path, index: int, _stop: threading.Event, _clock: Clock) -> int:
        called.append((run_dir, index))
        return 75

    code = pool.run(folder.path, "produce", single, threading.Event(), FakeClock())

    assert (code, called) == (75, [(folder.path, 0)])


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that a service manager would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(LIMIT_SECONDS)
        yield found


def until(condition: Callable[[], bool]) -> None:
    """Ask until it holds; a bound, not a pace."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_children_of_a_run_that_is_over_make_a_service_that_was_ready(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host comes back after the end: they say so and exit at once, and the manager is not to try again."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 3)
    folder.phases.write_text(decision_line("end", 0))
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.getsockname()))
    several = (folder.path, "produce", never, threading.Event(), SystemClock())

    code = pool.run(*several, program=["true"])

    assert (code, manager.recv(4096)) == (0, b"READY=1")


SPEAKS = ["sh", "-c", "echo said by $2 $3 >&2", "sh"]


def test_those_of_a_service_speak_where_it_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in the run's folder would grow for weeks, while everybody is sent to the journal."""
    folder = folder_of(tmp_path, "127.0.0.1:9", 2)
    folder.phases.write_text(decision_line("end", 0))
    (tmp_path / "current").symlink_to(folder.path.name)
    pool.run(folder.path, "produce", never, threading.Event(), SystemClock(), program=SPEAKS)
    said = capfd.readouterr().err

    assert {line for line in said.splitlines() if line.startswith("said by")} == {
        "said by --index 0",
        "said by --index 1",
    }
    assert list(folder.logs.iterdir()) == []


def test_those_of_any_other_run_have_a_file_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "127.0.0.1:9", 2)
    folder.phases.write_text(decision_line("end", 0))
    pool.run(folder.path, "produce", never, threading.Event(), SystemClock(), program=SPEAKS)
    logs = {path.name: path.read_text() for path in folder.logs.iterdir()}

    assert "said by" not in capfd.readouterr().err
    assert logs == {f"produce.{n}.log": f"said by --index {n}\n" for n in range(2)}


def never(*_: object) -> int:
    raise AssertionError("a crew is more than one")


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_one_that_hangs_is_replaced_alone(
    tmp_path: Path, manager: socket.socket, lab_kafka: Running
) -> None:
    """The others go on with the incarnation that they have; none is left after the end."""
    folder = folder_of(tmp_path, str(lab_kafka.addresses["bootstrap_servers"]), 3)
    plan = text.load(folder.plan.read_text(), "plan.yaml").plan
    connect(plan, SystemClock()).create_topics(topics_of(plan), 1, {})
    command = [sys.executable, "-m", "soak.cli.main", "produce", "--all"]
    told = {"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": "8000000"}
    service = subprocess.Popen(
        children.with_death_signal([*command, "--run-dir", str(folder.path)]),
        env={**os.environ, **told},
    )
    try:
        while manager.recv(4096) != b"READY=1":
            continue
        before = children_of(service.pid)
        os.kill(before["1"], signal.SIGSTOP)
        until((folder.path / "restarts.jsonl").exists)
        until(lambda: len(children_of(service.pid)) == 3)
        after = children_of(service.pid)
        service.send_signal(signal.SIGTERM)
        code = service.wait(LIMIT_SECONDS)
    finally:
        service.kill()

    (death,) = (folder.path / "restarts.jsonl").read_text().splitlines()
    assert code == 0
    assert json.loads(death)["daemon"] == "produce.1"
    assert (before["0"], before["2"]) == (after["0"], after["2"])
    assert not [pid for pid in {*before.values(), *after.values()} if psutil.pid_exists(pid)]


def children_of(pid: int) -> dict[str, int]:
    """Return the daemons below a process by their numbers."""
    found = [(child.cmdline(), child.pid) for child in psutil.Process(pid).children()]
    return {words[words.index("--index") + 1]: at for words, at in found if "--index" in words}
