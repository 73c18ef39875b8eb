"""The report of many runs: verdicts, causes and trends, from their reports and from the findings topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.app.analysis.fleet import Fleet, Trend, lines, overview, page, trend, trend_text
from soak.core.errors import PlanError, RunFolderError
from soak.store.findings.topic import FindingsTopics, findings_by_run
from soak.store.findings.topic_log import OUTBOX_TOPIC
from tests.support.alerting.findings import NOW, finding
from tests.support.fakes import FakeClock
from tests.support.store.findings_log import KEEP_NS, FakeCluster

LEVELS = (0.010, 0.012, 0.0145, 0.0175, 0.021, 0.025)
INCIDENT = {
    "what": "publish latency p99 stepped <b>",
    "cause": "drive_gc",
    "suspect": "b2:9092",
    "state": "gone",
    "is_about_cluster": True,
}


def write_run(runs: Path, at: int, p99: float, *findings: dict[str, Any]) -> Path:
    folder = runs / f"run-{at}"
    (folder / "report").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    body = {
        "run": f"run-{at}",
        "name": "nightly",
        "start": f"2026-11-{at + 10}T00:00:00Z",
        "verdict": "regressed" if findings else "clean",
        "findings": [{"key": f"run-{at}-{n}", **one} for n, one in enumerate(findings, 1)],
        "soak": {"latency_seconds": {"publish": {"p99": p99}}, "availability": None},
    }
    (folder / "report" / "summary.json").write_text(json.dumps(body))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six runs whose p99 grows, two with an incident, beside what is no run."""
    found = tmp_path / "runs"
    for at, p99 in enumerate(LEVELS):
        client = {**INCIDENT, "is_about_cluster": False}
        write_run(found, at, p99, *([INCIDENT, client] if at in (1, 4) else []))
    (found / "current").symlink_to(found / "run-5")
    (found / "notes").mkdir()
    return found


def report(*folders: Path) -> Fleet:
    return overview(folders, None, FakeClock())


def by_run(values: list[float]) -> Trend:
    return trend(
        "p", "publish_p99_seconds", {f"run-{at}": value for at, value in enumerate(values)}
    )


def test_runs_are_counted_once_with_verdicts_and_causes(runs: Path) -> None:
    """An incident of a client is none of the cluster, and `current` is another run's name."""
    found = report(runs, runs / "run-3")

    assert [one.run for one in found.runs] == [f"run-{at}" for at in range(6)]
    assert found.verdicts == {"clean": 4, "regressed": 2}
    assert found.causes == (
        {"cause": "drive_gc", "incidents": 2, "runs": 2, "suspects": ["b2:9092 (2)"]},
    )


def test_a_latency_that_grows_from_run_to_run_is_a_trend(runs: Path) -> None:
    (found,) = report(runs).trends

    assert (found.plan, found.figure, found.values) == ("nightly", "publish_p99_seconds", LEVELS)
    assert found.is_clear
    assert found.ratio == pytest.approx(2.5, rel=0.01)


@pytest.mark.long
@given(values=st.permutations(LEVELS), unit=st.sampled_from([1e-3, 1.0, 1e3]))
def test_a_trend_is_the_same_in_any_unit(values: list[float], unit: float) -> None:
    one, other = by_run(values), by_run([unit * value for value in values])

    assert other.ratio == pytest.approx(one.ratio)
    assert (other.chance, other.is_clear) == (one.chance, one.is_clear)


def test_equal_runs_have_no_trend() -> None:
    found = by_run([0.01] * 23)

    assert (found.is_clear, found.ratio, found.chance) == (False, 1.0, 1.0)


def test_the_run_that_brought_another_level_is_named() -> None:
    """As `soak compare --trend` names it."""
    found = by_run([0.01, 0.0101, 0.0099, 0.01, 0.0102, 0.015, 0.0151, 0.0149, 0.015])

    assert [one["run"] for one in found.changes] == ["run-5"]
    assert "from run-5 on 15 ms instead of 10 ms" in trend_text(found)


def test_acknowledged_incidents_do_not_count(runs: Path) -> None:
    """As in `soak list` and comparisons; a run without others is clean."""
    note = json.dumps([{"incident": "run-1-1", "note": "brokers were rolled"}])
    (runs / "run-1" / "acknowledged.json").write_text(note)

    found = report(runs)

    assert found.verdicts == {"clean": 5, "regressed": 1}
    assert found.causes[0]["incidents"] == 1


def test_four_runs_are_too_few(tmp_path: Path) -> None:
    for at in range(4):
        write_run(tmp_path, at, LEVELS[at])

    assert report(tmp_path).trends == ()


def test_what_cannot_be_read_is_named_and_the_others_count(runs: Path) -> None:
    (runs / "run-0" / "report" / "summary.json").unlink()
    (runs / "run-1" / "report" / "summary.json").write_text("[")
    found = report(runs, runs / "notes")
    text = list(lines(found))

    assert len(found.runs) == 4
    assert text[0] == "4 runs: 3 clean, 1 regressed"
    assert [line for line in text if line.startswith("not read")] == [
        f"not read: {one}" for one in found.unread
    ]
    assert (
        found.unread[0] == f"{runs}/run-0: no report yet; make it with `soak report {runs}/run-0`"
    )
    assert found.unread[1].startswith(f"{runs}/run-1/report/summary.json: ")
    assert found.unread[2] == f"{runs}/notes: no run in it"


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a folder"):
        report(tmp_path / "missing")


def test_the_page_shows_runs_and_trends_and_executes_nothing(runs: Path) -> None:
    text = page(report(runs))

    assert "stepped &lt;b&gt;" in text
    assert text.count("<svg") == 1
    assert all(f"run-{at}" in text for at in range(6))


def test_the_topics_have_the_findings_of_every_run_that_can_be_read() -> None:
    """A damaged one is named with its place, and stops no other."""
    cluster = FakeCluster(FakeClock())
    for run in ("run1", "run2"):
        place = FindingsTopics(run, cluster.log(KEEP_NS), cluster.clock, KEEP_NS)
        with place.open() as store:
            store.save_finding(finding(run=run), ["mail"], NOW)
    cluster.put(OUTBOX_TOPIC, b'["run3","notification","run3-1","mail",1,"opened"]', b"{")
    found = findings_by_run(cluster.log(KEEP_NS), cluster.clock)

    assert [one.run for one in found["run1"] if not isinstance(one, str)] == ["run1"]
    assert sorted(found) == ["run1", "run2", "run3"]
    assert "the value is damaged" in str(found["run3"])


def test_a_plan_of_a_fleet_that_has_a_fault_is_named(tmp_path: Path) -> None:
    plan = tmp_path / "fleet.yaml"
    plan.write_text("name: x\nstore: nowhere\n")

    with pytest.raises(PlanError, match=r"fleet\.yaml"):
        overview([], plan, FakeClock())
