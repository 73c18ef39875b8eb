"""`make bench-kills`: thirty kills of the streaming detector at random moments change nothing that is found.

Killed are the driver, its JVM, a Python worker or all at once, while journals grow, rotate, and end in the
middle of a line. What was found in the end is compared, row by row, with what an undisturbed detector finds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from soak.service import children
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder
from spark.streaming.checkpoint import is_all_read
from tests.support.spark.growing_run import begun, end, grow, tear
from tests.support.spark.long_run import RUN, LongShape, write_long_run

RESULT = Path("build/bench/kills.json")
TARGETS = ("driver", "jvm", "worker", "all")
_LONGEST_PAUSE = 25.0  # seconds from a start to the kill: some fall into the start
_DEATH_SECONDS = 90.0  # in which a driver notices that its JVM or a worker died
_END_SECONDS = 600.0


@dataclass(slots=True)
class Daemon:
    """`soak detect-stream` as a process that is started again whenever it is not there."""

    folder: RunFolder
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> psutil.Process:
        """Return the driver, started if it is not there."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "soak.cli.main", "detect-stream"]
            with (self.folder.path / "out").open("ab") as output:
                self._process = subprocess.Popen(
                    children.with_death_signal([*command, "--run-dir", str(self.folder.path)]),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.starts += 1
        return psutil.Process(self._process.pid)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, None where it goes on for longer."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill the driver and all that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


@dataclass(slots=True)
class Killer:
    """Kills a part of the detector; where that part is not there yet, the driver."""

    dice: random.Random
    killed: Counter[str] = field(default_factory=Counter)

    def strike(self, daemon: Daemon, target: str) -> None:
        driver = daemon.ensure()
        found = self._found(driver, target)
        if target == "all":
            daemon.kill()
        elif found is None:
            target = "driver"
            driver.kill()
        else:
            found.kill()
        self.killed[target] += 1

    def _found(self, driver: psutil.Process, target: str) -> psutil.Process | None:
        parts: list[psutil.Process] = []
        for one in driver.children(recursive=True):
            with suppress(psutil.Error):
                is_java = "java" in one.name()
                if (target == "jvm" and is_java) or (target == "worker" and not is_java):
                    parts.append(one)
        return self.dice.choice(parts) if parts else None


def found_in(folder: RunFolder) -> dict[str, list[str]]:
    """Return all findings and all changes, each as text."""
    with FindingsStore(folder.findings) as store:
        findings = [
            str((one.key, one.state, one.onset_k, one.resolved_k, one.cause, one.series))
            for one in store.findings(RUN)
        ]
        return {"findings": sorted(findings), "changes": sorted(map(str, store.changes(RUN)))}


def undisturbed(whole: RunFolder, path: Path) -> dict[str, list[str]]:
    """Return what one detector finds that takes in the whole run at once."""
    folder = begun(whole, path)
    shutil.copytree(whole.journal, folder.journal)
    end(whole, folder)
    daemon = Daemon(folder)
    daemon.ensure()
    status = daemon.wait(_END_SECONDS)
    daemon.kill()
    if status != 0:
        raise RuntimeError(f"the undisturbed detector ended with {status}")
    return found_in(folder)


def disturbed(
    whole: RunFolder, path: Path, kills: int, seconds: int, dice: random.Random
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return what happened while a detector was killed so often, and what it found."""
    folder, killer = begun(whole, path), Killer(dice)
    daemon, survived = Daemon(folder), 0
    try:
        for at in range(kills):
            grow(whole, folder, seconds * (at + 1) // (kills + 1))
            tear(whole, folder, dice)
            daemon.ensure()
            time.sleep(dice.uniform(0.0, _LONGEST_PAUSE))
            target = TARGETS[at % len(TARGETS)]
            killer.strike(daemon, target)
            if daemon.wait(_DEATH_SECONDS) is None:
                survived += 1
            sys.stdout.write(f"kill {at + 1}: {target}\n")
            sys.stdout.flush()
        end(whole, folder)
        status = None
        for _ in range(3):  # the last one killed may still be dying
            daemon.ensure()
            status = daemon.wait(_END_SECONDS)
            if status in (0, None):
                break
    finally:
        daemon.kill()
    happened = {
        "killed": dict(killer.killed),
        "starts": daemon.starts,
        "survived_kills": survived,
        "last_status": status,
        "is_all_read": is_all_read(folder.checkpoint, folder.journal),
    }
    return happened, found_in(folder)


def main() -> int:
    """Kill, compare, print and write the result; return 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="make bench-kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=1200, help="of the run")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    steps = tuple((seconds * at // 4, seconds // 10, 4.0) for at in (1, 2, 3))
    with tempfile.TemporaryDirectory(prefix="bench-kills-") as name:
        path = Path(name)
        shape = LongShape(
            seconds=seconds, series=60, warm_up=10, steps=steps, segment_seconds=seconds // 7
        )
        whole = write_long_run(path / "whole", shape)
        expected = undisturbed(whole, path / "undisturbed")
        dice = random.Random(arguments.seed)
        happened, found = disturbed(whole, path / "killed", arguments.kills, seconds, dice)
    result = {
        **happened,
        "findings": len(expected["findings"]),
        "changes": len(expected["changes"]),
        "is_identical": found == expected,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({**result, "expected": expected, "found": found}, indent=1) + "\n")
    sys.stdout.write(json.dumps(result) + "\n")
    is_right = result["is_identical"] and result["is_all_read"] and result["last_status"] == 0
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
