"""What systemd is told, on a socket of its kind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.service.notify import notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that a service manager would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.setblocking(False)
        yield found


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(100).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, ["READY=1", "WATCHDOG=1", "STOPPING=1"]),
        (
            {"WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid())},
            ["READY=1", "WATCHDOG=1", "STOPPING=1"],
        ),
        ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}, ["READY=1", "STOPPING=1"]),
        ({}, ["READY=1", "STOPPING=1"]),
    ],
)
def test_the_watchdog_is_answered_where_this_process_is_watched(
    manager: socket.socket, environment: dict[str, str], expected: list[str]
) -> None:
    """A watchdog of another process, as of a parent, is not ours to feed."""
    told = notifier({**environment, "NOTIFY_SOCKET": str(manager.getsockname())})

    told.ready()
    told.alive()
    told.stopping()

    assert heard(manager) == expected


def test_without_a_manager_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    """A daemon runs the same in a terminal."""
    notifier({}).ready()
    notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    notifier({"NOTIFY_SOCKET": "@soak-nobody-listens"}).ready()
