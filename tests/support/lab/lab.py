"""Look for what a lab has left on this machine, and wait until it is removed."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from soak.lab.drive import throttle

LIMIT_SECONDS = 60.0
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""Settings with which a killed broker can register again within seconds."""


def remains(folder: Path) -> list[str]:
    """Return the mounts and loop devices below a folder."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    loops = Path("/sys/block").glob("loop*/loop/backing_file")
    return [line for line in mounts if f" {folder}/" in line] + [
        str(path) for path in loops if path.read_text().startswith(f"{folder}/")
    ]


def remains_in_time(folder: Path) -> list[str]:
    """Wait until nothing remains of a folder, at most a minute, and return what does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while remains(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return remains(folder)


def groups_of(pid: int) -> list[str]:
    """Return the cgroups that a process made for its faults."""
    found = [*throttle.V1.glob(f"soakd-lab-*-{pid}-*"), *throttle.V2.glob(f"soakd-lab-*-{pid}-*")]
    return [str(path) for path in found]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
