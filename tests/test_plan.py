from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from detectors import level_shift
from soak.cli import main
from soak.cli._checks import load_plan
from soak.core import plan_text, plugins
from soak.core.errors import PlanError

ROOT = Path(__file__).resolve().parents[1]
BAD = sorted((ROOT / "tests" / "bad_plans").glob("*.yaml"))
GOOD = sorted((ROOT / "configs").glob("plans/*.yaml"))


def _check(path: Path) -> str:
    """Return what `soak check` refuses this plan with; its exit code must be that of a bad plan."""
    result = CliRunner().invoke(main.build(["check"]), ["check", str(path)])
    assert isinstance(result.exception, PlanError), result.output
    return str(result.exception)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_plan_is_refused_with_file_line_and_key(path: Path) -> None:
    """The file's name is the fault; the expected message lies beside it."""
    expected = path.with_suffix(".txt").read_text().strip()

    message = _check(path)

    assert message.startswith(str(path.parent / expected))
    assert "\n" not in message
    assert "hunter2" not in message


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_plan_that_ships_loads_and_survives_being_written_out(path: Path) -> None:
    plan = load_plan(path).plan

    again = plan_text.load(plan_text.dump(plan), "again").plan

    assert again == plan


def test_a_plan_that_is_not_there_is_a_bad_plan() -> None:
    with pytest.raises(PlanError, match=r"nowhere\.yaml: cannot read the plan"):
        load_plan(Path("nowhere.yaml"))


@pytest.mark.parametrize("lab", ["", "lab: {}\n"])
@pytest.mark.parametrize("kind", ["kafka", "pulsar"])
def test_a_plan_without_an_address_gets_a_lab_broker_of_its_kind(
    tmp_path: Path, kind: str, lab: str
) -> None:
    (tmp_path / "p.yaml").write_text(f"name: x\n{lab}broker:\n  {kind}: {{}}\n")

    plan = load_plan(tmp_path / "p.yaml").plan

    assert plan.lab is not None
    assert plan.lab.broker == kind


@pytest.mark.parametrize(
    ("drive", "why"),
    [
        ("{dirty_limit: 512KiB}", "dirty_limit: must be at least 1MiB"),
        ("{write_rate: 200B}", "write_rate: must be at least 1MiB"),
        ("{brokers: [0]}", "counted from 1"),
        ("{brokers: [2]}", "names more than the 1"),
    ],
)
def test_a_drive_that_no_lab_has_is_refused(drive: str, why: str) -> None:
    text = f"name: p\nbroker: {{kafka: {{}}}}\nlab:\n  drive: {drive}\n"

    with pytest.raises(PlanError, match=why):
        plan_text.load(text, "p.yaml")


def test_the_reference_shows_every_default() -> None:
    """`configs/reference.yaml` says what a plan of nothing but the required keys resolves to."""
    text = (ROOT / "configs" / "reference.yaml").read_text()
    shown = plan_text.load(text, "reference.yaml").plan
    bare = "\n".join(
        [
            "name: reference",
            "broker: {kafka: {}}",
            "lab: {}",
            "probes:",
            *(f"  {name}: {{}}" for name in plugins.names("probes")),
            "detection: {detectors: {level_shift: {}}}",
            "sinks: {mail: {to: [oncall@example.org]}, webhook: {url: http://127.0.0.1:9093}}",
        ]
    )

    assert plan_text.dump(shown) == plan_text.dump(plan_text.load(bare, "bare").plan)
    keys = [line for line in plan_text.dump(shown).splitlines() if ":" in line]
    for line in keys:
        assert re.search(rf"^[ -]*{re.escape(line.split(':')[0].strip(' -'))}", text, re.MULTILINE)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "detection: {trigger: 5s}",
        "detection: {detectors: {}}",
    ],
)
def test_the_detector_that_every_stream_runs_is_in_every_plan(said: str) -> None:
    """The stream asks for no leave: a plan without it is loaded and shown with its settings."""
    plan = plan_text.load(f"name: p\nbroker: {{kafka: {{}}}}\n{said}\n", "p.yaml").plan

    assert plan.detection.detectors["level_shift"] == level_shift.Config()
    assert "level_shift:" in plan_text.dump(plan)


@settings(max_examples=300)
@given(st.text(st.characters(codec="utf-8"), max_size=80) | st.binary(max_size=80).map(repr))
def test_any_text_is_a_plan_or_a_clear_error(text: str) -> None:
    message = ""
    try:
        plan_text.load(text, "p")
    except PlanError as error:
        message = str(error)

    assert message == "" or message.startswith("p:")
