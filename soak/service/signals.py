"""What SIGTERM and SIGINT become: an event that every wait of a daemon looks at, or an orderly exit."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType


def stop_event() -> threading.Event:
    """Install the handlers, from the main thread, and return the event they set."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def exit_on_sigterm() -> None:
    """Have SIGTERM raise `SystemExit`, from the main thread, so that what was begun is cleaned up."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)  # as a shell tells of a command that a signal ended

    signal.signal(signal.SIGTERM, on_signal)
