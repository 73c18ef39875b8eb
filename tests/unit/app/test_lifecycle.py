"""Resuming and stopping runs, and waiting for the clock of a host."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from soak.app.lifecycle import (
    CLOCK_TIMEOUT_NS,
    await_clock,
    find_interrupted_run,
    new_run,
    spark_versions,
    with_brokers,
)
from soak.app.multi_host import WHOLE
from soak.cli import main
from soak.cli.run import stop
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError, RunFolderError, SoakError
from soak.core.journal_format import columns_line, encode
from soak.core.model import Record
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.core.ports import Broker
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.service import children
from soak.service.files import file_lock
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from tests.support.fakes import FakeClock
from tests.support.shipping.shipped_run import START_NS, A, folder_of

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


def test_a_new_run_knows_which_brokers_are_on_its_host(tmp_path: Path) -> None:
    """The report needs it, and may be made elsewhere."""
    servers = "192.0.2.1:9092, 127.0.0.1:9092"
    text = f"name: shop\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"

    run = new_run(plan_text.load(text, "plan.yaml").plan, WHOLE, SystemClock())
    write_run(RunFolder(tmp_path), run)

    assert run.own_brokers == ("127.0.0.1:9092",)
    assert read_run(RunFolder(tmp_path)) == run


class VersionedBroker:
    """A cluster of which only versions matter."""

    def __init__(self, versions: dict[str, str] | BrokerError) -> None:
        self.versions = versions

    def client_versions(self) -> dict[str, str]:
        return {"librdkafka": "2.12.1"}

    def broker_versions(self) -> dict[str, str]:
        if isinstance(self.versions, BrokerError):
            raise self.versions
        return self.versions


def test_a_run_records_the_brokers_and_the_versions_of_brokers_and_client(tmp_path: Path) -> None:
    """Whatever the cluster calls itself: run.json stays readable."""
    versions = {"b2:9092": "4.1", "b1:9092": "4.0", "b3:9092": "", "x" * 2000: "4.1"}
    run = with_brokers(RUN, cast("Broker", VersionedBroker(versions)), "kafka")
    write_run(RunFolder(tmp_path), run)

    assert run.versions == {"librdkafka": "2.12.1", "kafka": "4.0, 4.1"}
    assert run.brokers[:3] == ("b1:9092", "b2:9092", "b3:9092")
    assert read_run(RunFolder(tmp_path)) == run


def test_a_run_whose_cluster_does_not_say_its_versions_goes_on() -> None:
    run = with_brokers(RUN, cast("Broker", VersionedBroker(BrokerError("no"))), "kafka")

    assert (run.versions, run.brokers) == ({"librdkafka": "2.12.1"}, ())


def test_the_versions_of_spark_and_its_java_are_known() -> None:
    found = spark_versions()

    assert found.keys() == {"pyspark", "java"}
    assert found["java"].partition(".")[0].isdecimal()


def test_the_newest_interrupted_run_is_resumed(tmp_path: Path) -> None:
    """Not a run that has ended, is running, belongs to another plan, or cannot be read."""
    run_in(tmp_path, RUN)
    newest = run_in(tmp_path, dataclasses.replace(RUN, id="r2", start_wall_ns=2))
    run_in(tmp_path, dataclasses.replace(RUN, id="r3", start_wall_ns=3, state="ended"))
    run_in(tmp_path, dataclasses.replace(RUN, id="r4", start_wall_ns=4, name="shop-b"))
    run_in(tmp_path, dataclasses.replace(RUN, id="r5")).run_json.write_text("{")
    running = run_in(tmp_path, dataclasses.replace(RUN, id="r6", start_wall_ns=6))
    with file_lock(running.path / "run.lock", "test"):
        found = find_interrupted_run(plan_at(tmp_path), None)

    assert found == newest
    assert find_interrupted_run(plan_at(tmp_path), None, "r1").path.name == "shop-r1"


def test_without_an_interrupted_run_resume_is_an_error(tmp_path: Path) -> None:
    """--resume never starts a new run."""
    ended = run_in(tmp_path, dataclasses.replace(RUN, state="ended"))
    other = run_in(tmp_path, dataclasses.replace(RUN, id="r2", name="else"))

    for folder, why in [
        (None, "no interrupted run"),
        (ended.path, "it is ended"),
        (other.path, "of plan"),
    ]:
        with pytest.raises(PlanError, match=why):
            find_interrupted_run(plan_at(tmp_path), folder)
    with pytest.raises(PlanError, match="not a run folder"):
        find_interrupted_run(plan_at(tmp_path), tmp_path)


@pytest.mark.parametrize(
    "option", [["--scale", "0.1"], ["--duration", "1min"], ["--start", "soon"], ["--yes"]]
)
def test_options_of_a_new_run_are_rejected_with_resume(option: list[str]) -> None:
    """A resumed run follows its own plan; an option is not ignored."""
    words = ["run", "plan.yaml", "--resume", *option]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert isinstance(refused, PlanError)
    assert str(refused) == f"{option[0]}: a resumed run follows its own plan.yaml"


def test_a_run_whose_daemons_a_service_manager_starts_is_left_to_it(tmp_path: Path) -> None:
    """No unit holds the lock of `soak run`: two of each daemon would fight over the journals."""
    folder = run_in(tmp_path / "shop", RUN)
    (tmp_path / "shop" / "current").symlink_to(folder.path.name)
    plan = plan_at(tmp_path / "shop")

    with pytest.raises(PlanError, match=r"resume it with `systemctl start soak@shop\.target`"):
        find_interrupted_run(plan, folder.path)
    with pytest.raises(PlanError, match="no interrupted run"):
        find_interrupted_run(plan, None)


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
    first = subprocess.Popen(children.with_death_signal(command), stdout=subprocess.DEVNULL)
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


OWN = ["probe@h", "produce.0@h"]


def recorded(folder: RunFolder, source: str, at_ns: int) -> None:
    path = folder.journal / source
    path.mkdir(parents=True)
    columns = columns_line([A])
    lines = encode(columns) + encode(Record(7, 1, at_ns, SECOND_NS, columns.id, (1.0,)))
    (path / "000001.jsonl").write_bytes(lines)


@pytest.mark.parametrize(("behind_seconds", "waited_seconds"), [(-1, 0), (0, 0), (40, 40)])
def test_it_is_waited_for(tmp_path: Path, behind_seconds: int, waited_seconds: int) -> None:
    """Another host's clock may be ahead: its records are no measure."""
    folder = folder_of(tmp_path / "r")
    recorded(folder, "probe@h", START_NS)
    recorded(folder, "probe@other.h", START_NS + 3600 * SECOND_NS)
    clock = FakeClock(wall_ns=START_NS - behind_seconds * SECOND_NS)

    await_clock(folder, OWN, clock)

    assert clock.mono_ns() == waited_seconds * SECOND_NS


def test_a_clock_that_stays_behind_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "r")
    recorded(folder, "probe@h", START_NS)
    clock = FakeClock(wall_ns=START_NS - 2 * CLOCK_TIMEOUT_NS)

    with pytest.raises(SoakError, match=r"2026-\S+, behind the last record of the run at 2026-"):
        await_clock(folder, OWN, clock)


def test_a_run_without_records_goes_on_at_once(tmp_path: Path) -> None:
    clock = FakeClock(wall_ns=0)
    await_clock(folder_of(tmp_path / "r"), OWN, clock)

    assert clock.mono_ns() == 0


def run_of(path: Path, state: str = "running", only: tuple[str, ...] = ()) -> RunFolder:
    folder = RunFolder(path)
    write_run(folder, Run("r1", 0, "h", {}, state, only=only))
    return folder


def test_a_run_that_goes_on_is_asked_to_end(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    stop(tmp_path)

    assert folder.stop_request.exists()


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ((), ""),
        (
            ("produce.1", "consume.1"),
            "this host runs only produce.1, consume.1: stop the run on the other hosts too\n",
        ),
    ],
)
def test_stopping_the_part_of_one_host_says_that_others_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], only: tuple[str, ...], said: str
) -> None:
    run_of(tmp_path, only=only)
    stop(tmp_path)

    assert capsys.readouterr().out.partition("\n")[2] == said


def test_a_run_that_is_over_is_left_alone(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "ended")
    stop(tmp_path)

    assert not folder.stop_request.exists()


def test_a_run_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A folder in the file's place stands for one of another user: root reads all that is his."""
    RunFolder(tmp_path).run_json.mkdir()

    with pytest.raises(RunFolderError, match=r"cannot read .*run\.json: Is a directory"):
        stop(tmp_path)


def test_a_run_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    run_of(tmp_path).stop_request.symlink_to(tmp_path / "nowhere" / "stop")

    with pytest.raises(RunFolderError, match=r"cannot write .*stop: No such file"):
        stop(tmp_path)
