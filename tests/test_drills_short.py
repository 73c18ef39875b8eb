"""A matrix in seven minutes: two faults of an injected drive, found, told apart, and seen to go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from soak.cli import _lab_drill
from tests.test_lab_drive import remains

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 400

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_SECONDS + 60)]


@pytest.mark.parametrize("name", ["tiny_drive_gc", "tiny_drive_delay"])
def test_a_drill_is_found_and_named_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    """As `soak lab drill` says by its exit code; no mount and no loop device stays."""
    path = ROOT / "tests" / "plans" / f"{name}.yaml"
    lack = _lab_drill.missing(_lab_drill.find(str(path)))
    if lack:
        pytest.skip(lack)
    command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", str(path)]

    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert remains(tmp_path) == []
