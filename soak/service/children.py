"""Start and stop child processes that never outlive this process.

Each child leads a session of its own, so Ctrl-C on the terminal reaches it only through its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from soak.service import death_signal as child

LOG = logging.getLogger(__name__)
KILL_TIMEOUT_SECONDS = 10.0


def spawn(
    argv: Sequence[str],
    *,
    log_path: Path | None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen[bytes]:
    """Start a program whose output is appended to `log_path`; it gets `death_signal` when this process dies.

    Without a path it inherits the output of this process.

    Call it from the main thread: the kernel sends the signal when the *thread* that started the child ends. A
    program that cannot be started exits at once with the reason in its log.

    Raises:
        RuntimeError: called from another thread.
        OSError: the log cannot be opened, or `cwd` does not exist.
    """
    command = with_death_signal(argv, death_signal)
    with nullcontext() if log_path is None else log_path.open("ab", buffering=0) as log:
        return subprocess.Popen(
            command,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,
        )


def with_death_signal(
    argv: Sequence[str], death_signal: signal.Signals = signal.SIGKILL
) -> list[str]:
    """Return the command line of a program that gets `death_signal` when the thread that starts it ends.

    Raises:
        RuntimeError: called from another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start children from the main thread: they die with the thread")
    wrapper = [sys.executable, "-I", "-S", child.__file__, str(int(death_signal)), str(os.getpid())]
    return [*wrapper, *argv]


def set_niceness(process: subprocess.Popen[bytes], niceness: int) -> None:
    """Set the niceness of a child and of the processes that it will start.

    The kernel groups processes by session and shares the processor between groups first (sched(7),
    autogroup), so the group of the child gets it too.
    """
    # The child has ended, the kernel has no groups, or this user may not.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        Path(f"/proc/{process.pid}/autogroup").write_text(str(niceness))


def restore_priority(process: subprocess.Popen[bytes]) -> None:
    """Give a child and the processes that it started the usual priority, as far as this user may."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/autogroup").write_text("0")
    with contextlib.suppress(OSError):  # only root may
        os.setpriority(os.PRIO_PGRP, process.pid, 0)


def stop(process: subprocess.Popen[bytes], grace_seconds: float) -> int:
    """Send a child SIGTERM, kill its session if it does not end in time, and return its exit status."""
    if process.poll() is None:
        ask_to_stop(process)
        try:
            process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            return kill(process)
    return process.returncode


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Send a child SIGTERM without waiting."""
    _signal(process, signal.SIGTERM)
    _signal(process, signal.SIGCONT)  # a stopped process keeps its SIGTERM pending


def kill(process: subprocess.Popen[bytes], timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> int:
    """Kill a child and the processes of its session; return its exit status.

    A process that hangs in the kernel, as on a drive that does not answer, ends when the kernel call returns:
    it is not waited for, and the status returned is the one that it will have.
    """
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # not yet the leader of its session
            process.kill()
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        LOG.warning("child_hangs pid=%d", process.pid)
        return -signal.SIGKILL


def log_tail(log_path: Path, lines: int = 20, limit_bytes: int = 16_384) -> str:
    """Return the last lines of a log for an error message; empty where there is no log."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - limit_bytes))
            text = log.read(limit_bytes).decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
