"""Free space on brokers' drives: checked before a run and watched during it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from soak.app.preflight.host import check_host
from soak.conductor.free_space import FreeSpace, watched_folders
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text

PLAN = """name: x
broker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}
probes: {disk_io: {directory: /proc}}
free_space_floor: FLOOR
"""


@pytest.mark.parametrize(("floor", "full"), [("1MiB", "/proc"), ("1000000TiB", "below")])
def test_the_check_refuses_a_drive_with_too_little_space(
    tmp_path: Path, floor: str, full: str
) -> None:
    """/proc never has free space, and no drive has as much as the other floor."""
    plan_file = plan_text.load(PLAN.replace("FLOOR", floor), "p.yaml")
    place = str(tmp_path) if full == "below" else full

    with pytest.raises(PlanError, match=rf"p\.yaml:4: free_space_floor: {place} has .* free"):
        check_host(plan_file, tmp_path)


def test_each_drive_is_read_and_one_that_hangs_does_not_block_the_others() -> None:
    """The last known value counts; a folder that does not exist has none."""
    was_read, forever = threading.Event(), threading.Event()
    sizes = iter([700, 23])

    def read(directory: str) -> int:
        if directory == "/gone":
            raise FileNotFoundError(directory)
        if directory == "/hangs":
            forever.wait(60)
        size = next(sizes, None)
        if size is None:
            was_read.set()
            return 23
        return size

    with FreeSpace(["/hangs", "/gone", "/full"], read, every_seconds=0.0) as space:
        assert was_read.wait(60)
        seen = space.free_bytes()
    forever.set()

    assert seen == {"/full": 23}


def test_the_drives_of_a_lab_may_be_filled() -> None:
    text = PLAN.replace("{bootstrap_servers: '127.0.0.1:9'}", "{}").replace("FLOOR", "1MiB")
    cluster, lab = (plan_text.load(text + more, "p").plan for more in ("", "lab: {}\n"))

    assert (watched_folders(cluster), watched_folders(lab)) == (["/proc"], [])
