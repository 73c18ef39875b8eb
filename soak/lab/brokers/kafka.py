"""A real Kafka on this machine: one node, broker and controller, its own data folder and ports.

Serial collector and the first compiler only: on two cores at 2,000 messages a second the p99 was
calm from the tenth second on, at two thirds of the CPU time that the defaults take.
"""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab import artifacts
from soak.lab.brokers import _kafka_files as files
from soak.service import children, java

_HEAP = ("-Xms256m", "-Xmx512m")
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_PORTS = range(20_000, 32_000)  # below the kernel's own choice, so a restart finds them free
_READY_SECONDS = 60
_ASK_SECONDS = 0.25
_STOP_SECONDS = 20.0
_FORMAT_SECONDS = 60.0
_TRIES = 3
_TEMPLATE = "bootstrap.checkpoint"
_TAKEN = re.compile(r"Address already in use|BindException")


def start(folder: Path, settings: Mapping[str, str]) -> Kafka:
    """Start a broker whose files lie below `folder`, and return when it answers.

    A folder that a broker was started in before keeps its data. `settings` go into the broker's
    configuration under their real names. From the main thread: see `soak.service.children`.

    Raises:
        LabError: it could not be fetched or started; the message ends with its last log lines.
    """
    jars = artifacts.fetch(artifacts.KAFKA_LOCK)
    for name in ("logs", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.xml").write_text(files.logging_xml(folder / "logs" / "broker.log"))
    for last in (False,) * (_TRIES - 1) + (True,):
        broker = _configured(folder.absolute(), settings, jars)
        try:
            broker.restart()
        except LabError as error:
            if last or not _TAKEN.search(str(error)):
                raise
        else:
            break
    return broker


class Kafka:
    """A broker process; implements `soak.lab.ports.Running`."""

    def __init__(self, folder: Path, jars: Path, port: int) -> None:
        self._folder = folder
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self.data_directory = folder / "data"
        self.log_path = folder / "logs" / "broker.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError("the lab's Kafka was not started")
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
        command = [
            *_java(self._folder, self._jars, _HEAP),
            "kafka.Kafka",
            str(self._folder / "server.properties"),
        ]
        self._process = children.spawn(command, log_path=console, cwd=self._folder)
        try:
            _wait_ready(self._process, self.bootstrap_servers, console, self.log_path)
        except BaseException:  # an interrupt too must leave no broker behind
            self.kill()
            raise


def _configured(folder: Path, settings: Mapping[str, str], jars: Path) -> Kafka:
    port, controller_port = _free_ports()
    broker = Kafka(folder, jars, port)
    text = files.server_properties(broker.data_directory, port, controller_port, settings)
    (folder / "server.properties").write_text(text, encoding="utf-8")
    if not (broker.data_directory / "meta.properties").exists():
        _format(folder, broker.data_directory, jars)
    return broker


def _format(folder: Path, data: Path, jars: Path) -> None:
    """Format a data folder with Kafka's tool; later ones get a copy of its answer and ids anew.

    The tool takes a second of CPU, and all that differs between two of its answers are the ids.
    """
    template = jars / _TEMPLATE
    if template.exists():
        data.mkdir(exist_ok=True)
        shutil.copyfile(template, data / _TEMPLATE)
        (data / "meta.properties").write_text(files.meta_properties(_new_id(), _new_id()))
        return
    tool = [*_java(folder, jars, ()), "kafka.tools.StorageTool", "format", "-t", _new_id()]
    console = folder / "logs" / "format.log"
    process = children.spawn(
        [*tool, "-c", str(folder / "server.properties")], log_path=console, cwd=folder
    )
    try:
        status = process.wait(_FORMAT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"Kafka's storage tool did not end in {_FORMAT_SECONDS:g} s") from error
    finally:
        children.kill(process)
    if status != 0:
        raise LabError(f"Kafka's storage tool failed:\n{children.log_tail(console)}")
    draft = jars / f".{_TEMPLATE}.{os.getpid()}"
    shutil.copyfile(data / _TEMPLATE, draft)
    draft.replace(template)


def _java(folder: Path, jars: Path, heap: tuple[str, ...]) -> list[str]:
    return [
        str(java.java_home() / "bin" / "java"),
        *heap,
        *_QUICK,
        f"-Dlog4j2.configurationFile={folder / 'log4j2.xml'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        "-Dlog4j.shutdownHookEnabled=false",  # it would close the log before Kafka is done
        f"-XX:ErrorFile={folder / 'logs' / 'crash.log'}",
        "-XX:+ExitOnOutOfMemoryError",
        *("-cp", str(jars / "*")),
    ]


def _wait_ready(
    process: subprocess.Popen[bytes], servers: str, console: Path, log_path: Path
) -> None:
    """Return when the broker answers a question for its metadata."""
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _READY_SECONDS * SECOND_NS
    admin = AdminClient(
        {
            "bootstrap.servers": servers,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,  # that it cannot connect yet is no news
        }
    )
    while clock.mono_ns() < deadline_ns:
        if process.poll() is not None:
            said = children.log_tail(console) + "\n" + children.log_tail(log_path)
            raise LabError(
                f"the lab's Kafka ended with status {process.returncode}:\n{said.strip()}"
            )
        try:
            if admin.list_topics(timeout=_ASK_SECONDS).brokers:
                return
        except KafkaException:
            continue
    raise LabError(
        f"the lab's Kafka did not answer in {_READY_SECONDS} s:\n{children.log_tail(log_path)}"
    )


def _free_ports() -> tuple[int, int]:
    """Return two ports that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(_PORTS, 200):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == 2:  # noqa: PLR2004 - one for clients, one for the controller
            return found[0], found[1]
    raise LabError(f"no free port on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop}")


def _new_id() -> str:
    """Return an id as Kafka makes them: 16 random bytes, URL-safe base64, not led by a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text
