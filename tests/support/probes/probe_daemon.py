"""A probe daemon as a process of its own, watched through its journal: for tests on the real clock."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.core.model import Column, Event
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.service import children
from soak.store.journal.reader import SourceReader, read_source, sources
from soak.store.run_folder import Run, RunFolder, write_run

LIMIT_SECONDS = 60.0
_HEAD = "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\nprobes:\n"


@dataclass(frozen=True)
class Second:
    """One record: values by the column's metric, or metric and quantile (`fsync_latency_seconds 0.5`)."""

    k: int
    values: dict[str, float]
    events: tuple[Event, ...]


class ProbeDaemon:
    """Begins at once; `probes` is the section of the plan, indented."""

    def __init__(self, folder: Path, probes: str) -> None:
        self._folder = RunFolder(folder)
        folder.mkdir()
        self._start_ns = time.time_ns()
        self._folder.plan.write_text(_HEAD + probes)
        write_run(self._folder, Run("x-1", self._start_ns, "h", {}, "running"))
        self._folder.phases.write_text(decision_line("soak", 0) + decision_line("end", 10_000))
        self.watchdog_answers = 0  # seen so far
        name = f"soakd-test-{os.getpid()}-{id(self)}"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._manager.bind(f"\0{name}")
        command = [sys.executable, "-m", "soak.cli.main", "probe", "--run-dir", str(folder)]
        variables = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "2000000"}
        self.process = subprocess.Popen(
            children.with_death_signal(command), env={**os.environ, **variables}
        )

    def now_k(self) -> int:
        """Return the second of the run that it is now."""
        return (time.time_ns() - self._start_ns) // SECOND_NS

    def seconds(self, from_k: int = 0) -> list[Second]:
        found = []
        for source in sources(self._folder.journal) if self._folder.journal.exists() else []:
            reader = SourceReader(self._folder.journal / source)
            for record, columns in read_source(self._folder.journal, source, reader):
                values = {
                    _name(column): value
                    for column, value in zip(columns, record.values, strict=True)
                }
                found.append(Second(record.k, values, record.events))
        return [second for second in found if second.k >= from_k]

    def until(self, is_there: Callable[[list[Second]], bool], from_k: int = 0) -> list[Second]:
        """Return the seconds from one on, as soon as they are as wanted."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            self._hear()
            found = self.seconds(from_k)
            if is_there(found):
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {LIMIT_SECONDS:g} s: {self.seconds(from_k)[-3:]}")

    def whole_seconds(self, count: int) -> list[Second]:
        """Return the next so many seconds that begin from now on."""
        return self.until(lambda found: len(found) >= count, self.now_k() + 1)

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(LIMIT_SECONDS)
        finally:
            self.process.kill()
            self._manager.close()

    def _hear(self) -> None:
        """Take what the manager was notified of; its queue is short."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.watchdog_answers += b"WATCHDOG=1" in self._manager.recv(4096)


def _name(column: Column) -> str:
    quantile = dict(column.labels).get("quantile")
    return f"{column.metric} {quantile}" if quantile else column.metric
