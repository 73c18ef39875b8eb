"""A real Pulsar on this machine: broker and bookie in one process, its own data folder and ports.

Broker and bookie are one JVM, so one signal stops or kills both, and the data of both lies below one
folder. The ports of a folder stay: a bookie is known by its port, and would refuse another's ledgers.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from soak.core.errors import LabError
from soak.lab import artifacts
from soak.lab.brokers import _pulsar_files as files
from soak.lab.brokers._pulsar_node import Program, PulsarNode
from soak.lab.brokers._surroundings import free_ports
from soak.lab.relay import Relay
from soak.store.run_folder import write_atomically

MOST_NODES = 1  # a standalone

LOCK = Path(artifacts.__file__).parent / "pulsar.lock"

_ASK_SECONDS = 2.0
_TRIES = 3
_TAKEN = re.compile(r"Address already in use|BindException")
_OWN_TOKEN = "brokerClientAuthenticationParameters"  # noqa: S105  # a setting's name: what it tells itself
_ENVIRONMENT = {"PULSAR_STANDALONE_USE_ZOOKEEPER": "0"}


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
    named; with `relayed` clients come through a relay. From the main thread: see
    `soak.service.children`.

    Raises:
        LabError: it could not be fetched or started; the message ends with its last log lines.
    """
    if nodes > MOST_NODES:
        raise LabError(f"the lab's Pulsar has one node, not {nodes}")
    jars = artifacts.fetch(LOCK)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    data = drives.get(1, folder) / "data"
    known = folder / "ports.json"
    for last in (False,) * (_TRIES - 1) + (True,):
        data.mkdir(parents=True, exist_ok=True)
        is_empty = not any(data.iterdir())
        is_new = is_empty or not known.exists()
        ports = new_ports() if is_new else files.Ports(**json.loads(known.read_text()))
        if relayed:
            ports = replace(ports, relay=free_ports(1)[0])
        text = files.standalone_conf(ports, settings)
        (folder / "standalone.conf").write_text(text, encoding="utf-8")
        token = settings.get(_OWN_TOKEN, "").removeprefix("token:")
        broker = Pulsar(folder, data, jars, ports, token)
        # Before the start, which may be cut short and leave data that is known by them.
        write_atomically(known, json.dumps(asdict(replace(ports, relay=0))))
        try:
            broker.restart()
        except LabError as error:
            is_taken = is_new and _TAKEN.search(str(error)) is not None
            if is_taken:  # what is there knows these ports, and the next try takes others
                known.unlink()
                if is_empty:
                    shutil.rmtree(data)
            if last or not is_taken:
                raise
        else:
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
        arguments = files.arguments(folder / "standalone.conf", data, ports)
        self._node = PulsarNode(
            1,
            Program("Pulsar", folder, jars, files.MAIN_CLASS, arguments, _ENVIRONMENT),
            data,
            lambda: serves_topics(self.admin_url, token),
        )
        self.nodes = (self._node,)
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
        """Start it again; ready when the namespace of topics is served: the port opens seconds too early."""
        self.stop()
        try:
            if self.relay is not None:
                self.relay.start()
            self._node.restart()
        except BaseException:  # an interrupt too must leave nothing behind
            self.kill()
            raise


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


def new_ports() -> files.Ports:
    """Return ports that nobody listens on now: clients, admin, bookie, the bookie's page."""
    return files.Ports(*free_ports(4))
