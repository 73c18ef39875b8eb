"""Sets the clock of the daemons that measure, as a time server does that comes back.

The clock of the machine stays what it is, and so do those of brokers, of the clients' libraries and of the
detector.

Needs: nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab import set_clock
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target
from soak.lab.whole_file import replace_text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    by: Duration = duration_ns("3s")
    direction: Literal["back", "forth"] = "back"

    def __post_init__(self) -> None:
        if self.by < SECOND_NS:
            raise ValueError("by must be at least 1s")


def environment(folder: Path) -> dict[str, str]:
    """Return what the daemons' environment needs, from their start on; it leads to files in the folder."""
    _set(folder / "clock", 0)
    shutil.copyfile(set_clock.__file__, folder / "sitecustomize.py")
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(places), set_clock.VARIABLE: str(folder / "clock")}


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; the daemons see it within a second.

    Raises:
        LabError: the daemons were not started so.
    """
    if set_clock.VARIABLE not in target.environment:
        raise LabError("clock_step: the daemons were not started under a clock that can be set")
    file = Path(target.environment[set_clock.VARIABLE])
    with undoing(target) as active:
        active.on_lift(_set, file, 0)
        by_ns = config.by if config.direction == "forth" else -config.by
        _set(file, by_ns)
        active.did(by_ns=by_ns)
    return active


def _set(file: Path, by_ns: int) -> None:
    replace_text(file, str(by_ns))
