"""Does nothing: a drill with it is a run in which nothing may be found.

Needs: nothing.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    """There is nothing to set."""


def inject(target: Target, config: Config) -> Undoing:  # noqa: ARG001  # the seam
    """Begin at once."""
    with undoing(target) as active:
        active.did(nothing=True)
    return active
