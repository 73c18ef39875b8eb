"""Faults that stop a process for a while, again and again, from a thread of their own."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable

from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.ports import Target

_JOIN_SECONDS = 25.0  # longer than two requests of which each may take ten


class Process:
    """A broker's process by descriptor: a signal never reaches another one that got its number."""

    def __init__(self) -> None:
        self._pid = 0
        self._descriptor = -1

    def follow(self, pid: int) -> None:
        """Turn to another process, after a restart of the broker."""
        if pid == self._pid:
            return
        self.close()
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(pid)
            self._pid = pid

    def stop_for(self, length_ns: int, lifted: threading.Event) -> bool:
        """Stop it for so long, or until the fault is lifted; False when it is gone."""
        try:
            if not self._send(signal.SIGSTOP):
                return False
            lifted.wait(length_ns / SECOND_NS)
        finally:
            self._send(signal.SIGCONT)
        return True

    def let_go(self) -> None:
        """Let it run, whatever has happened, and forget it."""
        self._send(signal.SIGCONT)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._pid, self._descriptor = 0, -1

    def _send(self, number: signal.Signals) -> bool:
        if self._descriptor < 0:
            return False
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True


class Stopping:
    """A fault that stops processes, at work; implements `soak.lab.ports.Active`.

    `work` runs on a thread of its own and returns soon once `is_lifted_in` is true.
    """

    def __init__(self, fault: str, target: Target, work: Callable[[Stopping], None]) -> None:
        self._fault = fault
        self._target = target
        self._work = work
        self._process = Process()
        self._lifted = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name=fault, daemon=True)
        self.onset_wall_ns: int | None = None

    def begin(self) -> None:
        """Start; it is lifted too when this process ends without having done so."""
        atexit.register(self.lift)
        self._thread.start()

    def lift(self) -> None:
        atexit.unregister(self.lift)
        self._lifted.set()
        self._thread.join(_JOIN_SECONDS)
        self._process.let_go()
        if self._thread.is_alive():
            raise LabError(f"the fault {self._fault} did not end within {_JOIN_SECONDS:.0f} s")
        if self._error is not None:  # raised once
            error, self._error = self._error, None
            raise LabError(f"the fault {self._fault} failed: {error}") from error

    def close(self) -> None:
        if not self._lifted.is_set():  # one that does not end is waited for once
            self.lift()

    def is_lifted_in(self, length_ns: int) -> bool:
        """Wait for so long, or until the fault is lifted; return whether it was."""
        return self._lifted.wait(max(0, length_ns) / SECOND_NS)

    def has_begun(self, at_wall_ns: int) -> None:
        """Keep the first such moment as the onset."""
        if self.onset_wall_ns is None:
            self.onset_wall_ns = at_wall_ns

    def stop(self, pid: int, length_ns: int, **more: object) -> int | None:
        """Stop a process for so long and record it with what `more` there is to say.

        Return when that was by the wall clock; None when the process is gone.
        """
        clock = self._target.clock
        self._process.follow(pid)
        stopped_ns, at_wall_ns = clock.mono_ns(), clock.wall_ns()
        if not self._process.stop_for(length_ns, self._lifted):
            return None
        stalled_ns = clock.mono_ns() - stopped_ns
        self._target.record({"at_wall_ns": at_wall_ns, "stalled_ns": stalled_ns, **more})
        return at_wall_ns

    def _main(self) -> None:
        try:
            self._work(self)
        except Exception as error:  # noqa: BLE001 - raised again by lift, in the main thread
            self._error = error
