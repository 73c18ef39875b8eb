"""What SIGTERM and SIGINT become: an event that every wait of a daemon looks at, or an orderly exit."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from types import FrameType


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
