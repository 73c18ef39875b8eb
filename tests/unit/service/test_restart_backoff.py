"""A service that dies again and again is started at once, then with back-off, and never given up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from soak.app import units
from soak.core.units import SECOND_NS, duration_ns
from soak.service import restart_backoff
from tests.support.fakes import FakeClock

RESTART_SECONDS = 2  # RestartSec= of the units
HOUR_SECONDS = 3600


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of the main process of a daemon."""
    return {
        "SYSTEMD_EXEC_PID": str(os.getpid()),
        "RUNTIME_DIRECTORY": str(folder),
        "NOTIFY_SOCKET": str(folder / "no-listener"),
    }


def starts(folder: Path, lived_seconds: float, until: Callable[[list[float]], bool]) -> list[float]:
    """Return the times, in seconds, at which a service goes on that dies after `lived_seconds`."""
    clock, at = FakeClock(), list[float]()
    while not until(at):
        restart_backoff.delay_start(clock, environment(folder))
        at.append(clock.mono_ns() / SECOND_NS)
        clock.advance(lived_seconds + RESTART_SECONDS)
    return at


def test_a_service_that_dies_at_once_is_started_with_back_off(tmp_path: Path) -> None:
    """The first death costs the wait of systemd; then each wait doubles, up to a minute."""
    at = starts(tmp_path, 0, lambda at: len(at) == 10)
    gaps = [after - before for before, after in pairwise(at)]

    assert gaps == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_a_service_that_dies_for_an_hour_is_started_once_a_minute(tmp_path: Path) -> None:
    """And never given up: at a constant two seconds there would be 1800 starts."""
    at = starts(tmp_path, 0, lambda at: bool(at) and at[-1] > HOUR_SECONDS)

    assert len(at) == 65


@pytest.mark.parametrize("lived_seconds", [58, 300])
def test_a_service_that_lived_for_a_while_is_started_at_once(
    tmp_path: Path, lived_seconds: float
) -> None:
    """A daemon may be killed every few minutes, for days."""
    at = starts(tmp_path, lived_seconds, lambda at: len(at) == 30)

    assert at[-1] == 29 * (lived_seconds + RESTART_SECONDS)


def test_two_minutes_without_a_start_reset_the_back_off(tmp_path: Path) -> None:
    """Systemd 252 may leave the state of a service that was stopped."""
    starts(tmp_path, 0, lambda at: len(at) == 6)
    clock = FakeClock(mono_ns=HOUR_SECONDS * SECOND_NS)
    restart_backoff.delay_start(clock, environment(tmp_path))
    clock.advance(RESTART_SECONDS)
    restart_backoff.delay_start(clock, environment(tmp_path))

    assert clock.mono_ns() == (HOUR_SECONDS + RESTART_SECONDS) * SECOND_NS


@pytest.mark.parametrize(
    "lacking", [{"SYSTEMD_EXEC_PID": "1"}, {"RUNTIME_DIRECTORY": ""}, {"NOTIFY_SOCKET": None}]
)
def test_only_the_main_process_of_a_service_waits(
    tmp_path: Path, lacking: dict[str, str | None]
) -> None:
    """Not a child of a daemon, a program in a terminal, or a report on demand."""
    given = {**environment(tmp_path), **lacking}
    given_environment = {name: text for name, text in given.items() if text is not None}
    clock = FakeClock()
    for _ in range(7):
        restart_backoff.delay_start(clock, given_environment)

    assert clock.mono_ns() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["", "many\n", "3 99999999999999999\n", "-1 -1 -1\n"])
def test_an_unreadable_state_delays_nothing(tmp_path: Path, state: str) -> None:
    """It may be truncated, damaged, or of another boot."""
    (tmp_path / "starts").write_text(state)
    clock = FakeClock()
    restart_backoff.delay_start(clock, environment(tmp_path))

    assert clock.mono_ns() == 0


def test_a_state_that_cannot_be_written_delays_nothing(tmp_path: Path) -> None:
    """Starting is more important than counting starts."""
    clock = FakeClock()
    for _ in range(7):
        restart_backoff.delay_start(clock, environment(tmp_path / "not-there"))

    assert clock.mono_ns() == 0


def test_the_wait_is_reported_to_systemd(tmp_path: Path) -> None:
    """`systemctl status` shows it, and it does not count as a start that hangs."""
    (tmp_path / "starts").write_text("5 0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        given_environment = {**environment(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}
        restart_backoff.delay_start(FakeClock(mono_ns=10 * SECOND_NS), given_environment)
        heard = [manager.recv(100).decode() for _ in range(3)]

    assert heard == [
        "STATUS=started 7 times in a row: waits 50 s",
        "EXTEND_TIMEOUT_USEC=170000000",
        "STATUS=starting",
    ]


def test_every_daemon_has_a_folder_that_survives_restarts() -> None:
    """It holds the state, and `systemctl stop` removes it."""
    files = {place.name: text for place, text in units.rendered_files().items()}
    daemons = {name: text for name, text in files.items() if "\nType=notify\n" in text}
    periods = {
        line for text in daemons.values() for line in text.split("\n") if "RestartSec=" in line
    }

    assert len(daemons) > 5
    for text in daemons.values():
        assert "\nRuntimeDirectory=%N\n" in text
        assert "\nRuntimeDirectoryPreserve=restart\n" in text
    assert periods == {f"RestartSec={RESTART_SECONDS}s"}
    assert duration_ns(f"{RESTART_SECONDS}s") == restart_backoff.BACKOFF.first_ns


@pytest.mark.long
def test_every_command_records_its_start(tmp_path: Path) -> None:
    """Before it does anything else."""
    given_environment = {
        key: text for key, text in environment(tmp_path).items() if key != "SYSTEMD_EXEC_PID"
    }
    script = f"SYSTEMD_EXEC_PID=$$ exec {sys.executable} -m soak.cli.main alert"
    subprocess.run(
        ["sh", "-c", script], env={**os.environ, **given_environment}, check=False, timeout=60
    )

    assert (tmp_path / "starts").read_text().startswith("0 ")
