"""A sidecar: one more daemon that runs and ends with this one."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path

from soak.core.ports import Clock
from soak.core.retry import RestartPolicy, Restarts
from soak.core.units import SECOND_NS
from soak.service import children
from soak.supervisor.run import PROGRAM

LOG = logging.getLogger(__name__)
NICENESS = 10
GRACE_SECONDS = 20.0
RESTARTS = RestartPolicy(window_ns=600 * SECOND_NS)
"""Failed starts count as deaths: after some of these in a row there is one try a minute."""


class Sidecar:
    """Call `poll` from the main thread as often as you like, then `close`.

    Without a path for its log it writes to the same place as this process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log_path: Path | None,
        clock: Clock,
        *,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._command = [*program, *arguments]
        self._log_path = log_path
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = Restarts(RESTARTS)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def poll(self) -> None:
        """Start the daemon, and restart it when it has died."""
        if self._process is not None and self._process.poll() is not None:
            LOG.warning(
                "daemon_died command=%s code=%d", self._command[-3:], self._process.returncode
            )
            self._process = None
            self._restarts.note_death(self._clock.mono_ns())
        if self._process is None and self._restarts.is_due(self._clock.mono_ns()):
            self._start()

    def close(self) -> None:
        """Stop the daemon; give it time to finish its work."""
        if self._process is not None:
            children.stop(self._process, GRACE_SECONDS)

    def _start(self) -> None:
        try:
            if self._log_path is not None:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._process = children.spawn(self._command, log_path=self._log_path)
        except OSError as error:  # its log cannot be opened: the drive is read-only, or full
            LOG.warning("daemon_not_started command=%s error=%s", self._command[-3:], error)
            self._restarts.note_death(self._clock.mono_ns())
            return
        children.set_niceness(self._process, NICENESS)
