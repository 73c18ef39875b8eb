"""A run goes on when the clock is right: one that a boot set wrong would count other seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cli._right_clock import LONGEST_NS, await_it
from soak.core.errors import SoakError
from soak.core.journal_text import columns_line, encode
from soak.core.model import Record
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder
from tests.fakes import FakeClock
from tests.shipped_run import START_NS, A, folder_of

OWN = ["probe@h", "produce.0@h"]


def recorded(folder: RunFolder, source: str, at_ns: int) -> None:
    path = folder.journal / source
    path.mkdir(parents=True)
    columns = columns_line([A])
    lines = encode(columns) + encode(Record(7, 1, at_ns, SECOND_NS, columns.id, (1.0,)))
    (path / "000001.jsonl").write_bytes(lines)


@pytest.mark.parametrize(("behind_seconds", "waited_seconds"), [(-1, 0), (0, 0), (40, 40)])
def test_it_is_waited_for(tmp_path: Path, behind_seconds: int, waited_seconds: int) -> None:
    """Another host's clock may be ahead: its records are no measure."""
    folder = folder_of(tmp_path / "r")
    recorded(folder, "probe@h", START_NS)
    recorded(folder, "probe@other.h", START_NS + 3600 * SECOND_NS)
    clock = FakeClock(wall_ns=START_NS - behind_seconds * SECOND_NS)

    await_it(folder, OWN, clock)

    assert clock.mono_ns() == waited_seconds * SECOND_NS


def test_a_clock_that_nobody_sets_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "r")
    recorded(folder, "probe@h", START_NS)
    clock = FakeClock(wall_ns=START_NS - 2 * LONGEST_NS)

    with pytest.raises(SoakError, match=r"2026-\S+, and the run has a record of 2026-"):
        await_it(folder, OWN, clock)


def test_a_run_without_records_goes_on_at_once(tmp_path: Path) -> None:
    clock = FakeClock(wall_ns=0)
    await_it(folder_of(tmp_path / "r"), OWN, clock)

    assert clock.mono_ns() == 0
