"""The seams of the lab: a broker that runs here, and a fault that is active in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from soak.core.ports import Clock
from soak.lab.drive.drive import Drive


class Node(Protocol):
    """One process of a lab's cluster."""

    @property
    def number(self) -> int:
        """Return the number by which the cluster knows this broker."""
        ...

    @property
    def data_directory(self) -> Path:
        """Return the folder in which the broker keeps its messages."""
        ...

    @property
    def log_path(self) -> Path: ...

    @property
    def pid(self) -> int:
        """Return the process id; another one after a restart."""
        ...

    @property
    def is_running(self) -> bool:
        """Return whether this process is there, whoever has its number by now."""
        ...

    def stop(self) -> None:
        """End it in order; nothing happens when it has ended already."""
        ...

    def kill(self) -> None:
        """End it by SIGKILL; what the kernel holds of its files is kept, as no power cut would."""
        ...

    def restart(self) -> None:
        """Start it again on the same data and the same address; stops it first if it runs."""
        ...


class Running(Protocol):
    """A lab's cluster as child processes; what `start(folder, settings, ...)` of its file returns."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Return its processes, at least one."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return where it listens, under the names that the broker's `Config` has for it."""
        ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def data_directory(self) -> Path:
        """Return the folder in which the first node keeps its messages."""
        ...

    @property
    def log_path(self) -> Path: ...

    @property
    def pid(self) -> int:
        """Return the process id of the first node; another one after a restart."""
        ...

    def stop(self) -> None:
        """End every node in order; nothing happens to those that have ended already."""
        ...

    def kill(self) -> None:
        """End every node by SIGKILL, as `Node.kill`."""
        ...

    def restart(self) -> None:
        """Start every node again on its data and its address; stops first those that run."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault acts on; `record` takes a line for each thing done."""

    broker: Running
    record: Callable[[Mapping[str, object]], None]
    clock: Clock
    drives: Mapping[int, Drive] = field(
        default_factory=dict
    )  # injected, by their broker's place from 1
    daemons: Callable[[], Mapping[str, int]] = dict  # the processes that measure, by name
    environment: Mapping[str, str] = field(default_factory=dict)  # what those have beside ours


class Active(Protocol):
    """A fault at work; what `inject(target, config)` of its file returns."""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when that which is to be found began; None as long as it has not."""
        ...

    def lift(self) -> None:
        """Undo it; may be called twice. Raises what went wrong while it was active."""
        ...

    def close(self) -> None:
        """Lift it, and undo what was to be felt after that; the run is over. May be called twice."""
        ...
