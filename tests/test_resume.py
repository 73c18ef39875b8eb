"""`soak run --resume`: which run goes on, and one that was killed goes on to its end."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.cli._resume import unfinished
from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.plan import Plan
from soak.lab.ports import Running
from soak.service import children
from soak.store.run_folder import Run, RunFolder, exclusive, write_run

RUN = Run("r1", 1, "h", {}, "running", "shop")
LIMIT_SECONDS = 480


def plan_at(runs: Path) -> Plan:
    text = f"name: shop\nbroker: {{kafka: {{}}}}\nrun_directory: {runs}\n"
    return plan_text.load(text, "plan.yaml").plan


def run_in(runs: Path, run: Run) -> RunFolder:
    folder = RunFolder(runs / f"shop-{run.id}")
    folder.path.mkdir(parents=True)
    write_run(folder, run)
    return folder


def test_the_newest_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """Not one that has ended, that somebody runs, of another plan, or that cannot be read."""
    run_in(tmp_path, RUN)
    newest = run_in(tmp_path, dataclasses.replace(RUN, id="r2", start_wall_ns=2))
    run_in(tmp_path, dataclasses.replace(RUN, id="r3", start_wall_ns=3, state="ended"))
    run_in(tmp_path, dataclasses.replace(RUN, id="r4", start_wall_ns=4, name="shop-b"))
    run_in(tmp_path, dataclasses.replace(RUN, id="r5")).run_json.write_text("{")
    running = run_in(tmp_path, dataclasses.replace(RUN, id="r6", start_wall_ns=6))
    with exclusive(running.path / "run.lock", "test"):
        found = unfinished(plan_at(tmp_path), None)

    assert found == newest
    assert unfinished(plan_at(tmp_path), None, "r1").path.name == "shop-r1"


def test_without_such_a_run_it_says_so(tmp_path: Path) -> None:
    """A run is never begun by an order to go on with one."""
    ended = run_in(tmp_path, dataclasses.replace(RUN, state="ended"))
    other = run_in(tmp_path, dataclasses.replace(RUN, id="r2", name="else"))

    for folder, why in [
        (None, "was cut short"),
        (ended.path, "its state is ended"),
        (other.path, "of plan"),
    ]:
        with pytest.raises(PlanError, match=why):
            unfinished(plan_at(tmp_path), folder)
    with pytest.raises(PlanError, match="not a run folder"):
        unfinished(plan_at(tmp_path), tmp_path)


@pytest.mark.parametrize(
    "option", [["--scale", "0.1"], ["--duration", "1min"], ["--start", "soon"], ["--yes"]]
)
def test_what_only_a_run_that_begins_can_be_told_is_refused(option: list[str]) -> None:
    """It goes on by its own plan: an option is not passed over."""
    words = ["run", "plan.yaml", "--resume", *option]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert isinstance(refused, PlanError)
    assert str(refused) == f"{option[0]}: a run goes on as it began, by its own plan.yaml"


def test_a_run_whose_daemons_a_service_manager_starts_is_left_to_it(tmp_path: Path) -> None:
    """No unit holds the lock of `soak run`: two of each daemon would fight over the journals."""
    folder = run_in(tmp_path / "shop", RUN)
    (tmp_path / "shop" / "current").symlink_to(folder.path.name)
    plan = plan_at(tmp_path / "shop")

    with pytest.raises(PlanError, match=r"goes on with `systemctl start soak@shop\.target`"):
        unfinished(plan, folder.path)
    with pytest.raises(PlanError, match="was cut short"):
        unfinished(plan, None)


@pytest.mark.service
@pytest.mark.timeout(1200)
def test_a_run_that_was_killed_goes_on_to_its_end(tmp_path: Path, lab_kafka: Running) -> None:
    """Killed with all its daemons in the middle: the same run, one gap, and nothing lost."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"name: shop\nbroker: {{kafka: {lab_kafka.addresses!r}}}\nload: {{rate: 200/s}}\n"
        "phases: {warm_up: 2s, soak: 60s, drain: 20s}\nprobes: {host: {}}\n"
        f"run_directory: {tmp_path / 'runs'}\n"
    )
    command = [sys.executable, "-m", "soak.cli.main", "run", str(plan)]
    first = subprocess.Popen(children.mortal(command), stdout=subprocess.DEVNULL)
    end = time.monotonic() + LIMIT_SECONDS
    while not list(tmp_path.glob("runs/*/journal/consume.0@*/000000.jsonl")):
        assert time.monotonic() < end
        time.sleep(0.2)
    first.kill()
    first.wait()
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )

    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads(RunFolder(folder).summary.read_text())
    assert done.returncode in {0, 4}, done.stderr
    assert (summary["audit"]["lost"], summary["audit"]["duplicated"]) == (0, 0)
    assert summary["audit"]["received"] > 0
    assert [one for one in summary["findings"] if one["cause"] != "client"] == []
