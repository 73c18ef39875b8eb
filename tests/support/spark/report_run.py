"""Synthetic runs as a report sees them, read without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from soak.core.model import Evidence, Explanation, Finding
from soak.core.plan import text as plan_text
from soak.core.plan.phases import decision_line, parse_phases
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_run, write_run
from spark.batch.timeline import Timeline, assemble, digest_rows
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

read = digest_rows
SERIES = 'consume.0@host|end_to_end_latency_seconds{quantile="0.99"}'


def timeline(path: Path, shape: Shape | None = None) -> Timeline:
    return assemble(write_synthetic_run(path / "run", shape), read)


def as_planned(
    folder: RunFolder, *, state: str = "ended", soak: str = "215s", detectors: str = "{}"
) -> None:
    """Let a run have had another plan and state than it was written with."""
    write_run(folder, replace(read_run(folder), state=state))
    text = f"""
name: synthetic
broker: {{kafka: {{bootstrap_servers: "127.0.0.1:9"}}}}
phases: {{warm_up: 20s, soak: {soak}, drain: 30s}}
detection: {{detectors: {detectors}}}
"""
    plan = plan_text.load(text, "plan.yaml").plan
    folder.plan.write_text(plan_text.dump(plan))
    if not soak.endswith("h"):
        return
    decided = parse_phases(folder.phases.read_text())
    drain_k = 20 + plan.phases.soak // SECOND_NS
    ends = [] if decided.end_k is None else [decision_line("end", decided.end_k)]
    text = "".join(
        [
            decision_line("warm-up", 0),
            decision_line("soak", 20),
            decision_line("drain", drain_k),
            *ends,
        ]
    )
    folder.phases.write_text(text)


def summary(folder: RunFolder) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(folder.summary.read_text())
    return body


def finding_of(**changes: object) -> Finding:
    cause = Explanation("retention_cliff", 0.9, (Evidence("deletions began at the onset"),))
    values = {
        "key": "synthetic-1-118",
        "run": "synthetic-1",
        "raised_k": 118,
        "onset_k": 112,
        "interval": (111, 113),
        "series": SERIES,
        "kind": "step",
        "before": 0.004,
        "after": 0.06,
        "state": "confirmed",
        "confidence": 0.999,
        "is_about_cluster": True,
        "causes": (cause,),
    }
    return Finding(**{**values, **changes})  # type: ignore[arg-type]  # literals above
