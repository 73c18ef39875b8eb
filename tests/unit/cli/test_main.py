"""Finding commands: the tables of the modules, and old names of commands and options."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from soak.cli import main

RENAMED = main.renamed()

EACH = """
import sys
from soak.cli import main
for old in sys.argv[1:]:
    sys.argv[1:] = [*old.split(), *(["value"] if "--" in old else []), "--help"]
    try:
        main.run()
    except SystemExit as end:
        assert end.code == 0, old
"""


def test_the_commands_of_earlier_versions_have_new_names() -> None:
    assert {"begin", "finish", "failed", "collect"} <= RENAMED.keys()
    assert {"alert --owed", "alert --telling"} <= RENAMED.keys()
    assert not main.commands().keys() & RENAMED.keys()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_replaced_and_named_in_one_warning(old: str) -> None:
    rest = ["value", "--help"] if "--" in old else ["--help"]
    words, warning = main.with_current_names([*old.split(), *rest])
    done = CliRunner().invoke(main.build(words), words)

    assert words == [*RENAMED[old].split(), *rest]
    assert warning == f"`soak {old}` is now `soak {RENAMED[old]}`"
    assert done.exit_code == 0


def test_two_old_options_are_named_in_one_warning() -> None:
    words, warning = main.with_current_names(["alert", "--owed", "runs", "--telling", "plan.yaml"])

    assert words == ["alert", "--pending", "runs", "--sinks-from", "plan.yaml"]
    assert warning == (
        "`soak alert --owed` is now `soak alert --pending`; "
        "`soak alert --telling` is now `soak alert --sinks-from`"
    )


def test_the_value_after_an_equals_sign_stays() -> None:
    words, _ = main.with_current_names(["alert", "--owed=runs=2", "--telling=plan.yaml"])

    assert words == ["alert", "--pending=runs=2", "--sinks-from=plan.yaml"]


def test_a_current_name_stays_and_gives_no_warning() -> None:
    """Also where an argument is named like an old command."""
    arguments = ["service", "start", "begin", "--home", "finish"]

    assert main.with_current_names(arguments) == (arguments, "")


@pytest.mark.long
def test_each_old_command_prints_one_line_on_stderr() -> None:
    """One process for all of them: starting one costs more than what it does."""
    done = subprocess.run(
        [sys.executable, "-c", EACH, *RENAMED],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"soak: `soak {old}` is now `soak {new}`" for old, new in RENAMED.items()
    ]
