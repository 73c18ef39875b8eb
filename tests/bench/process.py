"""Runs a program and says what it cost: CPU of the whole process, start-up included, and peak memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import SoakError
from soak.core.units import SECOND_NS
from soak.service import children

_POLL_NS = SECOND_NS // 10
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float  # user and system
    peak_bytes: int  # resident, as last seen at most 0.1 s before its end


class Process:
    """A child of ours; made by `start`, reaped by `wait_all`."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self._peak_bytes = 0

    def poll(self) -> Usage | None:
        """Return what it has cost once it has ended by itself or by our SIGTERM; None until then.

        Raises:
            SoakError: it failed; with the end of its log.
        """
        self._note_peak()
        # not Popen.poll: only wait4 says what the child has cost
        pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
        if not pid:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode not in {0, -signal.SIGTERM}:
            raise self.error(f"failed with status {self._process.returncode}")
        return Usage(used.ru_utime + used.ru_stime, self._peak_bytes)

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        children.kill(self._process)

    def error(self, what: str) -> SoakError:
        return SoakError(f"{self._log_path.stem} {what}:\n{children.log_tail(self._log_path)}")

    def _note_peak(self) -> None:
        # ru_maxrss would do if it did not count what the child was before its exec
        try:
            found = _PEAK.search(Path(f"/proc/{self._process.pid}/status").read_text())
        except OSError:
            return
        if found:  # none once it has ended
            self._peak_bytes = int(found[1]) * 1024


def start(argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a program that dies with us; its output is appended to `log_path`."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    return Process(children.spawn(argv, log_path=log_path, env=env), log_path)


def wait_all(
    running: Sequence[Process], limit_seconds: float, is_done: Callable[[], bool] = lambda: False
) -> list[Usage]:
    """Return what each has cost when all have ended, by themselves or because `is_done`.

    Raises:
        SoakError: one failed, or did not end in time; all others are killed then.
    """
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + round(limit_seconds * SECOND_NS)
    found: dict[Process, Usage] = {}
    is_asked = False
    try:
        while clock.mono_ns() < deadline_ns:
            for process in running:
                usage = None if process in found else process.poll()
                if usage is not None:
                    found[process] = usage
            if len(found) == len(running):
                return [found[process] for process in running]
            if not is_asked and is_done():
                is_asked = True
                for process in running:
                    process.ask_to_end()
            clock.sleep_until(clock.mono_ns() + _POLL_NS)
        late = next(process for process in running if process not in found)
        raise late.error(f"did not end in {limit_seconds:g} s")
    finally:
        for process in running:
            if process not in found:
                process.kill()
