"""Incidents that were acknowledged as known changes: listed in the report, and not in its verdict."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from spark.batch.comparison.run import acknowledge
from spark.batch.offline_analysis import Judged
from spark.report import job as report
from spark.report.summary import missed, worst_first
from tests.support.spark.report_run import finding_of, summary, timeline
from tests.support.spark.synthetic_run import Shape

NOTE = "brokers were <rolled>"


@pytest.mark.long
def test_an_acknowledged_incident_counts_in_no_part_of_the_report(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))
    before = report.write(found, [finding_of()], None)
    acknowledge(found.folder.path, "118", NOTE)

    after = report.write(found, [finding_of()], None)

    body, page = summary(found.folder), found.folder.report.read_text()
    (incident,) = body["findings"]
    assert (before, after, body["verdict"]) == (3, 0, "clean")
    assert (incident["key"], incident["acknowledged"]) == ("synthetic-1-118", NOTE)
    assert "acknowledged: brokers were &lt;rolled&gt;" in page
    assert "Acknowledged, and not counted: <bdi>brokers were &lt;rolled&gt;</bdi>" in page
    assert body["headline"].startswith(
        "Clean: no incident counts against the cluster; not counted: "
    )
    assert body["headline"].endswith(f", acknowledged: {NOTE}.")
    assert json.loads(found.folder.overview.read_text())["incidents"] == []


@pytest.mark.long
def test_the_page_has_the_command_that_acknowledges_an_incident_found_offline(
    tmp_path: Path,
) -> None:
    found = timeline(tmp_path)
    assert report.write(found, [], None) == 3
    (incident,) = summary(found.folder)["findings"]
    page, path = found.folder.report.read_text(), shlex.quote(str(found.folder.path))

    acknowledge(found.folder.path, incident["key"], NOTE)

    assert incident["acknowledged"] is None
    assert f"<code>soak acknowledge {path} {incident['key']} --note " in page
    assert report.write(found, [], None) == 0


def test_a_missed_objective_that_is_known_makes_no_run_inconclusive() -> None:
    known, other = (
        Judged(finding_of(key=key, kind="objective"), "both", acknowledged=note)
        for key, note in (("known", NOTE), ("other", None))
    )

    assert missed([known, other]) == [other]
    assert worst_first([known, other]) == [other, known]
