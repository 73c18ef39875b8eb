"""What a drill's daemons are started with lies in a folder that no killed drill leaves for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from soak.lab import files

_KILLED = """
import os, signal, sys
from pathlib import Path
from soak.lab import files

with files.scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "clock").write_text("0")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_drill_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    """What one that lives has, and what others put there, stays."""
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False, timeout=60)
    (left,) = tmp_path.iterdir()
    others = {
        tmp_path / "soakd-drill-of-somebody",
        tmp_path / f"soakd-drill-{files.own_mark().split('-')[0]}-x-1-y",
    }
    for other in others:
        other.mkdir()

    with files.scratch_folder(tmp_path) as first, files.scratch_folder(tmp_path) as second:
        during = set(tmp_path.iterdir())

    assert (left / "clock").exists() is False
    assert during == {first, second, *others}
    assert set(tmp_path.iterdir()) == others


def test_a_process_that_got_the_number_of_another_is_another() -> None:
    """By when it began."""
    mark = files.own_mark()

    assert not files.has_ended(mark)
    assert files.has_ended(f"{mark}0")
