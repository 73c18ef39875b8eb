"""The process that Spark's Python workers are forks of."""

from __future__ import annotations

import os
import subprocess
import sys

from spark.cluster.session import ONE_THREAD

LOOK = """
import os, sys
from spark.cluster.worker_daemon import import_shared
import_shared()
print(len(os.listdir("/proc/self/task")), "pandas" in sys.modules, "confluent_kafka" in sys.modules)
"""


def test_what_workers_share_starts_no_thread_and_knows_no_client_of_a_broker() -> None:
    """A process with threads, or a client, must not be forked."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["1", "True", "False"]
