"""Waits for a clock that a boot set wrong: the daemons read once a boot which second of the run it is."""

from __future__ import annotations

from collections.abc import Collection

from soak.core import wording
from soak.core.errors import SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, format_duration
from soak.store.journal_reader import last_record, sources
from soak.store.run_folder import RunFolder

LONGEST_NS = 600 * SECOND_NS
"""So long somebody may take to set it; soak-begin@ is stopped some minutes later."""


def await_it(folder: RunFolder, own: Collection[str], clock: Clock) -> None:
    """Return once it is later than what these sources of this host recorded of the run last.

    Raises:
        SoakError: it has not become so in ten minutes.
    """
    recorded_ns = _recorded_ns(folder, own)
    deadline_ns = clock.mono_ns() + LONGEST_NS
    if clock.wall_ns() < recorded_ns:
        print(f"waiting for the clock of this host, which is behind {wording.iso(recorded_ns)}")
    while clock.wall_ns() < recorded_ns:
        if clock.mono_ns() >= deadline_ns:
            raise SoakError(
                f"{folder.path}: the clock of this host says {wording.iso(clock.wall_ns())}, and the run "
                f"has a record of {wording.iso(recorded_ns)}; nobody set it in {format_duration(LONGEST_NS)}"
            )
        clock.sleep_until(clock.mono_ns() + SECOND_NS)


def _recorded_ns(folder: RunFolder, own: Collection[str]) -> int:
    """Return when the newest record was written, 0 where there is none."""
    there = [name for name in sources(folder.journal) if name in own]
    newest = [found[0].at_ns for name in there if (found := last_record(folder.journal, name))]
    return max(newest, default=0)
