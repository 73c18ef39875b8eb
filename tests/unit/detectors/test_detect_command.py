"""`soak detect` and the segmentation behind it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from detectors import level_shift
from detectors.offline.steps import Config, detect
from soak.app.analysis import detect as detect_command
from soak.cli.main import build
from soak.core.errors import PlanError
from soak.core.model import Change, Series
from spark.batch.offline_analysis import changes_together, offline_changes
from spark.batch.timeline import assemble, digest_rows
from tests.support.spark.report_run import as_planned
from tests.support.spark.synthetic_run import write_synthetic_run


def series_of(values: NDArray[np.float64], name: str = "p99") -> Series:
    return Series(name, np.arange(values.size, dtype=np.int64), values)


def latencies(seed: int, rows: int, onset: int | None = None) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    y = np.log10(0.004) + rng.normal(0.0, 0.05, rows)
    if onset is not None:
        y[onset:] += 0.6
    return np.asarray(10.0**y)


@pytest.mark.parametrize("seed", range(20))
def test_one_step_is_found_once_and_in_place(seed: int) -> None:
    (change,) = detect(series_of(latencies(seed, 400, onset=223)), Config())

    assert abs(change.onset_k - 223) <= 1
    assert change.interval[0] <= change.onset_k <= change.interval[1]
    assert change.after / change.before == pytest.approx(10**0.6, rel=0.1)


@pytest.mark.long
def test_no_step_is_found_where_there_is_none() -> None:
    """200 seeds of 1000 rows, at any size of step."""
    config = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
    wrong = sum(bool(detect(series_of(latencies(seed, 1000)), config)) for seed in range(200))

    assert wrong <= 4


def test_a_logarithmic_series_may_have_any_unit() -> None:
    config = Config(smallest_step_seconds=0.0)
    found = [
        [(c.onset_k, c.interval) for c in detect(series_of(scale * latencies(3, 400, 123)), config)]
        for scale in (1.0, 1e3, 1e6)
    ]

    assert all(one == found[0] for one in found)


def test_a_linear_series_may_lie_anywhere() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 400)
    values[200:] += 5.0
    config = Config(scale="linear", smallest_step_ratio=1.0001, smallest_step_seconds=1.0)
    ((near,), (far,)) = (detect(series_of(values + at), config) for at in (0.0, 2.0**12))

    assert near.onset_k == far.onset_k == 200


def test_steps_below_the_smallest_are_left_out() -> None:
    values = latencies(1, 600, onset=200)
    values[400:] *= 1.3
    (change,) = detect(series_of(values), Config())

    assert change.onset_k == 200


def test_gaps_in_k_stay_gaps() -> None:
    values = latencies(1, 400, onset=200)
    k = np.concatenate([np.arange(200), np.arange(1000, 1200)])
    (change,) = detect(Series("p99", k, values), Config())

    assert change.onset_k == 1000


def test_a_long_series_is_dated_to_the_row() -> None:
    (change,) = detect(series_of(latencies(5, 25_000, onset=12_346)), Config())

    assert abs(change.onset_k - 12_346) <= 1


@pytest.mark.parametrize("before", [0.0, 2.0])
def test_a_level_of_few_rows_in_a_constant_series_is_found(before: float) -> None:
    """One in thirty: partitions without a leader, or whole milliseconds."""
    values = np.full(3600, before)
    values[2000:2120] = 8.0

    assert [change.onset_k for change in detect(series_of(values), Config())] == [2000, 2120]


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 500])
def test_what_holds_no_step_gives_none(values: list[float]) -> None:
    assert detect(series_of(np.array(values)), Config()) == []


def csv_text(values: NDArray[np.float64], spacing: int = 1, name: str = "latency_ms") -> str:
    cells = ["" if np.isnan(value) else f"{value:.6g}" for value in values]
    rows = [f"{row * spacing},{cell},7" for row, cell in enumerate(cells)]
    return "\n".join([f"seconds,{name},other", *rows, ""])


def printed(path: Path, *options: str) -> list[dict[str, Any]]:
    app = build(["detect"])
    result = CliRunner().invoke(app, ["detect", str(path), "--format", "jsonl", *options])

    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_the_command_prints_one_object_a_change(tmp_path: Path, mode: str) -> None:
    values = 1000.0 * latencies(3, 600, onset=300)
    values[[0, 7, 310]] = np.nan
    path = tmp_path / "a.csv"
    path.write_text(csv_text(values))
    (found,) = printed(path, "--mode", mode)

    assert abs(int(str(found["index"])) - 300) <= 1
    assert ("raised_index" in found) == (mode == "online")
    assert found["kind"] == "step"


@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.long
def test_zeros_weigh_the_same_in_any_unit_and_levels_are_reported_in_the_file_s(
    tmp_path: Path, mode: str
) -> None:
    """What a histogram rounds down to nothing is a microsecond, not a nanosecond."""
    values = latencies(3, 600, onset=300)
    values[5::11] = 0.0
    found = []
    for unit, name in ((1.0, "rtt_s"), (1e-3, "p99_ms"), (1e-6, "Delay_us"), (1e-9, "p50_ns")):
        path = tmp_path / f"{name}.csv"
        path.write_text(csv_text(values / unit, name=name))
        (one,) = printed(path, "--mode", mode)
        levels = [float(f"{one.pop(level) * unit:.4g}") for level in ("before", "after")]
        found.append((levels, one))

    assert all(one == found[0] for one in found)


def test_a_packed_file_reads_the_same(tmp_path: Path) -> None:
    text = csv_text(latencies(3, 600, onset=300))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))

    assert printed(tmp_path / "a.csv") == printed(tmp_path / "a.csv.gz")


def test_another_column_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(csv_text(latencies(3, 600, onset=300)))

    assert printed(path, "--value", "other") == []


@pytest.mark.long
def test_online_never_looks_ahead(tmp_path: Path) -> None:
    """What was raised by row 400 is the same when the file ends there."""
    values = latencies(3, 800, onset=300)
    values[500:] /= 4.0
    whole, part = tmp_path / "whole.csv", tmp_path / "part.csv"
    whole.write_text(csv_text(values))
    part.write_text(csv_text(values[:401]))
    seen = printed(whole, "--mode", "online")

    assert len(seen) == 2
    assert [c for c in seen if int(str(c["raised_index"])) <= 400] == printed(
        part, "--mode", "online"
    )


@pytest.mark.long
def test_false_alarms_are_counted_in_time_not_in_rows(tmp_path: Path) -> None:
    """Rows an hour apart may raise more readily than rows a second apart."""
    values = latencies(3, 600, onset=300)
    raised = []
    for spacing in (1, 3600):
        path = tmp_path / f"{spacing}.csv"
        path.write_text(csv_text(values, spacing))
        raised.append(int(str(printed(path, "--mode", "online")[0]["raised_index"])))

    assert raised[1] <= raised[0]


def both_latencies(tmp_path: Path) -> Path:
    """Write publish and end-to-end latency, which step in row 300, with a rate and a word between them."""
    publish, end_to_end = latencies(3, 600, onset=300), latencies(4, 600, onset=300)
    end_to_end[500:] *= 3.0
    path = tmp_path / "both.csv"
    rows = [
        f"{row},{publish[row]:.6g},100,calm,{end_to_end[row]:.6g}" for row in range(publish.size)
    ]
    head = "time,publish_latency_seconds,rate,word,end_to_end_latency_seconds"
    path.write_text("\n".join([head, *rows, ""]))
    return path


def test_latencies_of_a_file_are_looked_at_together(tmp_path: Path) -> None:
    """What both did at one time is one object; what one did alone is its own."""
    both, alone = printed(both_latencies(tmp_path))

    assert (both["index"], both["interval"], alone["index"]) == (300, [300, 300], 500)
    assert sorted(one["series"] for one in both["moved"]) == [
        "end_to_end_latency_seconds",
        "publish_latency_seconds",
    ]
    assert [one["series"] for one in alone["moved"]] == ["end_to_end_latency_seconds"]
    assert both["moved"][0]["after"] == both["after"]


def test_for_people_a_step_of_several_columns_is_a_sentence(tmp_path: Path) -> None:
    path = str(both_latencies(tmp_path))
    lines = CliRunner().invoke(build(["detect"]), ["detect", path]).output.splitlines()

    assert len(lines) == 2
    assert " at 300 s (between 300 and 300 s), row 300; with " in lines[0]


def test_for_people_no_digit_of_a_time_is_lost_and_no_name_moves_the_cursor(tmp_path: Path) -> None:
    """Rows a quarter of a second apart in a year of ten digits, and a red name of two lines."""
    path = tmp_path / "a.csv"
    values = enumerate(latencies(3, 600, onset=301))
    rows = [f"{1_700_000_000 + row / 4!r},{value:.6g}" for row, value in values]
    path.write_text("\n".join(['t,"\x1b[31mp99\nx_ms"', *rows, ""]))
    (line,) = CliRunner().invoke(build(["detect"]), ["detect", str(path)]).output.splitlines()

    assert line.startswith("\\x1b[31mp99 x_ms: ")
    assert " at 1700000075.25 s (between 1700000075.25 and 1700000075.25 s), row 301" in line


def test_columns_that_are_named_are_looked_at_and_no_others(tmp_path: Path) -> None:
    path = both_latencies(tmp_path)
    (alone,) = printed(path, "--value", "publish_latency_seconds")
    (beside,) = printed(path, "--value", "rate", "--value", "publish_latency_seconds")

    assert "moved" not in alone
    assert beside.pop("moved") == [
        {
            "series": "publish_latency_seconds",
            "before": alone["before"],
            "after": alone["after"],
        }
    ]
    assert beside == alone


@pytest.mark.long
def test_online_each_column_is_followed_by_itself(tmp_path: Path) -> None:
    found = printed(both_latencies(tmp_path), "--mode", "online")
    raised = [int(str(one["raised_index"])) for one in found]

    assert len(found) == 3
    assert raised == sorted(raised)
    assert [len(one["moved"]) for one in found] == [1, 1, 1]


@pytest.mark.long
def test_a_long_run_is_looked_at_in_the_rows_of_its_report(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run")
    as_planned(folder, soak="3h")
    result = CliRunner().invoke(
        build(["detect"]), ["detect", str(folder.path), "--format", "jsonl"]
    )
    intervals = [tuple(json.loads(line)["interval"]) for line in result.output.splitlines()]
    found = assemble(folder, digest_rows)

    assert found.step == 10
    assert intervals
    assert intervals == [changes[0].interval for changes in offline_changes(found)]


@pytest.mark.long
def test_a_run_is_looked_back_at_as_its_report_does(tmp_path: Path) -> None:
    """Its latencies stepped together in second 112."""
    folder = write_synthetic_run(tmp_path / "run")
    (step, *_) = printed(folder.path)
    path = str(folder.path)
    online = CliRunner().invoke(build(["detect"]), ["detect", path, "--mode", "online"])

    assert step["interval"][0] <= 112 <= step["interval"][1]
    assert len(step["moved"]) > 1
    assert isinstance(online.exception, PlanError)


@pytest.mark.parametrize(("ratio", "is_of_finding"), [(1.5, False), (1.2, True)])
def test_the_offline_analysis_reports_the_steps_that_the_plan_asks_for(
    ratio: float, *, is_of_finding: bool
) -> None:
    """A step of 1.35 x, which begins at no other time."""
    values = latencies(3, 1200)
    values[600:] *= 1.35
    found = changes_together([series_of(values)], level_shift.Config(smallest_step_ratio=ratio))

    assert [abs(change.onset_k - 600) <= 3 for (change,) in found] == [True] * is_of_finding


@pytest.mark.long
def test_a_run_is_looked_back_at_with_the_steps_of_its_plan(tmp_path: Path) -> None:
    found = assemble(write_synthetic_run(tmp_path / "run"), digest_rows)
    coarse = {"level_shift": level_shift.Config(smallest_step_ratio=1e6)}
    plan = replace(found.plan, detection=replace(found.plan.detection, detectors=coarse))

    assert offline_changes(found)
    assert not offline_changes(replace(found, plan=plan))


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.csv:1: a header with a time column"),
        ("seconds\n1\n", "a.csv:1: a header with a time column"),
        ("s,v\n0,1\n1,x\n", "a.csv:3:v: 'x' is not a number"),
        ("s,v\n0,1\n1,inf\n", "a.csv:3:v: 'inf' is not finite"),
        ("s,v\n0,1\n,2\n", "a.csv:3:s: '' is not a number"),
        ("s,v\n0,1\n0,2\n", "a.csv:3:s: the time must increase"),
        ("s,v\n0,1,2\n", "a.csv:2: 3 columns, the header has 2"),
    ],
)
def test_a_bad_file_is_named_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    result = CliRunner().invoke(build(["detect"]), ["detect", str(path)])

    assert isinstance(result.exception, PlanError)
    assert message in str(result.exception)


def test_an_unknown_column_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("s,latency\n0,1\n")
    app = build(["detect"])
    wrong = CliRunner().invoke(app, ["detect", str(path), "--value", "latencey"]).exception
    absent = CliRunner().invoke(app, ["detect", str(tmp_path / "b.csv")]).exception

    assert "did you mean 'latency'?" in str(wrong)
    assert "cannot read" in str(absent)
    assert isinstance(wrong, PlanError)
    assert isinstance(absent, PlanError)


def test_an_empty_series_has_no_change(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("s,latency\n")

    assert printed(path) == printed(path, "--mode", "online") == []


def test_a_period_is_reported_in_four_digits_however_close_the_rows_are() -> None:
    spikes = Change(
        series="p99",
        raised_k=900,
        onset_k=520,
        interval=(468, 523),
        before=0.01,
        after=0.05,
        state="confirmed",
        confidence=0.99,
        kind="spikes",
        period_seconds=52.1,
    )
    rows = detect_command.Rows(np.arange(2000.0) * 1e-5, 1e-5, are_shared=False)

    assert ", every 0.000521 s" in detect_command.change_text([spikes], rows)
    assert (
        json.loads(detect_command.change_json([spikes], None, rows))["period_seconds"] == 0.000521
    )
