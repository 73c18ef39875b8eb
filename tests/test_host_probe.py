"""The host probe: two snapshots in, exact shares and rates out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from probes._interfaces import Counters
from probes._own_daemons import OwnDaemons
from probes.host import Config, Host, Snapshot, snapshot
from tests.fakes import FakeClock

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


def test_shares_are_of_all_cores_and_rates_are_a_second() -> None:
    """Two cores for two seconds are four seconds of CPU; steal counts as busy, waiting for IO as idle."""
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


def test_a_mode_that_goes_backwards_leaves_the_shares_out() -> None:
    """The kernel's iowait does that; a share of a wrong sum would be a wrong share."""
    _, second = readings(BEFORE, grown(GROWN | {"iowait": -0.01}))

    assert not any(metric.startswith("host_cpu") and metric.endswith("ratio") for metric in second)


@pytest.mark.parametrize("is_there_first", [False, True])
def test_a_container_that_comes_or_goes_is_no_traffic(*, is_there_first: bool) -> None:
    """Its interface takes its counters along: the rates are those of what was there both times."""
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


def test_a_counter_that_wraps_takes_its_sum_along() -> None:
    """What the other interfaces had is not what the host had."""
    eth = {**ETH, "received": 5.0}
    nics = ({"eth0": ETH, "eth1": ETH}, {"eth0": eth, "eth1": ETH})

    _, second = readings(BEFORE, BEFORE, interfaces=nics)

    assert network(second) == {"sent_bytes": 0.0, "errors": 0.0, "drops": 0.0}


def test_this_machine_answers() -> None:
    """Psutil has every field that we take."""
    found = snapshot()

    assert set(found.counters) == set(BEFORE)
    assert all(set(by) == set(ETH) for by in found.interfaces.values())
    assert all(math.isfinite(value) and value >= 0 for value in found.counters.values())
    assert found.memory_available_bytes > 0
