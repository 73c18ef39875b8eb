"""A real Pulsar on this machine as three processes: ZooKeeper, bookie and broker.

The journal has its own folder, so it can be on its own drive. It takes three times a standalone's memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from soak.core.errors import LabError
from soak.lab.broker_setup import check_settings, free_ports, is_listening, properties
from soak.lab.brokers import pulsar
from soak.lab.brokers.pulsar import Program, PulsarNode, run_once
from soak.lab.jars import cache
from soak.service.files import write_atomically

ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SETUP = "org.apache.pulsar.PulsarClusterMetadataSetup"
BOOKIE = "org.apache.bookkeeper.server.Main"
BROKER = "org.apache.pulsar.PulsarBrokerStarter"


@dataclass(frozen=True, slots=True)
class ApartPorts:
    """The ports of the three processes, all on loopback."""

    zookeeper: int
    bookie: int
    bookie_web: int
    service: int
    web: int

    @property
    def metadata(self) -> str:
        return f"zk:127.0.0.1:{self.zookeeper}"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of their data; the journal's may be on another drive."""

    metadata: Path
    journal: Path
    ledgers: Path


def zookeeper_properties(ports: ApartPorts, folders: Folders) -> str:
    """Return ZooKeeper's configuration."""
    return properties(
        {
            "tickTime": "2000",
            "dataDir": str(folders.metadata),
            "clientPort": str(ports.zookeeper),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }
    )


def bookie_properties(ports: ApartPorts, folders: Folders, settings: Mapping[str, str]) -> str:
    """Return the bookie's configuration. Raises as `pulsar.standalone_conf` does."""
    own = {
        "bookiePort": str(ports.bookie),
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "allowEphemeralPorts": "false",
        "journalDirectories": str(folders.journal),
        "ledgerDirectories": str(folders.ledgers),
        "metadataServiceUri": f"metadata-store:{ports.metadata}",
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(ports.bookie_web),
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "extraServerComponents": "",
    }
    return _configuration(own, settings)


def broker_properties(ports: ApartPorts, settings: Mapping[str, str]) -> str:
    """Return the broker's configuration. Raises as `pulsar.standalone_conf` does."""
    own = {
        "metadataStoreUrl": ports.metadata,
        "configurationMetadataStoreUrl": ports.metadata,
        "clusterName": pulsar.CLUSTER,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerServicePort": str(ports.service),
        "webServicePort": str(ports.web),
    }
    return _configuration(own, settings)


def setup_arguments(ports: ApartPorts) -> list[str]:
    """Return the arguments of the tool that writes the metadata of a new cluster."""
    return [
        *("--cluster", pulsar.CLUSTER),
        *("--metadata-store", ports.metadata, "--configuration-metadata-store", ports.metadata),
        *("--web-service-url", f"http://127.0.0.1:{ports.web}"),
        *("--broker-service-url", f"pulsar://127.0.0.1:{ports.service}"),
    ]


def _configuration(own: Mapping[str, str], settings: Mapping[str, str]) -> str:
    check_settings(settings, own)
    return properties({**pulsar.DEFAULTS, **settings, **own})


MAX_NODES = 1  # one bookie and one broker
LOCK = pulsar.LOCK

_SETUP_SECONDS = 120.0


def start(
    folder: Path,
    settings: Mapping[str, str],
    *,
    nodes: int = 1,
    partitions: int = 0,  # noqa: ARG001  # its memory does not depend on them
    drives: Mapping[int, Path] = MappingProxyType({}),
    relayed: bool = False,
    jars: Path | None = None,
    apart: type[Apart] | None = None,
) -> Apart:
    """Start the three processes below `folder`, and return when topics are served; from the main thread.

    A folder of an earlier cluster keeps its data and its ports; the data of a first start that was
    interrupted is removed. `drives[1]` holds the journal, and `drives[2]`, or else `drives[1]`, the ledgers.
    `jars` and `apart` replace the fetched jars and the class.

    Raises:
        LabError: the jars or a process failed; none is left running.
    """
    if nodes > MAX_NODES or relayed:
        raise LabError("the lab's pulsar_apart has one broker, and no relay")
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    known, unfinished = folder / "ports.json", folder / "unfinished"
    is_new = not known.exists()
    ports = ApartPorts(*free_ports(5)) if is_new else ApartPorts(**json.loads(known.read_text()))
    ledgers = drives.get(2, drives.get(1, folder))
    folders = Folders(folder / "metadata", drives.get(1, folder) / "journal", ledgers / "ledgers")
    paths = folders.metadata, folders.journal, folders.ledgers
    is_unfinished = is_new and unfinished.exists()  # its data is for other ports
    for path in paths:
        if is_unfinished and path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
    if is_new and not any(any(path.iterdir()) for path in paths):
        unfinished.touch()  # data of others is never removed
    cluster = (apart or Apart)(folder, jars or cache.fetch(LOCK), ports, folders)
    cluster.write(settings)
    cluster.begin(is_new=is_new)
    write_atomically(known, json.dumps(asdict(ports)))
    unfinished.unlink(missing_ok=True)
    return cluster


def broker_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker that `start` is given these settings for, without the lab's own."""
    return pulsar.broker_settings(given)


class Apart:
    """The three processes; implements `soak.lab.ports.Running`, with the bookie as its first node."""

    def __init__(self, folder: Path, jars: Path, ports: ApartPorts, folders: Folders) -> None:
        self._folder = folder
        self._jars = jars
        self._ports = ports
        self.admin_url = f"http://127.0.0.1:{ports.web}"
        self.service_url = f"pulsar://127.0.0.1:{ports.service}"
        self.bookie_url = f"http://127.0.0.1:{ports.bookie_web}"
        bookie, broker = (folder / name / f"{name}.conf" for name in ("bookie", "broker"))
        zookeeper = folder / "zookeeper" / "zoo.cfg"
        self._parts = (
            PulsarNode(
                1,
                self._program("bookie", BOOKIE, "--conf", str(bookie)),
                folders.ledgers,
                lambda: is_listening(ports.bookie),
            ),
            PulsarNode(
                2,
                self._program("broker", BROKER, "--broker-conf", str(broker)),
                folders.ledgers,
                lambda: pulsar.serves_topics(self.admin_url, ""),
            ),
            PulsarNode(
                3,
                self._program("zookeeper", ZOOKEEPER, str(zookeeper)),
                folders.metadata,
                lambda: is_listening(ports.zookeeper),
            ),
        )
        self._configurations: dict[Path, Callable[[Mapping[str, str]], str]] = {
            bookie: lambda given: bookie_properties(ports, folders, given),
            broker: lambda given: broker_properties(ports, given),
            zookeeper: lambda _: zookeeper_properties(ports, folders),
        }

    @property
    def nodes(self) -> tuple[PulsarNode, ...]:
        return self._parts

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "bookie_urls": self.bookie_url,
        }

    @property
    def bootstrap_servers(self) -> str:
        return self.service_url

    @property
    def data_directory(self) -> Path:
        return self._parts[0].data_directory

    @property
    def data_directories(self) -> tuple[Path]:
        return (self.data_directory,)

    @property
    def log_path(self) -> Path:
        return self._parts[1].log_path

    @property
    def pid(self) -> int:
        return self._parts[0].pid

    def write(self, settings: Mapping[str, str]) -> None:
        """Write the configurations; raises as `soak.lab.brokers.pulsar` does."""
        for path, text in self._configurations.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(settings), encoding="utf-8")

    def begin(self, *, is_new: bool) -> None:
        """Start the processes by their dependencies; first write the metadata of a new cluster."""
        bookie, broker, zookeeper = self._parts
        try:
            zookeeper.restart()
            if is_new:
                arguments = setup_arguments(self._ports)
                run_once(self._program("setup", SETUP, *arguments), _SETUP_SECONDS)
            bookie.restart()
            broker.restart()
        except BaseException:  # an interrupt too must leave nothing behind
            self.kill()
            raise

    def stop(self) -> None:
        bookie, broker, zookeeper = self._parts
        for part in (broker, bookie, zookeeper):
            part.stop()

    def kill(self) -> None:
        for part in self._parts:
            part.kill()

    def restart(self) -> None:
        self.stop()
        self.begin(is_new=False)

    def _program(self, name: str, main_class: str, *arguments: str) -> Program:
        return Program(name, self._folder / name, self._jars, main_class, arguments)
