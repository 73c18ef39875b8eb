"""A broker for faults: a process that does nothing but can be stopped, and a witness of what was done."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from soak.service import children


@dataclass
class SleepingBroker:
    """A process that does nothing, with a data folder."""

    process: subprocess.Popen[bytes]
    data_directory: Path
    bootstrap_servers: str = ""
    log_path: Path = field(default_factory=Path)
    addresses: dict[str, str] = field(default_factory=dict)
    number: int = 1

    @property
    def nodes(self) -> tuple[SleepingBroker, ...]:
        return (self,)

    @property
    def data_directories(self) -> tuple[Path]:
        return (self.data_directory,)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        children.stop(self.process, 5)

    def kill(self) -> None:
        children.kill(self.process)

    def restart(self) -> None:
        raise AssertionError("no fault restarts its target")


class Witness:
    """Takes the fault's lines and says when there were enough."""

    def __init__(self, enough: int) -> None:
        self.lines: list[Mapping[str, object]] = []
        self._enough = enough
        self.has_enough = threading.Event()

    def record(self, line: Mapping[str, object]) -> None:
        self.lines.append(line)
        if len(self.lines) >= self._enough:
            self.has_enough.set()


def asleep(folder: Path) -> SleepingBroker:
    """Return a broker whose data folder holds one empty partition; to be killed at the end."""
    data = folder / "data"
    (data / "soak-x-0").mkdir(parents=True)
    return SleepingBroker(children.spawn(["sleep", "600"], log_path=folder / "log"), data)


def is_stopped(pid: int) -> bool:
    """State `T` of proc(5); SIGCONT ends it before kill(2) returns."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
