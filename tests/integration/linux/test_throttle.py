"""A limit on writes by a cgroup: whom it held goes back to where it came from, and others' groups stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.lab import files
from soak.lab.drive import throttle
from soak.lab.drive.throttle import NOTES, V1, Throttle

pytestmark = pytest.mark.slow

_HOLDER = """
import sys, time
from soak.lab.drive.throttle import Throttle
Throttle(sys.argv[1], 5).add(int(sys.argv[2]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def device() -> str:
    found = sorted(path.name for path in Path("/sys/block").iterdir())
    if not found:
        pytest.skip("this machine has no block device")
    lack = Throttle(found[0], 5).missing
    if lack or not V1.exists():
        pytest.skip(
            lack or "no blkio controller of version 1 here, in which this test makes a group"
        )
    return found[0]


@pytest.fixture
def home(device: str) -> Iterator[Path]:
    """A group of its own, as a service or a container has one."""
    path = V1 / f"soakd-test-{os.getpid()}-{device}"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture
def held(home: Path) -> Iterator[int]:
    """A process in that group."""
    with subprocess.Popen(["sleep", "600"]) as process:
        (home / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
        process.kill()


def members(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def test_who_is_let_go_is_back_in_the_group_it_came_from(
    home: Path, held: int, device: str
) -> None:
    """Also when it was held twice; nothing is known of the group afterwards."""
    made = Throttle(device, 5)
    made.add(held)
    made.add(held)
    during = members(home)
    made.lift()
    made.lift()

    assert (during, members(home)) == ([], [held])
    assert not list(V1.glob(f"soakd-lab-*-{os.getpid()}-*"))
    assert not list(NOTES.glob(f"*-{os.getpid()}-*"))


def test_what_a_killed_process_held_is_let_go_by_the_next(
    home: Path, held: int, device: str
) -> None:
    """To where it came from, which that process alone knew."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, device, str(held)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        during = members(home)
        holder.kill()

    throttle.clear_abandoned()

    assert (during, members(home)) == ([], [held])
    assert not list(V1.glob(f"soakd-lab-*-{holder.pid}-*"))


@pytest.mark.usefixtures("device")
def test_a_note_without_its_group_goes_too() -> None:
    """Who wrote it was killed before it made the group, or after it took that away."""
    with subprocess.Popen(["true"]) as gone:
        pass
    name = "soakd-lab-" + files.own_mark().replace(f"-{os.getpid()}-", f"-{gone.pid}-")
    NOTES.mkdir(parents=True, exist_ok=True)
    ours, theirs = NOTES / name, NOTES / f"soakd-lab-1-{gone.pid}-1"
    for note in (ours, theirs):
        note.write_text("{}")
    try:
        throttle.clear_abandoned()

        assert (ours.exists(), theirs.exists()) == (False, True)
    finally:
        theirs.unlink()


def test_what_another_user_left_stops_nobody(home: Path, held: int, device: str) -> None:
    """Who is not root leaves it there."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, device, str(held)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    child = os.fork()
    if child == 0:  # nothing of the test may run on here
        try:
            os.setuid(65534)
            throttle.clear_abandoned()
        except BaseException:  # noqa: BLE001  # the exit code says it
            os._exit(1)
        os._exit(0)

    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    after = members(home)
    throttle.clear_abandoned()

    assert (code, after, members(home)) == (0, [], [held])


def test_a_group_of_another_container_stays(device: str) -> None:
    """Its process id is from another namespace, so it may still run."""
    group = V1 / f"soakd-lab-1-{os.getpid()}-{len(device)}"
    group.mkdir()
    try:
        throttle.clear_abandoned()

        assert group.is_dir()
    finally:
        group.rmdir()
