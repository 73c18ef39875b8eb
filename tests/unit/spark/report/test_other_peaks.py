"""Peaks of latency in no incident: what is one, how many messages were slow, where the page shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.model import Column
from spark.batch.coverage import coverage
from spark.batch.offline_analysis import Judged
from spark.batch.peaks import Peaks, peaks_outside
from spark.batch.timeline import Timeline
from spark.report.interactive import page_data
from spark.report.page import Page
from spark.report.sections import findings
from spark.streaming.attribution import step_config
from tests.support.spark.report_run import finding_of, timeline
from tests.support.spark.synthetic_run import CONSUMER, Shape

pytestmark = pytest.mark.long

SHORT = Shape(fault_k=112, lifted_k=115, deletions_k=None)


def peaks_of(found: Timeline, *incidents: tuple[int, int]) -> Peaks:
    return peaks_outside(found, incidents, step_config(found.plan).minimum_effect)


def test_a_peak_of_three_seconds_is_dated_and_its_slow_messages_are_counted(tmp_path: Path) -> None:
    found = timeline(tmp_path, SHORT)
    peaks = peaks_of(found)

    (peak,) = peaks.found
    name = f'{CONSUMER}|end_to_end_latency_above_messages{{threshold="{peaks.limit:g}"}}'
    k, above = found.series[name]
    assert (peaks.latency, peak.from_k, peak.to_k) == ("end_to_end", 112, 115)
    assert peak.slow_messages == above[(k >= 112) & (k < 115)].sum() > 0
    assert 0.0035 * 15 / 2 < peak.slowest < 0.0035 * 15 * 2


def test_what_lies_in_or_beside_an_incident_is_no_peak(tmp_path: Path) -> None:
    found = timeline(tmp_path, SHORT)

    assert not peaks_of(found, (110, 120)).found
    assert not peaks_of(found, (140, 150)).found
    assert peaks_of(found, (160, 170)).found


def test_seconds_in_which_the_client_was_at_fault_are_no_peak(tmp_path: Path) -> None:
    found = timeline(tmp_path, replace(SHORT, invalid=range(112, 115)))

    assert not peaks_of(found).found


def test_a_missed_objective_hides_no_peak(tmp_path: Path) -> None:
    """It is judged over the whole run, and has no end."""
    found = timeline(tmp_path, SHORT)
    objective = Judged(finding_of(kind="objective", onset_k=30, resolved_k=None), "online")
    page = Page(found, [objective], coverage(found), "clean", None)

    assert page.spans == []


def test_a_quiet_run_and_the_seconds_before_the_soak_have_none(tmp_path: Path) -> None:
    in_warm_up = Shape(fault_k=5, lifted_k=15, deletions_k=None)

    assert not peaks_of(timeline(tmp_path / "quiet", replace(SHORT, fault_k=None))).found
    assert not peaks_of(timeline(tmp_path / "warm-up", in_warm_up)).found


def test_two_peaks_with_a_few_seconds_between_them_are_one(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=112, lifted_k=130, deletions_k=None))
    calm = np.arange(116, 122)
    counts = {
        name: (k, np.where(np.isin(k, calm), np.minimum(values, 3.0), values))
        for name, (k, values) in found.series.items()
        if "end_to_end_latency_above" in name and 'threshold="0.0001"' not in name
    }
    peaks = peaks_of(replace(found, series={**found.series, **counts}))

    assert [(one.from_k, one.to_k) for one in peaks.found] == [(112, 130)]


def test_a_run_without_histograms_has_none(tmp_path: Path) -> None:
    found = timeline(tmp_path, SHORT)
    columns: dict[str, Column] = {
        name: column for name, column in found.columns.items() if "_above_" not in name
    }

    assert peaks_of(replace(found, columns=columns)) == Peaks("", 0.0, ())


def test_the_page_lists_peaks_and_has_a_row_of_them_below_the_chart(tmp_path: Path) -> None:
    found = timeline(tmp_path, SHORT)
    page = Page(found, [], coverage(found), "clean", None, peaks=peaks_of(found))
    body, _ = page_data(page)
    text = str(findings.render(page))

    assert body["events"]["other peaks"]["count"] == 3
    assert "1 peak of end-to-end latency in no incident" in text
    assert page.moment(112) in text
