"""What our own daemons use: known by their command lines, each with what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

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


def samples(looks: list[dict[int, str]], uses: list[dict[int, Usage]]) -> list[dict[str, float]]:
    """Return what is told in each second; there is a look every 30 s."""
    clock = FakeClock()
    now: dict[int, Usage] = {}
    daemons = OwnDaemons(clock, look=lambda: looks.pop(0), ask=now.get)
    found = []
    for used in uses:
        now.clear()
        now.update(used)
        found.append({column.name: value for column, value in daemons.samples()})
        clock.advance(1)
    return found


def test_a_daemon_counts_with_what_it_started() -> None:
    """Two processes of one session: cores and bytes add up; CPU from the second look on."""
    first, second = samples(
        [{7: "detect-stream", 8: "detect-stream"}],
        [{7: Usage(10.0, 100), 8: Usage(50.0, 1000)}, {7: Usage(10.25, 100), 8: Usage(50.5, 2000)}],
    )

    assert first == {'host_daemon_resident_bytes{daemon="detect-stream"}': 1100.0}
    assert second == {
        'host_daemon_cpu_cores{daemon="detect-stream"}': 0.75,
        'host_daemon_resident_bytes{daemon="detect-stream"}': 2100.0,
    }


def test_a_process_that_is_new_brings_no_past_with_it() -> None:
    """What it used before it was seen was not used in this second."""
    uses = [{7: Usage(1.0, 10)}] * 31 + [{7: Usage(1.0, 10), 8: Usage(50.0, 10)}]
    found = samples([{7: "probe"}, {7: "probe", 8: "probe"}], uses)

    assert found[-1]['host_daemon_cpu_cores{daemon="probe"}'] == 0.0


def test_a_process_that_is_gone_is_left_out() -> None:
    """It may end between two looks."""
    found = samples([{7: "probe", 8: "alert"}], [{7: Usage(1.0, 10)}, {7: Usage(1.0, 10)}])

    assert not any("alert" in name for name in found[-1])


def test_one_that_is_started_again_is_found_within_seconds() -> None:
    """The next look would be half a minute after the first."""
    gone, back = {1: Usage(1.0, 10)}, {1: Usage(1.0, 10), 9: Usage(3.0, 10)}
    uses = [{1: Usage(1.0, 10), 7: Usage(5.0, 10)}, gone, gone, back, {**gone, 9: Usage(4.0, 10)}]
    found = samples([{1: "probe", 7: "detect-stream"}, {1: "probe", 9: "detect-stream"}], uses)

    assert [one.get('host_daemon_cpu_cores{daemon="detect-stream"}') for one in found] == [
        *[None] * 4,
        1.0,
    ]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a daemon which has started another process."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    arguments = ["soak.cli.main", "produce", "--index", "3", "--run-dir", "nowhere"]
    process = subprocess.Popen(
        children.mortal([sys.executable, "-c", f"print(flush=True); {child}", *arguments]),
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
    found = own.processes()
    used = own.usage(sleeper.pid)

    assert found[sleeper.pid] == "produce.3"
    assert os.getpid() not in found
    assert used is not None
    assert used.resident_bytes > 0
    assert own.usage(2**22 + 1) is None
