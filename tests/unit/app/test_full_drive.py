"""A full drive: errors name the drive and its free space, and no data is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from soak.app import host
from soak.app.lifecycle import close_run, start_run
from soak.core.clock import SystemClock
from soak.core.errors import RunFolderError
from soak.core.journal_format import End, encode
from soak.core.plan.phases import decision_line
from soak.runtime.grid import host_name
from soak.store.plan_home import PlanHome
from soak.store.run_folder import Run, RunFolder, read_plan, read_run, write_run
from tests.support.paths import ROOT

PLAN = "name: p\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"


@pytest.fixture
def home(tmp_path: Path) -> PlanHome:
    """A run whose daemons have ended, and that is to be closed."""
    found = PlanHome(tmp_path / "p")
    folder = RunFolder(found.path / "p-r1")
    folder.path.mkdir(parents=True)
    folder.plan.write_text(PLAN)
    folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 3))
    for name in read_plan(folder).measuring:
        source = folder.journal / f"{name}@{host_name()}"
        source.mkdir(parents=True)
        (source / "000000.jsonl").write_bytes(encode(End(1)))
    folder.spark.mkdir()
    (folder.spark / "progress.json").write_text('{"is_running": false}')
    write_run(folder, Run("r1", 0, "h", {}, "running", "p"))
    found.set_current(folder)
    return found


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_drive_is_named_with_what_it_has_and_what_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "run.json"

    with (
        pytest.raises(
            RunFolderError, match=r"gone/run\.json: No space .*: the drive at /.* free; 7 do$"
        ),
        host.full_drive_errors(tmp_path, "7 do"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_of_a_drive_that_is_read_only_the_room_does_not_matter(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFolderError, match=r"Read-only file system: the drive at /\S*$"),
        host.full_drive_errors(tmp_path, "7 do"),
    ):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "run.json"))


def test_what_is_no_lack_of_room_stays_what_it_is(tmp_path: Path) -> None:
    """A bug is to be seen whole."""
    with pytest.raises(PermissionError), host.full_drive_errors(tmp_path, "7 do"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path))


def test_a_run_that_cannot_be_closed_yet_is_closed_by_the_next_try(
    home: PlanHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as it was, and no draft is left: on a full drive there is a try every two seconds."""
    folder = RunFolder(home.path / "p-r1")
    before = sorted(folder.path.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunFolderError, match=r"p-r1/run\.json: No space left"):
            close_run(home, folder)
        state, after = read_run(folder).state, sorted(folder.path.iterdir())
    close_run(home, folder)

    assert (state, after) == ("running", before)
    assert read_run(folder).state == "ended"


def test_a_run_that_finds_no_room_to_go_on_says_so(
    home: PlanHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "touch", full)
        with pytest.raises(RunFolderError, match=r"p: No space left .* to resume, a few KiB"):
            start_run(tmp_path / "p.yaml", home, SystemClock())
    start_run(tmp_path / "p.yaml", home, SystemClock())

    assert "produce" in {path.name for path in home.daemons_folder.iterdir()}


def test_a_run_whose_own_plan_is_damaged_is_no_plan_that_was_refused(
    home: PlanHome, tmp_path: Path
) -> None:
    """The caller did not cause it, so it is a failure that is notified."""
    (home.path / "p-r1" / "plan.yaml").write_text("name: [")

    with pytest.raises(RunFolderError, match=r"cannot be resumed: .*plan\.yaml"):
        start_run(tmp_path / "p.yaml", home, SystemClock())


SCRIPT = """
set -eu
mount -t tmpfs -o size=64k tmpfs "$1/drive"
cp -a "$1/p" "$1/drive/p"
cat /dev/zero > "$1/drive/filler" 2>/dev/null || true
cp "$1/drive/p/p-r1/run.json" "$1/before"
for command in "service finish --home $1/drive/p" "service start $1/p.yaml --home $1/drive/new"; do
  "$2" -m soak.cli.main $command > "$1/said" 2>&1 && code=0 || code=$?
  echo "$code $(tail -n 1 "$1/said")"
  grep -c Traceback "$1/said" || true
done
cmp "$1/before" "$1/drive/p/p-r1/run.json" && echo same
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"),
    reason="needs root and unshare for a small drive",
)
@pytest.mark.usefixtures("home")
def test_a_real_drive_without_a_byte_left_costs_an_error_and_no_more(tmp_path: Path) -> None:
    """The run that is to be closed, and one that is to begin, as systemd would have it done."""
    (tmp_path / "p.yaml").write_text(PLAN.replace("name: p", "name: new"))
    (tmp_path / "drive").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", SCRIPT, "-", str(tmp_path), sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    finish, tracebacks, begin, more, same = done.stdout.splitlines()
    assert finish.startswith("1 soak: cannot write ")
    assert f"the drive at {tmp_path}/drive has 0B free" in finish
    assert "a run needs a few KiB" in finish
    assert begin.startswith("1 soak: ")  # a failure, which is notified: the plan is right
    assert "free_space_floor: " in begin
    assert "has 0B free, less than the floor of 1GiB" in begin
    assert (tracebacks, more, same) == ("0", "0", "same")
