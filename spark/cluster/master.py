"""Which cluster executes a job: its URL, the settings of the user, and the secret that its processes share.

Without a cluster a job runs in the processes of this command. Driver and executors authenticate each other
and encrypt what they send and spill, also on loopback: any process of a machine can reach a port there, and
Spark's reads objects of Java from it.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from soak.clients.client_settings import (
    SECRET_HELP,
    is_loopback,
    is_secret_reference,
    resolve_secrets,
)
from soak.core.errors import BrokerError, PlanError
from spark.cluster.package import PYTHON

Kind = Literal["standalone", "yarn", "kubernetes"]

DEFAULT_SECRET = "${env:SOAK_SPARK_SECRET}"  # noqa: S105  # a reference, no secret
SUPPORTED = "spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
AUTHENTICATE = "spark.authenticate"
SECRET_SETTING = "spark.authenticate.secret"  # noqa: S105  # the name of a setting
EXECUTOR_PYTHON = "spark.pyspark.python"

SECURITY = {
    AUTHENTICATE: "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",  # the one that detects tampering
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
"""As Spark's page on security recommends; master and workers of a standalone cluster need the same."""

_PORT = 443
_MAX_PORT = 65535
_ADDRESS = r"[^/,@\s:\[\]]+:\d{1,5}"
_STANDALONE = re.compile(rf"spark://{_ADDRESS}(,{_ADDRESS})*", re.ASCII)
_KUBERNETES = re.compile(r"k8s://(https?://)?[^/@\s?]+(/[^@\s?]*)?")
_IS_SECRET = re.compile(r"(password|passphrase|secret|token|(access|account)\.?key)", re.IGNORECASE)
_NAMES_A_PLACE = re.compile(
    r"(\.|oauthToken)file$|\.(path|provider|enabled)$|serviceAccountName$"
    r"|^spark\.kubernetes\.(driver|executor)\.(secretKeyRef|secrets)\.",
    re.IGNORECASE,
)
_OURS = {
    "spark.master": "--master names it",
    "spark.submit.deployMode": "soakd sets it itself",
    "spark.app.name": "soakd sets it itself",
    "spark.sql.shuffle.partitions": "the state depends on it: detection.shards of the plan, or --partitions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster manager that starts executors for us; `secret` is a reference, as secrets in a plan are.

    With `ships_python` executors get our Python environment; without it they have one that we can name.
    """

    master: str
    settings: Mapping[str, str] = field(default_factory=dict)
    secret: str = DEFAULT_SECRET
    ships_python: bool = True

    @property
    def kind(self) -> Kind:
        if self.master == "yarn":
            return "yarn"
        return "kubernetes" if self.master.startswith("k8s://") else "standalone"

    @property
    def is_loopback(self) -> bool:
        """Return whether all of a standalone cluster's masters are addressed as this machine."""
        hosts = [_host_and_port(one)[0] for one in self._addresses()]
        return self.kind == "standalone" and all(map(is_loopback, hosts))

    @property
    def authenticates(self) -> bool:
        """Return whether driver and executors share a secret: unless that is switched off."""
        return self.settings.get(AUTHENTICATE, "true").lower() == "true"

    def security(self) -> dict[str, str]:
        """Return the settings that authenticate and encrypt, without the secret; the user's come first."""
        if not self.authenticates:
            return {}
        own = dict(SECURITY)
        if self.settings.get("spark.ssl.rpc.enabled", "").lower() == "true":  # TLS instead
            own = {name: text for name, text in own.items() if ".crypto." not in name}
        return own

    def read_secret(self) -> str:
        """Return the secret of a standalone cluster; "" where none is needed or Spark makes one itself.

        Raises:
            PlanError: it is missing, empty or cannot be read; the message does not quote it.
        """
        if not self.authenticates or self.kind != "standalone":
            return ""
        hint = (
            f"{self.master}: driver and executors need the cluster's secret ({SECRET_SETTING}): set "
            "SOAK_SPARK_SECRET, or --secret '${file:PATH}'"
        )
        try:
            found = resolve_secrets({"secret": self.secret})["secret"].strip()
        except BrokerError as error:
            raise PlanError(f"{hint} ({error})") from error
        if not found:
            raise PlanError(f"{hint} (it is empty)")
        return found

    def local_address(self) -> str:
        """Return the address of this machine on which executors reach the driver; "" where none is known.

        Raises:
            PlanError: the name of the master is unknown.
        """
        if self.is_loopback:
            return "127.0.0.1"
        host, port = _host_and_port(self._addresses()[0])
        if self.kind == "yarn" or is_loopback(host):
            return ""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))  # sends nothing: the kernel only chooses the route
                return str(probe.getsockname()[0])
        except OSError as error:
            raise PlanError(f"--master {self.master}: cannot reach {host}: {error}") from error

    def _addresses(self) -> list[str]:
        if self.kind == "kubernetes":
            return [urlsplit("//" + self.master.rpartition("://")[2]).netloc]
        return self.master.removeprefix("spark://").split(",")


def parse_cluster(master: str, conf: Sequence[str] = (), secret: str = "") -> Cluster | None:
    """Return the cluster that options of a command line describe; None without a master: run locally.

    `conf` has settings of Spark as NAME=VALUE; `secret` is a reference, by default an environment variable.

    Raises:
        PlanError: the URL is of no supported cluster, a setting is not one, or a secret is in the open.
    """
    if secret and not is_secret_reference(secret):
        raise PlanError(f"--secret: a secret must not stand on a command line: {SECRET_HELP}")
    settings = dict(map(_setting, conf))
    if not master:
        if settings or secret:
            raise PlanError("--conf and --secret are of a cluster: they need --master")
        return None
    is_known = master == "yarn" or _is_standalone(master) or _KUBERNETES.fullmatch(master)
    if not is_known:
        raise PlanError(
            f"--master {master}: expected {SUPPORTED}; without --master Spark runs here"
        )
    found = Cluster(master=master, settings=settings, secret=secret or DEFAULT_SECRET)
    if settings.get(EXECUTOR_PYTHON, PYTHON) != PYTHON or (
        found.is_loopback and EXECUTOR_PYTHON not in settings
    ):
        found = replace(found, ships_python=False)
    _check_surroundings(found)
    return found


def _is_standalone(master: str) -> bool:
    ports = re.findall(r":(\d+)", master, re.ASCII)
    return bool(_STANDALONE.fullmatch(master)) and all(int(one) <= _MAX_PORT for one in ports)


def _check_surroundings(cluster: Cluster) -> None:
    """Refuse what Spark would say after half a minute, in words of its own."""
    program = cluster.settings.get(EXECUTOR_PYTHON, PYTHON)
    if program != PYTHON and not os.access(program, os.X_OK):
        raise PlanError(
            f"--conf {EXECUTOR_PYTHON}: there is no {program} here; the driver starts it too, so it is the "
            f"same path on all hosts. Without this setting the Python of this command is shipped"
        )
    if cluster.kind == "yarn":
        folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR") or ""
        if not folder or not (Path(folder) / "yarn-site.xml").is_file():
            raise PlanError(
                "--master yarn: HADOOP_CONF_DIR must name the folder with the cluster's yarn-site.xml"
            )
    image = "spark.kubernetes.container.image"
    images = (image, "spark.kubernetes.executor.container.image")
    if cluster.kind == "kubernetes" and not any(name in cluster.settings for name in images):
        raise PlanError(
            f"--master {cluster.master}: needs --conf {image}=IMAGE, an image with the Spark of soakd"
        )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise PlanError(f"--conf {name}: expected a setting of Spark as spark.NAME=VALUE")
    if name in _OURS:
        raise PlanError(f"--conf {name}: {_OURS[name]}")
    if _IS_SECRET.search(name) and not _NAMES_A_PLACE.search(name):
        raise PlanError(
            f"--conf {name}: a secret must not stand on a command line; --secret takes the cluster's, "
            "others belong to files or variables of the hosts"
        )
    return name, value


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return address.strip("[]"), _PORT
    return host.strip("[]"), int(port)
