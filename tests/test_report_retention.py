"""The retention forecast beside what happened, from `forecast.json` to the page and `summary.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from soak.core.errors import RunFolderError
from soak.core.forecast_text import unknown
from spark import report
from tests.report_run import summary, timeline
from tests.synthetic_run import Shape

TOLD: dict[str, Any] = {
    "first_deletion_seconds": [105.0, 109.0],
    "first_free_seconds": [165.0, 169.0],
    "seen": "in the soak",
    "seen_seconds": 126.0,
    "most_held_bytes": 23 * 2**20,
    "notes": ["by the & by"],
    "warnings": [],
}


def test_the_summary_and_the_page_compare_what_was_foreseen_with_what_happened(
    tmp_path: Path,
) -> None:
    """The run's first deletion is in second 110, three seconds after the middle of the time foreseen."""
    found = timeline(tmp_path, Shape(deletions_k=110))
    found.folder.forecast.write_text(json.dumps(TOLD))

    report.write(found, [], None)

    body = summary(found.folder)["retention"]
    assert body["forecast"] == TOLD
    assert body["happened"] == {
        "first_deletion_seconds": 110.0,
        "first_free_seconds": None,
        "error_seconds": 3.0,
        "error_ratio": 0.028,
        "is_as_foreseen": True,
        "soak_seconds_with_deletions": 125,  # those of the drain do not count
    }
    page = found.folder.report.read_text()
    assert (
        "Old data was first deleted 3 s after the middle of the time foreseen: as foreseen." in page
    )
    assert "1 min 45 s to 1 min 49 s" in page
    assert "By the &amp; by." in page


def test_a_deletion_that_came_at_another_time_is_told_as_such(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(deletions_k=130))
    found.folder.forecast.write_text(json.dumps(TOLD))

    report.write(found, [], None)

    assert summary(found.folder)["retention"]["happened"]["is_as_foreseen"] is False
    assert "not as foreseen" in found.folder.report.read_text()


@pytest.mark.parametrize(
    ("deletions_k", "told", "words"),
    [
        (None, TOLD, "No deletion was seen in this run."),
        (110, unknown("nobody answered"), "Old data was deleted, which was not foreseen."),
    ],
)
def test_what_cannot_be_compared_is_not(
    tmp_path: Path, deletions_k: int | None, told: dict[str, Any], words: str
) -> None:
    found = timeline(tmp_path, Shape(deletions_k=deletions_k))
    found.folder.forecast.write_text(json.dumps(told))

    report.write(found, [], None)

    assert summary(found.folder)["retention"]["happened"]["is_as_foreseen"] is None
    assert words in found.folder.report.read_text()


def test_a_run_that_nobody_looked_at_says_so(tmp_path: Path) -> None:
    found = timeline(tmp_path)

    report.write(found, [], None)

    assert summary(found.folder)["retention"]["forecast"] == {}
    assert "Nobody looked when this target" in found.folder.report.read_text()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    found.folder.forecast.write_text("{")

    with pytest.raises(RunFolderError, match=r"forecast\.json is damaged"):
        report.write(found, [], None)
