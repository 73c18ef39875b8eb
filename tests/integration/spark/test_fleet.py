"""The fleet's detector on a real Kafka: all runs of a topic, each with its findings in the topic store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.model import Finding
from soak.core.plan.plan import Ship, Store
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from soak.service import children
from soak.shipping.sender import Shipper
from soak.store.findings.topic import FindingsTopics
from soak.store.findings.topic_log import KafkaFindingsLog
from soak.store.run_announcements import Announcement, AnnouncementWriter
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import SamplesWriter, ShippedLine
from tests.support.spark.synthetic_run import START_WALL_NS, Shape, write_synthetic_run

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 200
RUNS = ("fleet-a", "fleet-b", "fleet-c")
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202)
PHASES = ((0, "warm-up"), (SHAPE.warm_up, "soak"), (315, "drain"), (320, "end"))


@pytest.fixture
def detector(lab_kafka: Running, tmp_path: Path) -> Iterator[Detector]:
    found = Detector(lab_kafka, tmp_path)
    yield found
    found.stop(signal.SIGKILL)


class Detector:
    """`soak detect-fleet` as a process, which may be killed and started again."""

    def __init__(self, broker: Running, folder: Path) -> None:
        servers = broker.bootstrap_servers
        self.ship = Ship(bootstrap_servers=servers, topic="fleet-test", timeout=5 * SECOND_NS)
        self.store = Store(url=f"kafka://{servers}", timeout=5 * SECOND_NS)
        self.folder = folder
        self._plan = folder / "fleet.yaml"
        self._plan.write_text(
            f"name: fleet\nship: {{bootstrap_servers: '{servers}', topic: fleet-test}}\n"
            f"store: kafka://{servers}\ndetection: {{trigger: 1s}}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "soak.cli.main", "detect-fleet", str(self._plan)]
        options = ["--state", str(self.folder / "state"), "--since", "all", "--partitions", "2"]
        self._process = children.spawn([*command, *options], log_path=self.folder / "log")

    def stop(self, number: int = signal.SIGTERM) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return process.wait(PATIENCE_SECONDS)

    def progress(self) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(
                (self.folder / "state" / "spark" / "progress.json").read_text()
            )
        except (OSError, ValueError):
            return {}
        return found

    def wait_for_state(self) -> None:
        """Wait until it has taken something in."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.progress().get("fleet_state_rows"):
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-5000:]
            time.sleep(0.5)  # between looks

    def findings(self, run: str) -> list[Finding]:
        clock = SystemClock()
        place = FindingsTopics(
            run, KafkaFindingsLog(self.store, run, clock), clock, self.store.keep
        )
        try:
            with place.open() as store:
                return store.findings(run)
        finally:
            place.close()

    def wait_for(self, runs: tuple[str, ...]) -> dict[str, list[Finding]]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = {run: self.findings(run) for run in runs}
            if all(map(confirmed, found.values())):
                return found
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-5000:]
            time.sleep(1)  # between looks


def confirmed(findings: list[Finding]) -> list[int]:
    return [one.onset_k for one in findings if "latency" in one.series and one.state != "warning"]


def ship(folder: RunFolder, run: str, to: Ship, first: int = 0, last: int = 10**9) -> None:
    """Send a part of a run's lines under the id of another run, as its hosts would."""
    clock = SystemClock()
    writer = SamplesWriter(to, run, START_WALL_NS, clock)
    lines: list[ShippedLine] = []

    class Target:
        too_large = 0

        def send(self, found: list[ShippedLine]) -> None:
            lines.extend(found)

        def close(self) -> None:
            pass

    shipper = Shipper(folder, Target(), clock, "host")
    while shipper.waiting_bytes():
        shipper.send_batch()
    (folder.path / "ship.json").unlink(missing_ok=True)
    by_source: dict[str, list[ShippedLine]] = {}
    for line in lines:
        by_source.setdefault(line.source, []).append(line)
    writer.send([line for part in by_source.values() for line in part[first:last]])
    writer.close()


def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """The query goes on where it was, or begins its last batch again."""
    folder, broker = write_synthetic_run(tmp_path / "r", SHAPE), kafka.start(tmp_path / "k", {})
    detector = Detector(broker, tmp_path)
    try:
        ship(folder, "fleet-d", detector.ship, last=150)
        detector.start()
        detector.wait_for_state()
        broker.stop()
        time.sleep(20)  # of the real world: longer than any request waits
        broker.restart()
        ship(folder, "fleet-d", detector.ship, first=150)
        (found,) = detector.wait_for(("fleet-d",)).values()
        code = detector.stop()
    finally:
        detector.stop(signal.SIGKILL)
        broker.kill()

    assert any(abs(k - 202) <= 3 for k in confirmed(found))
    assert code == 0


def test_the_step_of_every_run_is_found_whatever_is_killed(
    detector: Detector, tmp_path: Path
) -> None:
    """Each with its own announced phases; a poisoned producer and a kill harm no other run."""
    folder = write_synthetic_run(tmp_path / "r", SHAPE)
    announcer = AnnouncementWriter(detector.ship, SystemClock())
    waste = SamplesWriter(detector.ship, "waste", START_WALL_NS, SystemClock())
    for run in RUNS:
        ship(folder, run, detector.ship, last=150)
        announcer.send(
            Announcement("x", run, START_WALL_NS, 320, is_over=False, sent_wall_ns=0, phases=PHASES)
        )
    announcer.close()
    detector.start()
    detector.wait_for_state()
    detector.stop(signal.SIGKILL)
    waste.send([ShippedLine("produce.0@host", b"waste")] * 23)
    waste.close()
    for run in RUNS:
        ship(folder, run, detector.ship, first=150)
    detector.start()
    found = detector.wait_for(RUNS)

    assert all(any(abs(k - 202) <= 3 for k in confirmed(part)) for part in found.values())
    assert len({tuple(confirmed(part)) for part in found.values()}) == 1
    assert detector.findings("waste") == []
    assert detector.stop() == 0
