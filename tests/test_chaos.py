"""A run whose daemons are killed at random: what was written stays, and the cluster is blamed for nothing.

`make chaos`; SOAK_CHAOS_SEED and SOAK_CHAOS_KILLS say which kills, and how many.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.daemons.context import connect, host_name, topics_of
from soak.daemons.supervise import RESTART_LIMIT, Supervisor, roles_of
from soak.lab.ports import Running
from soak.store.run_folder import Run, RunFolder, write_run
from tests.live_run import LEAD_SECONDS
from tests.test_mail import Inbox, served

SEED = int(os.environ.get("SOAK_CHAOS_SEED", "20261121"))
KILLS = int(os.environ.get("SOAK_CHAOS_KILLS", "50"))
SHORTEST, LONGEST = 1.0, 5.0  # seconds between two kills
LIMIT_SECONDS = 600


class Chaos:
    """The daemons of one run under their supervisor, and whoever kills them."""

    def __init__(self, path: Path, servers: str, mail_port: int) -> None:
        self.folder = RunFolder(path)
        self.folder.logs.mkdir(parents=True)
        self._clock, self._random = SystemClock(), random.Random(SEED)
        self.folder.plan.write_text(
            f"name: chaos\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
            "topic: {name: soak-chaos, partitions: 4}\nload: {rate: 300/s, producers: 2}\n"
            "phases: {warm_up: 5s, soak: 12h, drain: 60s}\nprobes: {host: {}, pressure: {}}\n"
            "sinks: {mail: {to: [a@example.org], host: 127.0.0.1, port: %d}}\n" % mail_port
        )
        plan = plan_text.load(self.folder.plan.read_text(), "plan.yaml").plan
        connect(plan, self._clock).create_topics(topics_of(plan), 1, {})
        start_ns = self._clock.wall_ns() + LEAD_SECONDS * SECOND_NS
        write_run(self.folder, Run("chaos", start_ns, host_name(), {}, "running", "chaos"))
        self.supervisor = Supervisor(
            self.folder, self._clock, roles=roles_of(plan), on_death=lambda *_: None
        )
        self.kept: list[tuple[Path, int, int]] = []  # file, bytes that were whole, their checksum
        self._killed_at: dict[str, list[float]] = {}

    def start(self) -> None:
        self.supervisor.start()
        self.watch_until(lambda: len(list(self.folder.journal.glob("consume.0@*/*.jsonl"))) > 0)

    def watch(self, seconds: float) -> None:
        """Let the supervisor do its work for a while: this is the pace of the kills."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.supervisor.poll()
            time.sleep(0.1)

    def watch_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < end
            self.watch(0.2)

    def kill_one(self) -> str:
        """Kill a daemon that has not died so often lately that the supervisor gives up; return its name."""
        self.watch(self._random.uniform(SHORTEST, LONGEST))
        now = time.monotonic()
        pids = self.supervisor.pids()
        recent = {
            name: [at for at in self._killed_at.get(name, []) if now - at < 60] for name in pids
        }
        name = self._random.choice(
            [name for name in sorted(pids) if len(recent[name]) < RESTART_LIMIT - 1]
        )
        self._killed_at[name] = [*recent[name], now]
        self._note_written(name)
        os.kill(pids[name], signal.SIGKILL)
        return name

    def _note_written(self, daemon: str) -> None:
        for path in self.folder.journal.glob(f"{daemon}@*/*.jsonl"):
            raw = path.read_bytes()
            whole = raw[: raw.rfind(b"\n") + 1]
            self.kept.append((path, len(whole), zlib.crc32(whole)))

    def changed(self) -> list[Path]:
        """Return the files of which something that was written is not there any more."""
        return [
            path for path, size, crc in self.kept if zlib.crc32(path.read_bytes()[:size]) != crc
        ]

    def end(self) -> dict[str, Any]:
        """End the run in order; return its summary."""
        self.folder.stop_request.touch()
        self.watch_until(self.supervisor.poll)
        self.supervisor.finish()
        command = [sys.executable, "-m", "soak.cli.main", "report", str(self.folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 3, 4}, done.stderr
        summary: dict[str, Any] = json.loads(self.folder.summary.read_text())
        return summary


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_kills_lose_nothing_and_blame_nobody(tmp_path: Path, lab_kafka: Running) -> None:
    """Any daemon, at any second, again and again."""
    inbox = Inbox()
    with served(inbox) as port:
        chaos = Chaos(tmp_path / "run", str(lab_kafka.addresses["bootstrap_servers"]), port)
        try:
            chaos.start()
            killed = [chaos.kill_one() for _ in range(KILLS)]
            summary = chaos.end()
        finally:
            chaos.supervisor.close()
    audit = summary["audit"]
    tally = {name: killed.count(name) for name in sorted(set(killed))}
    print(f"\nseed {SEED}, kills {tally}\naudit {audit}\ncoverage {summary['coverage']}")  # noqa: T201  # the figures
    ids = [mail["Message-ID"] for _, mail in inbox.mails]

    assert chaos.changed() == []
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert [one for one in summary["findings"] if one["cause"] != "client"] == []
    assert len(ids) == len(set(ids))
