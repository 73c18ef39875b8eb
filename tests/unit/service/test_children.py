"""Child processes: their priority, how they are stopped, and that none outlives its parent."""

from __future__ import annotations

import ast
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from soak.service import children, death_signal
from tests.support.paths import ROOT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower a niceness")
def test_the_priority_of_a_child_can_be_restored(tmp_path: Path) -> None:
    """Its scheduling group gets the usual niceness too."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    try:
        children.set_niceness(process, 19)
        lowered = os.getpriority(os.PRIO_PROCESS, process.pid)
        children.restore_priority(process)
        restored = os.getpriority(os.PRIO_PROCESS, process.pid)
        group = Path(f"/proc/{process.pid}/autogroup")
        shared = group.read_text() if group.exists() else "nice 0"
    finally:
        children.kill(process)

    assert (lowered, restored) == (19, 0)
    assert shared.split()[-1] == "0"


def test_a_child_that_hangs_in_the_kernel_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal ends a read from a drive that does not answer, and the run goes on."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    with monkeypatch.context() as ignoring:
        ignoring.setattr(os, "killpg", lambda *_: None)
        status = children.kill(process, timeout_seconds=0.01)
        is_alive = process.poll() is None
    children.kill(process)

    assert (status, is_alive) == (-9, True)


@pytest.mark.long
def test_no_daemon_of_a_test_outlives_a_killed_pytest() -> None:
    """`timeout 60 pytest` runs no fixture to its end: a detector with its JVM would stay for weeks."""
    left = []
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text()
        if '"soak.cli.main"' in source and "subprocess.Popen(" in source:
            functions = [ast.unparse(one) for one in ast.parse(source).body]
            left += [
                f"{path.name}: {text.splitlines()[0]}"
                for text in functions
                if "'soak.cli.main'" in text
                and "subprocess.Popen(" in text
                and "children.with_death_signal(" not in text
            ]

    assert left == []


PARENT = """
import sys
from pathlib import Path
from soak.service import children
process = children.spawn(["sleep", "600"], log_path=Path(sys.argv[1]))
print(process.pid, flush=True)
sys.stdin.read()
"""


def has_ended(descriptor: int, within_seconds: float = 20.0) -> bool:
    """A pidfd becomes readable when its process ends."""
    readable, _, _ = select.select([descriptor], [], [], within_seconds)
    return bool(readable)


def test_a_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time for anything; the kernel ends the child."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        parent.kill()

    try:
        assert has_ended(descriptor)
    finally:
        os.close(descriptor)


def test_a_child_whose_parent_died_early_exits_at_once() -> None:
    """The parent may die between fork and the request to the kernel: no signal would come."""
    not_our_parent = str(os.getpid() + 1)

    done = subprocess.run(
        [sys.executable, "-I", "-S", death_signal.__file__, "9", not_our_parent, "echo", "started"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", "the parent has died already\n")


def test_a_program_that_does_not_exist_is_named_in_the_log(tmp_path: Path) -> None:
    """The caller sees an exit status and finds the reason in the log."""
    process = children.spawn(["/no/such/program"], log_path=tmp_path / "log")

    status = process.wait(20)

    assert status == 1
    reason = "cannot start /no/such/program: No such file or directory"
    assert children.log_tail(tmp_path / "log") == reason


def test_output_is_appended_and_input_is_empty(tmp_path: Path) -> None:
    """A second child does not overwrite the output of the first one, and none waits for a terminal."""
    log = tmp_path / "log"
    for word in ("one", "two"):
        children.spawn(["sh", "-c", f"cat; echo {word}; echo {word} >&2"], log_path=log).wait(20)

    assert log.read_text() == "one\none\ntwo\ntwo\n"


def test_a_child_leads_a_session_of_its_own(tmp_path: Path) -> None:
    """So that Ctrl-C on the terminal does not reach it."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")

    try:
        assert os.getsid(process.pid) == process.pid
    finally:
        children.kill(process)


def test_a_stopped_child_gets_sigterm(tmp_path: Path) -> None:
    """SIGTERM alone would stay pending until the child is continued."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    os.kill(process.pid, signal.SIGSTOP)

    assert children.stop(process, grace_seconds=20) == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Its whole session is killed after the grace period."""
    fifo = tmp_path / "ready"
    os.mkfifo(fifo)
    script = f"trap '' TERM; echo > {fifo}; while :; do sleep 600; done"
    process = children.spawn(["sh", "-c", script], log_path=tmp_path / "log")
    fifo.read_text()  # returns when the trap is set

    assert children.stop(process, grace_seconds=0.05) == -signal.SIGKILL


def test_a_child_is_refused_outside_the_main_thread(tmp_path: Path) -> None:
    """It would die when that thread ends."""
    caught: list[BaseException] = []

    def spawn() -> None:
        try:
            children.spawn(["true"], log_path=tmp_path / "log")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=spawn)
    thread.start()
    thread.join(20)

    assert len(caught) == 1


@pytest.mark.parametrize(("lines", "expected"), [(2, "line 8\nline 9"), (20, None)])
def test_the_tail_of_a_log_is_its_last_lines(
    lines: int, expected: str | None, tmp_path: Path
) -> None:
    """For error messages; a log that does not exist is empty."""
    log = tmp_path / "log"
    whole = "\n".join(f"line {number}" for number in range(10))
    log.write_text(whole + "\n")

    assert children.log_tail(log, lines) == (expected or whole)
    assert children.log_tail(tmp_path / "none") == ""
