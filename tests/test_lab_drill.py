"""Drill files: what they give, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core import plan_text, plugins
from soak.core.errors import PlanError
from soak.core.units import SECOND_NS
from soak.lab import drill
from soak.lab.faults import deletion_stall, network_delay

DRILLS = Path(__file__).parent.parent / "configs" / "drills"
OF_CI = Path(__file__).parent / "plans"
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
    assert found.fault == deletion_stall.Config(stall=SECOND_NS // 25)
    assert found.expect.onset_within == 5 * SECOND_NS
    assert found.cell is None


def test_the_form_of_a_drill_is_what_it_and_its_plan_say(tmp_path: Path) -> None:
    """Not how: comments and the order of keys are no part of it, nor is the description."""
    plan, path = tmp_path / "plan.yaml", tmp_path / "mine.yaml"

    def form(drill_text: str, plan_text: str) -> str:
        path.write_text(drill_text)
        plan.write_text(plan_text)
        return drill.form(drill.load(path))

    forms = [
        form(GOOD, "name: a\nload: {rate: 1k/s}\n"),
        form(f"# so\ndescription: what\n{GOOD}", "load: {rate: 1k/s}\nname: a # too\n"),
        form(GOOD.replace("40ms", "41ms"), "name: a\nload: {rate: 1k/s}\n"),
        form(GOOD, "name: a\nload: {rate: 2k/s}\n"),
    ]

    assert forms[0] == forms[1]
    assert len(set(forms)) == 3


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
    """Faults too, with their own configurations, all the time; it is told with the fault."""
    (tmp_path / "plan.yaml").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "given:\n  - kind: network_delay\n    node: 2\n")
    found = drill.load(path)

    assert found.given == (("network_delay", network_delay.Config(node=2)),)
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
    needed_ns = found.begin_ns + found.length_ns + found.expect.gone_within

    assert type(found.fault).__name__ == "Config"
    assert found.expect.cause in (*plugins.names("detectors.causes"), drill.NOTHING)
    assert found.expect.cause == drill.NOTHING or needed_ns <= judged_until_ns


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_fault_that_is_to_be_found_is_also_to_be_told_and_to_go(path: Path) -> None:
    """Nobody is told of what is the client's; what may not be found has nothing to tell."""
    found = drill.load(path)
    expect = found.expect
    is_told = expect.cause != drill.CLIENT

    assert expect.cause == drill.NOTHING or (
        (expect.state, bool(expect.gone_within), bool(expect.alert_within), bool(found.length_ns))
        == ("gone", True, is_told, True)
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
        ("expect: {cause: x, gone_within: 1s}", "needs a length: nothing goes that is never"),
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
