"""Drills are blind: nothing that detects, or that measures for it, can come to know what was injected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOR_THE_READER = ROOT / "spark" / "report.py"
"""Shows in the report, when all is judged, what a drill declared."""

LAB = re.compile(
    r"soak\.lab|\.faults\b|faults\.jsonl|drill\.json|control\.json|counters\.json|network\.json"
    r"|SOAKD_LAB|soakd-drill"
)


@pytest.mark.parametrize("package", ["detectors", "probes", "spark", "soak/daemons", "soak/store"])
def test_no_code_that_measures_or_detects_names_what_a_lab_keeps(package: str) -> None:
    """Neither its modules nor its files; the folder's own list of names excepted."""
    strays = [
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if path != FOR_THE_READER and path.name != "run_folder.py" and LAB.search(path.read_text())
    ]

    assert strays == []
