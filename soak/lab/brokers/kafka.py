"""A real Kafka cluster on this machine: each node a process, its own data folder and ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soak.core.errors import LabError
from soak.lab import artifacts
from soak.lab.brokers import _kafka_files as files
from soak.lab.brokers import _kafka_format as formatting
from soak.lab.brokers import _kafka_jvm as jvm
from soak.lab.brokers._kafka_node import KafkaNode
from soak.lab.brokers._surroundings import free_ports, logging_xml

MOST_NODES = 9

_TRIES = 3
_TAKEN = re.compile(r"Address already in use|BindException")


def start(
    folder: Path, settings: Mapping[str, str], *, nodes: int = 1, partitions: int = 0
) -> Kafka:
    """Start a cluster whose files lie below `folder`, and return when every node serves clients.

    A folder that as many nodes were started in before keeps its data. `settings` go into each
    node's configuration under their real names. `partitions`, each copy counted, is what the
    cluster is to hold: memory and patience are sized for them. From the main thread: see
    `soak.service.children`.

    Raises:
        LabError: it could not be fetched or started; the message ends with a node's last log lines.
    """
    jars = artifacts.fetch(artifacts.KAFKA_LOCK)
    machine = jvm.Machine(jars, partitions // nodes)
    for last in (False,) * (_TRIES - 1) + (True,):
        cluster = Kafka(_configured(folder.absolute(), settings, machine, nodes))
        try:
            cluster.restart()
        except LabError as error:
            if last or not _TAKEN.search(str(error)):
                raise
        else:
            break
    return cluster


def broker_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return what `start` configures a broker with, as far as that is not for the lab alone to know."""
    return {**files.DEFAULTS, **given}


class Kafka:
    """A cluster at work; implements `soak.lab.ports.Running`. Its own process is that of the first node."""

    def __init__(self, nodes: Sequence[KafkaNode]) -> None:
        self.nodes = tuple(nodes)
        self.bootstrap_servers = ",".join(node.address for node in nodes)
        self.addresses = {"bootstrap_servers": self.bootstrap_servers}
        self.data_directory = nodes[0].data_directory
        self.log_path = nodes[0].log_path

    @property
    def pid(self) -> int:
        return self.nodes[0].pid

    def stop(self) -> None:
        self._at_once(KafkaNode.stop)

    def kill(self) -> None:
        self._at_once(KafkaNode.kill)

    def restart(self) -> None:
        self.stop()
        try:
            for node in self.nodes:
                node.spawn()
            for node in self.nodes:
                node.wait_ready()
        except BaseException:  # an interrupt too must leave no broker behind
            self.kill()
            raise

    def _at_once(self, action: Callable[[KafkaNode], None]) -> None:
        """Do the same to all nodes side by side: one after another, each would wait for the rest."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for _ in pool.map(action, self.nodes):
                pass


def _configured(
    folder: Path, settings: Mapping[str, str], machine: jvm.Machine, nodes: int
) -> list[KafkaNode]:
    ports = free_ports(2 * nodes)
    places = [files.Place(at + 1, ports[2 * at], ports[2 * at + 1]) for at in range(nodes)]
    data = [folder / f"node-{place.number}" / "data" for place in places]
    known = [one for one in map(formatting.cluster_of, data) if one is not None]
    cluster_id = known[0] if known else formatting.new_id()
    found = []
    for place in places:
        home = folder / f"node-{place.number}"
        node = KafkaNode(home, machine, place)
        for name in ("logs", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "log4j2.xml").write_text(logging_xml(node.log_path))
        text = files.server_properties(node.data_directory, place, places, settings)
        (home / "server.properties").write_text(text, encoding="utf-8")
        if formatting.cluster_of(node.data_directory) is None:
            formatting.format_data(
                home, node.data_directory, machine.jars, cluster_id, place.number
            )
        found.append(node)
    return found
