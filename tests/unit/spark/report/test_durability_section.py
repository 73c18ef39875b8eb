"""What a run guaranteed, from `durability.json` to the page and `summary.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.core.cluster import durability
from soak.core.cluster.durability import Durability, Setting, SettingValue
from soak.core.errors import RunFolderError
from spark.report import job as report
from tests.support.spark.report_run import summary, timeline

FOUND = Durability(
    "kafka",
    3,
    2,
    is_flushed=False,
    settings=(Setting("flush.messages", SettingValue("<never>", "every broker"), ("local",), "1"),),
    notes=("by the & by",),
)


@pytest.mark.long
def test_the_summary_holds_what_was_found_when_the_load_began(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    found.folder.durability.write_text(json.dumps(durability.to_json(FOUND)))

    report.write(found, [], None)

    assert summary(found.folder)["durability"] == durability.to_json(FOUND)
    page = found.folder.report.read_text()
    assert "Level 3 of 4 when the load began: replication sync" in page
    assert "&lt;never&gt;" in page
    assert "by the &amp; by" in page


@pytest.mark.long
def test_a_range_is_reported_as_one(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    guarantees = durability.unknown("pulsar", "nobody answered")
    found.folder.durability.write_text(json.dumps(durability.to_json(guarantees)))

    report.write(found, [], None)

    assert summary(found.folder)["durability"]["level"] is None
    assert "Level between 1 and 4 of 4" in found.folder.report.read_text()


@pytest.mark.long
def test_a_run_that_nobody_looked_at_says_so(tmp_path: Path) -> None:
    found = timeline(tmp_path)

    report.write(found, [], None)

    assert summary(found.folder)["durability"] == {"level": None, "notes": ["not looked at"]}
    assert (
        "The durability level of this target was not read when the load began: it follows from the "
        "topic&#39;s replication, min.insync.replicas and flush settings, and the producer&#39;s acks. "
        "What the plan sets of them is under &#34;What was run&#34;."
    ) in found.folder.report.read_text()


@pytest.mark.long
def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    found.folder.durability.write_text('{"level": 3')

    with pytest.raises(RunFolderError, match=r"durability\.json is damaged"):
        report.write(found, [], None)
