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
from soak.lab.faults.active import (
    ActiveFault,
    ExclusiveSetting,
    Fault,
    activating,
    node_of,
    start_worker,
)
from soak.lab.files import replace_text
from soak.lab.ports import Target
from soak.service import children

_LOAD_DAEMONS = ("produce", "consume")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CpuHogConfig:
    """Take a processor away: a broker, or the load's daemons, share one with busy processes.

    Needs: two processors, so that the others have one of their own. The busy processes end with this one.
    """

    of: Literal["broker", "client"] = "broker"
    node: int = 1  # the broker, from 1
    hogs: int = 4  # busy processes on its processor
    niceness: int = 0  # of a busy process; below 0 needs root, and is 0 without

    def __post_init__(self) -> None:
        if self.hogs < 1:
            raise ValueError("hogs must be at least 1")
        if not -20 <= self.niceness <= 0:  # noqa: PLR2004  # the kernel's
            raise ValueError("niceness must lie between -20 and 0")


def _processors_of(config: CpuHogConfig) -> ExclusiveSetting:
    return f"the processors of the {config.of}", config.node if config.of == "broker" else 0


def _missing_processors() -> str:
    enough = len(os.sched_getaffinity(0)) >= 2  # noqa: PLR2004  # one to share, one for the others
    return "" if enough else "cpu_hog needs two processors"


def _inject_cpu_hog(target: Target, config: CpuHogConfig) -> ActiveFault:
    """Inject the fault; from the main thread.

    Raises:
        LabError: there is only one processor, or no process to take it from.
    """
    lack = _missing_processors()
    if lack:
        raise LabError(lack)
    processors = sorted(os.sched_getaffinity(0))
    node = node_of(target, config.node)
    loaded = {pid for name, pid in target.daemons().items() if name.startswith(_LOAD_DAEMONS)}
    pids = {node.pid} if config.of == "broker" else loaded
    if not pids:
        raise LabError("cpu_hog: no daemon runs whose processor could be taken")
    with activating(target) as active:
        for pid in pids:
            active.on_lift(_give_back, os.pidfd_open(pid), pid, processors)
            _pin(pid, processors[:1])
        log = node.log_path.with_name("hog.log")
        for _ in range(config.hogs):
            hog = start_worker(active, [sys.executable, "-c", "while True: pass"], log)
            _pin(hog.pid, processors[:1])
            children.set_niceness(hog, config.niceness)
        active.record(hogs=config.hogs, of=config.of)
    return active


def _give_back(descriptor: int, pid: int, processors: list[int]) -> None:
    """Give a process its processors back, unless it has ended: its number may belong to another by now."""
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile, and waited for
        signal.pidfd_send_signal(descriptor, 0)
        _pin(pid, processors)
    os.close(descriptor)


def _pin(pid: int, processors: list[int]) -> None:
    """Restrict every thread of a process, and threads that it starts later, to these processors."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), processors)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClockStepConfig:
    """Step the clock of the run's daemons, like a time server that comes back.

    The clocks of the machine, of brokers, of client libraries and of the detector stay as they are.

    Needs: nothing.
    """

    by: Duration = duration_ns("3s")
    direction: Literal["back", "forth"] = "back"

    def __post_init__(self) -> None:
        if self.by < SECOND_NS:
            raise ValueError("by must be at least 1s")


def clock_environment(folder: Path) -> dict[str, str]:
    """Return variables that give a Python process a clock that a file in the folder steps."""
    replace_text(folder / "clock", "0")
    shutil.copyfile(set_clock.__file__, folder / "sitecustomize.py")
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places), set_clock.VARIABLE: str(folder / "clock")}


def _inject_clock_step(target: Target, config: ClockStepConfig) -> ActiveFault:
    """Inject the fault; the daemons see it within a second.

    Raises:
        LabError: the daemons were not started with `clock_environment`.
    """
    if set_clock.VARIABLE not in target.environment:
        raise LabError("clock_step: the daemons were not started under a clock that can be set")
    file = Path(target.environment[set_clock.VARIABLE])
    with activating(target) as active:
        active.on_lift(replace_text, file, "0")
        by_ns = config.by if config.direction == "forth" else -config.by
        replace_text(file, str(by_ns))
        active.record(by_ns=by_ns)
    return active


FAULTS = {
    "cpu_hog": Fault(
        config=CpuHogConfig,
        inject=_inject_cpu_hog,
        missing_on_machine=_missing_processors,
        exclusive_setting=_processors_of,
    ),
    "clock_step": Fault(
        config=ClockStepConfig, inject=_inject_clock_step, environment=clock_environment
    ),
}
