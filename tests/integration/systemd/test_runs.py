"""Plans under a real systemd: complete runs through kills, hangs, a pause and a power cut."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.service import systemd
from soak.store.journal.reader import has_ended
from soak.store.run_folder import read_run
from tests.support.systemd.machine import DAEMONS, SOAK, Machine
from tests.support.systemd.world import World, booted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

MOST_EXPOSED = 2.0
NICENESS = {"produce": "0", "detect": "19", "alert": "10"}  # beside other services
PLANNED_SECONDS = 5 + 20 + 20
PLAN = """
name: t
broker: {{kafka: {{bootstrap_servers: '{servers}', common: {{client.id: '${{credential:soak_client}}'}}}}}}
topic: {{partitions: 2}}
load: {{rate: 200/s}}
phases: {{warm_up: 5s, soak: {soak}, drain: 20s}}
probes: {{host: {{}}, clock: {{}}}}
"""


def plan(broker: Running, soak: str) -> str:
    return PLAN.format(servers=broker.addresses["bootstrap_servers"], soak=soak)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path / "lib", ignore_errors=True)  # checkpoints of Spark


@pytest.fixture
def machine(shared: Path) -> Iterator[Machine]:
    with booted(shared) as world:
        yield Machine(world)


@pytest.mark.slow
def test_units_are_valid_and_sandboxed(machine: Machine) -> None:
    """`systemd-analyze` finds no error in them and a low exposure."""
    world = machine.world
    installed = world.run(SOAK, "install-units")
    units = [line.split()[1] for line in installed.splitlines() if line.endswith(".service")]
    names = [Path(unit).name.replace("@.", "@t.") for unit in units]
    table = world.run("systemd-analyze", "security", "--no-pager", "--json=short", *names)
    exposure = {name: _exposure(world, name) for name in names}
    world.run(SOAK, "install-units", "--uninstall")

    assert "checked" in installed, table
    assert len(names) >= len(DAEMONS)
    assert max(exposure.values()) <= MOST_EXPOSED, exposure
    assert "soak" not in world.run("ls", "/etc/systemd/system")


def _exposure(world: World, unit: str) -> float:
    last = world.run("systemd-analyze", "security", "--no-pager", unit).splitlines()[-1]
    return float(last.rpartition("service: ")[2].split()[0])


@pytest.mark.broker
@pytest.mark.timeout(900)
def test_a_run_survives_kills_a_hang_and_a_power_cut(machine: Machine, lab_kafka: Running) -> None:
    """It keeps its schedule until it is stopped, and no acknowledged message is lost."""
    world = machine.world
    machine.install(plan(lab_kafka, soak="1h"))
    machine.ctl("enable", "soak@t.target")
    machine.ctl("start", "soak@t.target")
    machine.await_records()
    for name in DAEMONS:
        machine.ctl("kill", "-s", "KILL", f"soak-{name}@t.service")
    machine.await_restart("conduct", 1)
    machine.ctl("kill", "-s", "STOP", "soak-conduct@t.service")
    for name in DAEMONS:
        machine.await_restart(name, 2 if name == "conduct" else 1)
    machine.await_records()
    world.run("cp", "-a", "/etc", "/srv/etc")
    world.cut_power()
    world.boot()
    machine.await_records()
    machine.await_records("consume.0")
    groups = {name: machine.group_of(name) for name in ("produce", "detect", "alert")}
    world.run(SOAK, "stop", "/var/lib/soak/t/current")
    summary = machine.await_report()
    run = read_run(machine.folder())

    if systemd.AUTOGROUP_PATH.exists():
        assert {name: group.split()[-1] for name, group in groups.items()} == NICENESS
    assert len(machine.runs()) == 1
    assert machine.seen_by_probe() >= {"produce", "consume", "detect-stream", "probe"}
    assert (summary["run"], run.state) == (run.id, "interrupted")
    assert (summary["audit"]["lost"], summary["audit"]["duplicated"]) == (0, 0)
    assert [found["metric"] for found in summary["findings"] if found["cause"] != "client"] == []
    assert not (machine.home / "daemons").exists()


@pytest.mark.service
@pytest.mark.timeout(900)
def test_a_run_survives_a_reboot(machine: Machine, lab_kafka: Running) -> None:
    """All units stop without failure, no report delays the shutdown, and the run resumes."""
    world = machine.world
    machine.install(plan(lab_kafka, soak="1h"))
    machine.ctl("enable", "soak@t.target")
    machine.ctl("start", "soak@t.target")
    machine.await_records()
    machine.await_records("consume.0")
    world.run("cp", "-a", "/etc", "/srv/etc")
    machine.shut_down()
    journal = machine.folder().journal
    before = {path.name.partition("@")[0]: has_ended(path) for path in journal.iterdir()}
    results = {name: world.show(f"soak-{name}@t.service", "Result") for name in (*DAEMONS, "start")}
    states = {name: machine.active(name) for name in (*DAEMONS, "report", "pending")}
    is_reported, state = machine.folder().summary.exists(), read_run(machine.folder()).state
    world.cut_power()
    world.boot()
    machine.await_records()
    machine.await_records("consume.0")
    restarts = {name: world.show(f"soak-{name}@t.service", "NRestarts") for name in DAEMONS}
    world.run(SOAK, "stop", "/var/lib/soak/t/current")
    summary = machine.await_report()

    assert before == dict.fromkeys(("consume.0", "probe", "produce.0"), True)
    assert set(results.values()) == {"success"}, results
    assert set(states.values()) == {"inactive"}, states
    assert (is_reported, state) == (False, "running")
    assert set(restarts.values()) == {"0"}, restarts
    assert len(machine.runs()) == 1
    assert summary["run"] == read_run(machine.folder()).id
    assert read_run(machine.folder()).state == "interrupted"
    assert (summary["audit"]["lost"], summary["audit"]["duplicated"]) == (0, 0)
    assert [found["metric"] for found in summary["findings"] if found["cause"] != "client"] == []


@pytest.mark.service
@pytest.mark.timeout(900)
def test_a_run_whose_end_has_passed_is_finished_before_the_next(
    machine: Machine, lab_kafka: Running
) -> None:
    """A pause has a report; the next start drains and ends the run, and the one after is a new run."""
    machine.install(plan(lab_kafka, soak="20s"))
    machine.ctl("start", "soak@t.target")
    machine.await_records()
    machine.ctl("stop", "soak@t.target")
    paused = machine.await_report()
    run = read_run(machine.folder())
    end_seconds = run.start_wall_ns / SECOND_NS + PLANNED_SECONDS
    machine.world.until(lambda: time.time() > end_seconds, "the planned end", 180)
    (machine.folder().summary).unlink()
    machine.ctl("start", "soak@t.target")
    machine.world.until(lambda: not (machine.home / "daemons").exists(), "the run to end", 300)
    ended = machine.await_report()
    state = read_run(machine.folder()).state
    machine.ctl("start", "soak@t.target")
    machine.world.until(lambda: len(machine.runs()) > 1, "a new run")

    assert (paused["verdict"], ended["verdict"]) == ("inconclusive", "inconclusive")
    assert (run.state, state) == ("running", "ended")
    assert ended["audit"]["lost"] == 0
