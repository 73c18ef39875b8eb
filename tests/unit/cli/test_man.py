"""The man page and the completion contain every command and option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group

from soak.app import units
from soak.cli import man
from soak.cli.main import build, commands

PAGE = man.page(get_group(build([])))
DOCUMENTS = {units.MAN: PAGE, units.COMPLETION: man.bash_completion()}


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_man_page_names_every_command(name: str) -> None:
    escaped = name.replace("-", r"\-")

    assert f"\n.SS soak {escaped}" in PAGE


def test_the_man_page_says_what_options_do() -> None:
    assert r"\fB\-\-resume\fR" in PAGE
    assert "Resume the plan's interrupted run" in PAGE


def test_no_line_of_the_page_is_a_macro_by_accident() -> None:
    """A sentence that begins with a dot would be left out."""
    macros = {line.split()[0] for line in PAGE.splitlines() if line.startswith((".", "'"))}

    assert macros == {".TH", ".SH", ".SS", ".PP", ".TP"}


@pytest.mark.long
def test_both_are_installed_where_there_is_a_place_for_them(tmp_path: Path) -> None:
    """A package's root has none; uninstalling takes them away again."""
    units.install(tmp_path, DOCUMENTS, is_dry=False)
    without = [(tmp_path / place).exists() for place in (units.MAN, units.COMPLETION)]
    (tmp_path / units.MAN).parents[1].mkdir(parents=True)
    units.install(tmp_path, DOCUMENTS, is_dry=False)
    found = [(tmp_path / place).read_text() for place in (units.MAN, units.COMPLETION)]
    wrong = [line for line in units.check_installed(tmp_path, DOCUMENTS) if str(tmp_path) in line]
    units.uninstall(tmp_path, is_dry=False)

    assert without == [False, False]
    assert found == list(DOCUMENTS.values())
    assert wrong == []
    assert not (tmp_path / units.MAN).exists()


@pytest.mark.long
def test_completion_offers_matching_options() -> None:
    """As bash asks, through the variables of its completion."""
    asked = {"_SOAK_COMPLETE": "complete_bash", "COMP_WORDS": "soak run --re", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "soak.cli.main"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stdout.split() == ["--resume"]
