"""A service that dies again and again: back at once at first, then ever later, and never given up."""

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
    """Return what systemd gives to the main process of a daemon."""
    return {
        "SYSTEMD_EXEC_PID": str(os.getpid()),
        "RUNTIME_DIRECTORY": str(folder),
        "NOTIFY_SOCKET": str(folder / "nobody-listens"),
    }


def starts(folder: Path, lived_seconds: float, until: Callable[[list[float]], bool]) -> list[float]:
    """Return the seconds at which a service goes on that dies after so long, each time."""
    clock, at = FakeClock(), list[float]()
    while not until(at):
        restart_backoff.keep_apart(clock, environment(folder))
        at.append(clock.mono_ns() / SECOND_NS)
        clock.advance(lived_seconds + RESTART_SECONDS)
    return at


def test_what_dies_at_once_is_back_at_once_and_then_ever_later(tmp_path: Path) -> None:
    """The first death costs what systemd waits; then twice as long each time, up to a minute."""
    at = starts(tmp_path, 0, lambda at: len(at) == 10)
    gaps = [after - before for before, after in pairwise(at)]

    assert gaps == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_a_drive_that_is_read_only_for_an_hour_is_tried_once_a_minute(tmp_path: Path) -> None:
    """And never given up: at a flat two seconds it would be 1800 times."""
    at = starts(tmp_path, 0, lambda at: bool(at) and at[-1] > HOUR_SECONDS)

    assert len(at) == 65


@pytest.mark.parametrize("lived_seconds", [58, 300])
def test_what_lived_for_a_while_is_back_at_once(tmp_path: Path, lived_seconds: float) -> None:
    """A daemon that is killed every few minutes, for days, or one whose watchdog runs out."""
    at = starts(tmp_path, lived_seconds, lambda at: len(at) == 30)

    assert at[-1] == 29 * (lived_seconds + RESTART_SECONDS)


def test_after_two_calm_minutes_all_is_forgotten(tmp_path: Path) -> None:
    starts(tmp_path, 0, lambda at: len(at) == 6)
    clock = FakeClock(mono_ns=HOUR_SECONDS * SECOND_NS)
    restart_backoff.keep_apart(clock, environment(tmp_path))
    clock.advance(RESTART_SECONDS)
    restart_backoff.keep_apart(clock, environment(tmp_path))

    assert clock.mono_ns() == (HOUR_SECONDS + RESTART_SECONDS) * SECOND_NS


@pytest.mark.parametrize(
    "lacking", [{"SYSTEMD_EXEC_PID": "1"}, {"RUNTIME_DIRECTORY": ""}, {"NOTIFY_SOCKET": None}]
)
def test_what_systemd_does_not_start_again_by_itself_never_waits(
    tmp_path: Path, lacking: dict[str, str | None]
) -> None:
    """A child of a daemon, a program in a terminal, and a report that somebody asks for."""
    given = {**environment(tmp_path), **lacking}
    told = {name: text for name, text in given.items() if text is not None}
    clock = FakeClock()
    for _ in range(7):
        restart_backoff.keep_apart(clock, told)

    assert clock.mono_ns() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("note", ["", "many\n", "3 99999999999999999\n", "-1 -1 -1\n"])
def test_a_note_that_tells_nothing_holds_nobody_up(tmp_path: Path, note: str) -> None:
    """Cut short, damaged, or of another boot."""
    (tmp_path / "starts").write_text(note)
    clock = FakeClock()
    restart_backoff.keep_apart(clock, environment(tmp_path))

    assert clock.mono_ns() == 0


def test_a_note_that_cannot_be_made_holds_nobody_up(tmp_path: Path) -> None:
    clock = FakeClock()
    for _ in range(7):
        restart_backoff.keep_apart(clock, environment(tmp_path / "not-there"))

    assert clock.mono_ns() == 0


def test_the_manager_hears_of_the_wait_and_leaves_the_start_its_time(tmp_path: Path) -> None:
    """`systemctl status` says why it waits, and the wait is not counted as a start that hangs."""
    (tmp_path / "starts").write_text("5 0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        told = {**environment(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}
        restart_backoff.keep_apart(FakeClock(mono_ns=10 * SECOND_NS), told)
        heard = [manager.recv(100).decode() for _ in range(3)]

    assert heard == [
        "STATUS=started 7 times in a row: waits 50 s",
        "EXTEND_TIMEOUT_USEC=170000000",
        "STATUS=starting",
    ]


def test_every_daemon_has_a_folder_that_outlives_its_deaths() -> None:
    """Without it nothing is known of the start before; `systemctl stop` forgets it."""
    files = {place.name: text for place, text in units.rendered_files().items()}
    daemons = {name: text for name, text in files.items() if "\nType=notify\n" in text}
    paces = {
        line for text in daemons.values() for line in text.split("\n") if "RestartSec=" in line
    }

    assert len(daemons) > 5
    for text in daemons.values():
        assert "\nRuntimeDirectory=%N\n" in text
        assert "\nRuntimeDirectoryPreserve=restart\n" in text
    assert paces == {f"RestartSec={RESTART_SECONDS}s"}
    assert duration_ns(f"{RESTART_SECONDS}s") == restart_backoff.BACKOFF.first_ns


def test_the_program_notes_its_start_before_it_does_anything(tmp_path: Path) -> None:
    """Each command does, without a line of its own."""
    told = {key: text for key, text in environment(tmp_path).items() if key != "SYSTEMD_EXEC_PID"}
    script = f"SYSTEMD_EXEC_PID=$$ exec {sys.executable} -m soak.cli.main alert"
    subprocess.run(["sh", "-c", script], env={**os.environ, **told}, check=False, timeout=60)

    assert (tmp_path / "starts").read_text().startswith("0 ")
