from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.cli._load_checks import check_load, keep_load
from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.plan_text import PlanFile
from soak.store.profile_file import kept_profile, read_profile
from soak.store.run_folder import RunFolder

PLAN = """name: x
broker: {{kafka: {{}}}}
load:
  profile: {{file: '{file}'}}
phases:
  windows:
    - {{cron: '{cron}', catch_up: {{backlog_age: 10s}}}}
"""


def _plan(folder: Path, file: str = "", cron: str = "0 * * * *") -> PlanFile:
    return plan_text.load(PLAN.format(file=file, cron=cron), str(folder / "plan.yaml"))


def test_a_table_beside_the_plan_is_found_checked_and_kept(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("seconds,rate\n0,500\n")
    folder = RunFolder(tmp_path / "run")

    check_load(_plan(tmp_path, "rates.csv"))
    keep_load(_plan(tmp_path, "rates.csv"), folder)

    assert list(read_profile(kept_profile(folder))) == [(0, Fraction(500))]


def test_without_a_table_there_is_nothing_to_keep(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")

    keep_load(_plan(tmp_path), folder)

    assert not kept_profile(folder).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "rates.csv: cannot read the load profile: "),
        ("seconds,rate\n0,5/s\n0,6/s\n", "rates.csv:3: second 0 does not come after second 0"),
    ],
)
def test_a_bad_table_is_told_with_both_files(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "rates.csv").write_text(text)

    with pytest.raises(PlanError) as found:
        check_load(_plan(tmp_path, "rates.csv"))

    assert "plan.yaml:4: load.profile.file: " in str(found.value)
    assert message in str(found.value)


def test_a_cron_expression_that_nobody_understands_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan.yaml:7: phases.windows.0.cron: 'noon' is no cron"):
        check_load(_plan(tmp_path, cron="noon"))


def test_check_names_a_window_for_which_the_soak_is_too_short(tmp_path: Path) -> None:
    windows = [f"{{every: {every}, catch_up: {{backlog_age: 10s}}}}" for every in ("30s", "9min")]
    phases = f"{{soak: 9min, windows: [{', '.join(windows)}]}}"
    text = f"name: x\nbroker: {{kafka: {{}}}}\nlab: {{}}\nrun_directory: {tmp_path}\nfree_space_floor: 1MiB\n"
    (tmp_path / "plan.yaml").write_text(f"{text}phases: {phases}\n")

    told = CliRunner().invoke(main.build(["check"]), ["check", str(tmp_path / "plan.yaml")]).output

    assert "phases.windows.1 never begins" in told
    assert "phases.windows.0" not in told
