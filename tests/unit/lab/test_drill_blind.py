"""Drills are blind: nothing that detects, or that measures for it, can come to know what was injected."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.report import job as report
from tests.support.detection.blind_world import JUDGED, KEPT
from tests.support.paths import ROOT

LAB = re.compile(
    r"(from|import) soak\.lab|\.faults\b|faults\.jsonl|drill\.json|control\.json|counters\.json|network\.json"
    r"|SOAKD_LAB|soakd-drill"
)
OF_A_DRILL = re.compile(
    r"soak\.lab\.(faults|drills)"
    r"|\.faults\b|faults\.jsonl|drill\.json|control\.json|counters\.json|network\.json|soakd-drill"
)
"""Names that modules which start a lab may not use either."""

MEASURE_OR_DETECT = [
    *("detectors", "probes", "spark"),
    *sorted(
        f"soak/{path.parent.name}"
        for path in (ROOT / "soak").glob("*/__init__.py")
        if path.parent.name not in ("lab", "app", "cli")
    ),
]


def strays(package: str, names: re.Pattern[str]) -> Iterator[str]:
    """Give the modules that name it; excepted are the folder's own list of names, and who declares."""
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        if path == ROOT / "spark" / "report" / "job.py":
            text = text.replace(inspect.getsource(report.drill_of), "")
        if path.name != "run_folder.py" and names.search(text):
            yield str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", MEASURE_OR_DETECT)
def test_no_code_that_measures_or_detects_names_what_a_lab_keeps(package: str) -> None:
    """Neither its modules nor its files."""
    assert list(strays(package, LAB)) == []


def test_no_command_but_those_of_the_lab_names_what_a_drill_keeps() -> None:
    """A run of a drill consists of the commands of any run."""
    found = {name for package in ("soak/app", "soak/cli") for name in strays(package, OF_A_DRILL)}

    assert found == {"soak/app/lab/drills.py", "soak/app/lab/matrix.py", "soak/app/lab/trials.py"}


@pytest.mark.long
def test_neither_the_detector_nor_its_second_look_opens_what_a_drill_keeps(tmp_path: Path) -> None:
    """All of it lies there already. Only once the findings are judged the page asks what was declared."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.detection.blind_world", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    names = [Path(path).name for path in said["did"]]
    judging = names[: len(names) - names[::-1].index(JUDGED)]
    showing = names[len(judging) :]
    assert said["found"] > 0
    assert "000000.jsonl" in judging
    assert [name for name in judging if name in KEPT] == []
    assert [name for name in showing if name in KEPT] == ["faults.jsonl"]
