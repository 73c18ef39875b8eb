"""`soak lab matrix` and `drill` on the command line, as far as they need no run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from soak.app.lab import drills
from soak.app.lab import matrix as matrix_runs
from soak.cli import lab as commands
from soak.core.errors import LabError, PlanError, RunFolderError
from soak.lab.drills import matrix
from soak.lab.drills import result as drill_result
from soak.lab.drills.result import Result
from soak.service.files import file_lock, is_locked

ONE = Result(
    drill="quiet", seed=1, fault="quiet", expected="nothing", cause="no finding", is_passed=True
)


def test_tables_are_written_from_what_was_kept(tmp_path: Path) -> None:
    """Without running anything."""
    state, page = tmp_path / "state", tmp_path / "page.md"
    state.write_text(drill_result.format_result(ONE))

    commands.matrix(state=state, page=page, run_dir=tmp_path, show=True)

    shown = replace(ONE, broker="kafka")  # which is looked up where a line does not say it
    assert page.read_text() == matrix.with_tables("# Drills\n", matrix.tables([shown], {}))


def test_what_is_all_there_runs_nothing(tmp_path: Path) -> None:
    """And writes nothing."""
    state = tmp_path / "state"
    state.write_text(drill_result.format_result(ONE))

    with pytest.raises(typer.Exit) as ended:
        commands.matrix(["quiet=1"], state=state, page=tmp_path / "page.md", run_dir=tmp_path)

    assert ended.value.exit_code == 0
    assert not (tmp_path / "page.md").exists()


def test_a_matrix_that_breaks_a_limit_fails_though_every_run_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limits are printed; only the given drills count."""
    state = tmp_path / "state"
    other = replace(ONE, drill="drive_gc", fault="drive_gc", expected="drive_gc")
    state.write_text(
        drill_result.format_result(replace(ONE, is_passed=False))
        + drill_result.format_result(other)
    )

    with pytest.raises(typer.Exit) as ended:
        commands.matrix(["quiet=1"], state=state, page=tmp_path / "page.md", run_dir=tmp_path)

    assert ended.value.exit_code == 1
    assert (
        "where nothing may be found, at least 100%: 0 of 1, DOES NOT HOLD\n"
        in capsys.readouterr().out
    )


def test_a_matrix_of_which_nothing_can_run_here_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has shown nothing."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    state, page = tmp_path / "state", tmp_path / "page.md"

    with pytest.raises(typer.Exit) as ended:
        commands.matrix(["cpu_hog=1"], state=state, page=page, run_dir=tmp_path)

    assert ended.value.exit_code == 1
    assert "not here: cpu_hog needs two processors" in capsys.readouterr().out


def test_a_run_that_comes_to_no_end_is_a_row_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which says where to look, and of what it was; also where the folder of results is not there yet."""
    monkeypatch.setattr(sys, "executable", "false")
    state = tmp_path / "a new" / "folder" / "state"

    with pytest.raises(typer.Exit) as ended:
        commands.matrix(["quiet=1"], state=state, page=tmp_path / "page.md", run_dir=tmp_path)

    (row,) = matrix.read_results(state)
    assert ended.value.exit_code == 1
    assert (row.drill, row.seed, row.is_judged, row.is_passed) == ("quiet", 1, False, False)
    assert row.why == f"no result, see {tmp_path / 'quiet-1.log'}"
    assert row.broker == "kafka"
    assert row.at
    assert row.revision


def test_a_second_matrix_in_the_background_is_refused_at_once(tmp_path: Path) -> None:
    """By the command itself, not only in a log."""
    with (
        file_lock(tmp_path / "matrix.lock", "this matrix"),
        pytest.raises(RunFolderError, match=f"in use by process {os.getpid()} "),
    ):
        commands.matrix(["quiet=1"], run_dir=tmp_path, background=True)


def test_a_matrix_that_is_stopped_has_ended_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that holds the lock stands for it."""
    lock = tmp_path / "matrix.lock"
    code = (
        "import signal, sys; from pathlib import Path; from soak.service.files import file_lock\n"
        "with file_lock(Path(sys.argv[1]), 'x'): print(flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()

        commands.matrix(run_dir=tmp_path, stop=True)

        assert not is_locked(lock)
    assert capsys.readouterr().out.endswith("it has ended\n")


def test_a_matrix_whose_process_has_ended_but_not_its_child_is_an_error(tmp_path: Path) -> None:
    """The child still holds the lock."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock = tmp_path / "matrix.lock"
    with file_lock(lock, "this matrix"):
        lock.write_text(f"{ended.pid}\n")

        with pytest.raises(LabError, match=f"process {ended.pid} does not end"):
            matrix_runs.stop_matrix(lock, limit_seconds=0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [("quite=2", "no drill 'quite'; did you mean 'quiet'"), ("quiet=0", "write NAME or NAME=RUNS")],
)
def test_a_name_that_is_no_drill_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """With the nearest one."""
    with pytest.raises(PlanError, match=message):
        commands.matrix([text], run_dir=tmp_path)


def test_there_is_nothing_to_stop_where_nothing_runs(tmp_path: Path) -> None:
    """The folder is named."""
    with pytest.raises(LabError, match=f"no matrix is running below {tmp_path}"):
        commands.matrix(run_dir=tmp_path, stop=True)


def test_an_unknown_drill_is_answered_with_the_nearest() -> None:
    """As an unknown key of a plan is."""
    with pytest.raises(PlanError, match="no drill 'drive_gcc'; did you mean 'drive_gc'"):
        drills.run_drill("drive_gcc", None, 0)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ONE, 0),
        (replace(ONE, is_passed=False), 1),
        (replace(ONE, is_passed=False, is_judged=False), 4),
    ],
)
def test_a_drill_that_proves_nothing_ends_as_inconclusive(result: Result, code: int) -> None:
    """And not as one that has passed."""
    assert drills.exit_code(result) == code


def test_what_lies_in_a_folder_is_not_taken_for_todays_results(tmp_path: Path) -> None:
    """Drills want a new one."""
    (tmp_path / "quiet").mkdir()

    with pytest.raises(LabError, match="is not empty"):
        drills.run_all_drills(tmp_path)


def test_a_folder_in_which_a_drill_still_ends_is_not_removed(tmp_path: Path) -> None:
    """Its end is awaited up to a limit."""
    folder = tmp_path / "quiet-1"

    with file_lock(folder / "run.lock", "this run"), pytest.raises(LabError, match="still in use"):
        drills.clear_folder(folder, limit_seconds=0.0)
    was_there = folder.exists()
    drills.clear_folder(folder)

    assert (was_there, folder.exists()) == (True, False)


@pytest.mark.long
def test_a_drill_that_does_not_come_to_its_end_has_no_result(tmp_path: Path) -> None:
    """What it said lies beside its folder; a result that was there before is not taken for its own."""
    folder = tmp_path / "nonsense"
    (folder / "lab").mkdir(parents=True)
    (folder / "lab" / "drill.json").write_text(drill_result.format_result(ONE))

    assert drills.run_drill_process("nonsense", 0, folder) is None
    assert "no drill 'nonsense'" in drills.log_path(folder).read_text()


def test_what_a_machine_lacks_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fault, where it is not the drive."""
    drill = drills.find_drill("cpu_hog")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    assert drills.missing_for_drill(drill) == "cpu_hog needs two processors"
    assert drills.missing_for_drill(drills.find_drill("quiet")) == ""
