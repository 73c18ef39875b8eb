"""Lets another process write on a broker's drive and flush again and again.

Needs: nothing. The writer is a child of this process and ends with it; its file has no name.
"""

from __future__ import annotations

import sys

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import Size, size_bytes
from soak.lab.faults._undoing import Undoing, node_of, undoing
from soak.lab.faults._workers import spawned
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # on whose drive, from 1
    writers: int = 2
    bytes_per_second: Size = size_bytes("32MiB")  # of each
    block: Size = size_bytes("1MiB")  # after which it flushes

    def __post_init__(self) -> None:
        if self.writers < 1 or self.bytes_per_second < 1 or self.block < 1:
            raise ValueError("writers, bytes_per_second and block must be at least 1")


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; from the main thread.

    Raises:
        LabError: there is no such broker.
    """
    with undoing(target) as active:
        node = node_of(target, config.node)
        numbers = str(config.bytes_per_second), str(config.block)
        command = [sys.executable, "-m", "soak.lab.neighbour", str(node.data_directory), *numbers]
        log = node.log_path.with_name("neighbour.log")
        for _ in range(config.writers):
            spawned(active, command, log)
        active.did(writers=config.writers)
    return active
