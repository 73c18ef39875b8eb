"""What the charts of a report draw: whose numbers they are, and that none are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.core.model import Column, Evidence, Explanation
from soak.core.series import series_name
from spark.batch.coverage import coverage
from spark.batch.offline_analysis import Judged
from spark.batch.timeline import Timeline
from spark.report.interactive import first_kind, page_data
from spark.report.packing import MISSING, Scale
from spark.report.page import Page
from spark.report.sections import heat_map
from spark.report.summary import phase_rates
from tests.support.spark.report_run import finding_of, timeline
from tests.support.spark.synthetic_run import CONSUMER, PRODUCER, Shape
from tests.unit.spark.report.test_report_packing import unpacked, values_of

pytestmark = pytest.mark.long

SECOND = "produce.1@other"
QUIET = Shape(fault_k=None, deletions_k=None, seconds=60, warm_up=10)


def with_second_producer(found: Timeline, factor: float, second: str = SECOND) -> Timeline:
    """Return a run with a second producer, whose every number is that of the first times a factor."""
    columns, series, seconds = dict(found.columns), dict(found.series), dict(found.seconds)
    for name in [one for one in found.columns if one.startswith(PRODUCER)]:
        k, values = found.series[name]
        other = name.replace(PRODUCER, second)
        columns[other], series[other] = found.columns[name], (k, values * factor)
    seconds[second] = found.seconds[PRODUCER]
    silent = {**found.silent, second: found.silent[PRODUCER]}
    return replace(found, columns=columns, series=series, seconds=seconds, silent=silent)


def data_of(found: Timeline, *judged: Judged) -> tuple[dict[str, Any], dict[str, str]]:
    return page_data(Page(found, judged, coverage(found), "clean", None))


def drawn(body: dict[str, Any], blocks: dict[str, str], index: int) -> np.ndarray[Any, Any]:
    """Return the middles of a series, as the page unpacks them."""
    _, _, _, _, is_log, offset, step, block, place, *_ = body["series"][index]
    size = body["buckets"] * (1 if body["bucket"] == 1 else 3)
    words = unpacked(blocks[block])[place * size : place * size + body["buckets"]]
    return values_of(words, Scale(is_log=bool(is_log), offset=offset, step=step))


def line(body: dict[str, Any], kind: str, label: str) -> int:
    return next(int(index) for name, index, *_ in body["main"][kind]["lines"] if name == label)


def test_of_one_producer_the_chart_is_its_own_series_and_says_so(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    body, blocks = data_of(found)

    index = line(body, "Publish", "p99")
    _, measured = found.series[f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}']
    assert body["series"][index][2] == "producer 0 on host"
    assert drawn(body, blocks, index)[: measured.size] == pytest.approx(measured, rel=0.05)
    assert [label for label, *_ in body["main"]["End to end"]["lines"]] == [
        "p50",
        "p99",
        "p99.9",
        "max",
    ]


def test_of_several_producers_latency_is_the_highest_and_the_rate_the_sum(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    both = with_second_producer(found, 3.0)
    body, blocks = data_of(both)

    index = line(body, "Publish", "p50")
    _, measured = found.series[f'{PRODUCER}|publish_latency_seconds{{quantile="0.5"}}']
    assert drawn(body, blocks, index)[: measured.size] == pytest.approx(3.0 * measured, rel=0.05)
    assert body["series"][index][2] == "highest of 2 producers"
    (sent, *_), *_ = body["load"][0]["lines"], None
    assert drawn(body, blocks, sent[1])[:50] == pytest.approx(np.full(50, 1600.0))


def test_a_series_that_is_read_every_ten_seconds_says_so(tmp_path: Path) -> None:
    """The page's program draws a line between values that are no further apart than usual."""
    found = timeline(tmp_path, QUIET)
    column = Column("kafka_log_flush_total", (), "")
    name = series_name("probe@host", column.name)
    k = np.array([2, 12, 22, 32, 52])  # one was missed
    body, _ = data_of(
        replace(
            found,
            columns={**found.columns, name: column},
            series={**found.series, name: (k, np.arange(5.0))},
        )
    )

    ((_, index, _),) = body["brokers"][0]["lines"]
    assert body["series"][index][-1] == 10.0
    assert body["series"][line(body, "Publish", "p99")][-1] == 1.0


def test_a_run_of_up_to_two_hours_is_kept_second_by_second(tmp_path: Path) -> None:
    """Three seconds without data lie within buckets that have some; zoomed in, the line breaks there."""
    lacked = range(1001, 1004)
    shape = Shape(seconds=2200, warm_up=10, rate=10, fault_k=None, gaps=((PRODUCER, lacked),))
    body, blocks = data_of(timeline(tmp_path, shape))

    row = body["series"][line(body, "Publish", "p99")]
    name, place = row[7], row[9]
    words = unpacked(blocks[f"{name}-seconds"])[place * 2200 : (place + 1) * 2200]
    assert body["windows"] == [(0, 2200)]
    assert np.flatnonzero(words[:2100] == MISSING).tolist() == list(lacked)


def test_the_latency_that_is_shown_first_is_that_of_the_worst_incident(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    delayed = Judged(
        finding_of(series=f'{CONSUMER}|end_to_end_latency_seconds{{quantile="0.99"}}'), "both"
    )
    kinds = ["Publish", "End to end"]

    pages = [Page(found, judged, coverage(found), "clean", None) for judged in ([], [delayed])]

    assert [first_kind(page, kinds) for page in pages] == ["Publish", "End to end"]
    assert first_kind(pages[1], ["Publish"]) == "Publish"
    assert first_kind(pages[0], []) == ""


def test_a_rate_is_of_the_seconds_that_any_client_recorded(tmp_path: Path) -> None:
    """A consumer that stopped and caught up had no higher rate than the producer."""
    found = timeline(tmp_path, QUIET)
    series = dict(found.series)
    for name in [one for one in series if one.startswith(f"{CONSUMER}|received_messages")]:
        k, values = series[name]
        series[name] = k[30:], values[30:] + values[:30]
    stopped = replace(found, series=series)

    assert phase_rates(stopped, 0, 60) == pytest.approx(phase_rates(found, 0, 60))


def test_an_incident_has_the_series_that_its_evidence_cites_beside_a_peer(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    columns, series = dict(found.columns), dict(found.series)
    names = []
    for number in range(5):
        column = Column("disk_write_await_seconds", (("device", f"vd{number}"),), "seconds")
        names.append(series_name("probe@host", column.name))
        columns[names[-1]], series[names[-1]] = column, (np.arange(60), np.full(60, 0.001))
    cited = Evidence("the drive was slow", {"series": names[3]})
    incident = finding_of(onset_k=30, causes=(Explanation("slow_drive", 0.9, (cited,)),))
    body, _ = data_of(replace(found, columns=columns, series=series), Judged(incident, "both"))

    charts = body["incidents"][0]["charts"]
    row = next(one["row"] for one in charts if "cited" in one["note"])
    titles = [body["series"][one["lines"][0][1]][1] for one in charts if one["row"] == row]
    assert titles == [f"disk write await (vd{number})" for number in (3, 0, 1)]
    assert next(one["note"] for one in charts if one["row"] == row) == "host, cited by the evidence"


def test_an_incident_that_does_not_count_is_known_to_the_charts(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    counted = Judged(finding_of(onset_k=30), "both")
    known = Judged(finding_of(key="known", onset_k=40), "both", acknowledged="a test")
    body, _ = data_of(found, counted, known)

    assert [one["isAgainstCluster"] for one in body["incidents"]] == [True, False]


def test_the_numbers_before_and_after_an_incident_are_those_of_their_seconds(
    tmp_path: Path,
) -> None:
    """The tail is fifteen times slower from second 112 on."""
    found = timeline(tmp_path)
    body, _ = data_of(found, Judged(finding_of(), "both"))

    curves = body["incidents"][0]["curves"]
    at_p99 = body["curve"].index(2.0)
    assert curves["during"][at_p99] / curves["before"][at_p99] == pytest.approx(15, rel=0.35)
    assert "after" not in curves


def test_before_an_incident_is_without_the_seconds_of_another(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=112, lifted_k=130, deletions_k=None))
    first, second = finding_of(resolved_k=130), finding_of(key="2", onset_k=150, resolved_k=160)
    body, _ = data_of(found, Judged(first, "both"), Judged(second, "both"))

    at_p99 = body["curve"].index(2.0)
    quiet, later = (one["curves"]["before"][at_p99] for one in body["incidents"])
    assert later == pytest.approx(quiet, rel=0.35)


def test_the_distributions_of_an_incident_are_of_the_soak(tmp_path: Path) -> None:
    """One of the first seconds of the soak has the warm-up before it."""
    found = timeline(tmp_path, Shape(fault_k=0, lifted_k=20, deletions_k=None))
    body, _ = data_of(found, Judged(finding_of(onset_k=22, resolved_k=40), "both"))

    curves = body["incidents"][0]["curves"]
    at_p99 = body["curve"].index(2.0)
    assert curves["before"][at_p99] == pytest.approx(curves["after"][at_p99], rel=0.5)


def test_the_limit_of_an_objective_is_no_band_of_the_heat_map(tmp_path: Path) -> None:
    """The page's program takes eight bands a decade for granted."""
    found = timeline(tmp_path, QUIET)
    body, blocks = data_of(found)
    series, columns = dict(found.series), dict(found.columns)
    nearest = next(one for one in series if "end_to_end_latency_above" in one and '"0.001"' in one)
    added = nearest.replace('"0.001"', '"0.0011"')
    metric = columns[nearest].metric
    columns[added] = Column(metric, (("threshold", "0.0011"),), "messages")
    series[added] = series[nearest]

    again, blocks_again = data_of(replace(found, series=series, columns=columns))

    assert again["heat"] == body["heat"]
    assert blocks_again["heat"] == blocks["heat"]


def test_an_objective_of_consumers_is_shown_with_end_to_end_latency(tmp_path: Path) -> None:
    found = timeline(tmp_path, QUIET)
    one = finding_of(kind="objective", series="consumers|objective_bad_minutes", onset_k=30)
    page = Page(found, [Judged(one, "online")], coverage(found), "regressed", None)

    assert first_kind(page, ["Publish", "End to end"]) == "End to end"


def test_series_of_two_producers_on_one_host_have_labels_of_their_own(tmp_path: Path) -> None:
    body, _ = data_of(with_second_producer(timeline(tmp_path, QUIET), 3.0, "produce.1@host"))

    (chart,) = [one for one in body["hosts"] if one["title"] == "schedule lag"]
    labels = [label for label, *_ in chart["lines"]]
    assert labels == ["producer 0 on host", "producer 1 on host"]


def test_events_come_in_lanes(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(seconds=140))
    body, blocks = data_of(found)

    words = unpacked(blocks["events"])
    count = body["events"]["deletions"]["count"]
    k = words[:count].astype(int) * 3600 + words[count : 2 * count]
    assert k.tolist() == found.event_seconds["retention_deletion"].tolist()


def test_each_event_of_a_lane_has_its_kind(tmp_path: Path) -> None:
    """Of two in one second the first kind is named."""
    seconds = {"poll_error": np.array([7, 50]), "clock_step": np.array([3, 50])}
    found = replace(timeline(tmp_path, QUIET), event_seconds=seconds)
    body, blocks = data_of(found)

    row, words = body["events"]["errors"], unpacked(blocks["events"])
    names = [row["kinds"][one] for one in words[2 * row["count"] :]]
    assert words[row["count"] : 2 * row["count"]].tolist() == [3, 7, 50]
    assert names == ["clock step", "poll error", "poll error"]


def test_of_a_run_in_which_nothing_was_received_the_heat_map_is_of_publish_latency(
    tmp_path: Path,
) -> None:
    """The picture and the place of the chart are of the same latency."""
    found = timeline(tmp_path, replace(QUIET, is_read=False))
    body, _ = data_of(found)
    page = Page(found, [], coverage(found), "clean", None)
    section = str(heat_map.render(page))

    assert body["heat"]["kind"] == "Publish"
    assert '<div class="wide js-only"' in section
    assert f"Heat map of publish latency, {page.times}" in section


@pytest.mark.parametrize(
    ("cause", "titles"),
    [
        ("broker_down", ["broker round trip (b2)", "disk write await (vda)"]),
        ("client", ["broker round trip (b2)", "host daemon CPU (alert)", "disk write await (vda)"]),
    ],
)
def test_the_suspect_comes_first_and_soakd_itself_only_where_it_may_be_the_cause(
    cause: str, titles: list[str], tmp_path: Path
) -> None:
    found = timeline(tmp_path, QUIET)
    columns, series = dict(found.columns), dict(found.series)
    names = []
    for metric, label, factor in (
        ("host_daemon_cpu_cores", ("daemon", "alert"), 5.0),
        ("disk_write_await_seconds", ("device", "vda"), 3.0),
        ("broker_round_trip_seconds", ("broker", "b2"), 2.0),
    ):
        column = Column(metric, (label,), "seconds")
        names.append(series_name("probe@host", column.name))
        columns[names[-1]] = column
        series[names[-1]] = (np.arange(60), np.repeat([0.001, 0.001 * factor], 30))
    causes = (Explanation(cause, 0.9, (Evidence("it did not answer"),), suspect="b2"),)
    incident = finding_of(onset_k=30, causes=causes, changes=tuple(names))
    body, _ = data_of(replace(found, columns=columns, series=series), Judged(incident, "both"))

    charts = body["incidents"][0]["charts"]
    shown = [body["series"][one["lines"][0][1]][1] for one in charts if "changed" in one["note"]]
    assert shown[: len(titles)] == titles
    assert ("host daemon CPU (alert)" in shown) == (cause == "client")
