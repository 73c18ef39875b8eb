"""Takes a processor away: a broker, or the daemons that measure, share one with processes that only count.

Needs: two processors, so that who is not meant has one of its own. The hogs are children that die with us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.lab.faults._undoing import Undoing, node_of, undoing
from soak.lab.faults._workers import spawned
from soak.lab.ports import Target
from soak.service import children


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    of: Literal["broker", "client"] = "broker"
    node: int = 1  # which broker, from 1
    hogs: int = 4  # that share its processor
    niceness: int = 0  # of a hog; below 0 needs root, and is 0 without

    def __post_init__(self) -> None:
        if self.hogs < 1:
            raise ValueError("hogs must be at least 1")
        if not -20 <= self.niceness <= 0:  # noqa: PLR2004  # the kernel's
            raise ValueError("niceness must lie between -20 and 0")


def sole(config: Config) -> tuple[str, int]:
    """Return what it sets: who may run where."""
    return f"the processors of the {config.of}", config.node if config.of == "broker" else 0


def missing() -> str:
    """Return what this machine lacks, or ""."""
    enough = len(os.sched_getaffinity(0)) >= 2  # noqa: PLR2004  # one who is meant, one for the others
    return "" if enough else "cpu_hog needs two processors"


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; from the main thread.

    Raises:
        LabError: there is one processor only, or nobody to take it from.
    """
    lack = missing()
    if lack:
        raise LabError(lack)
    processors = sorted(os.sched_getaffinity(0))
    node = node_of(target, config.node)
    loaded = {pid for name, pid in target.daemons().items() if name.startswith(_LOAD)}
    pids = {node.pid} if config.of == "broker" else loaded
    if not pids:
        raise LabError("cpu_hog: no daemon runs whose processor could be taken")
    with undoing(target) as active:
        for pid in pids:
            active.on_lift(_let_go, os.pidfd_open(pid), pid, processors)
            _hold(pid, processors[:1])
        log = node.log_path.with_name("hog.log")
        for _ in range(config.hogs):
            hog = spawned(active, [sys.executable, "-c", "while True: pass"], log)
            _hold(hog.pid, processors[:1])
            children.set_niceness(hog, config.niceness)
        active.did(hogs=config.hogs, of=config.of)
    return active


_LOAD = ("produce", "consume")


def _let_go(descriptor: int, pid: int, processors: list[int]) -> None:
    """Give a process its processors back, unless it has ended: its number may be another's by now."""
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile, and waited for
        signal.pidfd_send_signal(descriptor, 0)
        _hold(pid, processors)
    os.close(descriptor)


def _hold(pid: int, processors: list[int]) -> None:
    """Let every thread of a process run on these alone; those that it starts later do too."""
    with contextlib.suppress(
        FileNotFoundError, ProcessLookupError
    ):  # it, or one of them, has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), processors)
