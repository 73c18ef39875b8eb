"""Spark's Pythons are forks of the session's process to fork from, and end with the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark import SparkContext

from spark.batch.tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 120
DRIVER = """
import sys, time
from pathlib import Path
from spark.batch.tasks import in_tasks
from spark.cluster.session import build_context
context = build_context("tests", temporary=Path(sys.argv[1]), cores=2)
in_tasks(context)(abs, [1, 2])
print("works", flush=True)
time.sleep(600)
"""


def ancestors(_: int) -> list[int]:
    return [one.pid for one in psutil.Process().parents()]


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes whose working folder it is."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.status() != psutil.STATUS_ZOMBIE and one.cwd() == str(folder):
                found.append(one)
        except psutil.Error:
            continue
    return found


def test_workers_are_forks(spark_session: SparkSession) -> None:
    server = SparkContext._gateway.fork_server.pid  # type: ignore[union-attr]

    found = in_tasks(spark_session.sparkContext)(ancestors, [1, 2])

    assert all(server in one for one in found)


def test_nothing_is_left_of_a_driver_that_was_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "works\n"
    assert len(processes_in(tmp_path)) > 3  # JVM, server, daemon, worker

    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=PATIENCE_SECONDS)

    end = time.monotonic() + PATIENCE_SECONDS
    while left := processes_in(tmp_path):
        assert time.monotonic() < end, left
        time.sleep(0.05)
