"""Messages that came twice or late, against what the producer's settings guarantee."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.plan import text as plan_text
from spark.batch.coverage import coverage
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import Shape


@pytest.mark.long
@pytest.mark.parametrize(
    ("broker", "is_guaranteed"),
    [
        ("kafka: {bootstrap_servers: '127.0.0.1:9'}", True),
        ("kafka: {bootstrap_servers: '127.0.0.1:9', producer: {acks: 1}}", False),
        ("kafka: {bootstrap_servers: '127.0.0.1:9', common: {enable.idempotence: false}}", False),
        ("pulsar: {service_url: 'pulsar://127.0.0.1:9'}", False),
    ],
    ids=["as it comes", "acks=1", "disabled", "pulsar"],
)
def test_only_an_idempotent_producer_rules_doubles_out(
    broker: str, *, is_guaranteed: bool, tmp_path: Path
) -> None:
    text = f"name: guaranteed\nbroker: {{{broker}}}\nphases: {{soak: 215s}}\n"
    found = timeline(tmp_path, Shape(fault_k=None))
    found = replace(
        found,
        plan=plan_text.load(text, "plan.yaml").plan,
        audit={**found.audit, "duplicated": 1009, "reordered": 3},
    )

    blockers = [f"{gap.source} {gap.why}" for gap in coverage(found).blockers]

    texts = ["cluster duplicated 1,009 and reordered 3 messages of idempotent producers"]
    assert blockers == texts * is_guaranteed
