"""One JVM of a Pulsar: how it is started and ended, and when it is ready."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.brokers import _pulsar_files as standalone
from soak.lab.brokers._surroundings import logging_xml
from soak.lab.brokers._tool import run_tool
from soak.service import children, java

_READY_SECONDS = 120
_STOP_SECONDS = 20.0
_ASK_AGAIN_NS = SECOND_NS // 10
_FAILED = "Failed to start pulsar service"  # after which the JVM lives on and ignores SIGTERM
_IDLE = re.compile(r"\s|\[[^]]*\] (WARN|INFO|DEBUG) ")
_REASON_LINES = 12


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: its folder, its jars, its class and what that is told."""

    name: str
    folder: Path
    jars: Path
    main_class: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # beside ours

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "broker.log"

    @property
    def console(self) -> Path:
        return self.folder / "logs" / "console.log"

    def command(self) -> list[str]:
        """Write the logging configuration that it needs, and return its words."""
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.xml").write_text(logging_xml(self.log))
        return [
            str(java.java_home() / "bin" / "java"),
            *standalone.java_options(self.folder),
            *("-cp", str(self.jars / "*")),
            self.main_class,
            *self.arguments,
        ]


class PulsarNode:
    """A process of its own; implements `soak.lab.ports.Node`."""

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
            children.stop(self._process, _STOP_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        self.stop()
        command = self._program.command()
        self._program.console.unlink(missing_ok=True)  # old reasons would be taken for new ones
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
            said = _text_from(self.log_path, log_begin)
            if process.poll() is not None:
                reason = _reason(_text_from(self._program.console, 0) + said)
                raise LabError(
                    f"the lab's {name} ended with status {process.returncode}:\n{reason}"
                )
            if _FAILED in said:
                raise LabError(f"the lab's {name} did not start:\n{_reason(said)}")
            if self._is_ready():
                return
            clock.sleep_until(clock.mono_ns() + _ASK_AGAIN_NS)
        raise LabError(
            f"the lab's {name} did not answer in {_READY_SECONDS} s:\n"
            f"{children.log_tail(self.log_path)}"
        )


def run_once(program: Program, limit_seconds: float) -> None:
    """Run a tool to its end.

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
