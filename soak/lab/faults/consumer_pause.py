"""Stops the consumers of the run: a backlog grows, and is read beside the new messages afterwards.

It is felt from the lifting on: who is stopped receives nothing, late or not.

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
    active = paused(target, "consume")
    active.is_felt_when_lifted()
    return active
