"""What wakes or ends a process: SIGTERM and SIGINT as an event or an orderly exit, and an eventfd."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from select import select
from types import FrameType

from soak.core.ports import Clock
from soak.core.units import SECOND_NS


def stop_event() -> threading.Event:
    """Return an event that is set right after SIGTERM or SIGINT; call it from the main thread."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # `set` takes the lock of the event, which the interrupted thread may hold in its `wait`: the handler
        # would wait for its own thread. This call takes no lock.
        _thread.start_new_thread(stop.set, ())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def exit_on_sigterm(*, with_hangup: bool = False) -> None:
    """Let SIGTERM raise `SystemExit`, so that `finally` blocks run; call it from the main thread.

    With `with_hangup` the end of the terminal does the same, unless `nohup` started the program.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)  # as a shell reports a command that a signal ended

    signal.signal(signal.SIGTERM, on_signal)
    is_kept_by_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    if with_hangup and not is_kept_by_nohup:
        signal.signal(signal.SIGHUP, on_signal)


class WakeupFd:
    """An eventfd(2) by which other threads wake this one.

    Create it early: `select` takes no descriptor above 1023.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, mono_ns: int) -> None:
        """Return when another thread wakes this one or did since the last call, or at `mono_ns`."""
        wait_ns = max(0, mono_ns - self._clock.mono_ns())
        is_woken, _, _ = select((self.fd,), (), (), wait_ns / SECOND_NS)
        if is_woken:
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close it once no thread writes to it any more: the number may be reused for another file."""
        os.close(self.fd)
