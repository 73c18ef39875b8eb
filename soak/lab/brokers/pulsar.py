"""A real Pulsar on this machine: broker and bookie in one process, its own data folder and ports.

Broker and bookie are one JVM, so one signal stops or kills both, and the data of both lies below one
folder. The ports of a folder stay: a bookie is known by its port, and would refuse another's ledgers.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab import artifacts
from soak.lab.brokers import _pulsar_files as files
from soak.lab.brokers._surroundings import free_ports, logging_xml
from soak.service import children, java

MOST_NODES = 1  # a standalone

LOCK = Path(artifacts.__file__).parent / "pulsar.lock"

_READY_SECONDS = 90
_ASK_SECONDS = 2.0
_ASK_AGAIN_NS = SECOND_NS // 10
_STOP_SECONDS = 20.0
_TRIES = 3
_FAILED = "Failed to start pulsar service"  # after which the JVM lives on and ignores SIGTERM
_TAKEN = re.compile(r"Address already in use|BindException")
_IDLE = re.compile(r"\s|\[[^]]*\] (WARN|INFO|DEBUG) ")
_REASON_LINES = 12
_OWN_TOKEN = "brokerClientAuthenticationParameters"  # noqa: S105  # a setting's name: what it tells itself


def start(
    folder: Path,
    settings: Mapping[str, str],
    *,
    nodes: int = 1,
    partitions: int = 0,  # noqa: ARG001  # its memory does not grow with them
    drives: Mapping[int, Path] = MappingProxyType({}),
    relayed: bool = False,
) -> Pulsar:
    """Start a standalone whose files lie below `folder`, and return when it serves topics.

    A folder that one was started in before keeps its data and its ports. `settings` go into the
    configuration of broker and bookie under their real names. Its data lies in `drives[1]`, if
    named. From the main thread: see `soak.service.children`.

    Raises:
        LabError: it could not be fetched or started; the message ends with its last log lines.
    """
    if nodes > MOST_NODES:
        raise LabError(f"the lab's Pulsar has one node, not {nodes}")
    if relayed:
        raise LabError("the lab has a relay for Kafka alone: Pulsar tells clients its own address")
    jars = artifacts.fetch(LOCK)
    folder = folder.absolute()
    data = drives.get(1, folder) / "data"
    for path in (folder / "logs", folder / "tmp", data):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.xml").write_text(logging_xml(folder / "logs" / "broker.log"))
    known = folder / "ports.json"
    for last in (False,) * (_TRIES - 1) + (True,):
        is_new = not known.exists()
        ports = new_ports() if is_new else files.Ports(**json.loads(known.read_text()))
        text = files.standalone_conf(ports, settings)
        (folder / "standalone.conf").write_text(text, encoding="utf-8")
        token = settings.get(_OWN_TOKEN, "").removeprefix("token:")
        broker = Pulsar(folder, data, jars, ports, token)
        try:
            broker.restart()
        except LabError as error:
            if last or not is_new or not _TAKEN.search(str(error)):
                raise
        else:
            known.write_text(json.dumps(asdict(ports)))
            break
    return broker


def broker_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return what `start` configures a broker with, as far as that is not for the lab alone to know."""
    return {**files.DEFAULTS, **given}


class Pulsar:
    """A standalone process; implements `soak.lab.ports.Running`."""

    def __init__(
        self, folder: Path, data: Path, jars: Path, ports: files.Ports, token: str = ""
    ) -> None:
        self._folder = folder
        self._jars = jars
        self._ports = ports
        self._token = token
        self._process: subprocess.Popen[bytes] | None = None
        self.number = 0
        self.service_url = f"pulsar://127.0.0.1:{ports.service}"
        self.admin_url = f"http://127.0.0.1:{ports.web}"
        self.metrics_url = f"{self.admin_url}/metrics/"
        self.bookie_metrics_url = f"http://127.0.0.1:{ports.bookie_web}/metrics"
        self.data_directory = data
        self.log_path = folder / "logs" / "broker.log"

    @property
    def nodes(self) -> tuple[Pulsar]:
        return (self,)

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
        if self._process is None:
            raise LabError("the lab's Pulsar was not started")
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, _STOP_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        self.stop()
        console = self._folder / "logs" / "console.log"
        console.unlink(missing_ok=True)  # old reasons would be taken for new ones
        log_begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [
            str(java.java_home() / "bin" / "java"),
            *files.java_options(self._folder),
            *("-cp", str(self._jars / "*")),
            files.MAIN_CLASS,
            *files.arguments(self._folder / "standalone.conf", self.data_directory, self._ports),
        ]
        self._process = children.spawn(
            command,
            log_path=console,
            cwd=self._folder,
            env={**os.environ, "PULSAR_STANDALONE_USE_ZOOKEEPER": "0"},
        )
        try:
            self._wait_ready(self._process, console, log_begin)
        except BaseException:  # an interrupt too must leave no broker behind
            self.kill()
            raise

    def _wait_ready(self, process: subprocess.Popen[bytes], console: Path, log_begin: int) -> None:
        """Return when the namespace of topics is served; the port opens seconds too early."""
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + _READY_SECONDS * SECOND_NS
        while clock.mono_ns() < deadline_ns:
            said = _text_from(self.log_path, log_begin)
            if process.poll() is not None:
                reason = _reason(_text_from(console, 0) + said)
                raise LabError(
                    f"the lab's Pulsar ended with status {process.returncode}:\n{reason}"
                )
            if _FAILED in said:
                raise LabError(f"the lab's Pulsar did not start:\n{_reason(said)}")
            if serves_topics(self.admin_url, self._token):
                return
            clock.sleep_until(clock.mono_ns() + _ASK_AGAIN_NS)
        raise LabError(
            f"the lab's Pulsar did not answer in {_READY_SECONDS} s:\n"
            f"{children.log_tail(self.log_path)}"
        )


def serves_topics(admin_url: str, token: str) -> bool:
    """Return whether the namespace of topics is there."""
    request = urllib.request.Request(f"{admin_url}/admin/v2/namespaces/public")  # noqa: S310  # loopback
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_ASK_SECONDS) as answer:  # noqa: S310  # as above
            return "public/default" in json.load(answer)
    except (OSError, ValueError):  # not there yet, or not ready
        return False


def _text_from(path: Path, begin: int) -> str:
    """Return what was written to a log since it was `begin` bytes long; all if it was turned over."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(begin if begin <= size else 0)
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _reason(said: str) -> str:
    """Return the last errors of a log, without the frames of their stacks."""
    lines = [line for line in said.splitlines() if line and not _IDLE.match(line)]
    return "\n".join(lines[-_REASON_LINES:])


def new_ports() -> files.Ports:
    """Return ports that nobody listens on now: clients, admin, bookie, the bookie's page."""
    return files.Ports(*free_ports(4))
