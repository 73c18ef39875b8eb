"""One Kafka process of a lab's cluster: how it is started and ended, and when it is ready."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.brokers import _kafka_files as files
from soak.lab.brokers import _kafka_jvm as jvm
from soak.service import children

_READY_SECONDS = 60
_ASK_SECONDS = 0.25
_ASK_AGAIN_NS = SECOND_NS // 50
_STOP_SECONDS = 20


class KafkaNode:
    """A broker process; implements `soak.lab.ports.Node`."""

    def __init__(self, folder: Path, machine: jvm.Machine, place: files.Place, data: Path) -> None:
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
            *jvm.command(self._folder, self._machine.jars, self._options()),
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
