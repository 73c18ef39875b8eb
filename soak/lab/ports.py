"""The ports of the lab: a cluster that runs on this machine, and a fault that is active in it."""

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
        """Return the folder of the broker's messages."""
        ...

    @property
    def log_path(self) -> Path: ...

    @property
    def pid(self) -> int:
        """Return the process id; another one after a restart."""
        ...

    @property
    def is_running(self) -> bool:
        """Return whether this process runs, not another one with its number."""
        ...

    def stop(self) -> None:
        """Stop it in order; do nothing if it has ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL; the page cache survives, unlike after a power cut."""
        ...

    def restart(self) -> None:
        """Start it again with the same data and the same address; stop it first if it runs."""
        ...


class Running(Protocol):
    """A lab's cluster of child processes, as the `start` function of a lab broker returns it."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Return its processes, at least one."""
        ...

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return its addresses under their keys in the broker section of a plan."""
        ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def data_directory(self) -> Path:
        """Return the folder of the first node's messages."""
        ...

    @property
    def data_directories(self) -> Sequence[Path]:
        """Return the folders of all nodes that hold messages."""
        ...

    @property
    def log_path(self) -> Path: ...

    @property
    def pid(self) -> int:
        """Return the process id of the first node; another one after a restart."""
        ...

    def stop(self) -> None:
        """Stop every node in order, except for those that have ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to every node, as `Node.kill` does."""
        ...

    def restart(self) -> None:
        """Start every node again with its data and its address; stop those that run first."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The run that a fault acts on; `record` takes a line for each action."""

    broker: Running
    record: Callable[[Mapping[str, object]], None]
    clock: Clock
    drives: Mapping[int, Drive] = field(
        default_factory=dict
    )  # injected drives by the place of their broker, from 1
    daemons: Callable[[], Mapping[str, int]] = dict  # process ids of the run's daemons by name
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # variables that they were started with


class Active(Protocol):
    """A fault that was injected."""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when the effect that is to be found began; None before it."""
        ...

    def lift(self) -> None:
        """Undo it; may be called twice. Raises errors that occurred while it was active."""
        ...

    def close(self) -> None:
        """Lift it, and undo effects that last until the run is over. May be called twice."""
        ...
