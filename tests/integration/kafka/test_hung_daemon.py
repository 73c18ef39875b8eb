"""A daemon of `soak run` hangs: the run itself restarts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from soak.lab.ports import Running
from soak.service import children
from soak.store.run_folder import RunFolder

LIMIT_SECONDS = 480


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, within a limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def consumers(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "consume" in child.cmdline()]


@pytest.mark.service
@pytest.mark.timeout(1200)
def test_a_hanging_daemon_is_restarted_and_nothing_is_lost(
    tmp_path: Path, lab_kafka: Running
) -> None:
    """A consumer is stopped for good in the middle: a gap with its reason, and an exact audit."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"name: hung\nbroker: {{kafka: {lab_kafka.addresses!r}}}\nload: {{rate: 200/s}}\n"
        f"phases: {{warm_up: 2s, soak: 80s, drain: 60s}}\nrun_directory: {tmp_path / 'runs'}\n"
    )
    command = [sys.executable, "-m", "soak.cli.main", "run", str(plan)]
    process = subprocess.Popen(children.with_death_signal(command), stdout=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob("runs/*/journal/consume.0@*/000000.jsonl")))
    (hung,) = consumers(process.pid)
    os.kill(hung.pid, signal.SIGSTOP)
    code = process.wait(LIMIT_SECONDS)

    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads(RunFolder(folder).summary.read_text())
    (death,) = (folder / "restarts.jsonl").read_text().splitlines()
    assert code in {0, 4}
    assert json.loads(death)["how"] == "no sign of life, killed"
    assert (summary["audit"]["lost"], summary["audit"]["duplicated"]) == (0, 0)
    assert any("no sign of life" in str(gap) for gap in summary["coverage"]["gaps"])
    assert [one for one in summary["findings"] if one["is_about_cluster"]] == []
