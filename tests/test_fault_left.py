"""Every fault leaves nothing behind, however the process ends that injected it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from soak.lab import drive, throttle
from tests.test_lab_drive import until_gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 60.0


def groups_of(pid: int) -> list[str]:
    """Return the cgroups that a process made for its faults."""
    found = [*throttle.V1.glob(f"soakd-lab-{pid}-*"), *throttle.V2.glob(f"soakd-lab-{pid}-*")]
    return [str(path) for path in found]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("ending", ["in order", "raise", "SIGINT", "SIGKILL"])
def test_nothing_is_left(ending: str, tmp_path: Path) -> None:
    """No mount, loop device, process or cgroup; after SIGKILL the next start clears the last of them."""
    lack = drive.missing()
    if lack:
        pytest.skip(lack)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fault_world", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as world:
        assert world.stdin is not None
        assert world.stdout is not None
        assert world.stdout.readline() == "ready\n"
        below = psutil.Process(world.pid).children(recursive=True)
        there = len(below), bool(groups_of(world.pid))
        if ending.startswith("SIG"):
            os.kill(world.pid, signal.Signals[ending])
        else:
            world.stdin.write(ending + "\n")
            world.stdin.flush()
        world.wait(LIMIT_SECONDS)

    mounts = until_gone(tmp_path)
    deadline = time.monotonic() + LIMIT_SECONDS
    while alive(below) and time.monotonic() < deadline:
        time.sleep(0.05)
    throttle.clear()

    assert there[0] >= 8
    assert mounts == []
    assert alive(below) == []
    assert groups_of(world.pid) == []
