"""The OpenMessaging Benchmark as a peer: one local process that produces and consumes at a fixed rate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from soak.core.errors import NotAvailableError, SoakError
from soak.service import java
from tests.bench import process
from tests.bench.figures import Measures

_COST = re.compile(r"cpu_s (?P<cpu>\d+e-2) peak_kb (?P<peak>\d+)")
_OVERHEAD_SECONDS = 180


def runner(folder: Path) -> Path:
    """Return the script that runs it.

    Raises:
        NotAvailableError: it is not on this machine.
    """
    script = folder / "run"
    if not script.is_file():
        raise NotAvailableError(f"no OpenMessaging Benchmark in {folder} (see --omb)")
    return script


def fixed_rate(
    script: Path,
    address: str,
    *,
    rate: int,
    minutes: int,
    size: int,
    partitions: int,
    folder: Path,
    admin_url: str = "",
) -> Measures:
    """Run it for whole minutes; its start is part of its cost, as ours is."""
    folder.mkdir(parents=True)
    log, result = folder / "omb.log", folder / "result.json"
    env = {
        **os.environ,
        "JAVA": str(java.java_home() / "bin" / "java"),
        "OMB_OUT": str(result),
        "PULSAR_HTTP": admin_url,
    }
    argv = ["bash", str(script), address, str(rate), str(minutes), str(size), str(partitions)]
    process.wait_all([process.start(argv, log, env)], minutes * 60 + _OVERHEAD_SECONDS)
    return measures(json.loads(result.read_text()), log.read_text(), minutes * 60)


def measures(result: dict[str, Any], said: str, load_seconds: int) -> Measures:
    """Return what a result file and the runner's last words say."""
    cost = _COST.search(said)
    if cost is None:
        raise SoakError(f"the OpenMessaging Benchmark did not say its cost:\n{said[-800:]}")
    return {
        "lag_p99_ms": result["aggregatedPublishDelayLatency99pct"] / 1000,
        "ack_p99_ms": result["aggregatedPublishLatency99pct"],
        "lag_later_p99_ms": _later(result["publishDelayLatency99pct"]) / 1000,
        "ack_later_p99_ms": _later(result["publishLatency99pct"]),
        "cores": float(cost["cpu"]) / load_seconds,
        "peak_mb": int(cost["peak"]) * 1024 / 1e6,
    }


def _later(samples: Sequence[float]) -> float:
    """Return the median of the samples of 10 s after the first, in which a JVM is cold."""
    return median(samples[1:])
