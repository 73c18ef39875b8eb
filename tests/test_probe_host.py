"""A host that only probes: a run folder of its own, gone on with after a restart, collected in the end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from soak.cli._probe_host import run_host
from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.errors import PlanError
from soak.core.plan_probe import ProbePlan
from soak.daemons.context import host_name
from soak.service import children
from soak.store.collected import collect
from soak.store.journal_reader import SourceReader, read_source
from soak.store.run_folder import Run, RunFolder, read_run, write_run

PLAN = "name: x\nprobes: {pressure: {}}\n"
START = "2026-01-31T12:00:00Z"
START_NS = 1_769_860_800 * 10**9


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "soak.cli.main", "probe", *arguments]


def probed(folder: RunFolder, *arguments: str) -> tuple[int, str]:
    """Start the host, end it after a record more than there were, return its exit code and errors."""
    path = folder.journal / f"probe@{host_name()}"
    before, deadline = newest(path), time.monotonic() + 60
    mortal = children.mortal(command(*arguments))
    with subprocess.Popen(mortal, stderr=subprocess.PIPE, text=True) as process:
        while newest(path) == before and process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def newest(path: Path) -> int:
    return max((file.stat().st_size for file in path.glob("*.jsonl")), default=0) + len(
        list(path.glob("*.jsonl"))
    )


@pytest.mark.slow
def test_it_records_goes_on_in_its_folder_and_can_be_collected(tmp_path: Path) -> None:
    """Two starts are two incarnations of one source, of the run that both hosts name."""
    (tmp_path / "p.yaml").write_text(PLAN + "free_space_floor: 1MiB\n")
    folder = RunFolder(tmp_path / "b")
    options = (str(tmp_path / "p.yaml"), "--run-dir", str(folder.path), "--run-id", "r1")

    codes = [probed(folder, *options, "--start", START)[0] for _ in range(2)]
    first = RunFolder(tmp_path / "a")
    first.path.mkdir()
    write_run(first, Run("r1", START_NS, "a", {}, "ended", "x"))
    brought = collect(first, folder)

    source = f"probe@{host_name()}"
    reader = SourceReader(first.journal / source)
    incs = sorted({record.inc for record, _ in read_source(first.journal, source, reader)})
    assert codes == [0, 0]
    assert (read_run(folder).state, brought, len(incs)) == ("ended", [source], 2)
    assert reader.ended_inc == incs[-1]


def refused(tmp_path: Path, text: str, run_dir: Path | None) -> str:
    """Return what is said of a plan that is not taken."""
    plan = tmp_path / "p.yaml"
    plan.write_text(text)
    with pytest.raises(PlanError) as error:
        run_host(plan, run_dir, "", "", threading.Event(), SystemClock())
    return str(error.value)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()

    said = refused(tmp_path, PLAN, tmp_path / "b")

    assert said.endswith("holds something, and no run")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]


def test_a_plan_that_ships_no_more_records_beside_the_runs_that_were_joined(tmp_path: Path) -> None:
    """The unit names one folder, whatever the plan says: it is to start with either."""
    (tmp_path / "p.yaml").write_text(PLAN + "free_space_floor: 1MiB\n")
    home, stop = tmp_path / "b", threading.Event()
    write_run(RunFolder(home / "x-r1"), Run("r1", START_NS, "b", {}, "ended", "x"))
    (home / "x.lock").touch()
    stop.set()

    run_host(tmp_path / "p.yaml", home, "", "", stop, SystemClock())

    assert (read_run(RunFolder(home)).name, read_run(RunFolder(home / "x-r1")).id) == ("x", "r1")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    """Two plans in one folder would be one source."""
    write_run(RunFolder(tmp_path / "b"), Run("r0", START_NS, "b", {}, "ended", "y"))

    said = refused(tmp_path, PLAN, tmp_path / "b")

    assert said.endswith("holds run r0 of plan y")


def test_a_plan_of_a_run_is_refused_with_what_does_its_part(tmp_path: Path) -> None:
    """It has topics to make, and phases to follow."""
    said = refused(tmp_path, PLAN + "broker: {kafka: {bootstrap_servers: 'h:9'}}\n", None)

    assert "p.yaml:3: broker: makes it the plan of a run" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("topic: {}\n", "p:3: topic: unknown key; known: free_space_floor, journal"),
        (
            "ship: {}\n",
            "p:3: ship.bootstrap_servers: names no cluster, and this plan measures none",
        ),
        (
            "ship: {bootstrap_servers: 'h:9', buffer: 1KiB}\n",
            "p:3: ship.buffer: must be at least 1MiB",
        ),
        ("sampling: {fsync: {}}\n", "p:3: sampling.fsync: is none of the plan's probes"),
        (
            "sampling: {pressure: {period: 1500ms}}\n",
            "p:3: sampling.pressure.period: must be whole",
        ),
        ("sampling: {pressure: {period: 2h}}\n", "period: must lie between 1s and 1h"),
        ("sampling: {pressure: {timeout: 1ms}}\n", "timeout: must lie between 1s and 10min"),
        (
            "sampling: {pressure: {perid: 1s}}\n",
            "sampling.pressure.perid: unknown key; did you mean",
        ),
        ("metrics: {port: 70000}\n", "p:3: metrics.port: must lie between 0 and 65535"),
    ],
)
def test_what_cannot_be_is_refused_with_file_line_and_key(more: str, said: str) -> None:
    """Before anything is made."""
    with pytest.raises(PlanError) as error:
        plan_text.load_any(PLAN + more, "p")

    assert said in str(error.value)


def test_a_plan_without_a_broker_survives_being_written_out() -> None:
    """The run folder holds it with every default."""
    text = (
        PLAN
        + "sampling: {pressure: {period: 1min}}\nship: {bootstrap_servers: 'h:9'}\nmetrics: {}\n"
    )
    plan, _ = plan_text.load_any(text, "p")

    again, _ = plan_text.load_any(plan_text.dump(plan), "again")

    assert isinstance(plan, ProbePlan)
    assert again == plan


def test_the_plan_that_ships_shows_every_default() -> None:
    """What `configs/probe-host.yaml` says is what is done when it says nothing."""
    path = Path(__file__).resolve().parents[1] / "configs" / "probe-host.yaml"
    shown, _ = plan_text.load_any(path.read_text(), "probe-host.yaml")
    folder = "{directory: /var/lib/kafka}"
    bare = (
        "name: probe-host\n"
        f"probes: {{clock: {{}}, disk_io: {folder}, fsync: {folder}, host: {{}}, pressure: {{}}}}\n"
        "ship: {bootstrap_servers: 'broker1:9092'}\n"
    )

    assert plan_text.load_any(bare, "bare")[0] == shown
