"""What a report says of each phase: rates in messages and bytes, and latencies."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from soak.core.histogram import Histogram
from soak.core.plan.load import Profile, Step
from soak.core.units import SECOND_NS
from spark.batch.soak_totals import PhaseLatency, SoakTotals
from spark.report import job as report
from spark.report.summary import planned_per_second
from tests.support.spark.report_run import summary, timeline
from tests.support.spark.synthetic_run import Shape

pytestmark = pytest.mark.long
QUIET = Shape(fault_k=None, deletions_k=None, seconds=60, warm_up=20)


def publish_latency(phase_k: int, seconds: float, *, is_soak: bool) -> PhaseLatency:
    histogram = Histogram()
    histogram.record_ns(np.full(100, round(seconds * 1e9)))
    return PhaseLatency(phase_k, is_soak, "publish", histogram.encode(), 0, seconds)


def test_a_phase_has_its_rates_in_messages_and_bytes(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    report.write(found, [], None)

    body, page = summary(found.folder), found.folder.report.read_text()
    warm_up, soak, drain = body["phases"]
    planned = [(one["rate"], one["planned_per_second"]) for one in (warm_up, soak, drain)]
    assert planned == [("400/s", 400.0), ("400/s", 400.0), (None, None)]
    whole = {"planned_seconds": 35, "message_bytes": 1024, "planned_per_second": 400.0}
    assert {key: body["soak"][key] for key in whole} == whole
    assert (warm_up["sent_per_second"], warm_up["sent_bytes_per_second"]) == (400.0, 409_600.0)
    assert body["soak"]["received_bytes_per_second"] == 409_600.0
    assert '<td class="number">400/s, 400 KiB/s</td>' in page
    numbers = "400 KiB/s, of 400/s planned; received 400/s, 400 KiB/s"
    assert f'<dd>400/s</dd><dd class="soft">{numbers}</dd>' in page


def test_the_planned_rate_of_a_profile_is_its_mean(tmp_path: Path) -> None:
    """It doubles after 14 of 35 seconds of soak."""
    found = timeline(tmp_path, QUIET)
    profile = Profile(steps=(Step(after=14 * SECOND_NS, rate=Fraction(800)),))
    plan = replace(found.plan, load=replace(found.plan.load, profile=profile))
    varied = replace(found, plan=plan)

    assert planned_per_second(varied, varied.soak_spans) == pytest.approx(640.0)
    assert planned_per_second(varied, []) is None


def test_a_phase_has_its_latencies(tmp_path: Path) -> None:
    """The cluster was slower in the warm-up; nothing was measured in the drain."""
    totals = SoakTotals()
    totals.add(publish_latency(0, 0.05, is_soak=False))
    totals.add(publish_latency(20, 0.002, is_soak=True))
    found = replace(timeline(tmp_path, QUIET), totals=totals)
    report.write(found, [], None)

    body, page = summary(found.folder), found.folder.report.read_text()
    warm_up, soak, drain = (one["latency_seconds"] for one in body["phases"])
    assert (warm_up["publish"]["p99"], drain) == (0.05, {})
    assert soak == body["soak"]["latency_seconds"]
    cells = "".join(f'<td class="number">{one}</td>' for one in ("50 ms", "50 ms", "-", "-"))
    assert f"{cells}</tr>" in page


def test_the_page_shows_rates_without_its_program_too(tmp_path: Path) -> None:
    """Of all clients together: the cluster takes 300 of 400 messages a second."""
    found = timeline(tmp_path, replace(QUIET, missed=100))
    report.write(found, [], None)

    page = found.folder.report.read_text()
    _, _, rates = page.partition("Messages a second ")
    plot = rates[: rates.index("</svg>")]
    lines = re.findall(r"<path d=\"([^\"]+)\" class=\"line (\w+)\"><title>([^<]+)</title>", plot)
    assert [(class_, title) for _, class_, title in lines] == [
        ("p50", "sent"),
        ("p99", "acknowledged"),
        ("p999", "received, of all subscriptions"),
    ]
    assert ">300</text>" in plot, "the highest of the scale"
    assert "Rate (messages/s)" in plot
