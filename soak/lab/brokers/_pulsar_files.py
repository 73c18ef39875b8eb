"""The files and arguments that a Pulsar standalone is started with; text only, no IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.lab.brokers._surroundings import check_settings, properties

MAIN_CLASS = "org.apache.pulsar.PulsarStandaloneStarter"
CLUSTER = "standalone"

DEFAULTS = {
    # One node on a small machine: few threads, everything kept once.
    "numIOThreads": "2",
    "numHttpServerThreads": "4",
    "numExecutorThreadPoolSize": "2",
    "numCacheExecutorThreadPoolSize": "2",
    "numOrderedExecutorThreads": "2",
    "bookkeeperClientNumWorkerThreads": "2",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
    "webSocketServiceEnabled": "false",
    "functionsWorkerEnabled": "false",
    "transactionCoordinatorEnabled": "false",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "exposeTopicLevelMetricsInPrometheus": "true",
    "exposePreciseBacklogInPrometheus": "true",
    "brokerShutdownTimeoutMs": "10000",
    # Retention in seconds instead of minutes, so that a short run sees it.
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorPositionFlushSeconds": "1",
    "retentionCheckIntervalInSeconds": "5",
    "gcWaitTime": "5000",
    # The bookie: caches for a small machine, and a journal that flushes before it acknowledges.
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "nettyMaxFrameSizeBytes": "5253120",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "32",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
    "flushInterval": "60000",
    "journalSyncData": "true",
    "journalWriteData": "true",
    "journalMaxGroupWaitMSec": "1",
    "journalMaxSizeMB": "256",
    "journalMaxBackups": "0",
    "journalPreAllocSizeMB": "16",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "enableStatistics": "true",
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "prometheusStatsLatencyRolloverSeconds": "60",
}


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one standalone listens, all on loopback."""

    service: int
    web: int
    bookie: int
    bookie_web: int
    relay: int = 0  # what clients are told instead of `service`; 0: they are told that


def standalone_conf(ports: Ports, settings: Mapping[str, str]) -> str:
    """Return the configuration of broker and bookie, which share one file.

    Raises:
        LabError: `settings` names a key that the lab itself decides, or holds a line break.
    """
    own = {
        "metadataStoreUrl": "",
        "configurationMetadataStoreUrl": "",
        "clusterName": CLUSTER,
        "bindAddress": "127.0.0.1",
        **_told(ports),
        "brokerServicePort": str(ports.service),
        "webServicePort": str(ports.web),
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(ports.bookie_web),
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "allowLoopback": "true",
        "listeningInterface": "lo",  # else the bookie listens on every address
        "allowEphemeralPorts": "true",  # else its port is not the one that it was told
        "exposeDefaultJVMMetrics": "false",  # broker and bookie would register them twice and end
    }
    check_settings(settings, own)
    return properties({**DEFAULTS, **settings, **own})


def _told(ports: Ports) -> dict[str, str]:
    """Return what clients are told of where the broker is; it takes the one or the other."""
    if not ports.relay:
        return {"advertisedAddress": "127.0.0.1"}
    return {
        "advertisedListeners": f"relay:pulsar://127.0.0.1:{ports.relay}",
        "internalListenerName": "relay",
    }


def java_options(folder: Path) -> list[str]:
    """Return the options of the JVM: those of Pulsar's own launcher, for a small machine."""
    opened = (
        *(f"java.base/{package}" for package in _OPENED_BASE),
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )
    return [
        *("-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m"),
        *("-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Pulsar is done
        "-Djute.maxbuffer=10485760",
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"-Dbookkeeper.metadata.{kind}.drivers={name}" for kind, name in _DRIVERS.items()),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
    ]


def arguments(conf: Path, data: Path, ports: Ports) -> list[str]:
    """Return what the main class is told: no functions worker, no stream storage."""
    return [
        *("--config", str(conf), "-nfw", "-nss"),
        *(() if ports.relay else ("-a", "127.0.0.1")),
        *("--metadata-dir", str(data / "metadata")),
        *("--bookkeeper-dir", str(data / "bookkeeper")),
        *("--bookkeeper-port", str(ports.bookie)),
    ]


_OPENED_BASE = (
    "java.io",
    "java.util.zip",
    "java.nio",
    "jdk.internal.misc",
    "sun.net",
    "jdk.internal.platform",
)

_DRIVERS = {
    "bookie": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "client": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
}
