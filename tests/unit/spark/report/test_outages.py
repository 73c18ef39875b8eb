"""Outages in the report of a whole run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from detectors.incidents import group
from soak.core.journal_format import Columns, End, decode, encode
from soak.core.model import Change, Finding, Record
from soak.store.run_folder import RunFolder
from spark.batch.offline_analysis import outages
from spark.batch.timeline import assemble
from spark.report import job as report
from spark.streaming.attribution import finding_of
from tests.support.detection.incident_world import outage, over
from tests.support.spark.report_run import read, summary
from tests.support.spark.synthetic_run import PRODUCER, Shape, write_synthetic_run

STOPPED = f"{PRODUCER}|acknowledgement_outage_seconds"
P99 = f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}'
Counts = dict[str, float]
Line = Columns | Record | End


def with_counts(folder: Path, seconds: range, counts: Counts, reason: str = "") -> None:
    """Change these counts in a producer's journal, and why the seconds are invalid."""
    (path,) = (folder / "journal" / PRODUCER).glob("*.jsonl")
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    names = next([one.name for one in line.columns] for line in lines if isinstance(line, Columns))
    at = {names.index(name): value for name, value in counts.items()}
    path.write_bytes(b"".join(encode(_changed(line, seconds, at, reason)) for line in lines))


def _changed(line: Line, seconds: range, at: dict[int, float], reason: str) -> Line:
    if not isinstance(line, Record) or line.k not in seconds:
        return line
    values = tuple(at.get(place, value) for place, value in enumerate(line.values))
    return replace(line, values=values, validity={"reason": reason} if reason else line.validity)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of 400 messages a second in which nothing else happens, for 240 s."""
    return write_synthetic_run(tmp_path / "run", Shape(fault_k=None)).path


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 100])
def test_an_outage_is_found_in_warm_up_and_soak(run: Path, first: int) -> None:
    with_counts(run, range(first, first + 12), {"acked_messages": 0, "failed_messages": 400})
    found = assemble(_folder(run), read)

    (change,) = outages(found)

    assert (change.series, change.onset_k, change.after) == (STOPPED, first, 12.0)
    assert (change.resolved_k, change.failed_messages) == (first + 12, 4800)
    assert change.due_messages == 94_000
    assert report.write(found, [], None) == 3
    (one,) = summary(found.folder)["findings"]
    assert one["what"] == (
        "nothing was acknowledged for 12 s; 4,800 of 94,000 messages of the run until then failed"
    )
    assert (one["kind"], one["found"], one["state"]) == (
        "outage",
        "offline",
        "gone",
    )
    assert one["messages"] == {"failed": 4800, "late": 0, "due": 94_000}


def test_four_seconds_are_none(run: Path) -> None:
    with_counts(run, range(100, 104), {"acked_messages": 0})

    assert outages(assemble(_folder(run), read)) == []


@pytest.mark.long
def test_what_the_stream_saw_is_one_incident_with_what_the_report_sees(run: Path) -> None:
    with_counts(run, range(100, 112), {"acked_messages": 0, "failed_messages": 400})
    found = assemble(_folder(run), read)

    report.write(found, [_online(*outages(found))], None)

    (one,) = summary(found.folder)["findings"]
    assert (one["key"], one["found"]) == ("synthetic-1-104", "both")


@pytest.mark.long
def test_messages_that_fail_while_the_schedule_lags_have_failed(run: Path) -> None:
    """The client is late because it waited for the cluster; what it skipped then is its own."""
    counts = {"failed_messages": 400.0, "missed_messages": 50.0}
    with_counts(run, range(100, 103), counts, reason="schedule_lag")
    found = assemble(_folder(run), read)

    report.write(found, [], None)

    text = found.folder.summary.read_text()
    assert "messages due in the soak 0 were skipped and 1,200 failed" in text


@pytest.mark.long
def test_an_improvement_is_a_note_and_no_finding(run: Path) -> None:
    found = assemble(_folder(run), read)
    fell = Change(P99, 106, 100, (99, 101), 0.04, 0.004, "confirmed", 0.99)

    assert report.write(found, [], None, [fell]) == 0
    assert summary(found.folder)["findings"] == []
    assert "40 ms -&gt; 4 ms (10 times less)" in found.folder.report.read_text()


def _folder(run: Path) -> RunFolder:
    return RunFolder(run)


def _online(*changes: Change) -> Finding:
    (incident,) = group(changes)
    finding = finding_of("synthetic-1", replace(incident, key="synthetic-1-104"), None)
    return replace(finding, is_about_cluster=True)


def test_messages_of_outages_that_follow_each_other_add_up() -> None:
    """Those of one leader are among the client's; what was due counts from the start of the run."""
    first, second = (
        outage(100, 8.0),
        replace(outage(120, 9.0), failed_messages=50, due_messages=1100),
    )
    leader = replace(
        outage(100, 8.0), series='produce.0@h|acknowledgement_outage_seconds{leader="3"}'
    )
    (incident,) = group([over(first, 108), over(leader, 108), second])
    finding = finding_of("r", replace(incident, key="r-104"), None)

    assert (finding.failed_messages, finding.late_messages, finding.due_messages) == (80, 4, 1100)
