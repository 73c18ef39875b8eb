"""A drill for which its plan is not made is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cli import _checks, _lab_drill
from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan import Lab
from soak.lab import drill, drill_fit
from tests.test_lab_drill import SHIPPED

PLAN = """\
name: mine
lab: {LAB}
broker: {kafka: {}}
phases: {warm_up: 10s, soak: 60s, drain: 5s}
"""
QUIET = "fault: {kind: quiet}"
EXPECT = "expect: {cause: nothing}"


def refusal(folder: Path, plan: str, *lines: str) -> str:
    """Return what is said of a drill of these lines, from the second one on; "" where it fits its plan."""
    (folder / "plan.yaml").write_text(plan)
    path = folder / "mine.yaml"
    path.write_text("\n".join(("plan: plan.yaml", *lines)))
    found = drill.load(path)
    try:
        drill_fit.check(found, _checks.load_plan(found.plan))
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("lab", "fault", "message"),
    [
        ("", "kind: broker_kill, node: 2", "node: there is no broker 2: `lab.nodes` of the plan"),
        ("", "kind: broker_kill, node: 0", "node: there is no broker 0"),
        ("nodes: 3", "kind: leader_move, onto: 4", "onto: there is no broker 4"),
        ("", "kind: leader_move", "kind: leader_move needs a lab of several brokers"),
        ("", "kind: drive_gc", "kind: broker 1 has no injected drive: name it in `lab.drive`"),
        ("nodes: 3, drive: {brokers: [1]}", "kind: drive_hang, node: 2", "kind: broker 2 has no"),
        ("", "kind: compaction", "kind: compaction needs a lab's Pulsar"),
        ("broker: pulsar", "kind: compaction, per_mib: 1s", "kind: broker 1 has no injected drive"),
        ("", "kind: network_delay", "kind: the lab has no relay: set `lab.relayed` of the plan"),
    ],
)
def test_a_fault_that_the_plans_lab_cannot_have_is_refused_with_line_and_key(
    lab: str, fault: str, message: str, tmp_path: Path
) -> None:
    """One that is given too."""
    plan = PLAN.replace("LAB", lab)
    alone = refusal(tmp_path, plan, f"fault: {{{fault}}}", EXPECT)
    given = refusal(tmp_path, plan, QUIET, EXPECT, "given:", f"  - {{{fault}}}")

    assert alone.startswith(f"{tmp_path}/mine.yaml:2: fault.{message}")
    assert given.startswith(f"{tmp_path}/mine.yaml:5: given.0.{message}")


@pytest.mark.parametrize(
    ("fault", "given", "message"),
    [
        ("network_loss", "network_delay, node: 1", "network_delay and network_loss would both set"),
        ("drive_hang", "drive_delay", "drive_delay and drive_hang would both set how the drive"),
        (
            "drive_gc",
            "drive_discard",
            "drive_discard and drive_gc would both set the drive's erased",
        ),
        (
            "fsync_throttle",
            "fsync_throttle, node: 2",
            "fsync_throttle and fsync_throttle would both",
        ),
        (
            "cpu_hog",
            "cpu_hog, hogs: 1",
            "cpu_hog and cpu_hog would both set the processors of the br",
        ),
        ("cpu_hog", "cpu_hog, of: client", ""),
        ("drive_gc", "drive_discard, node: 2", ""),
        ("drive_gc", "drive_delay", ""),
        ("network_loss", "drive_delay", ""),
    ],
)
def test_two_faults_of_which_one_would_undo_the_other_are_refused(
    fault: str, given: str, message: str, tmp_path: Path
) -> None:
    """One relay does one thing, and so does each drive, for its answers and for its pages."""
    plan = PLAN.replace("LAB", "nodes: 2, relayed: true, drive: {brokers: [1, 2]}")
    lines = (f"fault: {{kind: {fault}}}", EXPECT, "given:", f"  - {{kind: {given}}}")

    said = refusal(tmp_path, plan, *lines)

    assert said.startswith(message and f"{tmp_path}/mine.yaml:5: given.0.kind: {message}")
    assert bool(said) == bool(message)


@pytest.mark.parametrize("fault", ["kind: quiet", "kind: broker_kill", "kind: drive_gc, node: 2"])
def test_a_pool_is_judged_of_an_injected_drive_alone(fault: str, tmp_path: Path) -> None:
    """That of the broker to whom the fault is done."""
    drives = "nodes: 2, drive: {brokers: [2]}"
    expect = "expect: {cause: drive_gc, pool_within: 0.1}"
    said = refusal(tmp_path, PLAN.replace("LAB", drives), f"fault: {{{fault}}}", expect)

    is_there = fault.endswith("node: 2")
    expected = f"{tmp_path}/mine.yaml:3: expect.pool_within: is of the injected drive"
    assert said == "" if is_there else said.startswith(expected)


@pytest.mark.parametrize(
    ("begin", "phases", "message"),
    [
        ("69s", "drain", ""),
        ("70s", "drain", "begin: 70s is too late: the load of "),
        ("70s", "cool_down: 5s, drain", ""),
        ("70s", "ramp: {}, drain", ""),
    ],
)
def test_a_fault_that_begins_when_the_load_is_over_is_refused(
    begin: str, phases: str, message: str, tmp_path: Path
) -> None:
    """Nobody would feel it; when that is nobody knows where a ramp comes first."""
    plan = PLAN.replace("LAB", "").replace("drain", phases)
    said = refusal(tmp_path, plan, QUIET, EXPECT, f"begin: {begin}")

    assert said.startswith(message and f"{tmp_path}/mine.yaml:4: {message}")
    assert bool(said) == bool(message)


def test_a_drill_on_a_cluster_of_others_is_refused_before_anybody_asks_it(tmp_path: Path) -> None:
    """Its topics would be made there first."""
    plan = 'name: theirs\nbroker: {kafka: {bootstrap_servers: "127.0.0.1:9"}}\n'
    (tmp_path / "plan.yaml").write_text(plan)
    path = tmp_path / "mine.yaml"
    path.write_text(f"plan: plan.yaml\n{QUIET}\n{EXPECT}\n")

    with pytest.raises(PlanError) as caught:
        _lab_drill.drill(str(path))

    assert str(caught.value).startswith(f"{tmp_path}/plan.yaml:1: lab: is missing: the drill mine")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_drill_that_ships_fits_its_plan(path: Path) -> None:
    """A new file is under test the moment it exists; one that does not raises."""
    found = drill.load(path)

    drill_fit.check(found, _checks.load_plan(found.plan))


@pytest.mark.parametrize("name", plugins.names("soak.lab.faults"))
def test_what_a_fault_needs_of_a_lab_is_asked_of_the_plan(name: str) -> None:
    """A new fault is under test the moment it exists: what it needs stands in its docstring."""
    fault = plugins.load("soak.lab.faults", name)
    lacks = getattr(fault, "lacks", None)
    lack = "" if lacks is None else lacks(Lab(), fault.Config())

    said = str(fault.__doc__)
    words = ("`lab.drive`", "`lab.relayed`", "several brokers", "a lab's Pulsar")
    assert bool(lack) == any(word in said for word in words)
