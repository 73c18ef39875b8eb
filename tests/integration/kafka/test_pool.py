"""A pool of producers under a service manager, on a real broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.lab.ports import Running
from soak.runtime.context import connect, topics_of
from soak.service import children
from soak.store.run_folder import Run, RunFolder, write_run

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


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(LIMIT_SECONDS)
        yield found


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, up to a limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_a_process_that_hangs_is_restarted_alone(
    tmp_path: Path, manager: socket.socket, lab_kafka: Running
) -> None:
    """The others keep their epochs; no process is left after the end."""
    folder = folder_of(tmp_path, str(lab_kafka.addresses["bootstrap_servers"]), 3)
    plan = text.load(folder.plan.read_text(), "plan.yaml").plan
    connect(plan, SystemClock()).create_topics(topics_of(plan), 1, {})
    command = [sys.executable, "-m", "soak.cli.main", "produce", "--all"]
    notify = {"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": "8000000"}
    service = subprocess.Popen(
        children.with_death_signal([*command, "--run-dir", str(folder.path)]),
        env={**os.environ, **notify},
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
