"""`soak lab drill` on the command line, as far as it needs no run: its list, its table, its exit codes."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from soak.app.lab import drills
from soak.cli import main
from soak.lab.drills import result
from soak.lab.drills.result import Result
from tests.support.lab.faults import Stuck, giving

ONE = Result(
    drill="quiet", seed=0, fault="quiet", expected="nothing", cause="no finding", is_passed=True
)


@pytest.mark.long
@pytest.mark.parametrize("words", [[], ["--help"]], ids=["no name", "help"])
def test_the_drills_are_listed_with_what_they_do_need_and_take(words: list[str]) -> None:
    """Without a name, and below the options."""
    done = CliRunner().invoke(main.build(["lab"]), ["lab", "drill", *words], env={"COLUMNS": "300"})

    lines = {line.split(" ")[0]: line for line in done.output.splitlines() if line}
    assert done.exit_code == 0
    assert set(drills.drill_names()) <= set(lines)
    assert "every write and flush of the drive takes 10 ms longer" in lines["drive_delay"]
    assert "root, FUSE" in lines["drive_delay"]
    assert lines["drive_delay"].rstrip().endswith("3 min 55 s")
    assert lines["never_drains"].rstrip().endswith("5 min 10 s")  # with its catch-up


def test_the_help_says_what_every_exit_code_means() -> None:
    """Whoever calls it in a script can tell a miss from a machine that lacks something."""
    command = get_command(main.build(["lab"]))
    help_text = command.commands["lab"].commands["drill"].help  # type: ignore[attr-defined]  # groups

    assert {"0", "1", "2", "4", "5", "130"} <= set(re.findall(r"\d+", help_text))


def test_a_drill_that_cannot_run_here_is_no_miss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with a code of its own, and says what is lacking."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    code = drills.run_drill("cpu_hog", None, 0)

    assert code == 5
    output = capsys.readouterr().err
    assert output == "soak: the drill cpu_hog cannot run here: cpu_hog needs two processors\n"


def test_what_could_not_be_undone_is_reported_on_every_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the run is not judged any more."""
    lab = SimpleNamespace(folder=tmp_path, broker=None, drives={})
    started: Any = SimpleNamespace(lab=lab, run=SimpleNamespace(start_wall_ns=0), pids=dict)
    with ExitStack() as stack:
        find = giving(Stuck("the broker did not come back"))
        drills.start_injection(drills.find_drill("quiet"), started, {}, stack, find).poll()

    output = capsys.readouterr().err
    assert output == "soak: the fault was not fully undone: the broker did not come back\n"


@pytest.mark.parametrize("count", [1, 2])
def test_a_narrow_terminal_has_a_line_for_each_part_of_an_outcome(count: int) -> None:
    """Words are not broken, and an empty cell takes no line."""
    found = replace(
        ONE, drill="drive_gc", cause="drive_gc", notified_seconds=21.0, why="it [red]rose"
    )
    console = Console(width=80, file=StringIO())
    console.print(drills.outcome_table([result.table_row(found)] * count, console.width))

    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    lines = [line.rstrip() for line in text.splitlines()]
    one = [
        "drill     drive_gc",
        "injected  quiet",
        "found     drive_gc",
        "when      notified 21 s after the fault",
        "why       it [red]rose",
        "verdict   ok",
    ]
    assert lines == ([*one, "", *one] if count > 1 else one)


@pytest.mark.parametrize(
    ("codes", "code"), [([0, 0], 0), ([0, 1, 4], 1), ([0, 4], 4), ([4], 4), ([], 5)]
)
def test_all_drills_end_as_the_worst_that_ran(codes: list[int], code: int) -> None:
    """Where none could run nothing was shown."""
    assert drills.exit_code_of_all(codes) == code


def test_an_interrupt_leaves_what_came_out_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row when its drill has ended, and the table of those that did."""
    monkeypatch.setenv("COLUMNS", "300")
    done: list[str] = []

    def run(name: str, _seed: int, _folder: Path) -> Result:
        if len(done) > 1:
            raise KeyboardInterrupt
        done.append(name)
        return replace(ONE, drill=name, why="it [red]rose")

    with pytest.raises(KeyboardInterrupt):
        drills.run_all_drills(tmp_path, run)

    output = capsys.readouterr().out
    assert output.count("it [red]rose") == 4
    below = output[output.index("drills  ") :]
    assert all(f"{name} " in below for name in done)


def test_nothing_is_before_its_own_moment() -> None:
    """Neither once it is rounded."""
    found = replace(ONE, onset_seconds=-0.04, notified_seconds=-0.3, resolved_seconds=-1.2)

    assert result.table_row(found)[3] == (
        "onset 0.0 s after the fault, notified 0 s after the fault, resolved 1 s before its end"
    )
