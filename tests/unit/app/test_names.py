"""Names from outside that become folders, and the permissions of these folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from soak.app.multi_host import part_of
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Metrics

START = "2026-01-31T12:00:00Z"
OUTSIDE = ("../x", "..", "a/b", "/etc", "a\0b", "a\nb", ".hidden", "-rf", "", "a b", "%i", "ü")


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name])
def test_a_run_id_is_no_way_out_of_the_folder_of_runs(name: str) -> None:
    with pytest.raises(PlanError, match="--run-id"):
        part_of(name, START, "")


@pytest.mark.parametrize("kind", ["broker: {kafka: {}}", "probes: {host: {}}"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_neither_is_the_name_of_a_plan(name: str, kind: str) -> None:
    """Of a run, and of a host that only probes."""
    text = f"name: {_quoted(name)}\n{kind}\n"

    with pytest.raises(PlanError, match="name"):
        plan_text.load_any(text, "p.yaml")


def _quoted(name: str) -> str:
    """Return a YAML scalar with the escapes that JSON has too."""
    return '"' + name.replace("\0", "\\0").replace("\n", "\\n") + '"'


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(0o022, "640 750"), (0o077, "600 700")])
def test_what_is_written_is_for_the_owner_and_the_group(
    tmp_path: Path, before: int, after: str
) -> None:
    """Whatever the shell allows more; what it allows less stays so."""
    script = (
        "import pathlib; from soak.cli.main import keep_private; keep_private(); "
        "pathlib.Path('file').touch(); pathlib.Path('folder').mkdir()"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, umask=before, check=True, timeout=60
    )
    modes = [f"{(tmp_path / name).stat().st_mode & 0o777:o}" for name in ("file", "folder")]

    assert " ".join(modes) == after


def test_pages_are_served_to_this_machine_alone_unless_a_plan_says_otherwise() -> None:
    assert Metrics().address == "127.0.0.1"
