"""Drill files: what they give, and which are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from detectors import attribution
from soak.app import plan_files
from soak.app.lab import drills
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.config import FormerNameWarning
from soak.core.plan.load import SizeShare
from soak.core.plan.plan import Lab, Plan
from soak.core.units import SECOND_NS
from soak.lab.drills import drill
from soak.lab.drills.drill import Drill
from soak.lab.faults import all_faults, find_fault, network, retention
from tests.support.paths import DATA, ROOT

DRILLS = ROOT / "configs" / "drills"
OF_CI = DATA / "plans"
SHIPPED = sorted((*DRILLS.glob("*.yaml"), *OF_CI.glob("tiny_drive_*.yaml")))
GOOD = """\
plan: plan.yaml
fault:
  kind: deletion_stall
  stall: 40ms
expect:
  cause: retention_cliff
"""


def test_a_drill_file_gives_the_faults_own_configuration(tmp_path: Path) -> None:
    """Defaults are filled in; the plan is looked for beside the file."""
    (tmp_path / "plan.yaml").touch()
    (tmp_path / "mine.yaml").write_text(GOOD)

    found = drill.load(tmp_path / "mine.yaml")

    assert (found.name, found.plan, found.fault_kind) == (
        "mine",
        tmp_path / "plan.yaml",
        "deletion_stall",
    )
    assert found.fault == retention.DeletionStallConfig(stall=SECOND_NS // 25)
    assert found.expect.onset_within == 5 * SECOND_NS
    assert found.cell is None


def test_the_form_of_a_drill_is_what_it_and_its_plan_say(tmp_path: Path) -> None:
    """Not how: comments and the order of keys are no part of it, nor is the description."""
    plan, path = tmp_path / "plan.yaml", tmp_path / "mine.yaml"

    def form(drill_text: str, plan_text: str) -> str:
        path.write_text(drill_text)
        plan.write_text(plan_text)
        return drill.fingerprint(drill.load(path))

    forms = [
        form(GOOD, "name: a\nload: {rate: 1k/s}\n"),
        form(f"# so\ndescription: what\n{GOOD}", "load: {rate: 1k/s}\nname: a # too\n"),
        form(GOOD.replace("40ms", "41ms"), "name: a\nload: {rate: 1k/s}\n"),
        form(GOOD, "name: a\nload: {rate: 2k/s}\n"),
    ]

    assert forms[0] == forms[1]
    assert len(set(forms)) == 3


def test_of_a_file_larger_than_any_drill_no_more_is_read_than_is_refused(tmp_path: Path) -> None:
    """Else the byte at its end, which is no text, would be what is wrong with it."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"#" * 2**21 + b"\xff")

    with pytest.raises(PlanError, match=r"mine\.yaml:1: too large: more than 1,048,576 characters"):
        drill.load(path)


def test_a_drill_may_name_its_place_in_a_table_of_steps(tmp_path: Path) -> None:
    """Table, row and column; all three."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "cell: {table: Cliff, row: 1 MiB/s, column: full}\n")

    assert drill.load(path).cell == drill.Cell(table="Cliff", row="1 MiB/s", column="full")

    path.write_text(GOOD + "cell: {table: Cliff, row: 1 MiB/s}\n")
    with pytest.raises(PlanError, match=r"cell\.column: is missing"):
        drill.load(path)


def test_a_drill_may_name_what_is_given_beside_its_fault(tmp_path: Path) -> None:
    """A drill may have further faults that are active all the time, with their own configurations."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "given:\n  - kind: network_delay\n    node: 2\n")
    found = drill.load(path)

    assert found.given == (("network_delay", network.NetworkDelayConfig(node=2)),)
    assert drill.declaration(found, at_wall_ns=7)["given"] == [
        {"fault": "network_delay", "config": {"delay": "20ms", "node": 2}}
    ]

    path.write_text(GOOD + "given:\n  - kind: network_delai\n")
    with pytest.raises(PlanError, match=r"8: given\.0\.kind: unknown fault; did you mean 'network"):
        drill.load(path)


def test_the_retention_cliff_stands_in_four_cells_of_one_table() -> None:
    """Two throughputs, two fill levels; all else alike."""
    cliffs = [drill.load(path) for path in sorted(DRILLS.glob("retention_cliff_drive*.yaml"))]
    cells = [one.cell for one in cliffs if one.cell]

    assert len({(cell.row, cell.column) for cell in cells}) == 4
    assert [len({cell.table for cell in cells}), len({cell.row for cell in cells})] == [1, 2]
    assert len({one.expect for one in cliffs}) == len({one.fault.per_mib for one in cliffs}) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "kind: deletion_stall",
            "kind: deletion_stal",
            "3: fault.kind: unknown fault; did you mean",
        ),
        ("cause: retention_cliff", "cause: retention_clif", "6: expect.cause: unknown cause; "),
        ("stall: 40ms", "stal: 40ms", "4: fault.stal: unknown key; did you mean 'stall'"),
        ("stall: 40ms", "stall: 40 blinks", "4: fault.stall: "),
        ("stall: 40ms", "stall: 240ms", "4: fault.stall: must be at most half of every"),
        ("  cause: retention_cliff", "  cause: x\n  lose: 0", "7: expect.lose: unknown key"),
        ("plan: plan.yaml", "plan: other.yaml", "1: plan: there is no file"),
        ("plan: plan.yaml", "", "1: plan: is missing"),
        ("expect:", "fault:", "5: fault: duplicate key"),
    ],
)
def test_a_wrong_drill_file_is_refused_with_line_and_key(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    """As a wrong plan is."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))

    with pytest.raises(PlanError) as caught:
        drill.load(path)

    assert str(caught.value).startswith(f"{path}:{message}")


def test_a_drill_file_that_is_no_text_is_refused_by_its_name(tmp_path: Path) -> None:
    """As a plan is."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"description: \xff\n")

    with pytest.raises(PlanError, match=r"mine\.yaml: cannot read the drill: 'utf-8' codec"):
        drill.load(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_drill_that_ships_names_a_known_fault(path: Path) -> None:
    """A new file is under test the moment it exists; so are its plan and the time left after the fault."""
    found = drill.load(path)
    plan = plan_text.load(found.plan.read_text(), str(found.plan)).plan
    judged_until_ns = plan.phases.warm_up + plan.phases.soak
    needed_ns = found.begin_ns + found.length_ns + found.expect.resolved_within

    assert type(found.fault) is find_fault(found.fault_kind).config
    assert found.expect.cause in (*attribution.causes(), drill.NOTHING)
    assert found.expect.cause == drill.NOTHING or needed_ns <= judged_until_ns


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_fault_that_is_to_be_found_is_also_to_be_notified_and_resolved(path: Path) -> None:
    """Nobody is notified of a finding about the client, and a quiet drill has none."""
    found = drill.load(path)
    expect = found.expect
    is_of_finding = expect.cause != drill.CLIENT

    assert expect.cause == drill.NOTHING or (
        (
            expect.state,
            bool(expect.resolved_within),
            bool(expect.alert_within),
            bool(found.length_ns),
        )
        == ("resolved", True, is_of_finding, True)
    )


def test_the_declaration_says_what_is_injected_as_people_write_it(tmp_path: Path) -> None:
    """It is the first line of the fault log."""
    (tmp_path / "plan.yaml").touch()
    (tmp_path / "mine.yaml").write_text(GOOD)

    line = drill.declaration(drill.load(tmp_path / "mine.yaml"), at_wall_ns=7)

    assert (line["drill"], line["fault"], line["at_wall_ns"]) == ("mine", "deletion_stall", 7)
    assert dict(line["config"])["stall"] == "40ms"  # type: ignore[call-overload]  # JSON


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("begin: -1s", "begin"),
        ("length: -1s", "length"),
        ("expect: {cause: x, pool_within: .inf}", "pool_within: must lie between 0 and 1"),
        ("expect: {cause: x, resolved_within: 1s}", "needs a length: the fault is never lifted"),
    ],
)
def test_times_that_cannot_be_are_refused(line: str, message: str, tmp_path: Path) -> None:
    """As other wrong keys are."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    text = GOOD.partition("expect:")[0] if line.startswith("expect") else GOOD
    path.write_text(text + line + "\n")

    with pytest.raises(PlanError, match=message):
        drill.load(path)


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
        drill.check_fit(found, plan_files.load_plan(found.plan))
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
    expected = f"{tmp_path}/mine.yaml:3: expect.pool_within: needs an injected drive"
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
    """It would have no effect; the end of the load is unknown with a ramp."""
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
        drills.run_drill(str(path), None, 0)

    assert str(caught.value).startswith(f"{tmp_path}/plan.yaml:1: lab: is missing: the drill mine")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_drill_that_ships_fits_its_plan(path: Path) -> None:
    """A new file is under test the moment it exists; one that does not raises."""
    found = drill.load(path)

    drill.check_fit(found, plan_files.load_plan(found.plan))


@pytest.mark.parametrize("name", all_faults())
def test_what_a_fault_needs_of_a_lab_is_asked_of_the_plan(name: str) -> None:
    """A new fault is under test the moment it exists: what it needs stands in its docstring."""
    fault = find_fault(name)
    lack = fault.missing_from_lab(Lab(), fault.config())

    said = str(fault.config.__doc__)
    words = ("`lab.drive`", "`lab.relayed`", "several brokers", "a lab's Pulsar")
    assert bool(lack) == any(word in said for word in words)


def of(name: str) -> tuple[Drill, Plan]:
    found = drills.find_drill(name)
    return found, plan_files.load_plan(found.plan).plan


def felt_seconds(found: Drill, plan: Plan) -> float:
    """Return from when on it can be felt, in seconds of the run."""
    if found.begin_ns:
        return found.begin_ns / SECOND_NS
    if hasattr(found.fault, "after"):
        return float(found.fault.after / SECOND_NS)
    if "retention.ms" in plan.topic.settings:
        return int(plan.topic.settings["retention.ms"]) / 1000
    sent = float(plan.load.rate) * plan.load.message_size
    return int(plan.topic.settings["retentionSizeInMB"]) * 2**20 / sent


@pytest.mark.parametrize("name", drills.drill_names())
def test_every_drill_that_ships_is_moved_by_a_seed(name: str) -> None:
    """The soak is as much longer, rounded up, and a fault that is lifted stays as long as it did."""
    found, plan = of(name)

    later, longer = drill.shifted(found, plan, 23)

    moved = felt_seconds(later, longer) - felt_seconds(found, plan)
    more = (longer.phases.soak - plan.phases.soak) / SECOND_NS
    lifted = (later.begin_ns + later.length_ns - found.begin_ns - found.length_ns) / SECOND_NS
    assert 0 < moved < drill.JITTER_SECONDS + 1
    assert abs(math.ceil(moved) - more) <= 1  # megabytes are whole
    assert abs(lifted - moved) <= 1 if found.length_ns else True


def test_a_seed_moves_always_alike_and_another_one_otherwise() -> None:
    """A run can be made again."""
    found, plan = of("drive_delay")

    begins = [drill.shifted(found, plan, seed)[0].begin_ns for seed in (1, 1, 2)]

    assert begins[0] == begins[1] != begins[2]


def test_a_topic_keeps_longer_what_a_mixture_of_sizes_brings() -> None:
    """Not what the one size would that it replaces."""
    found, plan = of("retention_cliff_pulsar")
    mixture = (SizeShare(size=512, share=0.5), SizeShare(size=127 * 512, share=0.5))
    mixed = replace(plan, load=replace(plan.load, message_size=64, message_sizes=mixture))
    alike = replace(plan, load=replace(plan.load, message_size=32 * 1024))

    moved = [drill.shifted(found, one, 23)[1].topic.settings for one in (mixed, alike)]

    assert "retentionSizeInMB" in moved[0]
    assert moved[0] == moved[1]


def test_no_seed_moves_nothing() -> None:
    """Nor does any where there is nothing to move."""
    found, plan = of("retention_cliff")
    endless = replace(plan, topic=replace(plan.topic, settings={}))

    assert drill.shifted(found, plan, 0) == (found, plan)
    assert drill.shifted(found, endless, 1) == (found, endless)


def test_former_keys_of_an_expectation_are_read_with_a_warning(tmp_path: Path) -> None:
    """`gone` is the former name of the state `resolved`; the fingerprint stays the same."""
    (tmp_path / "plan.yaml").write_text("name: p\n")
    current = (
        "expect: {cause: nothing, state: resolved, resolved_within: 1min, until_lifted: false}"
    )
    former = "expect: {cause: nothing, state: gone, gone_within: 1min, lasts: false}"
    head = "plan: plan.yaml\nlength: 1min\nfault: {kind: quiet}\n"
    (tmp_path / "current.yaml").write_text(f"{head}{current}\n")
    (tmp_path / "former.yaml").write_text(f"{head}{former}\n")

    with pytest.warns(FormerNameWarning, match="is now called"):
        found = drill.load(tmp_path / "former.yaml")

    expected = drill.load(tmp_path / "current.yaml")
    assert found.expect == expected.expect
    assert drill.fingerprint(found) == drill.fingerprint(expected)
