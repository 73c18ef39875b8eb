"""The folders of the runs that a host joined: which goes on after a reboot, and how much they may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.phases import to_line
from soak.core.units import SECOND_NS
from soak.daemons.host_runs import HostRuns
from soak.store.run_folder import Run, RunFolder, write_atomically, write_run
from tests.spoken_runs import START_NS, word


def made(
    home: Path, run_id: str, *, start_k: int = 0, state: str = "ended", end_k: int | None = None
) -> RunFolder:
    """Make a folder as a host leaves it, with 23 bytes of journal."""
    folder = HostRuns(home, "x").folder_of(run_id)
    start_ns = START_NS + start_k * SECOND_NS
    write_run(folder, Run(run_id, start_ns, "b", {}, state, "x"))
    write_atomically(folder.phases, "" if end_k is None else to_line("end", end_k))
    write_atomically(folder.journal / "probe@b" / "000001.jsonl", "x" * 23)
    return folder


def ids(runs: HostRuns) -> list[str]:
    return [run.id for _, run in runs.joined()]


@pytest.mark.parametrize(
    ("state", "end_k", "goes_on"),
    [
        ("running", None, True),  # as after a power cut
        ("interrupted", 100, True),
        ("failed", 100, True),
        ("running", 50, False),  # it ended meanwhile
        ("ended", None, False),
    ],
)
def test_a_run_that_was_cut_short_goes_on_without_a_word(
    tmp_path: Path, state: str, end_k: int | None, *, goes_on: bool
) -> None:
    """A broker's host that boots may find its cluster away: the run's grid is on its disk."""
    made(tmp_path, "r0", start_k=-99, state="running")
    made(tmp_path, "r1", state=state, end_k=end_k)

    found = HostRuns(tmp_path, "x").unfinished(START_NS + 50 * SECOND_NS)

    assert (found is not None and found.id == "r1") is goes_on
    assert found is None or found.id != "r0"


def test_folders_that_were_not_joined_here_are_nothing_to_go_on_with(tmp_path: Path) -> None:
    """Those of `--run-id`, of another plan, damaged ones, and what somebody renamed."""
    write_run(RunFolder(tmp_path / "x-r1"), Run("r1", START_NS, "b", {}, "running", "x"))
    damaged = made(tmp_path, "r2", state="running")
    damaged.run_json.write_text("{")
    made(tmp_path, "r3", state="running").path.rename(tmp_path / "x-old")
    other = made(tmp_path, "r4", state="running")
    write_run(other, Run("r4", START_NS, "b", {}, "running", "x-y"))

    assert HostRuns(tmp_path, "x").unfinished(START_NS) is None


def test_a_folder_is_joined_again_by_its_own_run_alone(tmp_path: Path) -> None:
    """An id with another start would be another grid of seconds."""
    made(tmp_path, "r1")
    runs = HostRuns(tmp_path, "x")

    assert runs.may_join(word("r1"))
    assert runs.may_join(word("r2", start_k=5))
    assert not runs.may_join(word("r1", start_k=5))


def test_old_runs_make_room_the_oldest_first(tmp_path: Path) -> None:
    """A host stands for weeks; what it keeps of ended runs has a bound, and the run in hand stays."""
    for at, run_id in enumerate(["r3", "r1", "r4", "r2"]):
        made(tmp_path, run_id, start_k=at)
    runs = HostRuns(tmp_path, "x")
    size = sum(file.stat().st_size for file in (tmp_path / "x-r1").rglob("*") if file.is_file())

    runs.trim(4 * size + 100, keep="r3")
    before = ids(runs)
    runs.trim(2 * size + 50, keep="r3")

    assert (before, ids(runs)) == (["r3", "r1", "r4", "r2"], ["r3", "r4", "r2"])
