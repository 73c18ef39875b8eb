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
from soak.service.class_archive import ClassArchive

_MAX_CONTROLLERS = 3  # of the nodes; one if there are fewer, because two are no safer

_REPLICATION_FACTOR = 3

_PROTOCOLS = "listener.security.protocol.map"
_OWN_PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
_MERGED_SETTINGS = ("listeners", _PROTOCOLS)
_ON_LOOPBACK = re.compile(r"[^:/,]+://127\.0\.0\.1:\d+")


DEFAULTS = {
    # Retention in seconds instead of minutes, so that a short run sees it.
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports on loopback where one node listens for clients and for controllers."""

    number: int  # `node.id`, from 1
    port: int
    controller_port: int
    relay_port: int = 0  # used by clients and other nodes; 0: they use `port`

    @property
    def advertised_port(self) -> int:
        return self.relay_port or self.port


def server_properties(
    data: Path, ports: NodePorts, cluster: Sequence[NodePorts], settings: Mapping[str, str]
) -> str:
    """Return the configuration of one node of a cluster.

    `listeners` and `listener.security.protocol.map` of `settings` are added to the lab's own.

    Raises:
        LabError: `settings` has a key that the lab itself sets, a line break, a listener that is not on
            loopback, or a listener for a cluster of several nodes.
    """
    extra = _extra_listeners(settings, cluster)
    quorum = cluster[: _MAX_CONTROLLERS if len(cluster) >= _MAX_CONTROLLERS else 1]
    client = f"PLAINTEXT://127.0.0.1:{ports.port}"
    advertised = f"PLAINTEXT://127.0.0.1:{ports.advertised_port}"
    controller = f"CONTROLLER://127.0.0.1:{ports.controller_port}"
    own = {
        "process.roles": "broker,controller" if ports in quorum else "broker",
        "node.id": str(ports.number),
        "controller.quorum.voters": ",".join(
            f"{one.number}@127.0.0.1:{one.controller_port}" for one in quorum
        ),
        "listeners": ",".join([client, *([controller] if ports in quorum else []), *extra]),
        "advertised.listeners": ",".join([advertised, *extra]),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        _PROTOCOLS: ",".join([_OWN_PROTOCOLS, *_split_list(settings.get(_PROTOCOLS, ""))]),
        "log.dirs": str(data),
    }
    copies = min(_REPLICATION_FACTOR, len(cluster))
    in_sync = max(1, copies - 1)
    defaults = {
        # As many replicas as there are nodes, at most three.
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        **DEFAULTS,
    }
    check_settings(settings, own.keys() - set(_MERGED_SETTINGS))
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
    """Return the file that marks a formatted data folder."""
    return properties(
        {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(number),
            "directory.id": directory_id,
        }
    )


# The serial collector and the first compiler only: on two cores, at 2,000 messages a second, the p99 was
# stable after ten seconds, with two thirds of the CPU time that the defaults take.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_START_MIB = 256
_MIN_MIB = 512
_PARTITIONS_PER_MIB = 10
_DEFAULT_PURGE_INTERVAL = 1_000  # waiting fetches, Kafka's default
_MAX_WATCHED_PARTITIONS = 500_000  # summed over the fetches between two purges
_PARTITIONS_PER_SECOND = 50  # on two shared cores; a recovery reads every log


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """The jars and the size that every node of a cluster has."""

    jars: Path
    partitions: int  # replicas on one node

    @property
    def heap(self) -> tuple[str, str]:
        """Return the options that limit the JVM's heap."""
        return f"-Xms{_START_MIB}m", f"-Xmx{_MIN_MIB + self.partitions // _PARTITIONS_PER_MIB}m"

    @property
    def settings(self) -> dict[str, str]:
        """Return settings that a broker with this many partitions needs.

        A fetch that waited stays in the watch list of each of its partitions until the next purge, with half
        a KiB for each partition: with 10,000 partitions 240 such fetches, in two minutes, took a GiB.
        """
        interval = _MAX_WATCHED_PARTITIONS // max(1, self.partitions)
        if interval >= _DEFAULT_PURGE_INTERVAL:
            return {}
        return {"fetch.purgatory.purge.interval.requests": str(max(1, interval))}

    def limit_seconds(self, base: int) -> int:
        """Return a time limit for this node, given the one for a node without partitions."""
        return base + self.partitions // _PARTITIONS_PER_SECOND


def java_command(folder: Path, jars: Path, options: tuple[str, ...]) -> list[str]:
    """Return the command line of a Kafka program up to its main class."""
    return [
        str(java.java_home() / "bin" / "java"),
        *options,
        *_JVM_OPTIONS,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Kafka has stopped
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        "-XX:+ExitOnOutOfMemoryError",
        *("-cp", str(jars / "*")),
    ]


_CHECKPOINT = "bootstrap.checkpoint"
_META = "meta.properties"
_FORMAT_SECONDS = 60.0


def cluster_of(data: Path) -> str | None:
    """Return the cluster id of a data folder; None if it is not formatted."""
    try:
        text = (data / _META).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^cluster\.id=(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def format_data(folder: Path, data: Path, jars: Path, cluster_id: str, number: int) -> None:
    """Format the data folder of a node whose configuration is in `folder`.

    Kafka's storage tool takes a second of CPU, and only the ids differ between two of its results: it runs
    once, and its result is the template for later ones.

    Raises:
        LabError: Kafka's tool failed, or did not end.
    """
    template = jars / _CHECKPOINT
    if not template.exists():
        _run_storage_tool(folder, jars, cluster_id)
        draft = jars / f".{_CHECKPOINT}.{os.getpid()}"
        shutil.copyfile(data / _CHECKPOINT, draft)
        draft.replace(template)
        return
    data.mkdir(exist_ok=True)
    shutil.copyfile(template, data / _CHECKPOINT)
    (data / _META).write_text(meta_properties(cluster_id, new_id(), number))


def new_id() -> str:
    """Return an id as Kafka makes them: 16 random bytes, URL-safe base64, without a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _run_storage_tool(folder: Path, jars: Path, cluster_id: str) -> None:
    tool = [*java_command(folder, jars, ()), "kafka.tools.StorageTool", "format", "-t", cluster_id]
    tool += ["-c", str(folder / "server.properties")]
    log = folder / "logs" / "format.log"
    run_tool("Kafka's storage tool", tool, folder, _FORMAT_SECONDS, log)


def limit_clients(servers: str, bytes_per_second: int | None, folder: Path) -> None:
    """Set a quota of bytes a second for every client without one of its own, or remove it.

    `folder` takes the log. No client library sets quotas: it starts Kafka's own tool, which takes seconds.

    Raises:
        LabError: the tool failed, or did not end.
    """
    names = ("producer_byte_rate", "consumer_byte_rate")
    change = ["--delete-config", ",".join(names)]
    if bytes_per_second is not None:
        change = ["--add-config", ",".join(f"{name}={bytes_per_second}" for name in names)]
    home, jars = java.java_home(), cache.fetch(LOCK)
    tool = [str(home / "bin" / "java"), *_JVM_OPTIONS]
    tool += ClassArchive(jars / "classes", home).options()
    tool += ["-cp", str(jars / "*"), "kafka.admin.ConfigCommand"]
    tool += ["--bootstrap-server", servers, "--alter", *change]
    tool += ["--entity-type", "clients", "--entity-default"]
    run_tool("Kafka's config tool", tool, folder, _QUOTA_SECONDS, folder / "quota.log")


_QUOTA_SECONDS = 120.0
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
        self._classes = ClassArchive(machine.jars / "classes", java.java_home())
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
            limit_seconds = self._machine.limit_seconds(_STOP_SECONDS) + self._classes.more_seconds
            self._classes.keep(children.stop(self._process, limit_seconds))

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
        """Start the process and return at once, because nodes need each other to become ready."""
        self._console.unlink(missing_ok=True)  # so that errors show only new output
        command = [
            *java_command(self._folder, self._machine.jars, self._options()),
            "kafka.Kafka",
            str(self._folder / "server.properties"),
        ]
        self._process = children.spawn(command, log_path=self._console, cwd=self._folder)

    def wait_ready(self) -> None:
        """Return when the node lists itself among the brokers.

        Raises:
            LabError: it ended, or was not ready in time.
        """
        clock = SystemClock()
        limit_seconds = self._machine.limit_seconds(_READY_SECONDS)
        deadline_ns = clock.mono_ns() + limit_seconds * SECOND_NS
        admin = AdminClient(
            {
                "bootstrap.servers": self.address,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,  # connection errors are expected until it is ready
            }
        )
        while clock.mono_ns() < deadline_ns:
            self._check_alive()
            if self._lists_itself(admin):
                return
            clock.sleep_until(clock.mono_ns() + _ASK_AGAIN_NS)
        raise LabError(
            f"the lab's Kafka did not answer in {limit_seconds} s:\n"
            f"{children.log_tail(self.log_path)}"
        )

    def _options(self) -> tuple[str, ...]:
        """Return the limits of the heap, the log of garbage collections and safepoints, and the classes."""
        path = self.log_path.with_name("gc.log")
        log = f'-Xlog:gc,safepoint:file="{path}":time,level,tags:filecount=2,filesize=4M'
        return (*self._machine.heap, log, *self._classes.writing_options())

    def _lists_itself(self, admin: AdminClient) -> bool:
        try:
            return self.number in admin.list_topics(timeout=_ASK_SECONDS).brokers
        except KafkaException:
            return False

    def _check_alive(self) -> None:
        if self._process is None or self._process.poll() is None:
            return
        output = children.log_tail(self._console) + "\n" + children.log_tail(self.log_path)
        status = self._process.returncode
        raise LabError(f"the lab's Kafka ended with status {status}:\n{output.strip()}")


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
    """Start a cluster with its files below `folder`, and return when every node serves clients.

    A folder of an earlier cluster with as many nodes keeps its data. `settings` are added to each node's
    configuration. `partitions` is the number of replicas that the cluster will hold, which decides memory
    and time limits. The data of node n is in `drives[n]`, if given; with `relayed` clients connect through
    a relay. Call it from the main thread: see `soak.service.children`.

    Raises:
        LabError: the jars or a node failed; the message ends with a node's last log lines.
    """
    jars = cache.fetch(LOCK)
    machine = NodeMachine(jars, partitions // nodes)
    for last in (False,) * (_TRIES - 1) + (True,):
        places = _choose_ports(nodes, relayed=relayed)
        configured = _configure(folder.absolute(), settings, machine, places, drives)
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
    """Return the settings of a broker that `start` is given these settings for, without the lab's own."""
    return {**DEFAULTS, **given}


class Kafka:
    """A running cluster; implements `soak.lab.ports.Running`, with the pid of its first node."""

    def __init__(self, nodes: Sequence[KafkaNode], relay: Relay | None = None) -> None:
        self.nodes = tuple(nodes)
        self.relay = relay
        self.bootstrap_servers = ",".join(node.public_address for node in nodes)
        self.addresses = {"bootstrap_servers": self.bootstrap_servers}
        self.data_directory = nodes[0].data_directory
        self.data_directories = tuple(node.data_directory for node in nodes)
        self.log_path = nodes[0].log_path

    @property
    def pid(self) -> int:
        return self.nodes[0].pid

    def stop(self) -> None:
        self._for_all(KafkaNode.stop)
        if self.relay is not None:
            self.relay.stop()

    def kill(self) -> None:
        self._for_all(KafkaNode.kill)
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

    def _for_all(self, action: Callable[[KafkaNode], None]) -> None:
        """Call `action` for all nodes in parallel, because a node waits for the others when it stops."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for _ in pool.map(action, self.nodes):
                pass


def _choose_ports(nodes: int, *, relayed: bool) -> list[NodePorts]:
    ports = iter(free_ports((3 if relayed else 2) * nodes))
    return [
        NodePorts(number, next(ports), next(ports), next(ports) if relayed else 0)
        for number in range(1, nodes + 1)
    ]


def _configure(
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
