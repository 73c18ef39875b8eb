"""Pythons as forks of one that has imported what they use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shows.py").write_text(SHOWS)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "spark.cluster.fork_server"],
        stdin=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **ONE_THREAD, SHARED: "pandas", "OF_THE_SERVER": "1"},
    )
    while not (folder / fork_client.SOCKET).exists():
        assert process.poll() is None
    yield process
    process.kill()
    process.wait(PATIENCE_SECONDS)


def shown(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return what the module saw that a client was asked to run."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", fork_client.__file__, "-m", "shows", *arguments],
        cwd=folder,
        env={**os.environ, "GIVEN": "some\nthing"},
        input="lines\nin",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_fork_runs_the_module_with_the_client_s_streams_arguments_and_variables(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    found = shown(folder, "of", "spark.worker")

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
    found = shown(folder, "alone")

    assert (found["arguments"], found["input"], found["has_pandas"]) == (
        ["alone"],
        "lines\nin",
        False,
    )


def test_the_server_ends_with_its_input_and_clients_do_without(
    folder: Path, server: subprocess.Popen[bytes]
) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(PATIENCE_SECONDS)

    assert server.returncode == 0
    assert not shown(folder)["has_pandas"]
