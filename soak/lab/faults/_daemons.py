"""Finds daemons of the run itself, and stops them for as long as a fault lasts."""

from __future__ import annotations

import contextlib
import os
import signal

from soak.core.errors import LabError
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target


def daemon_of(target: Target, name: str) -> int:
    """Return the process of a daemon of the run, such as `consume.0`.

    Raises:
        LabError: there is none.
    """
    daemons = target.daemons()
    if name not in daemons:
        raise LabError(f"no daemon `{name}` runs; known: {', '.join(sorted(daemons))}")
    return daemons[name]


def paused(target: Target, kind: str) -> Undoing:
    """Stop every daemon of a kind, such as `consume`, until the fault is lifted.

    Raises:
        LabError: none of them runs.
    """
    with undoing(target) as active:
        found = {
            name: pid for name, pid in target.daemons().items() if name.partition(".")[0] == kind
        }
        if not found:
            raise LabError(f"no daemon `{kind}` runs that could be paused")
        for pid in found.values():
            descriptor = os.pidfd_open(pid)
            active.on_lift(_let_go, descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        active.did(paused=sorted(found))
    return active


def _let_go(descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    os.close(descriptor)
