"""Gives a broker's drive work with what is deleted: writes wait while it discards, longer the fuller it is.

Needs: an injected drive with ext4 (`lab.drive`), so root and FUSE, and deletions in the run. Its filesystem
is mounted with `discard` for as long as the fault lasts. It is felt from the first deletion on for which a
write has to wait; begun before the load, as only what is written from then on is known to lie on the drive.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.faults import _sole
from soak.lab.faults._lacking import lacking_own_drive
from soak.lab.faults._undoing import Undoing, drive_of, undoing
from soak.lab.flash import Settings
from soak.lab.ports import Target

_AT_ONCE = 1e9
"""Pages collected a second: this drive never runs out of erased ones, that is another fault."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    node: int = 1  # whose drive, from 1
    kept: float = 0.9  # of the drive, by others, who never delete
    per_mib: Duration = duration_ns("20ms")  # for each MiB discarded, were the drive all but empty

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= 1:
            raise ValueError("kept must lie between 0 and 1")
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


lacks = lacking_own_drive
sole = _sole.drive_pages


def inject(target: Target, config: Config) -> Undoing:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive, or its filesystem refuses.
    """
    drive = drive_of(target, config.node)
    settings = Settings(
        is_full=False,
        kept_ratio=config.kept,
        collected_pages_per_second=_AT_ONCE,
        trim_seconds_per_mib=config.per_mib / SECOND_NS,
    )
    with undoing(target) as active:
        active.on_lift(drive.keep_deleted)
        active.on_lift(drive.age, replace(settings, trim_seconds_per_mib=0.0))
        drive.age(settings)
        drive.discard_deleted()
        active.did(kept_ratio=config.kept, per_mib_ns=config.per_mib)
        active.is_felt_from(lambda: drive.said().held_up_wall_ns)
    return active
