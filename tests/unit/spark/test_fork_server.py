"""Pythons as forks of one that has imported what they use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark.cluster import fork_client
from spark.cluster.session import ONE_THREAD
from spark.cluster.worker_daemon import SHARED

PATIENCE_SECONDS = 60
SHOWS = """
import json, os, sys
seen = {
    "arguments": sys.argv[1:],
    "input": sys.stdin.read(),
    "variable": os.environ.get("GIVEN"),
    "other": os.environ.get("OF_THE_SERVER"),
    "name": __name__,
    "parent": os.getppid(),
    "has_pandas": "pandas" in sys.modules,
}
print(json.dumps(seen))
sys.exit(3)
"""
EXIT_STATUS = 3
WAITS = """
import os, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shows.py").write_text(SHOWS)
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


@contextmanager
def serving(folder: Path, modules: str = "pandas") -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; it takes connections already, and imports meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "spark.cluster.fork_server"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **ONE_THREAD, SHARED: modules, "OF_THE_SERVER": "1"},
    )
    try:
        until(lambda: (folder / fork_client.SOCKET).exists() or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with serving(folder) as process:
        yield process


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a client that asks for a module and its arguments."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", fork_client.__file__, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "GIVEN": "some\nthing"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def shown(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status of a client, and what the module saw that it was asked to run."""
    client = begin(folder, "shows", *arguments)
    output, _ = client.communicate("lines\nin", timeout=PATIENCE_SECONDS)
    return client.returncode, json.loads(output)


def test_a_fork_runs_the_module_with_the_client_s_streams_arguments_and_variables(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    """What the client ends with is not that of the module: Spark does not ask."""
    code, found = shown(folder, "of", "spark.worker")

    assert code == 0
    assert found == {
        "arguments": ["of", "spark.worker"],
        "input": "lines\nin",
        "variable": "some\nthing",
        "other": None,
        "name": "__main__",
        "parent": server.pid,
        "has_pandas": True,
    }


def test_only_the_user_may_connect(folder: Path, server: subprocess.Popen[bytes]) -> None:  # noqa: ARG001  # it makes the socket
    assert (folder / fork_client.SOCKET).stat().st_mode & 0o077 == 0


def test_without_a_server_the_module_runs_all_the_same(folder: Path) -> None:
    code, found = shown(folder, "alone")

    assert (code, found["arguments"], found["input"], found["has_pandas"]) == (
        EXIT_STATUS,
        ["alone"],
        "lines\nin",
        False,
    )


def test_a_client_of_a_server_that_fails_runs_the_module_itself(folder: Path) -> None:
    """It is connected, and waits for what the server cannot import."""
    with serving(folder, "no_such_module"):
        code, found = shown(folder)

    assert (code, found["input"]) == (EXIT_STATUS, "lines\nin")


def test_the_server_ends_with_its_input_and_clients_do_without(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(PATIENCE_SECONDS)

    assert server.returncode == 0
    assert not shown(folder)[1]["has_pandas"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_ends_with_its_client(
    folder: Path,
    server: subprocess.Popen[bytes],  # noqa: ARG001  # of which it is a fork
    number: signal.Signals,
) -> None:
    client = begin(folder, "waits")
    assert client.stdout is not None
    fork = int(client.stdout.readline())

    client.send_signal(number)

    until(lambda: not Path(f"/proc/{fork}").exists())
    client.communicate(timeout=PATIENCE_SECONDS)
