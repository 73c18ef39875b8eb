"""A real Kafka cluster on this machine: each node is a process with its own data folder and ports."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import check_settings, free_ports, logging_xml, properties, run_tool
from soak.lab.jars import cache
from soak.lab.relay import Relay
from soak.service import children, java

_QUORUM = 3
"""This many of the nodes are controllers too, or one where there are fewer: two are no safer than one."""

_REPLICATION_FACTOR = 3

_PROTOCOLS = "listener.security.protocol.map"
_OWN_PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
_ADDED_TO = ("listeners", _PROTOCOLS)
_ON_LOOPBACK = re.compile(r"[^:/,]+://127\.0\.0\.1:\d+")


DEFAULTS = {
    # Retention in seconds instead of minutes, so that a short run sees it.
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Where one node listens on loopback: for clients, and for controllers."""

    number: int  # `node.id`, from 1
    port: int
    controller_port: int
    relay_port: int = 0  # where clients and other nodes come in, if not at `port`

    @property
    def advertised_port(self) -> int:
        return self.relay_port or self.port


def server_properties(
    data: Path, place: NodePorts, cluster: Sequence[NodePorts], settings: Mapping[str, str]
) -> str:
    """Return the configuration of one of the nodes of a cluster.

    `listeners` and `listener.security.protocol.map` of `settings` come beside the lab's own.

    Raises:
        LabError: `settings` names a key that the lab itself decides, or a listener that is not
            on loopback or of a cluster of several nodes, or holds a line break.
    """
    beside = _extra_listeners(settings, cluster)
    quorum = cluster[: _QUORUM if len(cluster) >= _QUORUM else 1]
    client = f"PLAINTEXT://127.0.0.1:{place.port}"
    advertised = f"PLAINTEXT://127.0.0.1:{place.advertised_port}"
    controller = f"CONTROLLER://127.0.0.1:{place.controller_port}"
    own = {
        "process.roles": "broker,controller" if place in quorum else "broker",
        "node.id": str(place.number),
        "controller.quorum.voters": ",".join(
            f"{one.number}@127.0.0.1:{one.controller_port}" for one in quorum
        ),
        "listeners": ",".join([client, *([controller] if place in quorum else []), *beside]),
        "advertised.listeners": ",".join([advertised, *beside]),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        _PROTOCOLS: ",".join([_OWN_PROTOCOLS, *_split_list(settings.get(_PROTOCOLS, ""))]),
        "log.dirs": str(data),
    }
    copies = min(_REPLICATION_FACTOR, len(cluster))
    in_sync = max(1, copies - 1)
    defaults = {
        # What is kept three times elsewhere is kept as often as there are nodes for it.
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        **DEFAULTS,
    }
    check_settings(settings, own.keys() - set(_ADDED_TO))
    return properties({**defaults, **settings, **own})


def _extra_listeners(settings: Mapping[str, str], cluster: Sequence[NodePorts]) -> list[str]:
    found = _split_list(settings.get("listeners", ""))
    for listener in found:
        if not _ON_LOOPBACK.fullmatch(listener):
            raise LabError(f"lab.settings: a listener is NAME://127.0.0.1:PORT, not {listener!r}")
    if found and len(cluster) > 1:
        raise LabError("lab.settings: the nodes of a cluster cannot share a listener's port")
    return found


def _split_list(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def meta_properties(cluster_id: str, directory_id: str, number: int) -> str:
    """Return the file by which Kafka knows a formatted data folder."""
    return properties(
        {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(number),
            "directory.id": directory_id,
        }
    )


# --- The JVM of a Kafka node: as small as what it has to hold allows.
# Serial collector and the first compiler only: on two cores at 2,000 messages a second the p99 was
# calm from the tenth second on, at two thirds of the CPU time that the defaults take.

_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_START_MIB = 256
_LEAST_MIB = 512
_PARTITIONS_A_MIB = 10
_PURGED_AFTER = 1_000  # fetches that waited, in a broker as it comes
_WAITED_FOR = 500_000  # partitions that those fetches together may still be noted at
_PARTITIONS_A_SECOND = 50  # of two cores that others use too; a recovery reads every log


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """What every node of a cluster is run with."""

    jars: Path
    partitions: int  # that a node is to hold, copies included

    @property
    def heap(self) -> tuple[str, str]:
        """Return the options that bound the JVM's heap."""
        return f"-Xms{_START_MIB}m", f"-Xmx{_LEAST_MIB + self.partitions // _PARTITIONS_A_MIB}m"

    @property
    def settings(self) -> dict[str, str]:
        """Return what a broker of so many partitions is to have otherwise.

        A fetch that waited stays noted at each partition it asked for until the next purge, with half a KiB
        for each of them in every note: of 10,000 partitions 240 such fetches, two minutes, took a GiB.
        """
        interval = _WAITED_FOR // max(1, self.partitions)
        if interval >= _PURGED_AFTER:
            return {}
        return {"fetch.purgatory.purge.interval.requests": str(max(1, interval))}

    def patience_seconds(self, least: int) -> int:
        """Return how long to wait for what a node without partitions does within `least` seconds."""
        return least + self.partitions // _PARTITIONS_A_SECOND


def java_command(folder: Path, jars: Path, options: tuple[str, ...]) -> list[str]:
    """Return the words before the main class of a program of Kafka's."""
    return [
        str(java.java_home() / "bin" / "java"),
        *options,
        *_QUICK,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Kafka is done
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        "-XX:+ExitOnOutOfMemoryError",
        *("-cp", str(jars / "*")),
    ]


# --- Formats the data folder of a Kafka node: with Kafka's tool once, from then on with a copy of its answer.
# The tool takes a second of CPU, and all that differs between two of its answers are the ids.

_TEMPLATE = "bootstrap.checkpoint"
_META = "meta.properties"
_FORMAT_SECONDS = 60.0


def cluster_of(data: Path) -> str | None:
    """Return the id of the cluster that a data folder belongs to; None when it is not formatted."""
    try:
        text = (data / _META).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^cluster\.id=(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def format_data(folder: Path, data: Path, jars: Path, cluster_id: str, number: int) -> None:
    """Format the data folder of node `number`, whose configuration lies in `folder`.

    Raises:
        LabError: Kafka's tool failed, or did not end.
    """
    template = jars / _TEMPLATE
    if not template.exists():
        _run_tool(folder, jars, cluster_id)
        draft = jars / f".{_TEMPLATE}.{os.getpid()}"
        shutil.copyfile(data / _TEMPLATE, draft)
        draft.replace(template)
        return
    data.mkdir(exist_ok=True)
    shutil.copyfile(template, data / _TEMPLATE)
    (data / _META).write_text(meta_properties(cluster_id, new_id(), number))


def new_id() -> str:
    """Return an id as Kafka makes them: 16 random bytes, URL-safe base64, not led by a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _run_tool(folder: Path, jars: Path, cluster_id: str) -> None:
    tool = [*java_command(folder, jars, ()), "kafka.tools.StorageTool", "format", "-t", cluster_id]
    tool += ["-c", str(folder / "server.properties")]
    log = folder / "logs" / "format.log"
    run_tool("Kafka's storage tool", tool, folder, _FORMAT_SECONDS, log)


# --- One Kafka process of a lab's cluster: how it is started and ended, and when it is ready.

_READY_SECONDS = 60
_ASK_SECONDS = 0.25
_ASK_AGAIN_NS = SECOND_NS // 50
_STOP_SECONDS = 20


class KafkaNode:
    """A broker process; implements `soak.lab.ports.Node`."""

    def __init__(self, folder: Path, machine: NodeMachine, place: NodePorts, data: Path) -> None:
        self._folder = folder
        self._machine = machine
        self._console = folder / "logs" / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.number = place.number
        self.address = f"127.0.0.1:{place.port}"
        self.public_address = f"127.0.0.1:{place.advertised_port}"
        self.data_directory = data
        self.log_path = folder / "logs" / "broker.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError("the lab's Kafka was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, self._machine.patience_seconds(_STOP_SECONDS))

    def kill(self) -> None:
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        self.stop()
        self.spawn()
        try:
            self.wait_ready()
        except BaseException:  # an interrupt too must leave no broker behind
            self.kill()
            raise

    def spawn(self) -> None:
        """Start the process and return at once: nodes need each other to become ready."""
        self._console.unlink(missing_ok=True)  # old reasons would be taken for new ones
        command = [
            *java_command(self._folder, self._machine.jars, self._options()),
            "kafka.Kafka",
            str(self._folder / "server.properties"),
        ]
        self._process = children.spawn(command, log_path=self._console, cwd=self._folder)

    def wait_ready(self) -> None:
        """Return when the node counts itself among the brokers that serve clients.

        Raises:
            LabError: it ended, or was not ready in time.
        """
        clock = SystemClock()
        limit_seconds = self._machine.patience_seconds(_READY_SECONDS)
        deadline_ns = clock.mono_ns() + limit_seconds * SECOND_NS
        admin = AdminClient(
            {
                "bootstrap.servers": self.address,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,  # that it cannot connect yet is no news
            }
        )
        while clock.mono_ns() < deadline_ns:
            self._check_alive()
            if self._counts_itself(admin):
                return
            clock.sleep_until(clock.mono_ns() + _ASK_AGAIN_NS)
        raise LabError(
            f"the lab's Kafka did not answer in {limit_seconds} s:\n"
            f"{children.log_tail(self.log_path)}"
        )

    def _options(self) -> tuple[str, ...]:
        """Return the heap's bounds, and where the JVM tells of the pauses that it makes."""
        pauses = self.log_path.with_name("gc.log")
        log = f'-Xlog:gc,safepoint:file="{pauses}":time,level,tags:filecount=2,filesize=4M'
        return (*self._machine.heap, log)

    def _counts_itself(self, admin: AdminClient) -> bool:
        try:
            return self.number in admin.list_topics(timeout=_ASK_SECONDS).brokers
        except KafkaException:
            return False

    def _check_alive(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        said = children.log_tail(self._console) + "\n" + children.log_tail(self.log_path)
        status = self._process.returncode
        raise LabError(f"the lab's Kafka ended with status {status}:\n{said.strip()}")


# --- A real Kafka cluster on this machine: each node a process, its own data folder and ports.

MAX_NODES = 9
LOCK = cache.KAFKA_LOCK

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
    jars = cache.fetch(LOCK)
    machine = NodeMachine(jars, partitions // nodes)
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
    return {**DEFAULTS, **given}


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


def _places(nodes: int, *, relayed: bool) -> list[NodePorts]:
    ports = iter(free_ports((3 if relayed else 2) * nodes))
    return [
        NodePorts(number, next(ports), next(ports), next(ports) if relayed else 0)
        for number in range(1, nodes + 1)
    ]


def _configured(
    folder: Path,
    settings: Mapping[str, str],
    machine: NodeMachine,
    places: Sequence[NodePorts],
    drives: Mapping[int, Path],
) -> list[KafkaNode]:
    homes = [folder / f"node-{place.number}" for place in places]
    data = [
        drives.get(place.number, home) / "data" for place, home in zip(places, homes, strict=True)
    ]
    known = [one for one in map(cluster_of, data) if one is not None]
    cluster_id = known[0] if known else new_id()
    found = []
    for place, home, where in zip(places, homes, data, strict=True):
        node = KafkaNode(home, machine, place, where)
        for name in ("logs", "tmp"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "log4j2.xml").write_text(logging_xml(node.log_path))
        of_node = {**machine.settings, **settings}
        text = server_properties(node.data_directory, place, places, of_node)
        (home / "server.properties").write_text(text, encoding="utf-8")
        if cluster_of(node.data_directory) is None:
            format_data(home, node.data_directory, machine.jars, cluster_id, place.number)
        found.append(node)
    return found
