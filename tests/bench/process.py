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
    """A child of ours; made by `start`, reaped by `wait`."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self._peak_bytes = 0

    def wait(self, limit_seconds: float, is_done: Callable[[], bool] = lambda: False) -> Usage:
        """Return when the program has ended by itself, or was asked to because `is_done`.

        Raises:
            SoakError: it failed, or did not end in time; with the end of its log.
        """
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + round(limit_seconds * SECOND_NS)
        is_asked = False
        while clock.mono_ns() < deadline_ns:
            self._note_peak()
            # not Popen.wait: only wait4 says what the child has cost
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                if self._process.returncode not in {0, -signal.SIGTERM if is_asked else 0}:
                    raise self._error(f"failed with status {self._process.returncode}")
                return Usage(used.ru_utime + used.ru_stime, self._peak_bytes)
            if not is_asked and is_done():
                is_asked = True
                self._process.send_signal(signal.SIGTERM)
            clock.sleep_until(clock.mono_ns() + _POLL_NS)
        children.kill(self._process)
        raise self._error(f"did not end in {limit_seconds:g} s")

    def _note_peak(self) -> None:
        # ru_maxrss would do if it did not count what the child was before its exec
        try:
            found = _PEAK.search(Path(f"/proc/{self._process.pid}/status").read_text())
        except OSError:
            return
        if found:
            self._peak_bytes = int(found[1]) * 1024

    def _error(self, what: str) -> SoakError:
        return SoakError(f"{self._log_path.stem} {what}:\n{children.log_tail(self._log_path)}")


def start(argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a program that dies with us; its output is appended to `log_path`."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    return Process(children.spawn(argv, log_path=log_path, env=env), log_path)
