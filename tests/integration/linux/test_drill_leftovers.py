"""A drill that is ended in the middle of its fault leaves nothing: no broker, daemon, drive, cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from soak.lab.drive import drive, throttle
from soak.service import children
from tests.support.lab.lab import alive, groups_of, remains_in_time
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

LIMIT_SECONDS = 240.0
PLAN = """
name: left
lab: {broker: kafka, drive: {capacity: 1GiB}}
broker: {kafka: {}}
topic: {partitions: 1, settings: {flush.messages: 1}}
load: {rate: 100/s, message_size: 1KiB}
phases: {warm_up: 2s, soak: 200s, drain: 2s}
probes: {disk_io: {}, fsync: {}, host: {}}
"""
DRILL = """
description: the broker may write to its drive 60 times a second only, for longer than the test waits
plan: plan.yaml
begin: 4s
length: 190s
fault: {kind: fsync_throttle, writes_per_second: 60}
expect: {cause: slow_fsync}
"""


@pytest.mark.parametrize(("ending", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_nothing_is_left_of_a_drill(ending: str, code: int, tmp_path: Path) -> None:
    """As Ctrl-C, or the kernel that is out of memory, ends it; the next start clears the last of it."""
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    (tmp_path / "plan.yaml").write_text(PLAN)
    (tmp_path / "drill.yaml").write_text(DRILL)
    command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", str(tmp_path / "drill.yaml")]
    with (tmp_path / "said").open("w") as said:
        drill = subprocess.Popen(
            children.with_death_signal([*command, "--run-dir", str(tmp_path / "run")]),
            cwd=ROOT,
            stdout=said,
            stderr=said,
        )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not groups_of(drill.pid) and time.monotonic() < deadline and drill.poll() is None:
            time.sleep(0.05)
        assert groups_of(drill.pid), (tmp_path / "said").read_text()
        below = psutil.Process(drill.pid).children(recursive=True)
        os.kill(drill.pid, signal.Signals[ending])
        drill.wait(LIMIT_SECONDS)
    finally:
        drill.kill()
        drill.wait(LIMIT_SECONDS)

    mounts = remains_in_time(tmp_path)
    deadline = time.monotonic() + LIMIT_SECONDS
    while alive(below) and time.monotonic() < deadline:
        time.sleep(0.05)
    if ending == "SIGKILL":  # every other end lifts it itself
        throttle.clear_abandoned()

    assert (
        len(below) >= 6
    )  # a broker, a producer, a consumer, probes, a conductor, the detector, a drive
    assert drill.returncode == code, (tmp_path / "said").read_text()
    assert mounts == []
    assert alive(below) == []
    assert groups_of(drill.pid) == []
