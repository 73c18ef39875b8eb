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
    """Install the handlers, from the main thread, and return the event that is set right after a signal."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        # `set` takes the event's lock, which the interrupted thread may hold in its `wait`: from the
        # handler itself it would wait for itself. This call takes no lock.
        _thread.start_new_thread(stop.set, ())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def exit_on_sigterm(*, with_hangup: bool = False) -> None:
    """Have SIGTERM raise `SystemExit`, from the main thread, so that what was begun is cleaned up.

    With the end of the terminal too, where somebody waits there for it to be done.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)  # as a shell tells of a command that a signal ended

    signal.signal(signal.SIGTERM, on_signal)
    is_kept_by_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    if with_hangup and not is_kept_by_nohup:
        signal.signal(signal.SIGHUP, on_signal)


# --- A bell that others ring: who sleeps wakes when something has come, not when he looks again.


class WakeupFd:
    """An eventfd(2). Make it early: `select` takes no descriptor above 1023."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, mono_ns: int) -> None:
        """Return at the first ring since the last call, or at this instant."""
        wait_ns = max(0, mono_ns - self._clock.mono_ns())
        rung, _, _ = select((self.fd,), (), (), wait_ns / SECOND_NS)
        if rung:
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Only when nobody rings it any more: the descriptor's number may become another file's."""
        os.close(self.fd)
