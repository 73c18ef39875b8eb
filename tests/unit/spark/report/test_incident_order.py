"""Which incident of a report comes first, and what its first screen says of outages."""

from __future__ import annotations

from pathlib import Path

from soak.core.model import Finding
from soak.runtime.incident_size import IncidentSize, Level
from spark.batch.coverage import coverage
from spark.batch.offline_analysis import Judged
from spark.report.interactive import page_data
from spark.report.page import Page, headline
from spark.report.sections import findings, verdict
from spark.report.summary import affected, outages, worst_first
from tests.support.spark.report_run import finding_of, timeline
from tests.support.spark.synthetic_run import PRODUCER


def sized(finding: Finding, slow: int, worst: float) -> Judged:
    levels = {"p99": Level(0.05, worst, 0.05)}
    return Judged(finding, "both", size=IncidentSize(levels, 0.1, slow, 10))


def outage(**changes: object) -> Finding:
    values = {
        "key": "outage",
        "kind": "outage",
        "series": f"{PRODUCER}|acknowledgement_outage_seconds",
        "onset_k": 120,
        "interval": (119, 121),
        "resolved_k": 130,
        "before": 0.0,
        "after": 10.0,
        "state": "gone",
        "due_messages": 40_000,
        "late_messages": 154,
        "failed_messages": 0,
    }
    return finding_of(**{**values, **changes})


def test_an_outage_of_ten_seconds_comes_before_more_messages_that_waited_less() -> None:
    step = sized(finding_of(key="step"), 3453, 0.361)
    stopped = sized(outage(), 1000, 9.2)
    of_client = sized(outage(key="client", is_about_cluster=False), 9000, 60.0)

    found = worst_first([of_client, step, stopped])

    assert [one.finding.key for one in found] == ["outage", "step", "client"]


def test_an_outage_comes_before_a_rise_that_hit_more_messages() -> None:
    step = sized(finding_of(key="step"), 6308, 0.879)
    stopped = sized(outage(), 19, 0.2)

    assert [one.finding.key for one in worst_first([step, stopped])] == ["outage", "step"]


def test_incidents_are_numbered_in_order_of_time(tmp_path: Path) -> None:
    """The first sentence leads to the worst, and those that do not count are marked for the chart."""
    found = timeline(tmp_path)
    step = sized(finding_of(onset_k=112, resolved_k=115), 3453, 0.361)
    of_client = sized(outage(key="c", onset_k=117, is_about_cluster=False), 9, 1.0)
    stopped = sized(outage(), 1000, 9.2)
    judged = [stopped, of_client, step]
    page = Page(found, judged, coverage(found), "regressed", None)

    body, _ = page_data(page)

    assert [one["span"][0] for one in body["incidents"]] == [112, 117, 120]
    assert [one["isAgainstCluster"] for one in body["incidents"]] == [True, False, True]
    assert body["worst"] == 3
    assert 'href="#incident-3" data-pick="3">See the evidence' in str(verdict.render(page))
    assert headline(page).endswith("; 2 more incidents below, 1 of them not counted.")
    incidents = str(findings.render(page))
    assert incidents.count('<b class="mark other">2</b>') == 2
    assert incidents.index('id="incident-1"') < incidents.index('id="incident-2"')


def test_messages_that_failed_come_first() -> None:
    failed = Judged(outage(key="failed", failed_messages=7, late_messages=0), "both")
    slow = sized(finding_of(key="slow"), 100_000, 4.0)

    assert worst_first([slow, failed])[0].finding.key == "failed"
    assert affected(failed) == 7


def test_messages_that_came_late_and_slow_ones_are_the_same() -> None:
    """Those that failed are others."""
    assert affected(sized(outage(failed_messages=7), 1000, 9.2)) == 1007
    assert affected(sized(outage(failed_messages=7), 100, 9.2)) == 161


def test_outages_of_a_leader_or_of_the_client_are_no_outages_of_the_cluster(
    tmp_path: Path,
) -> None:
    found = timeline(tmp_path)
    leader = f'{PRODUCER}|acknowledgement_outage_seconds{{leader="3"}}'
    every = [outage(), outage(series=leader), outage(is_about_cluster=False), finding_of()]

    assert outages(found, [Judged(one, "both") for one in every]) == {"count": 1, "seconds": 10.0}


def test_outages_of_two_producers_at_one_time_are_one_and_those_of_the_warm_up_none(
    tmp_path: Path,
) -> None:
    """The soak begins at second 20."""
    found = timeline(tmp_path)
    other = PRODUCER.replace("produce.0", "produce.1")
    series = f"{other}|acknowledgement_outage_seconds"
    every = [
        outage(),
        outage(key="other", series=series, onset_k=125, after=8.0),
        outage(key="before", onset_k=5, after=10.0),
        outage(key="across", onset_k=15, after=7.0),
        finding_of(kind="objective", onset_k=30, resolved_k=None, is_about_cluster=False),
    ]

    assert outages(found, [Judged(one, "both") for one in every]) == {"count": 2, "seconds": 15.0}


def test_the_first_sentence_says_how_long_the_worst_incident_lasted_and_what_it_hit(
    tmp_path: Path,
) -> None:
    found = timeline(tmp_path)
    over = sized(finding_of(state="gone", resolved_k=175), 3453, 0.361)
    of_client = sized(finding_of(key="c", is_about_cluster=False, resolved_k=175), 9, 1.0)

    regressed = headline(Page(found, [over, of_client], coverage(found), "regressed", None))
    clean = headline(Page(found, [of_client], coverage(found), "clean", None))

    what = "p99 end-to-end latency stepped 4 ms -> 60 ms (x15) at 14:15:12Z for 1 min 3 s"
    assert regressed == (
        f"Regressed: {what}, 3,453 messages hit, cause retention cliff; "
        "1 more incident below, not counted."
    )
    assert clean == (
        "Clean: no incident counts against the cluster; "
        f"not counted: {what}, 9 messages hit, cause retention cliff."
    )


def test_the_report_says_how_long_nothing_was_acknowledged_and_shows_what_waited(
    tmp_path: Path,
) -> None:
    """Availability alone is 100 %, which would read as if nothing had happened."""
    found = timeline(tmp_path)
    judged = [sized(outage(), 1000, 9.2), sized(outage(key="c", is_about_cluster=False), 9, 1.0)]
    page = Page(found, judged, coverage(found), "regressed", None)

    first_screen, incidents = str(verdict.render(page)), str(findings.render(page))
    body, _ = page_data(page)

    assert (
        "<dt>Availability</dt><dd>1 outage, 10 s</dd>"
        '<dd class="soft">a producer got no acknowledgement then; '
        "100% of the messages were acknowledged</dd>"
    ) in first_screen
    assert "50 ms \u2192 9.2 s \u2192 50 ms" in incidents
    assert incidents.count("p99: median before, worst second, median after") == 3
    line = "p99 50 ms before (median), 9.2 s in the worst second, 50 ms afterwards (median)"
    assert f"<li>{line}</li>" in incidents
    assert incidents.count("; not counted against the cluster") == 1
    chart = body["incidents"][0]["charts"][0]
    assert chart["title"] == "p99 publish latency"


def test_an_outage_has_one_length_and_an_end_in_the_first_sentence(tmp_path: Path) -> None:
    """What counts as late is said where messages that came late are counted."""
    found = timeline(tmp_path)
    judged = [sized(outage(resolved_k=160), 1000, 9.2)]
    page = Page(found, judged, coverage(found), "regressed", None)

    assert headline(page) == (
        "Regressed: nothing was acknowledged for 10 s from 14:15:20Z on, back to normal at "
        "14:16:00Z, 1,000 messages hit, cause retention cliff."
    )
    incidents = str(findings.render(page))
    assert "<bdi>nothing was acknowledged for 10 s, cause retention cliff</bdi>" in incidents
    assert (
        "<li>Of the 40,000 messages due from the start of the run to the end of the outage, "
        "154 waited longer than 10 s, the limit of the outage detector</li>"
    ) in incidents
