"""Processes that are a fault by what they do: one that ended by itself did nothing, which is told."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from soak.core.errors import LabError
from soak.lab.faults._undoing import Undoing
from soak.service import children


def spawned(active: Undoing, command: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start one, which is killed when the fault is lifted; from the main thread."""
    worker = children.spawn(command, log_path=log_path)
    active.on_lift(_end, worker, log_path)
    return worker


def _end(worker: subprocess.Popen[bytes], log_path: Path) -> None:
    """Kill one.

    Raises:
        LabError: it had ended already, so the fault was not what it was to be.
    """
    status = worker.poll()
    if status is None:
        children.kill(worker)
        return
    said = children.log_tail(log_path, lines=1) or "it said nothing"
    raise LabError(f"a process of the fault had ended by itself with status {status}: {said}")
