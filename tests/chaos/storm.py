"""A run under its supervisor on a small drive of its own, and the hands that do things to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from soak.core.clock import Grid, SystemClock
from soak.core.plan import text
from soak.core.units import SECOND_NS
from soak.lab.brokers.kafka import Kafka
from soak.runtime.context import connect, topics_of
from soak.runtime.grid import host_name
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import last_record, sources
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.supervisor.run import NEEDED, Supervisor, roles_of
from tests.chaos.daemon import WALL_OFF, write_off
from tests.chaos.kept import Kept
from tests.chaos.planted import Planted
from tests.chaos.post import Post
from tests.chaos.schedule import BROKER, WINDOW_SECONDS
from tests.chaos.surroundings import Surroundings
from tests.support.load.kafka_count import messages_in
from tests.support.load.live_run import LEAD_SECONDS

TOPIC = "soak-chaos"
PARTITIONS = 4
LIMIT_SECONDS = 300.0
MAX_DEATHS_PER_MINUTE = (NEEDED.max_deaths or 0) - 2
PLAN = """
name: chaos
broker: {{kafka: {{bootstrap_servers: 'broker.soak.test:{port}'}}}}
topic: {{name: {topic}, partitions: {partitions}}}
load: {{rate: 300/s, producers: 2}}
phases: {{warm_up: 5s, soak: 12h, drain: 60s}}
probes: {{host: {{}}, pressure: {{}}}}
sinks: {{mail: {{to: [a@example.org], host: mail.soak.test, port: {mail_port}, timeout: 3s}}}}
alerts: {{max_per_hour: 10000}}
detection: {{detectors: {{level_shift: {{}}}}}}
free_space_floor: 0B
"""


def own_sources(folder: RunFolder) -> list[str]:
    """Return the sources of this host: another may send its records."""
    return [name for name in sources(folder.journal) if name.endswith(f"@{host_name()}")]


class Storm:
    """Call `start`, do what is to be done, `settle`, `end`; then `close`, always."""

    def __init__(
        self,
        home: Path,
        around: Surroundings,
        broker: Kafka,
        post: Post,
        seed: int,
        *,
        more: str = "",
    ) -> None:
        """`more` is added to the plan."""
        self.around, self.broker, self.post, self.seed = around, broker, post, seed
        self.rng = random.Random(seed)  # of the trouble that is on: see `schedule.choices`
        self.clock = SystemClock()
        self.folder = RunFolder(around.drive / "run")
        self.folder.logs.mkdir(parents=True)
        self._wall_off = home / "wall_off"
        write_off(self._wall_off, 0)
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        self.folder.plan.write_text(
            PLAN.format(port=port, topic=TOPIC, partitions=PARTITIONS, mail_port=post.port) + more
        )
        self._plan = text.load(self.folder.plan.read_text(), "plan.yaml").plan
        connect(self._plan, self.clock).create_topics(topics_of(self._plan), 1, {})
        start_ns = self.clock.wall_ns() + LEAD_SECONDS * SECOND_NS
        write_run(self.folder, Run("chaos", start_ns, host_name(), {}, "running", "chaos"))
        self.grid = Grid.anchored(start_ns, self.clock)
        self.kept = Kept(self.folder.journal)
        series = f'consume.0@{host_name()}|end_to_end_latency_seconds{{quantile="0.99"}}'
        self.planted = Planted(self.folder, "chaos", series)
        self.excused: list[tuple[int, int]] = []  # seconds in which the cluster was touched
        self.kills: Counter[str] = Counter()
        self._killed_at: dict[str, list[float]] = {}
        roles = roles_of(self._plan)
        self.daemons = sorted(role.name for role in roles)
        self.measuring = sorted(self._plan.measuring)
        self._supervisor = Supervisor(
            self.folder,
            self.clock,
            roles=roles,
            on_death=lambda *_: None,
            environment={**os.environ, WALL_OFF: str(self._wall_off)},
            program=(sys.executable, "-m", "tests.chaos.daemon"),
        )

    @property
    def k(self) -> int:
        return self.grid.interval_index_at(self.clock.mono_ns())

    def start(self) -> None:
        self._supervisor.start()
        self.until(lambda: len(self.newest()) == len(self._plan.measuring), "the first records")

    def close(self) -> None:
        self._supervisor.close()

    def watch(self, seconds: float) -> None:
        """Let the supervisor do its work for a while: this is the pace of what is done."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._supervisor.poll()
            time.sleep(0.1)

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {LIMIT_SECONDS:g} s for {what}")
            self.watch(0.2)

    def newest(self) -> dict[str, int]:
        """Return the last second that each source of this host has recorded."""
        names = own_sources(self.folder)
        found = {name: last_record(self.folder.journal, name) for name in names}
        return {name: one[0].k for name, one in found.items() if one is not None}

    def recover(self) -> float:
        """Return how long it took until every source had recorded a second that began after now."""
        began, k = time.monotonic(), self.k
        wanted = len(self._plan.measuring)

        def is_back() -> bool:
            return sum(newest > k for newest in self.newest().values()) >= wanted

        self.until(is_back, f"records after second {k}")
        return time.monotonic() - began

    def plant(self) -> None:
        self.planted.plant(max(0, self.k), self.clock.wall_ns())

    def pids(self) -> dict[str, int]:
        return self._supervisor.pids()

    def pid(self, name: str) -> int:
        """Return the process of a daemon, once it is there."""
        self.until(lambda: name in self.pids(), f"{name} to be there")
        return self.pids()[name]

    def _is_killable(self, name: str) -> bool:
        """True for a daemon that is there, and has not died so often that the supervisor gives up."""
        now = time.monotonic()
        lately = [at for at in self._killed_at.get(name, []) if now - at < WINDOW_SECONDS]
        return name in self.pids() and len(lately) < MAX_DEATHS_PER_MINUTE

    def kill(self, name: str) -> None:
        """Kill a daemon, or the broker, which comes back."""
        if name != BROKER:
            self.until(lambda: self._is_killable(name), f"{name} to be there")
        self.kept.note()
        self.kills[name] += 1
        if name == BROKER:
            with self.touched():
                self.broker.kill()
                self.broker.restart()
            return
        now = time.monotonic()
        self._killed_at.setdefault(name, []).append(now)
        os.kill(self.pids()[name], signal.SIGKILL)
        while name in self.pids() and time.monotonic() < now + LIMIT_SECONDS:
            time.sleep(0.01)  # until it is gone, and writes no more

    @contextmanager
    def touched(self) -> Iterator[None]:
        """What is found of this time is no false alert: the cluster was ill, or out of reach."""
        begin = self.k
        try:
            yield
        finally:
            self.excused.append((begin, self.k))

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock of all daemons away from the machine's."""
        write_off(self._wall_off, round(seconds * SECOND_NS))

    def settle(self) -> None:
        """Return when no notification is pending any more; waits as long as messages go out."""
        while left := self._pending():
            self.until(partial(self._is_pending_less, left), "another message to go out")

    def _is_pending_less(self, than: int) -> bool:
        return self._pending() < than

    def _pending(self) -> int:
        with FindingsStore(self.folder.findings) as store:
            return len(store.open_notifications())

    def end(self) -> dict[str, Any]:
        """End the run in order; return its summary."""
        self.kept.note()
        self.folder.stop_request.touch()
        self.until(self._supervisor.poll, "the end")
        self._supervisor.finish()
        write_run(self.folder, replace(read_run(self.folder), state="ended"))
        command = [sys.executable, "-m", "soak.cli.main", "report", str(self.folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in {0, 3, 4}:
            raise RuntimeError(f"the report failed: {done.stderr}")
        summary: dict[str, Any] = json.loads(self.folder.summary.read_text())
        return summary

    def in_topic(self) -> int:
        return messages_in(self.broker.bootstrap_servers, TOPIC, PARTITIONS)
