"""One JVM of a Pulsar in parts: how it is started and ended, and when it is ready."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.brokers import _pulsar_files as standalone
from soak.lab.brokers._surroundings import logging_xml
from soak.service import children, java

_READY_SECONDS = 120
_STOP_SECONDS = 20.0
_ASK_AGAIN_NS = SECOND_NS // 10


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: its folder, its jars, its class and what that is told."""

    name: str
    folder: Path
    jars: Path
    main_class: str
    arguments: Sequence[str]

    def command(self) -> list[str]:
        """Write the logging configuration that it needs, and return its words."""
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        log = self.folder / "logs" / "broker.log"
        (self.folder / "log4j2.xml").write_text(logging_xml(log))
        return [
            str(java.java_home() / "bin" / "java"),
            *standalone.java_options(self.folder),
            *("-cp", str(self.jars / "*")),
            self.main_class,
            *self.arguments,
        ]


class ApartNode:
    """A process of its own; implements `soak.lab.ports.Node`."""

    def __init__(
        self, number: int, program: Program, data: Path, is_ready: Callable[[], bool]
    ) -> None:
        self._program = program
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self.number = number
        self.data_directory = data
        self.log_path = program.folder / "logs" / "broker.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError(f"the lab's {self._program.name} was not started")
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            children.stop(self._process, _STOP_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        self.stop()
        command = self._program.command()
        console = self._program.folder / "logs" / "console.log"
        console.unlink(missing_ok=True)  # old reasons would be taken for new ones
        self._process = children.spawn(
            command, log_path=console, cwd=self._program.folder, env=dict(os.environ)
        )
        try:
            self._await_ready(self._process, console)
        except BaseException:  # an interrupt too must leave nothing behind
            self.kill()
            raise

    def _await_ready(self, process: subprocess.Popen[bytes], console: Path) -> None:
        clock = SystemClock()
        deadline_ns = clock.mono_ns() + _READY_SECONDS * SECOND_NS
        while clock.mono_ns() < deadline_ns:
            if process.poll() is not None:
                said = children.log_tail(console) + "\n" + children.log_tail(self.log_path)
                status = process.returncode
                raise LabError(
                    f"the lab's {self._program.name} ended with status {status}:\n{said.strip()}"
                )
            if self._is_ready():
                return
            clock.sleep_until(clock.mono_ns() + _ASK_AGAIN_NS)
        raise LabError(
            f"the lab's {self._program.name} did not answer in {_READY_SECONDS} s:\n"
            f"{children.log_tail(self.log_path)}"
        )


def run_once(program: Program, limit_seconds: float) -> None:
    """Run a tool to its end.

    Raises:
        LabError: it failed, or did not end.
    """
    command = program.command()
    console = program.folder / "logs" / "console.log"
    process = children.spawn(command, log_path=console, cwd=program.folder)
    try:
        status = process.wait(limit_seconds)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{program.name} did not end in {limit_seconds:g} s") from error
    finally:
        children.kill(process)
    if status != 0:
        said = children.log_tail(console) + children.log_tail(program.folder / "logs/broker.log")
        raise LabError(f"{program.name} failed:\n{said}")
