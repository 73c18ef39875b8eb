"""Our runs as results of the OpenMessaging Benchmark, and as interval logs of HdrHistogram."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from typer.testing import CliRunner

from soak.app.analysis import omb
from soak.cli.main import build
from soak.core.errors import PlanError, RunFolderError, SoakError
from soak.core.histogram import HIGHEST_US, Histogram
from soak.core.model import Column, Record
from soak.core.plan import plugins
from soak.core.plan.load import Consumers
from soak.core.plan.phases import Decision, decision_line
from soak.core.units import SECOND_NS
from soak.omb import result, result_file, run_result
from soak.omb.histograms import HistogramCells, MergedHistogram, RecordReader, SourceRecord
from soak.omb.result import PERCENTILES, PUBLISH, Result
from soak.omb.run_result import RunLatencies
from soak.store.run_folder import RunFolder
from tests.support.omb.results import same
from tests.support.omb.run import SOAK, START_WALL_NS, WARM_UP, Ints, KnownRun, write_known_run

pytestmark = pytest.mark.long

CHARTED = (
    *("workload", "driver", "publishRate", "publishErrorRate", "consumeRate"),
    *("publishLatency99pct", "publishDelayLatency99pct"),
    *("endToEndLatency95pct", "endToEndLatencyAvg"),
)
"""The lists that the chart script of the benchmark reads, apart from the maps of percentiles."""


def collected(folder: RunFolder) -> Result:
    return run_result.result_of_run(omb.run_source(folder), omb.run_seconds(folder))


def exported(run: KnownRun, tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    arguments = ["omb", "export", str(run.folder.path), "--out", str(out), *options]
    done = CliRunner().invoke(build(["omb"]), arguments)
    assert done.exit_code == 0, done.output
    body: dict[str, Any] = json.loads(out.read_text())
    return body


def failure(*arguments: str) -> BaseException:
    done = CliRunner().invoke(build(["omb"]), ["omb", "export", *arguments])
    assert isinstance(done.exception, SoakError), done.output
    return done.exception


def pooled(by_second: dict[int, list[Ints]], begin: int, end: int) -> HdrHistogram:
    """Return one histogram of all latencies of these seconds, recorded one by one: the slow twin."""
    found = HdrHistogram(1, HIGHEST_US, 3)
    for k in range(begin, end):
        for part in by_second.get(k, []):
            for value in part:
                found.record_value(int(value))
    return found


def test_samples_are_the_histograms_of_ten_seconds_added_up(tmp_path: Path) -> None:
    """Percentiles, mean and maximum are those of one HdrHistogram with all latencies."""
    run = write_known_run(tmp_path / "run")
    found = collected(run.folder)
    latencies = {"publish_latency": run.publish, "end_to_end_latency": run.end_to_end}

    assert found.seconds.tolist() == [10.0, 20.0, 30.0]
    for name, by_second in {**latencies, "publish_delay": run.delay}.items():
        for row, begin in enumerate(range(WARM_UP, WARM_UP + SOAK, 10)):
            twin = pooled(by_second, begin, min(begin + 10, WARM_UP + SOAK))
            exact_us = max(
                int(part.max())
                for k in range(begin, min(begin + 10, WARM_UP + SOAK))
                for part in by_second[k]
            )
            for statistic in PERCENTILES:
                at_most = min(twin.get_value_at_percentile(float(statistic[1:])), exact_us)
                assert found.samples[f"{name}_{statistic}_seconds"][row] == at_most / 1e6
            assert found.samples[f"{name}_max_seconds"][row] == exact_us / 1e6
            mean = found.samples[f"{name}_mean_seconds"][row]
            assert mean == pytest.approx(twin.get_mean_value() / 1e6, abs=1e-9)


def test_rates_counts_and_backlog_are_those_of_all_processes(tmp_path: Path) -> None:
    found = collected(write_known_run(tmp_path / "run").folder)

    assert found.samples["sent_messages"].tolist() == [500.0, 500.0, 150.0]
    assert found.samples["publish_rate_per_second"].tolist() == [50.0, 50.0, 50.0]
    assert found.samples["publish_error_rate_per_second"].tolist() == [4.0, 4.0, 4.0]
    assert found.samples["consume_rate_per_second"].tolist() == [50.0, 50.0, 50.0]
    assert found.samples["backlog_messages"].tolist() == [28.0, 48.0, 54.0]


def test_a_backlog_grows_by_what_is_sent_while_consumers_pause(tmp_path: Path) -> None:
    """Consumers do not know it then, nor for five seconds after; 50 messages a second, each reads 25."""
    run = write_known_run(tmp_path / "run", paused=range(WARM_UP + 8, WARM_UP + 16))
    found = collected(run.folder)

    assert found.samples["consume_rate_per_second"].tolist() == [40.0, 20.0, 50.0]
    backlogs = [2 * (12 + 2 * 50), 2 * (12 + 8 * 50 + 4 * (50 - 25)), 2 * 27]
    assert found.samples["backlog_messages"].tolist() == backlogs


def test_a_backlog_of_one_subscription_grows_while_another_reads_on(tmp_path: Path) -> None:
    """The paused one reports a lag of 0, the live one its real lag."""
    paused = range(WARM_UP + 10, WARM_UP + 20)
    run = write_known_run(tmp_path / "run", paused=paused, live=1)
    found = collected(run.folder)

    assert found.samples["consume_rate_per_second"].tolist() == [50.0, 25.0, 50.0]
    assert found.samples["backlog_messages"].tolist()[:2] == [14 + 14, 24 + (14 + 10 * 50)]


def test_a_consumer_that_the_plan_does_not_have_does_not_change_the_backlog() -> None:
    backlog = run_result.RunBacklog(Consumers(), RecordReader())
    columns = (Column("received_messages"), Column("lag_messages"))
    records = [
        SourceRecord(f"consume.{index}@h", Record(7, 1, 0, SECOND_NS, "c", (5.0, lag)), columns)
        for index, lag in ((0, 2.0), (3, 9.0))
    ]

    backlog.add(7, records)

    assert backlog.messages() == 2.0


def test_only_the_soak_counts(tmp_path: Path) -> None:
    """Warm-up and drain were recorded too, as the benchmark records neither."""
    found = collected(write_known_run(tmp_path / "run").folder)

    assert sum(found.samples["sent_messages"]) == SOAK * 50


def test_missing_seconds_lower_no_rate_and_a_missing_sample_is_missing(tmp_path: Path) -> None:
    run = write_known_run(tmp_path / "run", gap=[8, *range(15, 25)])
    found = collected(run.folder)
    again = result_file.parse_result(result_file.result_body(found, "upstream"), "a")

    assert found.samples["sent_messages"].tolist() == [450.0, 0.0, 150.0]
    assert found.samples["publish_rate_per_second"][[0, 2]].tolist() == [50.0, 50.0]
    assert np.isnan(found.samples["publish_rate_per_second"][1])
    assert np.isnan(again.samples["publish_latency_p99_seconds"][1])


def test_totals_are_of_the_whole_soak(tmp_path: Path) -> None:
    """The map's last entry is the exact maximum; each share is that of values at or below."""
    run = write_known_run(tmp_path / "run")
    found = collected(run.folder)
    values = np.sort(
        np.concatenate([p for k in range(WARM_UP, WARM_UP + SOAK) for p in run.publish[k]])
    )
    one = found.distributions["publish_latency_seconds"]
    twin = pooled(run.publish, WARM_UP, WARM_UP + SOAK)

    assert found.totals["publish_latency_p99_seconds"] == twin.get_value_at_percentile(99.0) / 1e6
    assert (one.percentiles[-1], one.seconds[-1]) == (100.0, values[-1] / 1e6)
    for share, seconds in zip(one.percentiles, one.seconds, strict=True):
        below = np.count_nonzero(values <= round(seconds * 1e6))
        assert share == pytest.approx(100.0 * below / values.size)


def test_values_above_the_range_are_the_maximum() -> None:
    """23 of 100 messages took two hours: beyond an hour histograms hold none, the journals their count."""
    merged, some = MergedHistogram(HistogramCells()), HdrHistogram(1, HIGHEST_US, 3)
    some.record_value(1000, 77)
    merged.add(some.encode().decode("ascii"))
    merged.add_overflow(23)
    merged.note_max(7200.0)
    found, distribution = merged.statistics(), merged.distribution()

    assert (found["p75"], found["p95"], found["max"]) == (0.001, 7200.0, 7200.0)
    assert distribution is not None
    assert distribution.percentiles.tolist() == [77.0, 100.0]
    assert distribution.seconds.tolist() == [0.001, 7200.0]


@pytest.mark.parametrize("dialect", plugins.names(result.PACKAGE))
def test_an_export_imports_as_the_same_numbers(tmp_path: Path, dialect: str) -> None:
    run = write_known_run(tmp_path / "run")
    body = exported(run, tmp_path, "--dialect", dialect)
    found, again = collected(run.folder), result_file.parse_result(body, "a")

    assert again.dialect == dialect
    for name, values in again.samples.items():
        if not name.startswith("schedule_latency"):
            assert np.array_equal(values, found.samples[name]), name
    assert all(found.totals[name] == value for name, value in again.totals.items())
    assert same(again, result_file.parse_result(result_file.result_body(again, dialect), "a"))


def test_the_charts_find_their_lists(tmp_path: Path) -> None:
    """Finite numbers in every list, and percentiles below 100 that a logarithm can take."""
    body = exported(write_known_run(tmp_path / "run"), tmp_path)

    assert set(CHARTED) <= set(body)
    for name in CHARTED[2:]:
        assert np.isfinite(body[name]).all()
        assert len(body[name]) == 3
    for name in ("Publish", "PublishDelay", "EndToEnd"):
        shares = [float(text) for text in body[f"aggregated{name}LatencyQuantiles"]]
        assert all(0.0 <= share <= 100.0 for share in shares)


def test_an_export_has_the_facts_of_the_plan(tmp_path: Path) -> None:
    body = exported(write_known_run(tmp_path / "run"), tmp_path, "--dialect", "vanlightly")

    assert (body["workload"], body["driver"]) == ("known", "Kafka")
    assert (body["topics"], body["partitions"], body["messageSize"]) == (3, 4, 2048)
    assert (body["producersPerTopic"], body["subscriptionsPerTopic"]) == (2, 2)
    assert (body["keyDistributor"], body["producerRate"]) == ("KEY_ROUND_ROBIN", 50)
    assert body["beginTime"] == "2026-09-21-14-13-20"
    assert body["endTime"] == "2026-09-21-14-13-48"


def test_a_ramped_run_s_rate_is_that_of_its_soak(tmp_path: Path) -> None:
    """The plan's own is the warm-up's."""
    run = write_known_run(tmp_path / "run")
    decided = Decision("soak", WARM_UP, rate=Fraction(75)).to_line()
    steps = run.folder.phases.read_text().splitlines(keepends=True)
    run.folder.phases.write_text("".join([steps[0], decided, *steps[2:]]))

    assert exported(run, tmp_path, "--dialect", "vanlightly")["producerRate"] == 75


def test_a_record_of_an_earlier_second_is_omitted_with_a_remark(tmp_path: Path) -> None:
    folder = write_known_run(tmp_path / "run").folder
    seconds = list(omb.run_seconds(folder))
    found = run_result.result_of_run(omb.run_source(folder), [*seconds, seconds[WARM_UP]])

    assert any("4 records of earlier seconds are omitted" in text for text in found.remarks)
    assert sum(found.samples["sent_messages"]) == SOAK * 50


def test_an_interval_log_is_read_by_its_own_reader(tmp_path: Path) -> None:
    """Every second of the run and both latencies, sources added up, on the wall clock."""
    run, log = write_known_run(tmp_path / "run", gap=[7]), tmp_path / "a.hlog"
    done = CliRunner().invoke(
        build(["omb"]), ["omb", "export", str(run.folder.path), "--hdr-log", str(log)]
    )
    reader = HistogramLogReader(str(log), HdrHistogram(1, HIGHEST_US, 3))
    found: dict[str, dict[int, HdrHistogram]] = {"publish": {}, "end_to_end": {}}
    while (one := reader.get_next_interval_histogram()) is not None:
        k = round(one.get_start_time_stamp() / 1000.0 - START_WALL_NS / 1e9)
        found[one.get_tag()][k] = one
    reader.close()

    assert done.exit_code == 0, done.output
    for tag, by_second in (("publish", run.publish), ("end_to_end", run.end_to_end)):
        assert found[tag].keys() == by_second.keys()
        for k, one in found[tag].items():
            assert one.equals(pooled(by_second, k, k + 1))


def test_nothing_is_overwritten_when_there_is_nothing_to_export(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("kept")
    run = write_known_run(tmp_path / "run")
    run.folder.phases.write_text(decision_line("warm-up", 0))
    arguments = [str(run.folder.path), "--out", str(out)]

    assert "has not begun" in str(failure(*arguments))
    run.folder.phases.write_text(decision_line("soak", 100))
    assert "no record of its soak yet" in str(failure(*arguments))
    assert out.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "run"]


def test_a_run_that_cannot_be_exported_is_an_error(tmp_path: Path) -> None:
    run = write_known_run(tmp_path / "run")
    there = str(run.folder.path)

    assert isinstance(failure(str(tmp_path), "--out", str(tmp_path / "a")), RunFolderError)
    assert "name --out FILE" in str(failure(there))
    unknown = failure(there, "--out", str(tmp_path / "a"), "--dialect", "redpnda")
    assert isinstance(unknown, PlanError)
    assert "did you mean 'redpanda'?" in str(unknown)
    assert "cannot write" in str(failure(there, "--out", str(tmp_path / "no" / "a")))


# --- Latencies above a histogram's hour, exported: by count and exact maximum, and of the right latency.

HOUR_AND_A_QUARTER_NS = 4_500 * SECOND_NS


def histogram(*values_ns: int) -> Histogram:
    found = Histogram()
    found.record_ns(np.array(values_ns, dtype=np.int64))
    return found


def record_of(publish: Histogram, service: Histogram) -> SourceRecord:
    """Return a producer's second; what lies above an hour counts by the latency from the due time."""
    columns = (
        Column("overflow_messages", (), "messages"),
        Column("publish_latency_seconds", (("quantile", "max"),), "seconds"),
        Column("publish_service_seconds", (("quantile", "max"),), "seconds"),
    )
    values = (float(publish.overflow), publish.max_ns / 1e9, service.max_ns / 1e9)
    texts = {
        "publish_latency_seconds": publish.encode(),
        "publish_service_seconds": service.encode(),
    }
    return SourceRecord("produce.0@h", Record(7, 1, 0, SECOND_NS, "c", values, texts), columns)


def test_a_second_above_the_range_has_a_line_with_its_maximum_and_their_number() -> None:
    late = histogram(*[HOUR_AND_A_QUARTER_NS] * 23)

    *_, note, line = run_result.interval_log(0, [(7, [record_of(late, late)])])

    assert note == "#[publish at 7.000: 23 more above 1 h]\n"
    assert line.startswith("Tag=publish,7.000,1.000,4500000.000,")


def test_an_hour_of_waiting_before_the_send_is_not_publish_latency() -> None:
    """23 messages, due 75 min before they were sent, and acknowledged 5 ms after."""
    found = RunLatencies(HistogramCells(), RecordReader())
    found.add_produced(
        record_of(histogram(*[HOUR_AND_A_QUARTER_NS] * 23), histogram(*[5_000_000] * 23))
    )

    distribution = found.distributions()[PUBLISH.metric]

    assert distribution.percentiles.tolist() == [100.0]
    assert distribution.seconds.tolist() == [0.005]
