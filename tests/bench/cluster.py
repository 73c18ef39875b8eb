"""How much faster two workers of a standalone cluster are than one: `python -m tests.bench.cluster`.

Master and workers are processes of this machine with one core each, so it takes three free cores to show
all of it. Timed are the report of a run without digests, and the detector that takes in a whole run in two
shards, from the start of the command to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from soak.service import children
from soak.store.run_folder import RunFolder
from tests.support.spark.long_run import LongShape, write_long_run
from tests.support.spark.standalone import Standalone, start_cluster

RESULT = Path("build/bench/cluster.json")
_CODES = (0, 3, 4)
_LIMIT_SECONDS = 1800.0


def seconds_of(cluster: Standalone, workers: int, *words: str) -> float:
    """Return how long a command takes on the cluster.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "soak.cli.main", *words, "--master", cluster.master]
    for setting in (
        f"spark.cores.max={workers}",
        "spark.scheduler.minRegisteredResourcesRatio=1",  # all workers are there before the first task
    ):
        command += ["--conf", setting]
    began = time.monotonic()
    done = subprocess.run(
        children.with_death_signal(command),
        env=dict(os.environ),
        check=False,
        capture_output=True,
        timeout=_LIMIT_SECONDS,
    )
    if done.returncode not in _CODES:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return time.monotonic() - began


def with_shards(folder: RunFolder, shards: int) -> None:
    """Have the detector of a run work in so many shards."""
    body = yaml.safe_load(folder.plan.read_text())
    body["detection"] = {**(body.get("detection") or {}), "shards": shards}
    folder.plan.write_text(yaml.safe_dump(body))


def main() -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster", description=__doc__)
    parser.add_argument("--hours", type=int, default=12)
    parser.add_argument("--series", type=int, default=500)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {"report": [], "detect-stream": []}
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as name:
        path = Path(name)
        shape = LongShape(seconds=arguments.hours * 3600, series=arguments.series)
        folder = write_long_run(path / "run", shape)
        with_shards(folder, 2)
        secret = os.environ["SOAK_SPARK_SECRET"] = secrets.token_hex(16)
        for workers in (1, 2):
            (path / f"cluster-{workers}").mkdir()
            cluster = start_cluster(path / f"cluster-{workers}", workers, secret)
            try:
                for kept in ("digests", "report", "spark"):
                    shutil.rmtree(folder.path / kept, ignore_errors=True)
                found["report"].append(seconds_of(cluster, workers, "report", str(folder.path)))
                words = ("detect-stream", "--run-dir", str(folder.path))
                found["detect-stream"].append(seconds_of(cluster, workers, *words))
            finally:
                cluster.stop()
    result = {
        name: {"one_worker_seconds": one, "two_workers_seconds": two, "speed_up": one / two}
        for name, (one, two) in found.items()
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
