"""Has a bookie compact its entry logs, beside the load, again and again.

Where there is nothing to compact, `fill` writes something before; `per_mib` has the drive read it as slowly
as one that the kernel keeps nothing of.

Needs: a lab's Pulsar; `per_mib` needs it on an injected drive (`lab.drive`), so root and FUSE.
"""

from __future__ import annotations

import json
import urllib.request

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan import Lab
from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, Size, duration_ns
from soak.lab import page_cache
from soak.lab.faults import _half_wanted
from soak.lab.faults._lacking import lacking_drive
from soak.lab.faults._stopped import Stopping
from soak.lab.faults._undoing import drive_of
from soak.lab.ports import Target

_NO_BOOKIE = "compaction needs a lab's Pulsar: only a bookie compacts"
_ASK_SECONDS = 10.0
_ENTRY_LOGS = "**/current/*.log"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    every: Duration = duration_ns("2s")
    after: Duration = 0  # from the injection to the first compaction
    fill: Size = 0  # written at the injection, half of it deleted again
    per_mib: Duration = 0  # that is read while it compacts, in which the drive writes nothing

    def __post_init__(self) -> None:
        if self.every <= 0:
            raise ValueError("every must be above 0s")
        if min(self.after, self.fill, self.per_mib) < 0:
            raise ValueError("after, fill and per_mib must not be below 0")


def lacks(lab: Lab, config: Config) -> str:
    """Return what the lab of a plan lacks, or ""."""
    if not lab.broker.startswith("pulsar"):
        return _NO_BOOKIE
    return lacking_drive(lab, 1) if config.per_mib else ""


def inject(target: Target, config: Config) -> Stopping:
    """Begin when it is filled and `after` is over.

    Raises:
        LabError: the lab has no bookie, its drive is not injected, or it takes no messages.
    """
    bookie = target.broker.addresses.get("bookie_urls", "")
    if not bookie:
        raise LabError(_NO_BOOKIE)
    drive = drive_of(target, 1) if config.per_mib else None
    if config.fill:
        _half_wanted.fill(target, config.fill)
    request = urllib.request.Request(  # noqa: S310  # loopback
        f"{bookie}/api/v1/bookie/gc",
        json.dumps({"forceMajor": True, "forceMinor": True}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )

    def compact(active: Stopping) -> None:
        if active.is_lifted_in(config.after):
            return
        if drive is not None:
            drive.read_slowly(config.per_mib / SECOND_NS)
            page_cache.forget_all(target.broker.data_directory.glob(_ENTRY_LOGS))
            drive.forget()
        try:
            again_and_again(active)
        finally:
            if drive is not None:
                drive.read_slowly(0.0)

    def again_and_again(active: Stopping) -> None:
        while True:
            at_wall_ns = target.clock.wall_ns()
            with urllib.request.urlopen(request, timeout=_ASK_SECONDS):  # noqa: S310  # as above
                active.has_begun(at_wall_ns)
            target.record({"at_wall_ns": at_wall_ns, "compaction": True})
            if active.is_lifted_in(config.every):
                return

    active = Stopping("compaction", target, compact)
    active.begin()
    return active
