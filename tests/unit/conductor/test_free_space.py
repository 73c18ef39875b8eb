"""No run fills a drive up: none begins that would, and a running one sees how a broker's fills."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from soak.app.preflight import check_host
from soak.conductor.free_space import FreeSpace, watched_folders
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text

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
        check_host(plan_file, tmp_path)


def test_each_drive_is_followed_and_one_that_hangs_holds_up_nobody() -> None:
    """What it said last stands; a folder that is not on this host says nothing."""
    looked, forever = threading.Event(), threading.Event()
    sizes = iter([700, 23])

    def look(directory: str) -> int:
        if directory == "/gone":
            raise FileNotFoundError(directory)
        if directory == "/hangs":
            forever.wait(60)
        left = next(sizes, None)
        if left is None:
            looked.set()
            return 23
        return left

    with FreeSpace(["/hangs", "/gone", "/full"], look, every_seconds=0.0) as space:
        assert looked.wait(60)
        seen = space.free_bytes()
    forever.set()

    assert seen == {"/full": 23}


def test_the_drives_of_a_lab_are_there_to_be_filled() -> None:
    text = PLAN.replace("{bootstrap_servers: '127.0.0.1:9'}", "{}").replace("FLOOR", "1MiB")
    cluster, lab = (plan_text.load(text + more, "p").plan for more in ("", "lab: {}\n"))

    assert (watched_folders(cluster), watched_folders(lab)) == (["/proc"], [])
