"""A run folder with its load daemons as processes, and nothing else: what the audit is judged by."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.runtime.grid import host_name
from soak.service import children
from soak.store.audit import audit_run
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import Run, RunFolder, read_plan, read_run, write_run
from tests.support.paths import ROOT

LIMIT_SECONDS = 60


class LoadRun:
    """`produce` and `consume` of one run; phases say soak until they are asked to end."""

    def __init__(self, path: Path, plan: str, topic: str) -> None:
        self.folder = RunFolder(path)
        self.topic = topic
        path.mkdir()
        found = text.load(plan, "plan.yaml").plan
        found = dataclasses.replace(found, topic=dataclasses.replace(found.topic, name=topic))
        self.folder.plan.write_text(text.dump(found))
        self.folder.phases.write_text(decision_line("soak", 0))
        write_run(
            self.folder, Run("audit-truth", SystemClock().wall_ns(), "host", {}, "running", "audit")
        )
        self.started: list[subprocess.Popen[bytes]] = []

    def mirrored(self, path: Path, topic: str) -> LoadRun:
        """Return the same run as one who reads another topic sees it; the journals are shared."""
        other = LoadRun(path, self.folder.plan.read_text(), topic)
        write_run(other.folder, read_run(self.folder))
        self.folder.journal.mkdir(exist_ok=True)
        other.folder.journal.symlink_to(self.folder.journal)
        return other

    def start(self, daemon: str, index: int = 0) -> subprocess.Popen[bytes]:
        where = ["--run-dir", str(self.folder.path), "--index", str(index)]
        if (
            daemon == "produce"
        ):  # it comes when the test says so, and owes nothing of the time before
            source = self.folder.journal / f"produce.{index}@{host_name()}"
            source.mkdir(parents=True, exist_ok=True)
            (source / "000000.jsonl").touch()
        with (self.folder.path / f"{daemon}.log").open("a") as log:
            command = [sys.executable, "-m", "soak.cli.main", daemon, *where]
            process = subprocess.Popen(children.with_death_signal(command), cwd=ROOT, stderr=log)
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Let a daemon flush what is out and write its last record."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 0

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                self.kill(process)

    def total(self, metric: str) -> int:
        """Return the sum of a count over all records so far."""
        journal = self.folder.journal
        return sum(
            int(value)
            for name in sources(journal)
            for record, columns in read_source(journal, name)
            for column, value in zip(columns, record.values, strict=True)
            if column.metric == metric
        )

    def newest(self, metric: str) -> float | None:
        """Return the value of the last record that has such a column."""
        journal = self.folder.journal
        found = [
            (record.at_ns, value)
            for name in sources(journal)
            for record, columns in read_source(journal, name)
            for column, value in zip(columns, record.values, strict=True)
            if column.metric == metric
        ]
        return max(found)[1] if found else None

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Ask until it holds; a bound, not a pace."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            time.sleep(0.1)

    def produce(self, count: int) -> int:
        """Send at least so many messages; return how many were acknowledged, in this call or before."""
        begin = self.total("acked_messages")
        process = self.start("produce")
        self.until(lambda: self.total("acked_messages") - begin >= count, f"{count} acknowledged")
        self.end(process)
        return self.total("acked_messages")

    def consume(self, count: int, index: int = 0) -> None:
        """Receive so many messages more, copies included, and end."""
        goal = self.total("received_messages") + count
        process = self.start("consume", index)
        self.until(lambda: self.total("received_messages") >= goal, f"{count} received")
        self.end(process)

    def verdict(self) -> dict[str, int | None]:
        """Return the audit's counts but those that are 0, and those of what was sent."""
        plan = read_plan(self.folder)
        found = audit_run(self.folder, read_run(self.folder), plan).verdict()
        return {key: count for key, count in found.items() if count and key not in _SENDING}


_SENDING = ("sent", "acked", "missed_sends")
