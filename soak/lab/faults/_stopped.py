"""Stops a broker's process for a while; what a fault does with it runs on a thread of its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable

from soak.core.errors import LabError
from soak.core.units import SECOND_NS

_JOIN_SECONDS = 10.0


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


class Worker:
    """The thread of a fault: `work` gets the event that tells it to end."""

    def __init__(
        self, fault: str, work: Callable[[threading.Event], None], undo: Callable[[], None]
    ) -> None:
        self._fault = fault
        self._work = work
        self._undo = undo
        self._lifted = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name=fault, daemon=True)

    def begin(self) -> None:
        """Start; `undo` is called too when this process ends without having lifted the fault."""
        atexit.register(self._undo)
        self._thread.start()

    def end(self) -> None:
        """Tell the thread to end and wait for it; may be called twice."""
        atexit.unregister(self._undo)
        self._lifted.set()
        self._thread.join(_JOIN_SECONDS)

    def raise_error(self) -> None:
        """Raise once what went wrong on the thread."""
        if self._error is not None:
            error, self._error = self._error, None
            raise LabError(f"the fault {self._fault} failed: {error}") from error

    def _main(self) -> None:
        try:
            self._work(self._lifted)
        except Exception as error:  # noqa: BLE001 - raised again by raise_error, in the main thread
            self._error = error
