"""The fleet's detector on a real Kafka: all runs of a topic, each with its findings in the topic store."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.model import Change, Finding
from soak.core.plan.plan import Ship, Store
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from soak.service import children
from soak.shipping.sender import Shipper
from soak.store.findings.port import Findings
from soak.store.findings.store import FindingsStore
from soak.store.findings.topic import FindingsTopics
from soak.store.findings.topic_log import KafkaFindingsLog
from soak.store.journal.history import History
from soak.store.run_announcements import Announcement, AnnouncementWriter
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import SamplesWriter, ShippedLine
from tests.support.spark.standalone import start_cluster
from tests.support.spark.synthetic_run import START_WALL_NS, Shape, write_synthetic_run

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECONDS = 200
RUN = "synthetic-1"
RUNS = ("fleet-a", "fleet-b", "fleet-c")
HOSTS = ("host", "host-2", "host-3")
SECRET = "of-this-cluster-alone"
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202)
PHASES = ((0, "warm-up"), (SHAPE.warm_up, "soak"), (315, "drain"), (320, "end"))


@pytest.fixture
def detector(lab_kafka: Running, tmp_path: Path) -> Iterator[Detector]:
    found = Detector(lab_kafka, tmp_path)
    yield found
    found.stop(signal.SIGKILL)


class Detector:
    """`soak detect-fleet` as a process, which may be killed and started again."""

    def __init__(self, broker: Running, folder: Path, topic: str = "fleet-test") -> None:
        servers = broker.bootstrap_servers
        folder.mkdir(exist_ok=True)
        self.ship = Ship(bootstrap_servers=servers, topic=topic, timeout=5 * SECOND_NS)
        self.store = Store(url=f"kafka://{servers}", timeout=5 * SECOND_NS)
        self.folder = folder
        self._plan = folder / "fleet.yaml"
        self._plan.write_text(
            f"name: fleet\nship: {{bootstrap_servers: '{servers}', topic: {topic}}}\n"
            f"store: kafka://{servers}\ndetection: {{trigger: 1s}}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        (self.folder / "state" / "spark" / "progress.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "soak.cli.main", "detect-fleet", str(self._plan)]
        options = ["--state", str(self.folder / "state"), "--since", "all", "--partitions", "2"]
        self._process = children.spawn([*command, *options, *more], log_path=self.folder / "log")

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

    def wait_for_batch(self, number: float) -> None:
        """Wait until it has finished a batch."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.progress().get("batch", -1) < number:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-5000:]
            time.sleep(0.5)  # between looks

    def wait_for_all(self, runs: tuple[str, ...]) -> dict[str, list[Finding]]:
        """Return the findings once a batch had nothing more to read."""
        self.wait_for(runs)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.progress().get("fleet_batch_rows") != 0:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-5000:]
            time.sleep(0.5)  # between looks
        return {run: self.findings(run) for run in runs}

    def findings(self, run: str) -> list[Finding]:
        with self._store_of(run) as store:
            return store.findings(run)

    @contextmanager
    def _store_of(self, run: str) -> Iterator[Findings]:
        clock = SystemClock()
        place = FindingsTopics(
            run, KafkaFindingsLog(self.store, run, clock), clock, self.store.keep
        )
        try:
            with place.open() as store:
                yield store
        finally:
            place.close()

    def changes(self, run: str) -> list[Change]:
        with self._store_of(run) as store:
            return store.changes(run)

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


def ship(
    folder: RunFolder,
    run: str,
    to: Ship,
    first: int = 0,
    last: int = 10**9,
    hosts: tuple[str, ...] = ("host",),
) -> None:
    """Send a part of a run's lines under the id of another run, as its hosts would; each has the same."""
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
    for host in hosts:
        writer.send(
            [
                replace(line, source=line.source.replace("@host", f"@{host}"))
                for part in by_source.values()
                for line in part[first:last]
            ]
        )
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


def test_journals_and_topic_show_the_same_changes_and_the_report_and_soak_detect_the_same_onsets(
    detector: Detector, tmp_path: Path
) -> None:
    """One run: as journals for its own detector, over a topic, in its report, and as a file of one series."""
    folder = write_synthetic_run(tmp_path / "r", SHAPE)
    announcer = AnnouncementWriter(detector.ship, SystemClock())
    announcer.send(
        Announcement("x", RUN, START_WALL_NS, 320, is_over=False, sent_wall_ns=0, phases=PHASES)
    )
    announcer.close()
    ship(folder, RUN, detector.ship)
    detector.start()
    over_the_topic = detector.wait_for_all((RUN,))[RUN]
    changes = detector.changes(RUN)
    assert detector.stop() == 0
    codes = [
        soak("detect-stream", "--run-dir", str(folder.path)).returncode,
        soak("report", str(folder.path)).returncode,
    ]
    with FindingsStore(folder.findings) as store:
        own, own_changes = store.findings(RUN), store.changes(RUN)
    in_report = json.loads(folder.summary.read_text())["findings"]
    offline = soak("detect", str(folder.path), "--format", "jsonl").stdout.splitlines()
    column = write_csv(folder, own[0].series, tmp_path / "series.csv")
    online = soak(
        "detect", str(column), "--mode", "online", "--format", "jsonl"
    ).stdout.splitlines()

    assert codes == [0, 3]
    assert own_changes == changes != []
    assert [without_causes(one) for one in own] == [without_causes(one) for one in over_the_topic]
    assert len(in_report) == len(own) == 1
    assert [json.loads(line)["index"] for line in offline] == [own[0].onset_k]
    assert [json.loads(line)["index"] + SHAPE.warm_up for line in online] == [own[0].onset_k]


@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_two_workers_find_in_eight_runs_what_one_machine_finds_whatever_is_killed(
    lab_kafka: Running, tmp_path: Path
) -> None:
    """Nine sources a run. Both workers have tasks; one is killed while it has one, and then the driver.

    The other worker goes on alone before that. The state is in a folder with a name that Spark has to
    take as it is.
    """
    folder, runs = (
        write_synthetic_run(tmp_path / "r", SHAPE),
        tuple(f"spread-{at}" for at in range(8)),
    )
    alone = Detector(lab_kafka, tmp_path / "alone", "fleet-alone")
    spread = Detector(lab_kafka, tmp_path / "prüf 1+2@x", "fleet-spread")
    (tmp_path / "cluster").mkdir()
    cluster = start_cluster(tmp_path / "cluster", secret=SECRET)
    (tmp_path / "secret").write_text(SECRET)
    words = ["--master", cluster.master, "--secret", f"${{file:{tmp_path / 'secret'}}}"]
    for setting in ("spark.log.level=INFO", "spark.scheduler.minRegisteredResourcesRatio=1"):
        words += ["--conf", setting]
    try:
        ship(folder, "alone", alone.ship, hosts=HOSTS)
        alone.start()
        (expected,) = alone.wait_for_all(("alone",)).values()
        alone.stop()
        for run in runs:
            ship(folder, run, spread.ship, last=150, hosts=HOSTS)
        spread.start(*words)
        spread.wait_for_state()
        before = [cluster.finished(name) for name in ("worker-0", "worker-1")]
        for run in runs:
            ship(folder, run, spread.ship, first=150, last=250, hosts=HOSTS)
        spread.wait_for(runs)
        finished = [cluster.finished(name) for name in ("worker-0", "worker-1")]
        for run in runs:
            ship(folder, run, spread.ship, first=250, hosts=HOSTS)
        cluster.kill_worker_in_a_task("worker-1")
        batch = spread.progress()["batch"]
        spread.wait_for_batch(batch + 1)
        spread.stop(signal.SIGKILL)
        cluster.start_worker("worker-1")
        cluster.wait_for_workers("worker-1")
        spread.start(*words)
        found = spread.wait_for_all(runs)
        code = spread.stop()
    finally:
        alone.stop(signal.SIGKILL)
        spread.stop(signal.SIGKILL)
        cluster.stop()

    assert code == 0
    assert all(now > then for now, then in zip(finished, before, strict=True))
    assert len(expected) > 0
    for run in runs:
        assert [of_run(one, "alone") for one in found[run]] == expected


def soak(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "soak.cli.main", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def write_csv(folder: RunFolder, series: str, path: Path) -> Path:
    """Write a series of the soak of a run as a file with a row a second."""
    found = History(folder.journal).window(SHAPE.warm_up, PHASES[-2][0]).series(series)
    by_k = dict(zip(found.k.tolist(), found.values.tolist(), strict=True))
    rows = [f"{k},{by_k[k]!r}" for k in range(SHAPE.warm_up, PHASES[-2][0])]
    path.write_text("\n".join(["seconds,latency_seconds", *rows]) + "\n")
    return path


def without_causes(finding: Finding) -> Finding:
    """Return a finding as a fleet's detector knows it, which looks for no causes."""
    return replace(finding, causes=(), is_about_cluster=False, is_settled=False)


def of_run(finding: Finding, run: str) -> Finding:
    """Return a finding as that of another run, of which it has the key."""
    return replace(finding, run=run, key=finding.key.replace(finding.run, run))
