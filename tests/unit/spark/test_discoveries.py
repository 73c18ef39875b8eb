"""What was found waits for attribution in a file, in the order of its time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import FindingsError
from soak.core.model import Change
from spark.streaming.discoveries import Discoveries

CHANGE = Change("probe@a|x", 7, 5, (4, 6), 1.0, float("nan"), "warning", 0.9, discovered_k=7)


def test_changes_are_taken_in_the_order_in_which_they_were_discovered(tmp_path: Path) -> None:
    """A source that lags adds its own later."""
    one = Discoveries(tmp_path / "new" / "attribution.db")
    one.add([replace(CHANGE, discovered_k=k) for k in (9, 12)])
    one.add([replace(CHANGE, discovered_k=8, state="confirmed")])

    found = one.up_to(9).values()

    assert [(change.discovered_k, change.state) for change in found] == [
        (8, "confirmed"),
        (9, "warning"),
    ]
    assert one.first_k() == 8


def test_what_is_added_while_a_moment_is_judged_is_kept(tmp_path: Path) -> None:
    """It came late: the next moment takes it. A process that starts anew knows the last one."""
    one = Discoveries(tmp_path / "attribution.db")
    one.add([CHANGE])
    taken = one.up_to(10)
    one.add([replace(CHANGE, discovered_k=3)])
    one.settle(10, taken)

    again = Discoveries(one.path)
    assert (again.moment_k(), again.first_k()) == (10, 3)
    again.forget()
    assert (again.moment_k(), again.first_k()) == (-1, None)


def test_a_damaged_file_is_an_error_of_the_findings(tmp_path: Path) -> None:
    path = tmp_path / "attribution.db"
    path.write_bytes(b"no database" * 100)

    with pytest.raises(FindingsError, match=r"attribution\.db"):
        Discoveries(path).first_k()
