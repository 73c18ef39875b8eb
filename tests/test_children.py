"""Processes that a run starts, and how much of the processor they get."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from soak.service import children


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take niceness back")
def test_a_child_that_stood_back_runs_as_others_again(tmp_path: Path) -> None:
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    try:
        children.set_niceness(process, 19)
        stood_back = os.getpriority(os.PRIO_PROCESS, process.pid)
        children.restore_priority(process)
        restored = os.getpriority(os.PRIO_PROCESS, process.pid)
        group = Path(f"/proc/{process.pid}/autogroup")
        shared = group.read_text() if group.exists() else "nice 0"
    finally:
        children.kill(process)

    assert (stood_back, restored) == (19, 0)
    assert shared.split()[-1] == "0"


def test_a_child_that_hangs_in_the_kernel_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that reads from a drive that does not answer: no signal ends it, and the run goes on."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "killpg", lambda *_: None)
        deaf.setattr(children, "_KILL_TIMEOUT_SECONDS", 0.01)
        status = children.kill(process)
        is_alive = process.poll() is None
    children.kill(process)

    assert (status, is_alive) == (-9, True)


def test_no_daemon_of_a_test_outlives_a_pytest_that_is_killed() -> None:
    """`timeout 60 pytest` ends no fixture: a detector would be left with a whole JVM, for weeks."""
    left = []
    for path in Path(__file__).parent.glob("*.py"):
        source = path.read_text()
        if '"soak.cli.main"' in source and "subprocess.Popen(" in source:
            functions = [ast.unparse(one) for one in ast.parse(source).body]
            left += [
                f"{path.name}: {text.splitlines()[0]}"
                for text in functions
                if "'soak.cli.main'" in text
                and "subprocess.Popen(" in text
                and "children.mortal(" not in text
            ]

    assert left == []
