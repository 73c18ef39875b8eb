"""No run begins that would fill a drive up: its own, or a broker's that a probe names."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.cli._checks import check_here
from soak.core import plan_text
from soak.core.errors import PlanError

PLAN = """name: x
broker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}
probes: {disk_io: {directory: /proc}}
free_space_floor: FLOOR
"""


@pytest.mark.parametrize(("floor", "full"), [("1MiB", "/proc"), ("1000000TiB", "below")])
def test_a_drive_below_the_floor_is_refused_with_its_folder(
    tmp_path: Path, floor: str, full: str
) -> None:
    """There is never space below /proc, and nowhere as much as the other floor."""
    plan_file = plan_text.load(PLAN.replace("FLOOR", floor), "p.yaml")
    place = str(tmp_path) if full == "below" else full

    with pytest.raises(PlanError, match=rf"p\.yaml:4: free_space_floor: {place} has .* free"):
        check_here(plan_file, tmp_path)
