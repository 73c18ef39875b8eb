"""The process that Spark's Python workers are forks of: it has imported what all of them use.

Spark's own imports nothing, so that each worker takes a second of processor time and some 90 MiB for pandas,
Arrow and the detectors. Forks share these. A process with threads must not be forked; the environment that
the session sets keeps OpenBLAS and Arrow's allocator from starting one.
"""

from __future__ import annotations

import gc
import importlib
import sys

from pyspark.daemon import manager

_WORKER = "pyspark.worker"
_SHARED = (
    *("pandas", "pyarrow", _WORKER),
    *("spark.sources.journals", "spark.streaming.panel_state"),
)


def import_shared() -> None:
    """Import what workers use, and spare it the collector, which would write to each object."""
    for name in _SHARED:
        importlib.import_module(name)
    gc.freeze()


if __name__ == "__main__":
    if sys.argv[1:2] == [_WORKER]:  # those that plan a read are forks of other processes, one each
        import_shared()
    manager()
