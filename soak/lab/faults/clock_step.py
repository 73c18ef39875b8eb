"""Sets the clock of the daemons that measure, as a time server does that comes back.

The clock of the machine stays what it is, and so do those of brokers and detector.

Needs: libfaketime (Debian: faketime), with which those daemons are started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target

_FILE = "FAKETIME_TIMESTAMP_FILE"
_LIBRARIES = Path("/usr/lib")
_SLEEP = """\
import select
import time


def sleep(seconds):
    select.select((), (), (), seconds)


time.sleep = sleep
"""
"""Read by the daemons' interpreters at their start.

Theirs sleeps until an instant of the monotonic clock, and libfaketime 0.9.10, told to leave that clock alone,
answers EINVAL to it.
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    by: Duration = duration_ns("3s")
    direction: Literal["back", "forth"] = "back"

    def __post_init__(self) -> None:
        if self.by < SECOND_NS:
            raise ValueError("by must be at least 1s")


def missing() -> str:
    """Return what this machine lacks, or ""."""
    return "" if _library() else "clock_step needs libfaketime (Debian: faketime)"


def environment(folder: Path) -> dict[str, str]:
    """Return what the daemons' environment needs, from their start on; it leads to a file in the folder."""
    _set(folder / "clock", 0)
    (folder / "sitecustomize.py").write_text(_SLEEP, encoding="utf-8")
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(places),
        "LD_PRELOAD": _library(),
        _FILE: str(folder / "clock"),
        "FAKETIME_CACHE_DURATION": "1",  # seconds from one look at the file to the next
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once; the daemons see it within a second.

    Raises:
        LabError: this machine cannot, or the daemons were not started so.
    """
    lack = missing()
    if lack:
        raise LabError(lack)
    if _FILE not in target.environment:
        raise LabError("clock_step: the daemons were not started under a clock that can be set")
    file = Path(target.environment[_FILE])
    with undoing(target) as active:
        active.on_lift(_set, file, 0)
        by_ns = config.by if config.direction == "forth" else -config.by
        _set(file, by_ns)
        active.did(by_ns=by_ns)
    return active


def _set(file: Path, by_ns: int) -> None:
    """Replace the file as a whole: it is read at any time."""
    draft = file.with_suffix(".part")
    draft.write_text(f"{by_ns / SECOND_NS:+f}\n")
    draft.replace(file)


def _library() -> str:
    """Return the library's path, that for processes of several threads, or ""."""
    found = sorted(_LIBRARIES.glob("*/faketime/libfaketimeMT.so.1"))
    return str(found[0]) if found else ""
