"""A sidecar: one more daemon that runs and ends with this one."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service import children

LOG = logging.getLogger("soak.supervisor.sidecar")
NICENESS = 10
MAX_PAUSE_NS = 60 * SECOND_NS
GRACE_SECONDS = 20.0


class Sidecar:
    """Call `poll` from the main thread, as often as you like; then `close`.

    Without a path for its log it writes where we do.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log_path: Path | None,
        clock: Clock,
        *,
        program: Sequence[str] = (sys.executable, "-m", "soak.cli.main"),
    ) -> None:
        self._command = [*program, *arguments]
        self._log_path = log_path
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_ns = 0
        self._again_ns = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def poll(self) -> None:
        """Start it, or start it again some time after it has died: ever later."""
        if self._process is not None and self._process.poll() is not None:
            LOG.warning(
                "daemon_died command=%s code=%d", self._command[-3:], self._process.returncode
            )
            self._process = None
            self._put_off()
        if self._process is None and self._clock.mono_ns() >= self._again_ns:
            self._start()

    def close(self) -> None:
        """End it; it may take its time to bring its work to an end."""
        if self._process is not None:
            children.stop(self._process, GRACE_SECONDS)

    def _start(self) -> None:
        try:
            if self._log_path is not None:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._process = children.spawn(self._command, log_path=self._log_path)
        except OSError as error:  # its log cannot be opened: the drive is read-only, or full
            LOG.warning("cannot_start command=%s error=%s", self._command[-3:], error)
            self._put_off()
            return
        children.set_niceness(self._process, NICENESS)

    def _put_off(self) -> None:
        self._pause_ns = min(2 * self._pause_ns or SECOND_NS, MAX_PAUSE_NS)
        self._again_ns = self._clock.mono_ns() + self._pause_ns
