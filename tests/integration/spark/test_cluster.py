"""A standalone cluster of a master and two workers: what it finds is what one machine finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from detectors.panel import Panel
from soak.core.model import Change, Finding
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR
from soak.service import children
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_plan
from spark.batch.timeline import assemble, digest_rows
from spark.report import job as report
from spark.sources.journals import JournalSource
from spark.sources.schema import ROWS
from spark.streaming.panel_state import rows_of
from spark.streaming.stored_panel import LivePanel
from tests.support.spark.growing_run import begun, end, grow
from tests.support.spark.standalone import Standalone, start_cluster
from tests.support.spark.synthetic_run import CONSUMER, PRODUCER, Shape, write_synthetic_run

RUN = "synthetic-1"
SECRET = "of-this-cluster-alone"
SHAPE = Shape(gaps=((CONSUMER, range(60, 63)),), damaged_k=80, invalid=range(40, 42))
SETTINGS = (
    "spark.authenticate=true",
    "spark.cores.max=2",
    "spark.log.level=INFO",  # by which the tasks of each worker are seen
    "spark.scheduler.minRegisteredResourcesRatio=1",  # both workers are there before the first task
)
PATIENCE_SECONDS = 240.0

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Master and workers that authenticate each other."""
    found = start_cluster(tmp_path_factory.mktemp("cluster"), secret=SECRET)
    yield found
    found.stop()


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    """A run of three sources, two of them in several files."""
    folder = write_synthetic_run(tmp_path / "run", SHAPE)
    folder.findings.unlink()
    for source in (PRODUCER, CONSUMER):
        split(folder.journal / source, 50)
    return folder


def split(folder: Path, lines_each: int) -> None:
    (path,) = folder.glob("*.jsonl")
    head, *lines = path.read_bytes().splitlines(keepends=True)
    for number, at in enumerate(range(0, len(lines), lines_each)):
        part = b"".join([head, *lines[at : at + lines_each]])
        (folder / f"{number:06d}.jsonl").write_bytes(part)


def start(cluster: Standalone, *words: str) -> subprocess.Popen[bytes]:
    """Start `soak` on the cluster, as a user does that has its secret."""
    command = [sys.executable, "-m", "soak.cli.main", *words, "--master", cluster.master]
    for setting in SETTINGS:
        command += ["--conf", setting]
    return subprocess.Popen(
        children.with_death_signal(command),
        env={**os.environ, "SOAK_SPARK_SECRET": SECRET},
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.02)


def reported(folder: RunFolder) -> tuple[Any, str]:
    """Return the summary and the page."""
    return json.loads(folder.summary.read_text()), folder.report.read_text()


def reported_here(folder: RunFolder) -> tuple[Any, str]:
    """Return what the report says that one process makes."""
    report.write(assemble(folder, digest_rows), (), report.drill_of)
    found = reported(folder)
    shutil.rmtree(folder.report.parent)
    return found


def found_in(folder: RunFolder) -> tuple[list[Finding], list[Change]]:
    with FindingsStore(folder.findings) as store:
        return store.findings(RUN), store.changes(RUN)


def changes_here(folder: RunFolder) -> list[Change]:
    """Return the changes that one panel finds in this process, the newest word on each."""
    plan = read_plan(folder)
    place = {"run_dir": str(folder.path), "run": RUN}
    reader = JournalSource(place).reader(ROWS)
    batches: list[Any] = [one for part in reader.partitions() for one in reader.read(part)]
    rows = pd.concat([batch.to_pandas() for batch in batches], ignore_index=True)
    detectors = plan.detection.detectors
    panel = Panel(detectors[STREAM_DETECTOR], outages=detectors[OUTAGE_DETECTOR])
    found = LivePanel(panel).take(*rows_of(rows[rows["gap"].isna()]))
    newest = {(one.series, one.kind, one.raised_k): one for one in found}
    return sorted(newest.values(), key=str)


def test_the_detector_on_a_cluster_finds_what_one_panel_finds(
    cluster: Standalone, run_folder: RunFolder
) -> None:
    """All changes are equal, and the finding has its cause; the secret is in no argument and no file."""
    process = start(cluster, "detect-stream", "--run-dir", run_folder.path.as_uri())
    shown: set[str] = set()
    while process.poll() is None:
        shown |= {path for path in arguments() if SECRET in path}
        time.sleep(0.2)
    findings, changes = found_in(run_folder)
    written = [
        path
        for path in everything(run_folder.path, cluster.folder)
        if SECRET in path.read_text(errors="replace")
    ]

    assert process.returncode == 0
    assert sorted(changes, key=str) == changes_here(run_folder)
    assert [(one.state, one.cause) for one in findings] == [("confirmed", "retention_cliff")]
    assert shown == set()
    assert written == [cluster.folder / "conf" / "spark-defaults.conf"]


def test_a_driver_that_is_killed_in_the_middle_changes_nothing(
    cluster: Standalone, run_folder: RunFolder, tmp_path: Path
) -> None:
    """The next one takes its state from the run folder; the executors of the first are gone by then."""
    expected = changes_here(run_folder)
    folder = begun(run_folder, tmp_path / "killed")
    for k in (130, 220):
        grow(run_folder, folder, k)
        process = start(cluster, "detect-stream", "--run-dir", str(folder.path))
        wait_for(lambda k=k: newest_k(folder) >= k - 1, f"second {k - 1}")  # type: ignore[misc]  # bound here
        grow(run_folder, folder, k + 3)  # so that the kill falls into work
        process.kill()
        process.wait(10)
    end(run_folder, folder)
    process = start(cluster, "detect-stream", "--run-dir", str(folder.path))
    status = process.wait(PATIENCE_SECONDS)
    findings, changes = found_in(folder)

    assert status == 0
    assert sorted(changes, key=str) == expected
    assert [(one.state, one.cause) for one in findings] == [("confirmed", "retention_cliff")]


def newest_k(folder: RunFolder) -> int:
    """Return the newest second that a detector has seen; -1 before the first."""
    try:
        k = json.loads((folder.spark / "progress.json").read_text())["k"]
    except (FileNotFoundError, ValueError):
        return -1
    return -1 if k is None else int(k)


def arguments() -> Iterator[str]:
    """Give the command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")


def everything(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())


def test_a_report_is_that_of_one_machine_also_where_a_worker_dies(
    cluster: Standalone, run_folder: RunFolder
) -> None:
    """Both workers have tasks; the second time one is killed while it has one."""
    expected = reported_here(run_folder)
    codes, pages = [], []
    process = start(cluster, "report", str(run_folder.path))
    codes.append(process.wait(PATIENCE_SECONDS))
    pages.append(reported(run_folder))
    finished = [cluster.finished(name) for name in ("worker-0", "worker-1")]
    digests = sorted(path.name for path in (run_folder.path / "digests").rglob("*.parquet"))
    shutil.rmtree(run_folder.path / "digests")
    shutil.rmtree(run_folder.report.parent)

    process = start(cluster, "report", str(run_folder.path))
    wait_for(
        lambda: cluster.running("worker-1") > finished[1] or process.poll() is not None, "a task"
    )
    was_running = process.poll() is None
    cluster.kill_worker("worker-1")
    codes.append(process.wait(PATIENCE_SECONDS))
    pages.append(reported(run_folder))
    cluster.start_worker("worker-1")

    assert codes == [3, 3]
    assert min(finished) > 0
    assert was_running
    assert pages == [expected, expected]
    assert len(digests) == 8  # of each source all files but the newest
