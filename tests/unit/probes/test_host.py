"""The host probe: two snapshots in, exact ratios and rates out; and the resources of our own daemons."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from probes.host import (
    Config,
    Counters,
    Host,
    OwnDaemons,
    Snapshot,
    Usage,
    daemon_name,
    daemon_of,
    process_usage,
    snapshot,
)
from soak.core.errors import PartialReadingError
from soak.service import children
from tests.support.fakes import FakeClock

BEFORE = {
    "user": 100.0,
    "nice": 1.0,
    "system": 50.0,
    "idle": 1000.0,
    "iowait": 20.0,
    "irq": 0.0,
    "softirq": 3.0,
    "steal": 4.0,
    "swap_in": 0.0,
    "swap_out": 4096.0,
}
ETH = {"received": 1_000_000.0, "sent": 2_000_000.0, "errors": 1.0, "drops": 0.0}
VETH = {"received": 60e6, "sent": 5e9, "errors": 0.0, "drops": 0.0}  # of a container
GROWN = {"user": 1.0, "system": 0.5, "idle": 2.0, "iowait": 0.23, "steal": 0.27}
TRAFFIC = {"received": 46_000.0, "sent": 92_000.0, "drops": 23.0}


def readings(
    *counters: dict[str, float], interfaces: Sequence[Counters] = ({}, {})
) -> list[dict[str, float]]:
    """Return one reading each, two seconds apart."""
    clock = FakeClock()
    pairs = zip(counters, interfaces, strict=True)
    waiting = [Snapshot(each, nics, 23 * 2**30, 2**20, 1.5, 4) for each, nics in pairs]
    alone = OwnDaemons(clock, pids=list)
    probe = Host(Config(), clock, ask=lambda: waiting.pop(0), daemons=alone)
    found = []
    for _ in counters:
        found.append({column.metric: value for column, value in probe.read().samples})
        clock.advance(2)
    return found


def grown(by: dict[str, float]) -> dict[str, float]:
    return {key: value + by.get(key, 0.0) for key, value in BEFORE.items()}


def network(reading: dict[str, float]) -> dict[str, float]:
    stem = "host_network_"
    return {name.removeprefix(stem): at for name, at in reading.items() if name.startswith(stem)}


def test_ratios_are_of_all_cores_and_rates_are_per_second() -> None:
    """Two cores in two seconds have four seconds of CPU; steal counts as busy, waiting for IO as idle."""
    eth = {key: value + TRAFFIC.get(key, 0.0) for key, value in ETH.items()}
    first, second = readings(BEFORE, grown(GROWN), interfaces=({"eth0": ETH}, {"eth0": eth}))

    assert set(first) == {
        "host_memory_available_bytes",
        "host_swap_used_bytes",
        "host_load_1m",
        "host_cpu_count",
    }
    assert second == pytest.approx(
        {
            "host_cpu_ratio": 1.77 / 4,
            "host_cpu_steal_ratio": 0.27 / 4,
            "host_cpu_iowait_ratio": 0.23 / 4,
            "host_memory_available_bytes": 23 * 2**30,
            "host_swap_used_bytes": 2**20,
            "host_load_1m": 1.5,
            "host_cpu_count": 4.0,
            "host_swap_in_bytes": 0.0,
            "host_swap_out_bytes": 0.0,
            "host_network_received_bytes": 23_000.0,
            "host_network_sent_bytes": 46_000.0,
            "host_network_errors": 0.0,
            "host_network_drops": 11.5,
        }
    )


def test_there_are_no_ratios_if_a_mode_goes_backwards() -> None:
    """As after a move to another host: the sum would be wrong."""
    _, second = readings(BEFORE, grown(GROWN | {"steal": -0.01}))

    assert not any(metric.startswith("host_cpu") and metric.endswith("ratio") for metric in second)


@pytest.mark.parametrize("moved", [{"iowait": -0.5, "idle": 2.73}, {"iowait": 2.73, "idle": -0.5}])
def test_time_that_moves_between_idle_and_iowait_costs_only_their_ratio(
    moved: dict[str, float],
) -> None:
    """The kernel moves it when a task that waited has woken up: with many processors in most seconds."""
    _, second = readings(BEFORE, grown(GROWN | moved))

    assert second["host_cpu_ratio"] == pytest.approx(1.77 / 4)
    assert second["host_cpu_steal_ratio"] == pytest.approx(0.27 / 4)
    assert "host_cpu_iowait_ratio" not in second


@pytest.mark.parametrize("is_there_first", [False, True])
def test_an_interface_that_comes_or_goes_is_no_traffic(*, is_there_first: bool) -> None:
    """Rates cover the interfaces of both readings."""
    eth = {key: value + TRAFFIC.get(key, 0.0) for key, value in ETH.items()}
    both, one = ({"eth0": ETH, "veth1": VETH}, {"eth0": eth})
    if not is_there_first:
        both, one = ({"eth0": ETH}, {"eth0": eth, "veth1": VETH})

    _, second = readings(BEFORE, BEFORE, interfaces=(both, one))

    assert network(second) == {
        "received_bytes": 23_000.0,
        "sent_bytes": 46_000.0,
        "errors": 0.0,
        "drops": 11.5,
    }


def test_a_counter_that_wraps_has_no_sum() -> None:
    """The sum over the other interfaces is not that of the host."""
    eth = {**ETH, "received": 5.0}
    nics = ({"eth0": ETH, "eth1": ETH}, {"eth0": eth, "eth1": ETH})

    _, second = readings(BEFORE, BEFORE, interfaces=nics)

    assert network(second) == {"sent_bytes": 0.0, "errors": 0.0, "drops": 0.0}


def test_this_host_answers() -> None:
    """Psutil has every field that is used."""
    found = snapshot()

    assert set(found.counters) == set(BEFORE)
    assert all(set(by) == set(ETH) for by in found.interfaces.values())
    assert all(math.isfinite(value) and value >= 0 for value in found.counters.values())
    assert found.memory_available_bytes
    assert found.trouble == ""


def test_a_damaged_file_of_proc_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lxcfs gave it in a container: one number in place of the times of all modes."""
    (tmp_path / "net").mkdir()
    for name in ("meminfo", "vmstat", "net/dev"):
        (tmp_path / name).write_bytes(Path("/proc", name).read_bytes())
    (tmp_path / "stat").write_text("cpu  2568500776029407000000\ncpu0 35034 60 48184 988896\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    found = snapshot()

    assert found.trouble.startswith("cannot read the host's CPU times: ")
    assert set(found.counters) == {"swap_in", "swap_out"}
    assert all(set(by) == set(ETH) for by in found.interfaces.values())
    assert found.memory_available_bytes


@pytest.mark.filterwarnings("ignore:'sin' and 'sout'")
@pytest.mark.parametrize("vmstat", [None, "nr_free_pages 23\n"])
def test_swap_traffic_that_the_kernel_does_not_count_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vmstat: str | None
) -> None:
    """As in gVisor, or with a masked file: psutil has zeros there, which were not measured."""
    (tmp_path / "net").mkdir()
    for name in ("stat", "meminfo", "net/dev"):
        (tmp_path / name).write_bytes(Path("/proc", name).read_bytes())
    if vmstat is not None:
        (tmp_path / "vmstat").write_text(vmstat)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    found = snapshot()

    assert set(found.counters) == set(BEFORE) - {"swap_in", "swap_out"}
    assert found.swap_used_bytes is not None
    assert found.trouble == ""


def test_what_can_be_read_is_kept_beside_what_cannot() -> None:
    """The reading has failed in part: the reason is reported, and the rest goes on."""
    clock = FakeClock()
    damaged = Snapshot({}, {}, 23, None, 1.5, 4, "cannot read the host's swap: no such file")
    alone = OwnDaemons(clock, pids=list)

    with pytest.raises(PartialReadingError, match="swap: no such file") as caught:
        Host(Config(), clock, ask=lambda: damaged, daemons=alone).read()

    found = {column.metric: value for column, value in caught.value.reading.samples}
    assert found == {
        "host_memory_available_bytes": 23.0,
        "host_load_1m": 1.5,
        "host_cpu_count": 4.0,
    }


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
        ("soak service finish --home /var/lib/soak/x", "finish"),
        ("soak alert --pending /var/lib/soak/x --sinks-from /etc/soak/x.yaml", "alert"),
        ("soak alert --owed /var/lib/soak/x --telling /etc/soak/x.yaml", "alert"),
        ("soak check plan.yaml", ""),
        ("grep --run-dir soak.cli.main", ""),
        ("soak", ""),
        ("", ""),
    ],
)
def test_a_daemon_is_known_by_its_command_line(command: str, name: str) -> None:
    """The name is that of its journal."""
    assert daemon_of(command.split()) == name


Second = dict[int, tuple[str, Usage]]
"""The processes of a second: what a look at each tells, and what it has used."""


def samples(seconds: list[Second]) -> list[dict[str, float]]:
    """Return the samples of each second."""
    clock = FakeClock()
    now: Second = {}
    daemons = OwnDaemons(
        clock,
        pids=lambda: now,
        name=lambda pid, _: now[pid][0],
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


def test_a_daemon_includes_its_children() -> None:
    """Cores and bytes are summed; CPU from the second reading on."""
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


def test_a_new_process_is_found_at_once_and_starts_at_zero() -> None:
    """CPU used before it was found is not counted."""
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


def test_a_process_that_has_ended_is_left_out() -> None:
    """Its resources are no longer counted."""
    found = samples(
        [{7: ("probe", Usage(1.0, 10)), 8: ("alert", Usage(1.0, 10))}]
        + [{7: ("probe", Usage(1.0, 10))}] * 2
    )

    assert cores(found, "alert") == [None] * 3


def test_a_new_child_is_scanned_again() -> None:
    """It starts as a copy of its parent; much later its process id may be reused."""
    before, after = ("", Usage(1.0, 10)), ("alert", Usage(1.0, 10))
    found = samples([{8: before}] * 3 + [{8: after}] * 2 + [{8: ("", Usage(1.0, 10))}] * 30)

    assert cores(found, "alert")[:5] == [None, None, None, None, 0.0]
    assert cores(found, "alert")[-1] is None


def test_thousands_of_processes_are_scanned_in_turns() -> None:
    """A scan of all at one instant would delay the reading of that second."""
    clock, scanned = FakeClock(), list[int]()

    def name(pid: int, _known: Mapping[int, str]) -> str:
        scanned.append(pid)
        return ""

    daemons = OwnDaemons(clock, pids=lambda: range(1, 3001), name=name, ask=lambda _: None)
    for _ in range(4):  # in which all of them are new
        daemons.samples()
        clock.advance(1)
    scanned.clear()
    most = 0
    for _ in range(60):
        before = len(scanned)
        daemons.samples()
        most = max(most, len(scanned) - before)
        clock.advance(1)

    assert set(scanned) == set(range(1, 3001))
    assert most <= 301


@pytest.mark.parametrize(("is_apart", "name"), [(False, "lab"), (True, "")])
def test_the_leader_of_a_session_does_not_count_for_its_parent(
    *, is_apart: bool, name: str
) -> None:
    """A lab's broker is started by us and is what we measure."""
    child = subprocess.Popen(
        children.with_death_signal([sys.executable, "-c", "input()"]),
        stdin=subprocess.PIPE,
        start_new_session=is_apart,
    )
    try:
        assert daemon_name(child.pid, {os.getpid(): "lab"}) == name
    finally:
        child.communicate(b"\n", timeout=20)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a daemon which has started another process."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(flush=True); input()'])"
    arguments = ["soak.cli.main", "produce", "--index", "3", "--run-dir", "nowhere"]
    process = subprocess.Popen(
        children.with_death_signal([sys.executable, "-c", child, *arguments]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.communicate(b"\n", timeout=20)


def test_real_processes_are_found_by_name(sleeper: subprocess.Popen[bytes]) -> None:
    """With the resources that they use."""
    (child,) = psutil.Process(sleeper.pid).children()
    found = {sleeper.pid: daemon_name(sleeper.pid, {})}
    used = process_usage(sleeper.pid)

    assert found == {sleeper.pid: "produce.3"}
    assert daemon_name(child.pid, found) == "produce.3"
    assert daemon_name(os.getpid(), found) == ""
    assert daemon_name(2**22 + 1, found) == ""
    assert used is not None
    assert used.resident_bytes > 0
    assert process_usage(2**22 + 1) is None
