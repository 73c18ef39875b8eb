"""The JSON schema of summary.json, against the summary of a report and against its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark.report import job as report
from tests.support.json_schema import violations
from tests.support.paths import ROOT
from tests.support.spark.report_run import summary, timeline
from tests.support.spark.synthetic_run import Shape

REFERENCE = ROOT / "docs" / "reference"
SCHEMA = json.loads((REFERENCE / "summary.schema.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("shape", [Shape(), Shape(fault_k=None)], ids=["regressed", "clean"])
def test_the_summary_of_a_report_is_as_its_schema_says(shape: Shape, tmp_path: Path) -> None:
    found = timeline(tmp_path, shape)
    report.write(found, [], None)
    body = summary(found.folder)

    assert list(violations(SCHEMA, body)) == []
    assert bool(body["findings"]) == (shape.fault_k is not None)


def test_each_key_of_the_schema_is_required_and_on_the_page() -> None:
    page = (REFERENCE / "summary-json.md").read_text()
    finding = SCHEMA["properties"]["findings"]["items"]

    for part in (SCHEMA, finding):
        assert sorted(part["required"]) == sorted(part["properties"])
        assert [key for key in part["properties"] if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"verdict": "fine"}, "$.verdict: 'fine' is none of"),
        ({"run": 1}, "$.run: 1 is no string"),
        ({"more": 1}, "$.more: unknown"),
        ({"findings": [{}]}, "$.findings[0].key: missing"),
        ({"soak": {}}, "$.soak.seconds: missing"),
    ],
    ids=str,
)
def test_a_summary_that_is_none_is_refused(change: dict[str, object], found: str) -> None:
    assert any(one.startswith(found) for one in violations(SCHEMA, change))
