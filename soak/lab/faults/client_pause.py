"""Stops the producers of the run, as a host does that swaps or is moved: what is late then is our own fault.

Needs: nothing. SIGSTOP and SIGCONT, to children of this process that die with it.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults._daemons import paused
from soak.lab.faults._undoing import Undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    """There is nothing to set."""


def inject(target: Target, config: Config) -> Undoing:  # noqa: ARG001  # the seam
    """Begin at once.

    Raises:
        LabError: none of them runs.
    """
    return paused(target, "produce")
