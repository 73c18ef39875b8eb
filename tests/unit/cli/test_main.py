"""Finding commands: the tables of the modules, and old names of commands and options."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from soak.cli import help as command_help
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


def walk(command: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    """Give every command that can be called, by its words."""
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
    for name, one in (below or {}).items():
        yield from walk(one, f"{words} {name}".strip())


EVERY = dict(walk(get_command(main.build([]))))


def help_of(words: str) -> str:
    done = CliRunner().invoke(main.build(words.split()), [*words.split(), "--help"])
    assert done.exit_code == 0
    return done.output


def test_the_help_lists_each_command_in_the_panel_of_its_task_and_daemons_last() -> None:
    lines = help_of("").splitlines()
    panels = [found[1] for line in lines if (found := re.match(r"╭─ (\w+) ", line))]
    listed = [found[1] for line in lines if (found := re.match(r"│ ([a-z][a-z-]*) ", line))]
    last = " ".join(lines).rpartition("Started by")[2]

    assert panels == ["Options", *command_help.PANELS]
    assert listed == sorted(set(listed), key=command_help.order)
    assert {*listed, *command_help.DAEMONS} == {*main.commands()}
    assert not set(listed) & set(command_help.DAEMONS)
    assert all(name in last for name in command_help.DAEMONS)


@pytest.mark.parametrize("words", EVERY)
def test_a_command_has_an_example_that_it_takes(words: str) -> None:
    """Names, options, numbers and choices of it; nothing is called."""
    example = EVERY[words].epilog.removeprefix("Example: ")
    given = shlex.split(example)[1 + len(words.split()) :]

    assert example.startswith(f"soak {words}")
    assert EVERY[words].make_context(words, given).params


@pytest.mark.long
@pytest.mark.parametrize("words", EVERY)
def test_the_help_has_capitals_for_arguments_and_plain_words_for_types(words: str) -> None:
    """And names no folder of the machine that it was printed on as a default."""
    text = help_of(words)
    usage = " ".join(text.partition("╭")[0].partition("Usage: soak ")[2].split())

    assert re.findall(r"[{<]\w+[}>]|<[a-z]+|list\[", text) == []
    assert str(main.__file__).rpartition("/soak/")[0] not in text
    arguments = [one for one in EVERY[words].params if one.param_type_name == "argument"]
    for one in arguments:
        assert one.name.upper() in usage
