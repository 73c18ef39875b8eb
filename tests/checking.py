"""`soak check` of a good plan, as a user calls it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from soak.cli import main


def checked(folder: Path, text: str) -> str:
    """Return what is said of a plan that holds this text; its runs would go into `folder`."""
    plan = folder / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {folder}\n{text}")
    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])
    assert result.exit_code == 0
    return result.output
