"""Does what happens in any run: a daemon of ours dies once and is started again; nothing may be found.

Needs: nothing.
"""

from __future__ import annotations

import os
import signal

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.lab.faults._daemons import daemon_of
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    kills: str = "consume.0"  # which daemon


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; the run's supervisor starts it again.

    Raises:
        LabError: there is no such daemon.
    """
    with undoing(target) as active:
        os.kill(daemon_of(target, config.kills), signal.SIGKILL)
        active.did(killed=config.kills)
    return active
