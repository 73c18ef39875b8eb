"""`soak check` of a good plan, as a user calls it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from soak.cli import main


def checked(folder: Path, text: str) -> str:
    """Return what is said of a plan that holds this text; its runs would go into `folder`."""
    return called(folder, text).output


def called(folder: Path, text: str, *options: str) -> Result:
    """Return what `soak check` of that plan came to, its output and its errors apart."""
    plan = folder / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {folder}\n{text}")
    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan), *options])
    assert result.exit_code == 0, result.output
    return result
