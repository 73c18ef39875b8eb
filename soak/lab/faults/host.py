"""Faults of the machine that brokers and daemons share: a busy processor and a stepped clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab import set_clock
from soak.lab.faults.active import ActiveFault, activating, node_of, spawned
from soak.lab.files import replace_text
from soak.lab.ports import Target
from soak.service import children


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CpuHogConfig:
    of: Literal["broker", "client"] = "broker"
    node: int = 1  # which broker, from 1
    hogs: int = 4  # that share its processor
    niceness: int = 0  # of a hog; below 0 needs root, and is 0 without

    def __post_init__(self) -> None:
        if self.hogs < 1:
            raise ValueError("hogs must be at least 1")
        if not -20 <= self.niceness <= 0:  # noqa: PLR2004  # the kernel's
            raise ValueError("niceness must lie between -20 and 0")


def cpu_hog_exclusion(config: CpuHogConfig) -> tuple[str, int]:
    """Return what it sets: who may run where."""
    return f"the processors of the {config.of}", config.node if config.of == "broker" else 0


def cpu_hog_missing() -> str:
    """Return what this machine lacks, or ""."""
    enough = len(os.sched_getaffinity(0)) >= 2  # noqa: PLR2004  # one who is meant, one for the others
    return "" if enough else "cpu_hog needs two processors"


def inject_cpu_hog(target: Target, config: CpuHogConfig) -> ActiveFault:
    """Begin at once; from the main thread.

    Raises:
        LabError: there is one processor only, or nobody to take it from.
    """
    lack = cpu_hog_missing()
    if lack:
        raise LabError(lack)
    processors = sorted(os.sched_getaffinity(0))
    node = node_of(target, config.node)
    loaded = {pid for name, pid in target.daemons().items() if name.startswith(_LOAD)}
    pids = {node.pid} if config.of == "broker" else loaded
    if not pids:
        raise LabError("cpu_hog: no daemon runs whose processor could be taken")
    with activating(target) as active:
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


# --- Sets the clock of the daemons that measure, as a time server does that comes back.
# The clock of the machine stays what it is, and so do those of brokers, of the clients' libraries and of the
# detector.
# Needs: nothing.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClockStepConfig:
    by: Duration = duration_ns("3s")
    direction: Literal["back", "forth"] = "back"

    def __post_init__(self) -> None:
        if self.by < SECOND_NS:
            raise ValueError("by must be at least 1s")


def clock_step_environment(folder: Path) -> dict[str, str]:
    """Return what the daemons' environment needs, from their start on; it leads to files in the folder."""
    _set(folder / "clock", 0)
    shutil.copyfile(set_clock.__file__, folder / "sitecustomize.py")
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places), set_clock.VARIABLE: str(folder / "clock")}


def inject_clock_step(target: Target, config: ClockStepConfig) -> ActiveFault:
    """Begin at once; the daemons see it within a second.

    Raises:
        LabError: the daemons were not started so.
    """
    if set_clock.VARIABLE not in target.environment:
        raise LabError("clock_step: the daemons were not started under a clock that can be set")
    file = Path(target.environment[set_clock.VARIABLE])
    with activating(target) as active:
        active.on_lift(_set, file, 0)
        by_ns = config.by if config.direction == "forth" else -config.by
        _set(file, by_ns)
        active.did(by_ns=by_ns)
    return active


def _set(file: Path, by_ns: int) -> None:
    replace_text(file, str(by_ns))
