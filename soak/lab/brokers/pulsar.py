"""A real Pulsar standalone on this machine: broker and bookie in one process, with its own data and ports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from soak.clients.pulsar_admin import connect_admin
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, LabError
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import check_settings, free_ports, logging_xml, properties, run_tool
from soak.lab.jars import cache
from soak.lab.relay import Relay
from soak.service import children, java
from soak.service.class_archive import ClassArchive
from soak.service.files import write_atomically

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
    """The ports of a standalone, all on loopback."""

    service: int
    web: int
    bookie: int
    bookie_web: int
    relay: int = 0  # advertised instead of `service`; 0: no relay


def standalone_conf(ports: Ports, settings: Mapping[str, str]) -> str:
    """Return the configuration of broker and bookie, which share one file.

    Raises:
        LabError: `settings` has a key that the lab itself sets, or a line break.
    """
    own = {
        "metadataStoreUrl": "",
        "configurationMetadataStoreUrl": "",
        "clusterName": CLUSTER,
        "bindAddress": "127.0.0.1",
        **_advertised(ports),
        "brokerServicePort": str(ports.service),
        "webServicePort": str(ports.web),
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(ports.bookie_web),
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "allowLoopback": "true",
        "listeningInterface": "lo",  # else the bookie listens on every address
        "allowEphemeralPorts": "true",  # else the bookie ignores its port
        "exposeDefaultJVMMetrics": "false",  # broker and bookie would both register them, and fail
    }
    check_settings(settings, own)
    return properties({**DEFAULTS, **settings, **own})


def _advertised(ports: Ports) -> dict[str, str]:
    """Return the settings of the advertised address; Pulsar accepts only one of the two forms."""
    if not ports.relay:
        return {"advertisedAddress": "127.0.0.1"}
    return {
        "advertisedListeners": f"relay:pulsar://127.0.0.1:{ports.relay}",
        "internalListenerName": "relay",
    }


def java_options(folder: Path) -> list[str]:
    """Return the JVM's options: those of Pulsar's own launcher, for a small machine."""
    opened = (
        *(f"java.base/{package}" for package in _OPENED_BASE),
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )
    return [
        *("-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m"),
        # As for Kafka: with the second compiler a start takes 22 s of CPU instead of 13.
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Pulsar has stopped
        "-Djute.maxbuffer=10485760",
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"-Dbookkeeper.metadata.{kind}.drivers={name}" for kind, name in _DRIVERS.items()),
        *(f"--add-opens={package}=ALL-UNNAMED" for package in opened),
    ]


def standalone_arguments(conf: Path, data: Path, ports: Ports) -> list[str]:
    """Return the arguments of the main class: no functions worker, no stream storage."""
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


_READY_SECONDS = 120
_STOP_SECONDS = 20.0
_READY_POLL_NS = SECOND_NS // 10
_FAILED = "Failed to start pulsar service"  # after this the JVM goes on and ignores SIGTERM
_NO_ERROR = re.compile(r"\s|\[[^]]*\] (WARN|INFO|DEBUG) ")
_REASON_LINES = 12


@dataclass(frozen=True, slots=True)
class Program:
    """A Java program: its folder, its jars, its main class and arguments."""

    name: str
    folder: Path
    jars: Path
    main_class: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # added to our own
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)  # of a class archive

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "broker.log"

    @property
    def console(self) -> Path:
        return self.folder / "logs" / "console.log"

    @property
    def classes(self) -> ClassArchive:
        return ClassArchive(self.jars / "classes", java.java_home(), self.writer)

    def command(self) -> list[str]:
        """Write its logging configuration, and return its command line."""
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.xml").write_text(logging_xml(self.log))
        is_standalone = self.main_class == MAIN_CLASS  # it has the classes of the other programs
        classes = self.classes.writing_options() if is_standalone else self.classes.options()
        return [
            str(java.java_home() / "bin" / "java"),
            *java_options(self.folder),
            *classes,
            *("-cp", str(self.jars / "*")),
            self.main_class,
            *self.arguments,
        ]


class PulsarNode:
    """One process of a Pulsar; implements `soak.lab.ports.Node`."""

    def __init__(
        self, number: int, program: Program, data: Path, is_ready: Callable[[], bool]
    ) -> None:
        self._program = program
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self.number = number
        self.data_directory = data
        self.log_path = program.log

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError(f"the lab's {self._program.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        if self._process is not None:
            classes = self._program.classes
            classes.keep(children.stop(self._process, _STOP_SECONDS + classes.more_seconds))

    def kill(self) -> None:
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        self.stop()
        command = self._program.command()
        self._program.console.unlink(missing_ok=True)  # so that errors show only new output
        log_begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = children.spawn(
            command,
            log_path=self._program.console,
            cwd=self._program.folder,
            env={**os.environ, **self._program.environment},
        )
        try:
            self._await_ready(self._process, log_begin)
        except BaseException:  # an interrupt too must leave nothing behind
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes], log_begin: int) -> None:
        name, clock = self._program.name, SystemClock()
        deadline_ns = clock.mono_ns() + _READY_SECONDS * SECOND_NS
        while clock.mono_ns() < deadline_ns:
            log = _text_from(self.log_path, log_begin)
            if process.poll() is not None:
                reason = _reason(_text_from(self._program.console, 0) + log)
                raise LabError(
                    f"the lab's {name} ended with status {process.returncode}:\n{reason}"
                )
            if _FAILED in log:
                raise LabError(f"the lab's {name} did not start:\n{_reason(log)}")
            if self._is_ready():
                return
            clock.sleep_until(clock.mono_ns() + _READY_POLL_NS)
        raise LabError(
            f"the lab's {name} did not answer in {_READY_SECONDS} s:\n"
            f"{children.log_tail(self.log_path)}"
        )


def run_once(program: Program, limit_seconds: float) -> None:
    """Run a program to its end.

    Raises:
        LabError: it failed, or did not end.
    """
    run_tool(
        program.name,
        program.command(),
        program.folder,
        limit_seconds,
        program.console,
        program.log,
    )


def _text_from(path: Path, begin: int) -> str:
    """Return the text of a log from byte `begin` on; all of it if it was rotated."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(begin if begin <= size else 0)
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _reason(log: str) -> str:
    """Return the last errors of a log, without the frames of their stacks."""
    lines = [line for line in log.splitlines() if line and not _NO_ERROR.match(line)]
    return "\n".join(lines[-_REASON_LINES:])


MAX_NODES = 1  # a standalone

LOCK = Path(cache.__file__).parent / "pulsar.lock"

_ASK_SECONDS = 2.0
_TRIES = 3
_TAKEN = re.compile(r"Address already in use|BindException")
_OWN_TOKEN = "brokerClientAuthenticationParameters"  # noqa: S105  # the name of a setting
_ENVIRONMENT = {"PULSAR_STANDALONE_USE_ZOOKEEPER": "0"}


def start(
    folder: Path,
    settings: Mapping[str, str],
    *,
    nodes: int = 1,
    partitions: int = 0,  # noqa: ARG001  # its memory does not depend on them
    drives: Mapping[int, Path] = MappingProxyType({}),
    relayed: bool = False,
    jars: Path | None = None,
    standalone: type[Pulsar] | None = None,
) -> Pulsar:
    """Start a standalone with its files below `folder`, and return when it serves topics.

    A folder of an earlier standalone keeps its data and its ports: a bookie is known by its port, and refuses
    ledgers of another one. `settings` are added to the configuration of broker and bookie. The data is in
    `drives[1]`, if given; with `relayed` clients connect through a relay. Call it from the main thread: see
    `soak.service.children`. `jars` and `standalone` replace the fetched jars and the class.

    Raises:
        LabError: the jars or the process failed; with its last log lines.
    """
    if nodes > MAX_NODES:
        raise LabError(f"the lab's Pulsar has one node, not {nodes}")
    jars = jars or cache.fetch(LOCK)
    folder = folder.absolute()
    data = drives.get(1, folder) / "data"
    known = folder / "ports.json"
    for last in (False,) * (_TRIES - 1) + (True,):
        for path in (folder, data):
            path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(data.iterdir())
        is_new = is_empty or not known.exists()
        ports = _ports_for(known, is_new=is_new, relayed=relayed)
        (folder / "standalone.conf").write_text(standalone_conf(ports, settings), encoding="utf-8")
        broker = (standalone or Pulsar)(folder, data, jars, ports, _token_of(settings))
        # Before the start, which may be interrupted after it has written data for these ports.
        write_atomically(known, json.dumps(asdict(replace(ports, relay=0))))
        try:
            broker.restart()
        except LabError as error:
            is_taken = is_new and _TAKEN.search(str(error)) is not None
            if is_taken:  # the next try takes other ports, which data of this one would not fit
                known.unlink()
                if is_empty:
                    shutil.rmtree(data)
            if last or not is_taken:
                raise
        else:
            break
    return broker


def _token_of(settings: Mapping[str, str]) -> str:
    return settings.get(_OWN_TOKEN, "").removeprefix("token:")


def _ports_for(known: Path, *, is_new: bool, relayed: bool) -> Ports:
    ports = new_ports() if is_new else Ports(**json.loads(known.read_text()))
    return replace(ports, relay=free_ports(1)[0] if relayed else 0)


def broker_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a broker that `start` is given these settings for, without the lab's own."""
    return {**DEFAULTS, **given}


class Pulsar:
    """A running standalone; implements `soak.lab.ports.Running`."""

    def __init__(self, folder: Path, data: Path, jars: Path, ports: Ports, token: str = "") -> None:
        arguments = standalone_arguments(folder / "standalone.conf", data, ports)
        self._node = PulsarNode(
            1,
            Program("Pulsar", folder, jars, MAIN_CLASS, arguments, _ENVIRONMENT),
            data,
            lambda: serves_topics(self.admin_url, token),
        )
        self.nodes = (self._node,)
        self.data_directories = (data,)
        self.relay = Relay(folder / "relay", {ports.relay: ports.service}) if ports.relay else None
        self.service_url = f"pulsar://127.0.0.1:{ports.relay or ports.service}"
        self.admin_url = f"http://127.0.0.1:{ports.web}"
        self.metrics_url = f"{self.admin_url}/metrics/"
        self.bookie_metrics_url = f"http://127.0.0.1:{ports.bookie_web}/metrics"
        self.data_directory = data
        self.log_path = self._node.log_path

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "bookie_urls": self.bookie_metrics_url.removesuffix("/metrics"),
        }

    @property
    def bootstrap_servers(self) -> str:
        return self.service_url

    @property
    def pid(self) -> int:
        return self._node.pid

    def stop(self) -> None:
        self._node.stop()
        if self.relay is not None:
            self.relay.stop()

    def kill(self) -> None:
        self._node.kill()
        if self.relay is not None:
            self.relay.stop()

    def restart(self) -> None:
        """Start it again; it is ready when it serves a namespace: its port opens seconds too early."""
        self.stop()
        try:
            if self.relay is not None:
                self.relay.start()
            self._node.restart()
        except BaseException:  # an interrupt too must leave nothing behind
            self.kill()
            raise


def serves_topics(admin_url: str, token: str) -> bool:
    """Return whether the default namespace is served."""
    try:
        admin = connect_admin(admin_url, _ASK_SECONDS, token, {})
        return "public/default" in admin.get("/admin/v2/namespaces/public")
    except BrokerError:  # not listening, or not ready
        return False


def new_ports() -> Ports:
    """Return free ports: for clients, the admin API, the bookie and the bookie's metrics page."""
    return Ports(*free_ports(4))
