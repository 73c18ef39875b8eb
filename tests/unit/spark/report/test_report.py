from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.errors import RunFolderError, SoakError
from soak.core.model import Change, Column, Evidence, Explanation
from soak.core.plan import plugins
from soak.core.plan.phases import decision_line, parse_phases
from soak.core.series import series_name
from spark.batch.coverage import coverage, runs
from spark.batch.digest import digest, reduction
from spark.batch.offline_analysis import judge_incidents, offline_changes
from spark.batch.outcomes import shares
from spark.batch.timeline import Timeline, assemble
from spark.report import job as report
from spark.report.charts import Plot
from spark.report.interactive import page_data
from spark.report.page import Page, clients_text, source_text
from spark.report.summary import verdict
from tests.support.spark.report_run import (
    SERIES,
    as_planned,
    finding_of,
    read,
    summary,
    timeline,
)
from tests.support.spark.synthetic_run import CONSUMER, PRODUCER, Shape, write_synthetic_run

pytestmark = pytest.mark.long


def page_of(found: Timeline) -> Page:
    return Page(found, [], coverage(found), "clean", None)


def _phases(soak_k: int, drain_k: int) -> str:
    return (
        decision_line("warm-up", 0)
        + decision_line("soak", soak_k)
        + decision_line("drain", drain_k)
    )


def test_a_step_that_both_detectors_see_is_a_regression_found_by_both(tmp_path: Path) -> None:
    found = timeline(tmp_path)

    code = report.write(found, [finding_of()], None)

    (reported,) = summary(found.folder)["findings"]
    assert (code, reported["cause"], reported["found"]) == (3, "retention_cliff", "both")
    assert reported["at"] == "2026-09-21T14:15:12Z"
    assert reported["interval_seconds"] == [-1, 1]
    assert reported["labels"] == {"source": "consume.0@host", "quantile": "0.99"}


def test_a_report_says_each_phase_of_its_work_once(tmp_path: Path) -> None:
    """When it begins; the start of Spark comes before these."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    doing: list[str] = []

    report.write(assemble(folder, read, doing.append), [], note=doing.append)

    assert doing == [
        "reading the journals",
        "auditing the messages",
        "looking for changes of latency",
        "writing the page",
    ]


def test_a_step_that_only_the_offline_analysis_shows_is_reported_with_its_cause(
    tmp_path: Path,
) -> None:
    found = timeline(tmp_path)

    judged = judge_incidents(found, [])

    assert [one.found for one in judged] == ["offline"]
    assert abs(judged[0].finding.onset_k - 112) <= 2
    assert judged[0].finding.cause == "retention_cliff"


def test_a_finding_says_what_each_latency_did_at_one_onset(tmp_path: Path) -> None:
    """In the offline analysis the fault in second 112 is one step of both latencies."""
    found = timeline(tmp_path)

    report.write(found, [finding_of()], None)

    (reported,) = summary(found.folder)["findings"]
    step, page = reported["step"], found.folder.report.read_text()
    assert step["at"] == "2026-09-21T14:15:12Z"
    assert step["interval_seconds"] == [0, 0]
    assert {one["series"].partition("|")[2] for one in step["moved"]} >= {
        f'{latency}_latency_seconds{{quantile="0.99"}}' for latency in ("publish", "end_to_end")
    }
    assert page.count("In the offline analysis it is one step at 14:15:12Z") == 1


def test_a_finding_that_the_offline_analysis_does_not_show_has_no_step(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))

    report.write(found, [finding_of()], None)

    (reported,) = summary(found.folder)["findings"]
    assert reported["step"] is None
    assert "In the offline analysis it is" not in found.folder.report.read_text()


def test_a_rise_from_nothing_has_no_ratio(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))
    odd = Explanation("odd", 0.9, (Evidence("odd", {"share": float("nan"), "count": 3}),))

    report.write(found, [finding_of(before=0.0, causes=(odd,))], None)

    (reported,) = summary(found.folder)["findings"]
    assert (reported["before"], reported["ratio"]) == (0.0, None)
    assert reported["evidence"][0]["numbers"] == {"share": None, "count": 3}


@pytest.mark.parametrize("name", ["run.json", "plan.yaml", "phases.jsonl", "lab/faults.jsonl"])
@pytest.mark.parametrize("damage", [b"\xff\xfe{\n", b"[1]\n"], ids=["no text", "something else"])
def test_a_damaged_file_of_a_run_is_an_error_with_its_name(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5, is_drill=True))
    (folder.path / name).write_bytes(damage)

    with pytest.raises(SoakError, match=Path(name).name):
        report.write(assemble(folder, read), [], report.drill_of)


def test_a_report_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """A full drive, or the folder of another user: for both stands a file in the report's place."""
    found = timeline(tmp_path, Shape(seconds=30, warm_up=5))
    found.folder.report.parent.write_text("")

    with pytest.raises(RunFolderError, match=r"cannot write .*report: File exists"):
        report.write(found, [], None)


def test_a_quiet_run_is_clean(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))

    code = report.write(found, [], None)

    body = summary(found.folder)
    assert (code, body["verdict"], body["findings"]) == (0, "clean", [])


@pytest.mark.parametrize(
    "changes",
    [{"state": "warning"}, {"is_about_cluster": False}],
    ids=["a warning", "the client's fault"],
)
def test_what_is_not_a_confirmed_step_of_the_cluster_does_not_count(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))
    judged = judge_incidents(found, [finding_of(**changes)])

    assert verdict(found, judged, coverage(found)) == "clean"


def test_a_finding_that_went_away_is_still_a_regression(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))

    assert report.write(found, [finding_of(state="gone", resolved_k=150)], None) == 3


def test_the_step_by_which_a_finding_went_away_is_no_finding_of_its_own(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(lifted_k=175))

    judged = judge_incidents(found, [finding_of(state="gone", resolved_k=190)])

    assert [(one.found, one.finding.state) for one in judged] == [("both", "gone")]


def test_lost_messages_are_a_regression_whatever_latency_did(tmp_path: Path) -> None:
    """They come out of the journals, and page and summary say how many."""
    found = timeline(tmp_path, Shape(fault_k=None, rate=2000, lost=1009))

    code = report.write(found, [], None)

    body, headline = summary(found.folder), "Regressed: 1,009 acknowledged messages were lost."
    assert (code, body["verdict"], body["headline"]) == (3, "regressed", headline)
    assert (body["audit"]["lost"], headline in found.folder.report.read_text()) == (1009, True)


def test_a_loss_is_reported_before_a_finding(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(lost=1))

    report.write(found, [finding_of()], None)

    lost, _, reported = summary(found.folder)["headline"].partition("; ")
    assert lost == "Regressed: 1 acknowledged message was lost"
    assert "at 14:15:12Z for 2 min 8 s, not over" in reported
    assert reported.endswith(" messages hit, cause retention cliff.")


def test_where_loss_cannot_be_seen_it_does_not_count(tmp_path: Path) -> None:
    """With acks=0 nobody knows of a loss, and the audit says so."""
    found = timeline(tmp_path, Shape(fault_k=None))

    assert report.write(replace(found, audit={**found.audit, "lost": None}), [], None) == 0


def test_a_warning_that_the_offline_analysis_confirms_is_reported_under_its_key(
    tmp_path: Path,
) -> None:
    """It does not hide the step, and the step keeps the key that was minted online."""
    found = timeline(tmp_path)

    judged = judge_incidents(found, [finding_of(state="warning")])

    assert verdict(found, judged, coverage(found)) == "regressed"
    (one,) = judged
    assert (one.finding.key, one.finding.state, one.found) == (
        "synthetic-1-118",
        "confirmed",
        "both",
    )
    assert one.finding.cause == "retention_cliff"


def test_an_unknown_cause_names_what_the_detector_saw_move(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(deletions_k=None))
    disk = 'probe@host|disk_write_await_seconds{device="vda"}'
    moved = Change(disk, 120, 113, (112, 114), 0.001, 0.004, "confirmed", 0.99)

    alone, (reported,) = judge_incidents(found, []), judge_incidents(found, [], [moved])

    assert [one.finding.cause for one in alone] == ["unknown"]
    assert reported.finding.causes[0].evidence[0].numbers["onset_k"] == 113


def test_a_step_that_was_a_drift_has_no_cause_at_its_onset(tmp_path: Path) -> None:
    """Online it stepped at 4,000; in fact it rose for an hour, from long before that."""
    k = np.arange(0, 7200, 10)
    rise = np.clip((k - 1800) / 4200, 0.0, 1.0) * np.log10(4.0)
    values = 0.01 * 10.0 ** (rise + np.random.default_rng(3).normal(0.0, 0.02, k.size))
    found = timeline(tmp_path, Shape(seconds=40, warm_up=10))
    series = dict.fromkeys(found.series, (k[:0], values[:0])) | {SERIES: (k, values)}
    seconds = {name: np.arange(7200) for name in found.seconds}
    found = replace(
        found, step=10, series=series, seconds=seconds, phases=parse_phases(_phases(0, 7200))
    )
    step = finding_of(onset_k=4000, interval=(3990, 4010), before=0.015, after=0.025)
    ((reported, seen),) = ((one.finding, one.found) for one in judge_incidents(found, [step]))

    assert (reported.kind, reported.cause, seen) == ("drift", "unknown", "both")
    assert reported.onset_k < 3000
    assert reported.causes == ()


def test_a_finding_late_in_the_row_after_the_onset_of_all_is_reported_once(tmp_path: Path) -> None:
    """Publishing stepped clearly in the row at 3,000, end to end in the next, at 3,019 by online."""
    k = np.arange(0, 7200, 10)
    noise = np.random.default_rng(3).normal(0.0, 0.02, (2, k.size))
    found = timeline(tmp_path, Shape(seconds=40, warm_up=10))
    publish = SERIES.replace(CONSUMER, PRODUCER).replace("end_to_end", "publish")
    series = {
        publish: (k, 0.01 * 10.0 ** (noise[0] + 1.0 * (k >= 3000))),
        SERIES: (k, 0.01 * 10.0 ** (noise[1] + 0.5 * (k >= 3010))),
    }
    series = dict.fromkeys(found.series, (k[:0], noise[0, :0])) | series
    seconds = {name: np.arange(7200) for name in found.seconds}
    found = replace(
        found, step=10, series=series, seconds=seconds, phases=parse_phases(_phases(0, 7200))
    )
    late = finding_of(onset_k=3019, interval=(3019, 3019), before=0.01, after=0.03)

    assert [one.found for one in judge_incidents(found, [late])] == ["both"]


def test_untrusted_seconds_stay_out_of_coarse_rows_too(tmp_path: Path) -> None:
    """Every other second of a slow minute is not trusted: no step is made of the ten with them."""
    slow = Shape(fault_k=120, lifted_k=180, invalid=range(121, 180, 2), deletions_k=None)
    folder = write_synthetic_run(tmp_path / "run", slow)
    as_planned(folder, soak="3h")
    edge = replace(assemble(folder, read), phases=parse_phases(_phases(15, 235)))

    assert edge.step == 10
    assert edge.soak == (15, 235)
    assert offline_changes(edge) == []


def test_untrusted_seconds_in_a_row_are_one_band(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None, invalid=range(60, 100)))

    report.write(found, [], None)

    page = found.folder.report.read_text()
    assert page.count("producer 0 on host was the bottleneck") == 3  # in each picture


def test_seconds_that_no_pixel_tells_apart_are_one_band(tmp_path: Path) -> None:
    """Six hours in which every other second is not trusted, or is missing."""
    found = timeline(tmp_path, Shape(fault_k=None, seconds=40, warm_up=10))
    every, odd = np.arange(21_600), range(1, 21_600, 2)
    found = replace(
        found,
        phases=parse_phases(_phases(10, 21_600)),
        seconds={**found.seconds, PRODUCER: every[::2], CONSUMER: every},
        invalid={CONSUMER: dict.fromkeys(odd, "consumer_pause")},
    )
    page = report.html(page_of(found))

    assert "gap: producer 0 on host no record" in page
    assert "consumer 0 of subscription 0 on host was the bottleneck" in page
    assert len(page) < 500_000


def test_of_very_many_channels_those_that_moved_most_are_shown(tmp_path: Path) -> None:
    """A thousand topics of which three are deleted from."""
    found = timeline(tmp_path, Shape(deletions_k=None, seconds=40, warm_up=10))
    columns, series = dict(found.columns), dict(found.series)
    for number in range(1000):
        column = Column("retention_deleted_bytes", (("topic", f"t{number}"),), "bytes")
        name = series_name("probe@host", column.name)
        columns[name] = column
        series[name] = (np.arange(2), np.array([0.0, 5.0 * (number in (7, 400, 999))]))
    body, _ = page_data(page_of(replace(found, columns=columns, series=series)))

    (chart,) = [one for one in body["hosts"] if one["title"] == "retention deleted bytes"]
    assert {"host t7", "host t400", "host t999"} < {label for label, *_ in chart["lines"]}
    assert (chart["note"], chart["help"]) == ("997 more", "Bytes deleted.")


def test_the_page_holds_everything_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(is_drill=True))
    report.write(found, [finding_of()], lambda _: {"drill": "x", "fault": "deletion_stall"})

    page = found.folder.report.read_text()

    assert page.count("<section id=") == len(plugins.names("spark.report.sections"))
    assert "DRILL" in page
    assert re.findall(r"(?:src|href)=[\"'](?!#|data:)", page) == []
    assert re.findall(r"@import|url\((?!data:|#|INTER)", page) == []
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in page


def test_hostile_text_in_a_run_is_escaped(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    evil = Evidence("<script>alert(1)</script>")
    cause = Explanation("<img src=x>", 0.9, (evil,))
    judged = judge_incidents(found, [finding_of(causes=(cause,), series='"><b>|x{a="<i>"}')])
    page = report.html(Page(found, judged, coverage(found), "regressed", {"drill": "<u>"}))

    outside = re.sub(r"(?s)<(script|style)[ >].*?</\1>", "", page)
    assert not [word for word in ("<script", "<img", "<i>", "<u>", 'x{a="') if word in outside]


def test_coarse_buckets_sum_counts_keep_maxima_and_take_medians(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=60, warm_up=5))
    (path,) = (folder.journal / PRODUCER).glob("*.jsonl")

    fine, coarse = digest(path, 1), digest(path, 10)

    names = [column.name for column in fine.columns]
    sent = names.index("sent_messages")
    worst = names.index('publish_latency_seconds{quantile="max"}')
    assert coarse.k.tolist() == list(range(0, 60, 10))
    assert coarse.values[sent].sum() == fine.values[sent].sum()
    assert coarse.values[worst][1] == fine.values[worst][10:20].max()


def test_what_is_there_is_no_amount_and_what_was_deleted_is_one() -> None:
    values = np.array([0.0, 0.0, 3.0, 0.0, 7.0])
    totals = {
        metric: float(reduction(Column(metric))(values))
        for metric in ("lag_messages", "received_messages", "retention_deleted_bytes")
    }

    assert totals == {
        "lag_messages": 0.0,
        "received_messages": 10.0,
        "retention_deleted_bytes": 10.0,
    }


def test_a_bucket_that_two_files_share_is_one(tmp_path: Path) -> None:
    """A new file begins within ten seconds: the counts of both are summed, and no second comes twice."""
    folder = write_synthetic_run(tmp_path / "run")
    as_planned(folder, soak="3h")
    whole = assemble(folder, read)
    _split(folder.journal / PRODUCER / "000000.jsonl", 84)
    name = f"{PRODUCER}|sent_messages"

    k, sent = assemble(folder, read).series[name]

    assert k.tolist() == whole.series[name][0].tolist()
    assert sent.tolist() == whole.series[name][1].tolist()


def _split(path: Path, at: int) -> None:
    head, *lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([head, *lines[:at]]))
    path.with_name("000001.jsonl").write_bytes(b"".join([head, *lines[at:]]))


def test_a_drawn_chart_says_what_it_shows_of_whom_and_when(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    report.write(found, [], None)
    page = found.folder.report.read_text()

    times = "2026-09-21 14:13:20Z to 14:17:20Z"
    consumer = f"consumer 0 of subscription 0 on host, {times}"
    assert page.count(f"<h3>End-to-end latency <small>{consumer}</small></h3>") == 2
    assert f"<h3>Publish latency <small>producer 0 on host, {times}</small></h3>" in page


def test_of_several_clients_a_chart_says_how_many_there_are(tmp_path: Path) -> None:
    page = page_of(timeline(tmp_path))

    assert clients_text(page, ["produce.0@a|x", "produce.0@a|y", "produce.1@b|x"]) == "2 producers"
    assert clients_text(page, ["consume.0@a|x", "consume.1@a|x"]) == "2 consumers"
    assert clients_text(page, []) == "no client"


def test_a_source_is_named_in_words(tmp_path: Path) -> None:
    page = page_of(timeline(tmp_path, Shape(seconds=40, warm_up=10)))
    names = ("produce.1@a", "consume.0", "probe@a", "conduct@a", "produce.x@a", "run")

    assert [source_text(page, name) for name in names] == [
        "producer 1 on a",
        "consumer 0 of subscription 0",
        "a",
        "conduct@a",
        "produce.x@a",
        "run",
    ]


@pytest.mark.parametrize(("waited", "top"), [(1.0, 1.0), (200.0, 100.0)])
def test_the_heat_map_counts_the_messages_of_all_consumers(
    waited: float, top: float, tmp_path: Path
) -> None:
    """A second consumer received all of its messages in the slowest band, or above all bands."""
    found = timeline(tmp_path, Shape(fault_k=None))
    columns, series = dict(found.columns), dict(found.series)
    slow = Column("end_to_end_latency_above_messages", (("threshold", "1"),), "messages")
    for name, column in found.columns.items():
        if name.startswith(CONSUMER) and column.metric == slow.metric:
            other = name.replace(CONSUMER, "consume.1@host")
            k = found.series[name][0]
            is_slow = float(dict(column.labels)["threshold"]) <= waited
            columns[other], series[other] = column, (k, np.full(k.size, 400.0 * is_slow))
    both = replace(found, columns=columns, series=series)

    alone, together = (shares(one, slow.metric, 1) for one in (found, both))

    assert alone is not None
    assert together is not None
    assert max(alone[0]) < 1.0
    assert max(together[0]) >= top
    assert together[1][-1][100] == pytest.approx(0.5, abs=0.02)
    assert together[1].sum(axis=0)[100] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [(0.002, 0.005, ["2 ms", "5 ms"]), (0.0005, 0.2, ["1 ms", "10 ms", "100 ms"])],
)
def test_a_small_plot_has_two_levels_at_least(
    low: float, high: float, labels: list[str], tmp_path: Path
) -> None:
    """Between two powers of ten there is none to write beside the axis."""
    found = page_of(timeline(tmp_path, Shape(seconds=40, warm_up=10)))
    svg = str(Plot(found, 110, low, high, "seconds").svg("x"))

    assert re.findall(r'axis end">([^<]*)<', svg) == labels
    assert re.findall(r'axis middle">([^<]*)<', svg)[-2:] == [
        "Latency (seconds), log scale",
        "Time of day (UTC)",
    ]


def test_a_time_of_day_that_comes_twice_is_reported_with_its_day(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    long = replace(
        found, phases=parse_phases(_phases(20, 129_600)), seconds={"s": np.arange(129_600)}
    )

    assert page_of(found).moment(60) == "14:14:20Z"
    assert page_of(long).moment(86_460) == "09-22 14:14:20Z"


def test_an_onset_in_coarse_rows_is_no_surer_than_they_are(tmp_path: Path) -> None:
    """The latency stepped in second 112: with buckets of ten seconds the interval holds it."""
    folder = write_synthetic_run(tmp_path / "run")
    as_planned(folder, soak="3h")
    edge = replace(assemble(folder, read), phases=parse_phases(_phases(20, 235)))

    intervals = [
        one.interval for step in offline_changes(edge) for one in step if one.after > one.before
    ]

    assert intervals
    assert all(low <= 112 <= high for low, high in intervals)


def test_offline_changes_stay_within_the_soak(tmp_path: Path) -> None:
    found = timeline(tmp_path)
    begin, end = found.soak

    steps = offline_changes(found)

    assert steps
    assert all(begin < change.onset_k < end for step in steps for change in step)


def test_runs_of_numbers() -> None:
    assert runs(np.array([3, 4, 5, 9, 11, 12])) == [(3, 5), (9, 9), (11, 12)]
