"""The seams of the lab: a broker that runs here, and a fault that is active in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from soak.core.ports import Clock


class Running(Protocol):
    """A lab broker as a child process; what `start(folder, settings)` of its file returns."""

    @property
    def bootstrap_servers(self) -> str: ...

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

    def stop(self) -> None:
        """End it in order; nothing happens when it has ended already."""
        ...

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL."""
        ...

    def restart(self) -> None:
        """Start it again on the same data and the same address; stops it first if it runs."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault acts on; `record` takes a line for each thing done."""

    broker: Running
    record: Callable[[Mapping[str, object]], None]
    clock: Clock


class Active(Protocol):
    """A fault at work; what `inject(target, config)` of its file returns."""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when that which is to be found began; None as long as it has not."""
        ...

    def lift(self) -> None:
        """Undo everything; may be called twice. Raises what went wrong while it was active."""
        ...
