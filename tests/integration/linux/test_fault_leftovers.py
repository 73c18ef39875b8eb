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

from soak.lab.drive import drive, folder, throttle
from soak.lab.faults import all_faults
from tests.support.lab.fault_world import EXCUSED
from tests.support.lab.lab import alive, groups_of, remains_in_time
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_SECONDS = 60.0


@pytest.mark.parametrize(
    ("ending", "code"), [("in order", 0), ("raise", 1), ("SIGINT", -2), ("SIGKILL", -9)]
)
def test_nothing_is_left(ending: str, code: int, tmp_path: Path) -> None:
    """No mount, loop device, process or cgroup; after SIGKILL the next start clears the last of them."""
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.lab.fault_world", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as world:
        assert world.stdin is not None
        assert world.stdout is not None
        assert world.stdout.readline() == "ready\n"
        below = psutil.Process(world.pid).children(recursive=True)
        there = len(below)
        if ending.startswith("SIG"):
            os.kill(world.pid, signal.Signals[ending])
        else:
            world.stdin.write(ending + "\n")
            world.stdin.flush()
        world.wait(LIMIT_SECONDS)

    mounts = remains_in_time(tmp_path)
    deadline = time.monotonic() + LIMIT_SECONDS
    while alive(below) and time.monotonic() < deadline:
        time.sleep(0.05)
    if ending == "SIGKILL":  # every other end lifts it itself
        throttle.clear_abandoned()

    assert there >= 20  # brokers, daemons, writers, a hog, the relay, three a drive
    assert world.returncode == code
    assert mounts == []
    assert alive(below) == []
    assert groups_of(world.pid) == []
    assert not [
        one for one in folder.registrations() if one.link.readlink().is_relative_to(tmp_path)
    ]


def test_only_faults_of_a_real_cluster_are_excused() -> None:
    """A new fault is under test the moment it exists."""
    assert set(EXCUSED) <= all_faults().keys()
    assert not any(name.startswith(("drive_", "network_")) for name in EXCUSED)
