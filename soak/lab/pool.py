"""What a drive has taken since it lives on a pool of erased pages, by the wall clock."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from soak.lab.drive_control import Said


class Counters(Protocol):
    """The part of a drive that is asked; see `soak.lab.drive.Drive`."""

    def said(self) -> Said: ...


class Pool:
    """Call `look` about once a second: between two looks the drive is taken to be written evenly."""

    def __init__(self, drive: Counters) -> None:
        self._drive = drive
        self._wall_ns: list[int] = []
        self._written_bytes: list[int] = []

    @property
    def allowed_bytes(self) -> int | None:
        """Return what could be written before a write waited; None as long as none did."""
        said = self._drive.said()
        if said.aged_written_bytes is None or said.starved_written_bytes is None:
            return None
        return said.starved_written_bytes - said.aged_written_bytes

    def look(self, at_wall_ns: int) -> None:
        said = self._drive.said()
        if said.aged_written_bytes is not None:
            self._wall_ns.append(at_wall_ns)
            self._written_bytes.append(said.written_bytes - said.aged_written_bytes)

    def written_bytes(self, at_wall_ns: int) -> float | None:
        """Return what had been written by then; None before the first look and after the last."""
        if not self._wall_ns or not self._wall_ns[0] <= at_wall_ns <= self._wall_ns[-1]:
            return None
        return float(np.interp(at_wall_ns, self._wall_ns, self._written_bytes))
