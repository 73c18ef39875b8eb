"""What our own daemons use: known by their command lines, each with what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from probes import _own_daemons as own
from probes._own_daemons import OwnDaemons, Usage, daemon_of
from soak.service import children
from tests.fakes import FakeClock


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m soak.cli.main produce --index 2 --run-dir runs/x", "produce.2"),
        ("python -m soak.cli.main probe --run-dir runs/x", "probe"),
        (
            "/opt/soakd/bin/python /opt/soakd/bin/soak detect-stream --run-dir runs/x",
            "detect-stream",
        ),
        ("soak report runs/x", "report"),
        ("soak finish --home /var/lib/soak/x", "finish"),
        ("soak alert --owed /var/lib/soak/x --telling /etc/soak/x.yaml", "alert"),
        ("soak check plan.yaml", ""),
        ("grep --run-dir soak.cli.main", ""),
        ("soak", ""),
        ("", ""),
    ],
)
def test_a_daemon_is_known_by_its_command_line(command: str, name: str) -> None:
    """The name is the one that its journal has."""
    assert daemon_of(command.split()) == name


Second = dict[int, tuple[str, Usage]]
"""The processes of a second: what a look at each tells, and what it has used."""


def samples(seconds: list[Second]) -> list[dict[str, float]]:
    """Return what is told in each second."""
    clock = FakeClock()
    now: Second = {}
    daemons = OwnDaemons(
        clock,
        pids=lambda: now,
        look=lambda pid, _: now[pid][0],
        ask=lambda pid: now[pid][1] if pid in now else None,
    )
    found = []
    for second in seconds:
        now.clear()
        now.update(second)
        found.append({column.name: value for column, value in daemons.samples()})
        clock.advance(1)
    return found


def cores(found: list[dict[str, float]], daemon: str) -> list[float | None]:
    return [second.get(f'host_daemon_cpu_cores{{daemon="{daemon}"}}') for second in found]


def test_a_daemon_counts_with_what_it_started() -> None:
    """Two processes: cores and bytes add up; CPU from the second look on."""
    name = "detect-stream"
    first, second = samples(
        [
            {7: (name, Usage(10.0, 100)), 8: (name, Usage(50.0, 1000)), 9: ("", Usage(1.0, 1))},
            {7: (name, Usage(10.25, 100)), 8: (name, Usage(50.5, 2000)), 9: ("", Usage(9.0, 9))},
        ]
    )

    assert first == {'host_daemon_resident_bytes{daemon="detect-stream"}': 1100.0}
    assert second == {
        'host_daemon_cpu_cores{daemon="detect-stream"}': 0.75,
        'host_daemon_resident_bytes{daemon="detect-stream"}': 2100.0,
    }


def test_a_process_that_is_new_is_found_at_once_and_brings_no_past_with_it() -> None:
    """What it used before it was seen was not used in this second."""
    old = ("probe", Usage(1.0, 10))
    found = samples(
        [
            *[{7: old}] * 10,
            {7: old, 8: ("report", Usage(50.0, 10))},
            {7: old, 8: ("report", Usage(51.0, 10))},
        ]
    )

    assert cores(found, "report") == [None] * 11 + [1.0]
    assert cores(found, "probe")[-2:] == [0.0, 0.0]


def test_a_process_that_is_gone_is_left_out() -> None:
    found = samples(
        [{7: ("probe", Usage(1.0, 10)), 8: ("alert", Usage(1.0, 10))}]
        + [{7: ("probe", Usage(1.0, 10))}] * 2
    )

    assert cores(found, "alert") == [None] * 3


def test_a_child_that_began_as_its_parent_s_image_is_looked_at_again() -> None:
    """A shell becomes the daemon that it starts; much later the number may be another's."""
    before, after = ("", Usage(1.0, 10)), ("alert", Usage(1.0, 10))
    found = samples([{8: before}] * 3 + [{8: after}] * 2 + [{8: ("", Usage(1.0, 10))}] * 30)

    assert cores(found, "alert")[:5] == [None, None, None, None, 0.0]
    assert cores(found, "alert")[-1] is None


@pytest.mark.parametrize(("is_apart", "name"), [(False, "lab"), (True, "")])
def test_who_begins_a_session_of_its_own_is_no_part_of_its_parent(
    *, is_apart: bool, name: str
) -> None:
    """A lab's broker is started by ours, and is what we measure."""
    child = subprocess.Popen(
        children.mortal([sys.executable, "-c", "input()"]),
        stdin=subprocess.PIPE,
        start_new_session=is_apart,
    )
    try:
        assert own.name_of(child.pid, {os.getpid(): "lab"}) == name
    finally:
        child.communicate(b"\n", timeout=20)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a daemon which has started another process."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(flush=True); input()'])"
    arguments = ["soak.cli.main", "produce", "--index", "3", "--run-dir", "nowhere"]
    process = subprocess.Popen(
        children.mortal([sys.executable, "-c", child, *arguments]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate(b"\n", timeout=20)


def test_this_machine_tells_of_a_daemon_and_of_itself(sleeper: subprocess.Popen[bytes]) -> None:
    """Real processes: found by name, and what they use is there."""
    (child,) = psutil.Process(sleeper.pid).children()
    found = {sleeper.pid: own.name_of(sleeper.pid, {})}
    used = own.usage(sleeper.pid)

    assert found == {sleeper.pid: "produce.3"}
    assert own.name_of(child.pid, found) == "produce.3"
    assert own.name_of(os.getpid(), found) == ""
    assert own.name_of(2**22 + 1, found) == ""
    assert used is not None
    assert used.resident_bytes > 0
    assert own.usage(2**22 + 1) is None
