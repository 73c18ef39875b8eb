"""The lab's Kafka: it starts, keeps its data, and is never left behind."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from soak.core.errors import LabError, PlanError
from soak.core.plan import plugins
from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka as files
from soak.lab.brokers import kafka as jvm
from soak.lab.faults import all_faults
from soak.lab.lab import start_lab

ONE = files.NodePorts(1, 9092, 9093)


def test_every_lab_broker_and_fault_has_its_seam() -> None:
    """A new file is under test the moment it exists."""
    for name in plugins.names("soak.lab.brokers"):
        module = plugins.load("soak.lab.brokers", name)
        assert {"nodes", "partitions"} <= inspect.signature(module.start).parameters.keys(), name
        assert module.MAX_NODES >= 1, name
        assert module.LOCK.is_file(), name
    for fault in all_faults().values():
        fault.config()


def test_settings_reach_the_broker_but_not_those_that_the_lab_decides(tmp_path: Path) -> None:
    """Where it listens and where its data lies is not for a plan to say."""

    def configured(settings: dict[str, str]) -> str:
        return files.server_properties(tmp_path, ONE, [ONE], settings)

    text = configured({"log.retention.check.interval.ms": "300"})

    assert "log.retention.check.interval.ms=300\n" in text
    with pytest.raises(LabError, match=r"sets log\.dirs"):
        configured({"log.dirs": "/"})
    with pytest.raises(LabError, match="line break"):
        configured({"a": "1\nlog.dirs=/"})


def test_listeners_of_the_settings_come_beside_the_labs_own(tmp_path: Path) -> None:
    """One that demands a password, say; on loopback as the others, and not for several nodes."""
    settings = {
        "listeners": "GUARDED://127.0.0.1:9094",
        "listener.security.protocol.map": "GUARDED:SASL_SSL",
    }
    outside = {"listeners": "GUARDED://0.0.0.0:9094"}

    text = files.server_properties(tmp_path, ONE, [ONE], settings)

    assert "\nlisteners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,GUARDED://" in text
    assert "\nadvertised.listeners=PLAINTEXT://127.0.0.1:9092,GUARDED://127.0.0.1:9094\n" in text
    assert "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_SSL\n" in text
    with pytest.raises(LabError, match=r"127\.0\.0\.1:PORT, not 'GUARDED://0\.0\.0\.0:9094'"):
        files.server_properties(tmp_path, ONE, [ONE], outside)
    with pytest.raises(LabError, match="cannot share a listener's port"):
        files.server_properties(tmp_path, ONE, [ONE, files.NodePorts(2, 9192, 9193)], settings)


@pytest.mark.parametrize(
    ("nodes", "voters", "copies"),
    [(1, "1", "1"), (2, "1", "2"), (3, "1 2 3", "3"), (9, "1 2 3", "3")],
)
def test_a_quorum_is_of_three_or_of_one(
    nodes: int, voters: str, copies: str, tmp_path: Path
) -> None:
    """Of two controllers each would have to live; what clusters keep for themselves has three copies."""
    cluster = [files.NodePorts(at, 9000 + at, 9100 + at) for at in range(1, nodes + 1)]

    texts = [files.server_properties(tmp_path, one, cluster, {}) for one in cluster]

    quorum = ",".join(f"{number}@127.0.0.1:{9100 + int(number)}" for number in voters.split())
    assert all(f"controller.quorum.voters={quorum}\n" in text for text in texts)
    assert [("broker,controller" in text, "CONTROLLER://" in text) for text in texts] == [
        (str(one.number) in voters.split(),) * 2 for one in cluster
    ]
    assert f"offsets.topic.replication.factor={copies}\n" in texts[0]


def test_a_node_of_many_partitions_gets_a_larger_heap(tmp_path: Path) -> None:
    """512 MB do for hundreds; more, and more time, is taken only where it is needed."""
    few, many = jvm.NodeMachine(tmp_path, 0), jvm.NodeMachine(tmp_path, 10_000)

    assert (few.heap, few.limit_seconds(60)) == (("-Xms256m", "-Xmx512m"), 60)
    assert (many.heap, many.limit_seconds(60)) == (("-Xms256m", "-Xmx1512m"), 260)


def test_a_node_of_many_partitions_soon_forgets_the_fetches_that_waited_at_them() -> None:
    """Else notes of them fill its heap within minutes; with few partitions the default does."""
    name = "fetch.purgatory.purge.interval.requests"
    few, many = jvm.NodeMachine(Path(), 500), jvm.NodeMachine(Path(), 10_000)

    assert (few.settings, many.settings) == ({}, {name: "50"})


def test_a_lab_with_more_nodes_than_it_can_have_is_refused(tmp_path: Path) -> None:
    """Before anything was started."""
    with pytest.raises(PlanError, match="at most 1 nodes, not 3"):
        start_lab(tmp_path, {}, kind="pulsar", nodes=3, with_mailbox=True, on_mail=print)


def test_ports_lie_below_those_that_the_kernel_gives_away() -> None:
    """Else a client's own connection could take the broker's port while it restarts."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    ports = free_ports(18)

    assert len(set(ports)) == 18
    assert max(ports) < max(low, 32_768)
