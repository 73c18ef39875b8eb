"""A real Kafka cluster on this machine: each node a process, its own data folder and ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from soak.core.errors import LabError
from soak.lab import artifacts
from soak.lab.brokers import _kafka_files as files
from soak.lab.brokers import _kafka_format as formatting
from soak.lab.brokers import _kafka_jvm as jvm
from soak.lab.brokers._kafka_node import KafkaNode
from soak.lab.brokers._surroundings import free_ports, logging_xml
from soak.lab.relay import Relay

MOST_NODES = 9
LOCK = artifacts.KAFKA_LOCK

_TRIES = 3
_TAKEN = re.compile(r"Address already in use|BindException")


def start(
    folder: Path,
    settings: Mapping[str, str],
    *,
    nodes: int = 1,
    partitions: int = 0,
    drives: Mapping[int, Path] = MappingProxyType({}),
    relayed: bool = False,
) -> Kafka:
    """Start a cluster whose files lie below `folder`, and return when every node serves clients.

    A folder that as many nodes were started in before keeps its data. `settings` go into each
    node's configuration under their real names. `partitions`, each copy counted, is what the
    cluster is to hold: memory and patience are sized for them. The data of node n lies in
    `drives[n]`, if named; with `relayed` clients come through a relay. From the main thread: see
    `soak.service.children`.

    Raises:
        LabError: it could not be fetched or started; the message ends with a node's last log lines.
    """
    jars = artifacts.fetch(LOCK)
    machine = jvm.Machine(jars, partitions // nodes)
    for last in (False,) * (_TRIES - 1) + (True,):
        places = _places(nodes, relayed=relayed)
        configured = _configured(folder.absolute(), settings, machine, places, drives)
        ports = {place.relay_port: place.port for place in places if place.relay_port}
        cluster = Kafka(configured, Relay(folder / "relay", ports) if ports else None)
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

    def __init__(self, nodes: Sequence[KafkaNode], relay: Relay | None = None) -> None:
        self.nodes = tuple(nodes)
        self.relay = relay
        self.bootstrap_servers = ",".join(node.public_address for node in nodes)
        self.addresses = {"bootstrap_servers": self.bootstrap_servers}
        self.data_directory = nodes[0].data_directory
        self.log_path = nodes[0].log_path

    @property
    def pid(self) -> int:
        return self.nodes[0].pid

    def stop(self) -> None:
        self._at_once(KafkaNode.stop)
        if self.relay is not None:
            self.relay.stop()

    def kill(self) -> None:
        self._at_once(KafkaNode.kill)
        if self.relay is not None:
            self.relay.stop()

    def restart(self) -> None:
        self.stop()
        try:
            if self.relay is not None:
                self.relay.start()
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


def _places(nodes: int, *, relayed: bool) -> list[files.Place]:
    ports = iter(free_ports((3 if relayed else 2) * nodes))
    return [
        files.Place(number, next(ports), next(ports), next(ports) if relayed else 0)
        for number in range(1, nodes + 1)
    ]


def _configured(
    folder: Path,
    settings: Mapping[str, str],
    machine: jvm.Machine,
    places: Sequence[files.Place],
    drives: Mapping[int, Path],
) -> list[KafkaNode]:
    homes = [folder / f"node-{place.number}" for place in places]
    data = [
        drives.get(place.number, home) / "data" for place, home in zip(places, homes, strict=True)
    ]
    known = [one for one in map(formatting.cluster_of, data) if one is not None]
    cluster_id = known[0] if known else formatting.new_id()
    found = []
    for place, home, where in zip(places, homes, data, strict=True):
        node = KafkaNode(home, machine, place, where)
        for name in ("logs", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "log4j2.xml").write_text(logging_xml(node.log_path))
        of_node = {**machine.settings, **settings}
        text = files.server_properties(node.data_directory, place, places, of_node)
        (home / "server.properties").write_text(text, encoding="utf-8")
        if formatting.cluster_of(node.data_directory) is None:
            formatting.format_data(
                home, node.data_directory, machine.jars, cluster_id, place.number
            )
        found.append(node)
    return found
