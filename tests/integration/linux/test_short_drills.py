"""A matrix in four minutes: two faults of an injected drive are found, distinguished and resolved."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from soak.app.lab import drills
from soak.lab.drills import result
from soak.store.run_folder import RunFolder
from tests.support.lab.lab import remains
from tests.support.paths import DATA, ROOT

LIMIT_SECONDS = 400
EARLIER, LATER = "tiny_drive_gc", "tiny_drive_delay"
LOAD_IS_OVER = "the load has ended"

pytestmark = [pytest.mark.drills, pytest.mark.timeout(4 * LIMIT_SECONDS)]

Ended = subprocess.CompletedProcess[bytes]


def test_drills_are_found_and_named_and_nothing_is_left(tmp_path: Path) -> None:
    """As `soak lab drill` says by its exit code; no mount and no loop device stays.

    The later one starts while the report of the earlier one is made. What is required of drills is a share
    (95 % found), and a machine with neighbours can hide a fault or its end: of a run that misses something,
    a second one with the fault elsewhere decides. Of one that ends in another way, none does.
    """
    for name in (EARLIER, LATER):
        lack = drills.missing_for_drill(drills.find_drill(str(path_of(name))))
        if lack:
            pytest.skip(lack)

    with ThreadPoolExecutor() as pool:
        earlier = pool.submit(drill, EARLIER, tmp_path / EARLIER, 0)
        await_end_of_load(log_of(tmp_path / EARLIER), earlier)
        later = pool.submit(drill, LATER, tmp_path / LATER, 0)
        ended = {EARLIER: earlier.result(), LATER: later.result()}
    assert remains(tmp_path) == []
    for name, first in ended.items():
        if first.returncode and has_missed(tmp_path / name):
            sys.stdout.write(log_of(tmp_path / name).read_text())
            ended[name] = drill(name, tmp_path / f"{name}-again", 1)

    for name, each in ended.items():
        said = "".join(path.read_text() for path in tmp_path.glob(f"{name}*.log"))
        assert each.returncode == drills.PASSED, said
    assert remains(tmp_path) == []


def path_of(name: str) -> Path:
    return DATA / "plans" / f"{name}.yaml"


def log_of(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.log")


def has_missed(run_dir: Path) -> bool:
    """Return whether a drill was judged to the end and only found too little."""
    verdict = RunFolder(run_dir).lab / "drill.json"
    if not verdict.exists():
        return False
    said = result.parse_result(verdict.read_text())
    return said.is_judged and not {"lifted", "lost", "duplicated"} & set(said.missed)


def await_end_of_load(log: Path, run: Future[Ended]) -> None:
    """Return once a drill puts no more load on the machine, or is over."""
    while not run.done() and not (log.exists() and LOAD_IS_OVER in log.read_text()):
        time.sleep(0.05)


def drill(name: str, run_dir: Path, seed: int) -> Ended:
    command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", str(path_of(name))]
    with log_of(run_dir).open("wb") as log:
        return subprocess.run(
            [*command, "--run-dir", str(run_dir), "--seed", str(seed)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS,
            check=False,
        )
