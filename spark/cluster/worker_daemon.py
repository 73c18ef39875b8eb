"""The process that Spark's Python workers are forks of: it has imported what all of them use.

Spark's own imports nothing, so that each worker takes a second of processor time and some 90 MiB for pandas,
Arrow and the detectors. Forks share these. A process with threads must not be forked; the environment that
the session sets keeps OpenBLAS and Arrow's allocator from starting one. In a local session this process is
itself a fork, of `fork_server`.
"""

from __future__ import annotations

import gc
import importlib
import os

from pyspark.daemon import manager

SHARED = "SOAK_WORKER_MODULES"
"""The variable of the environment that names what workers of a session use, with spaces between."""


def import_shared() -> None:
    """Import what workers use, and spare it the collector, which would write to each object."""
    for name in ("pyspark.worker", *os.environ.get(SHARED, "").split()):
        importlib.import_module(name)
    gc.freeze()


if __name__ == "__main__":
    import_shared()
    manager()
