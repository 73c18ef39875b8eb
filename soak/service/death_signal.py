"""Become a program that gets a signal when its parent dies.

Usage: `python -I -S death_signal.py SIGNAL PARENT_PID PROGRAM ARG...`. It is a program because a function
between fork and exec is unsafe in a process with threads. It imports nothing of the project, so it costs some
15 ms.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    death_signal, parent, *program = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        sys.exit(f"cannot ask for a parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):  # it died before the request: no signal will come
        sys.exit("the parent has died already")
    try:
        os.execvp(program[0], program)  # noqa: S606 - a list, and no shell is wanted
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
