"""`soak stop`, and what it says of a folder in which it can do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cli.stop import stop
from soak.core.errors import RunFolderError
from soak.store.run_folder import Run, RunFolder, write_run


def run_of(path: Path, state: str = "running", only: tuple[str, ...] = ()) -> RunFolder:
    folder = RunFolder(path)
    write_run(folder, Run("r1", 0, "h", {}, state, only=only))
    return folder


def test_a_run_that_goes_on_is_asked_to_end(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    stop(tmp_path)

    assert folder.stop_request.exists()


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ((), ""),
        (
            ("produce.1", "consume.1"),
            "here that is produce.1, consume.1 alone: stop the run on its other hosts, too\n",
        ),
    ],
)
def test_who_ends_one_host_s_part_is_told_that_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], only: tuple[str, ...], said: str
) -> None:
    run_of(tmp_path, only=only)
    stop(tmp_path)

    assert capsys.readouterr().out.partition("\n")[2] == said


def test_a_run_that_is_over_is_left_alone(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "ended")
    stop(tmp_path)

    assert not folder.stop_request.exists()


def test_who_may_not_read_the_run_is_told_so(tmp_path: Path) -> None:
    """A folder in the file's place stands for one of another user: root reads all that is his."""
    RunFolder(tmp_path).run_json.mkdir()

    with pytest.raises(RunFolderError, match=r"cannot read .*run\.json: Is a directory"):
        stop(tmp_path)


def test_who_may_not_write_there_is_told_so(tmp_path: Path) -> None:
    run_of(tmp_path).stop_request.symlink_to(tmp_path / "nowhere" / "stop")

    with pytest.raises(RunFolderError, match=r"cannot write .*stop: No such file"):
        stop(tmp_path)
