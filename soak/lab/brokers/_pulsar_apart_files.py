"""The files that ZooKeeper, bookie and broker are started with when each is a process; text only, no IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.lab.brokers import _pulsar_files as standalone
from soak.lab.brokers._surroundings import check_settings, properties

ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SETUP = "org.apache.pulsar.PulsarClusterMetadataSetup"
BOOKIE = "org.apache.bookkeeper.server.Main"
BROKER = "org.apache.pulsar.PulsarBrokerStarter"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the three listen, all on loopback."""

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
    """Where their data lies; the journal has a folder of its own, which may be another drive."""

    metadata: Path
    journal: Path
    ledgers: Path


def zookeeper(ports: Ports, folders: Folders) -> str:
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


def bookie(ports: Ports, folders: Folders, settings: Mapping[str, str]) -> str:
    """Return the bookie's configuration. Raises as `soak.lab.brokers._pulsar_files` does."""
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
    return _checked(own, settings)


def broker(ports: Ports, settings: Mapping[str, str]) -> str:
    """Return the broker's configuration. Raises as `soak.lab.brokers._pulsar_files` does."""
    own = {
        "metadataStoreUrl": ports.metadata,
        "configurationMetadataStoreUrl": ports.metadata,
        "clusterName": standalone.CLUSTER,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerServicePort": str(ports.service),
        "webServicePort": str(ports.web),
    }
    return _checked(own, settings)


def setup_arguments(ports: Ports) -> list[str]:
    """Return what the tool is told that writes a new cluster's metadata."""
    return [
        *("--cluster", standalone.CLUSTER),
        *("--metadata-store", ports.metadata, "--configuration-metadata-store", ports.metadata),
        *("--web-service-url", f"http://127.0.0.1:{ports.web}"),
        *("--broker-service-url", f"pulsar://127.0.0.1:{ports.service}"),
    ]


def _checked(own: Mapping[str, str], settings: Mapping[str, str]) -> str:
    check_settings(settings, own)
    return properties({**standalone.DEFAULTS, **settings, **own})
