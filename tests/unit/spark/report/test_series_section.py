"""The headings above the charts of load, hosts and brokers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.model import Column
from soak.core.plan import text as plan_text
from spark.batch.coverage import coverage
from spark.report.page import Page
from spark.report.sections import series
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import Shape


@pytest.mark.parametrize(
    ("broker", "heading"),
    [
        ("kafka: {bootstrap_servers: '127.0.0.1:9'}", "Metrics of brokers"),
        ("pulsar: {service_url: 'pulsar://127.0.0.1:9'}", "Metrics of brokers and bookies"),
    ],
    ids=["kafka", "pulsar"],
)
def test_only_pulsar_has_bookies(broker: str, heading: str, tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(seconds=30, warm_up=5))
    text = f"name: named\nbroker: {{{broker}}}\nphases: {{soak: 215s}}\n"
    name = "probe@host|jvm_memory_used_bytes"
    found = replace(
        found,
        plan=plan_text.load(text, "plan.yaml").plan,
        columns={**found.columns, name: Column("jvm_memory_used_bytes", (), "bytes")},
        series={**found.series, name: (np.arange(2), np.ones(2))},
    )

    shown = series.render(Page(found, [], coverage(found), "clean", None))

    assert f'<h3 class="js-only">{heading}</h3>' in shown
