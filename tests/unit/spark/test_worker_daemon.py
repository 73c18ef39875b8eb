"""The process that Spark's Python workers are forks of."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark.batch import export
from spark.cluster.session import DETECTOR_MODULES, ONE_THREAD
from spark.cluster.worker_daemon import SHARED
from spark.report import job as report
from spark.streaming import fleet

LOOK = """
import os, sys
from spark.cluster.worker_daemon import import_shared
import_shared()
print(len(os.listdir("/proc/self/task")), *sys.modules)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "modules",
    [DETECTOR_MODULES, fleet.MODULES, report.MODULES, export.MODULES],
    ids=["detector", "fleet", "report", "export"],
)
def test_what_workers_share_starts_no_thread(modules: tuple[str, ...]) -> None:
    """A process with threads must not be forked; a client of a broker would have some."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **ONE_THREAD, SHARED: " ".join(modules)},
        capture_output=True,
        text=True,
        check=True,
    )
    threads, *loaded = done.stdout.split()

    assert threads == "1"
    assert set(modules) <= set(loaded)
