"""`soak omb analyse`: where latency rose in a benchmark's result, until when, and why."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from soak.app.analysis.omb import latency_rises
from soak.cli.main import build
from soak.core.errors import PlanError
from soak.omb import result_file
from soak.omb.result import Result
from tests.bench.detect.drains import near
from tests.support.omb.catch_up import CatchUp, result
from tests.support.omb.run import WARM_UP, write_known_run
from tests.support.paths import DATA, ROOT

RECORDED = DATA / "recorded" / "omb"
PUBLISHED = ROOT.parent / "shared" / "data" / "omb-results"
DRAINS = {"two-samples": 51, "one-sample": 36}
RUN = RECORDED / "catch_up" / "one-sample.json.gz"
ITS_NOTES = ["end_to_end_latency: 11 of 48 samples missing"]
CAP_NOTE = "reach the recorder's cap of 60 s; the true values may be greater"
LATENCIES = ("publishLatency", "endToEndLatency")


def load(path: Path) -> Result:
    return result_file.parse_result(
        result_file.parse_json(result_file.read_text(path), str(path)), str(path)
    )


def without_backlog(found: Result) -> Result:
    samples = {name: row for name, row in found.samples.items() if name != "backlog_messages"}
    return replace(found, samples=samples)


@pytest.mark.parametrize("name", DRAINS)
def test_a_recorded_catch_up_read_is_found_where_the_drain_began(name: str) -> None:
    found = latency_rises(load(RECORDED / "catch_up" / f"{name}.json.gz"))
    (drain,) = near(found, DRAINS[name])

    assert drain.causes[0].cause == "catch_up_read"
    assert len(found) <= 2


@pytest.mark.parametrize("name", DRAINS)
def test_without_its_backlog_the_same_run_has_no_known_cause(name: str) -> None:
    found = latency_rises(without_backlog(load(RECORDED / "catch_up" / f"{name}.json.gz")))

    assert near(found, DRAINS[name])
    assert {one.causes[0].cause for one in found} == {"unknown"}


@pytest.mark.parametrize(
    "catch_up",
    [
        CatchUp(),
        CatchUp(correlation=0.8),
        CatchUp(noise=0.12),
        CatchUp(publish_ratio=4.0),
        CatchUp(publish_ratio=1.0),
        CatchUp(end=49),
        CatchUp(end=51),
        CatchUp(end=83),
        CatchUp(samples=60, end=75),
        CatchUp(pause=47),
        CatchUp(samples=40, pause=10, drain=20, end=26),
        CatchUp(pause=0, drain=20, end=45, publish_ratio=1.0),
        CatchUp(pause=1, drain=20, end=22, publish_ratio=1.0),
        CatchUp(pause=0, drain=20, end=120, publish_ratio=1.0),
    ],
    ids=str,
)
def test_every_catch_up_read_is_one_finding_until_it_is_over(catch_up: CatchUp) -> None:
    """Short, long and endless ones, in white and correlated noise, some from the first sample on."""
    for seed in (1, 2):
        run = result(catch_up, np.random.default_rng(seed))
        found = latency_rises(run)
        (drain,) = near(found, catch_up.drain)

        assert drain.causes[0].cause == "catch_up_read"
        assert len(found) <= 2
        assert drain.change.resolved_k is None or drain.change.resolved_k <= catch_up.end + 2


@pytest.mark.long
def test_a_quiet_run_has_no_finding() -> None:
    """20 runs of 90 samples with correlated noise."""
    quiet = CatchUp(pause=90, drain=91, end=92, noise=0.1, correlation=0.6)

    assert sum(len(latency_rises(result(quiet, np.random.default_rng(s)))) for s in range(20)) <= 1


def test_consumers_that_only_begin_later_read_nothing_late() -> None:
    """No message waited for them, so end-to-end latency is usual from their first sample on."""
    quiet = result(CatchUp(pause=90, drain=91, end=92), np.random.default_rng(1))
    is_silent = quiet.seconds <= 200.0
    received = {
        name: np.where(is_silent, np.nan, row)
        for name, row in quiet.samples.items()
        if name.startswith("end_to_end")
    }

    assert latency_rises(replace(quiet, samples={**quiet.samples, **received})) == []


def test_no_order_of_the_keys_changes_what_is_found() -> None:
    run = result(CatchUp(), np.random.default_rng(1))
    turned = replace(run, samples=dict(reversed(list(run.samples.items()))))
    reported = [
        [(one.change.onset_k, one.causes[0].cause) for one in latency_rises(r)]
        for r in (run, turned)
    ]

    assert reported[0] == reported[1]


@pytest.mark.long
@pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the published results are not beside the project"
)
def test_published_results_which_are_mostly_steady_give_few_findings() -> None:
    """20 files with 1,912 samples, one with an outage of three minutes."""
    found = [latency_rises(load(path)) for path in sorted(PUBLISHED.glob("*.json.gz"))]

    assert len(found) == 20
    assert sum(map(len, found)) <= 2


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(build(["omb"]), ["omb", "analyse", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_prints_one_object_a_finding() -> None:
    path = str(RECORDED / "catch_up" / "one-sample.json.gz")
    (row,) = [json.loads(line) for line in printed("--format", "jsonl", path).splitlines()]

    assert row["file"] == path
    assert (row["index"], row["until"], row["kind"]) == (36, 37, "step")
    assert row["metric"] == "end_to_end_latency_p50_seconds"
    assert row["interval"][0] <= 36 <= row["interval"][1]
    assert row["after"] > 900 * row["before"]
    assert row["cause"] == row["causes"][0]["cause"] == "catch_up_read"
    assert 0.5 <= row["causes"][0]["score"] <= 1.0
    assert row["confidence"] > 0.99


@pytest.mark.long
@pytest.mark.parametrize(
    ("levels", "length"),
    [([1, 3, 1, 3, 1], 60), ([1, 2, 4, 8], 80)],
    ids=str,
)
def test_every_rise_of_a_run_is_found_in_its_export(
    tmp_path: Path, levels: list[int], length: int
) -> None:
    """As `soak detect` finds it in the run folder, though a level has but three samples."""
    run = write_known_run(tmp_path / "run", ratios=np.repeat(levels, length).tolist())
    folder, out = str(run.folder.path), tmp_path / "export.json"
    CliRunner().invoke(build(["omb"]), ["omb", "export", folder, "--out", str(out)])
    detected = CliRunner().invoke(build(["detect"]), ["detect", folder, "--format", "jsonl"])
    steps = [json.loads(line) for line in detected.stdout.splitlines()]
    found = [json.loads(line) for line in printed("--format", "jsonl", str(out)).splitlines()]

    rises = [at for at in range(1, len(levels)) if levels[at] > levels[at - 1]]
    ups = [one["index"] - WARM_UP for one in steps if one["after"] > one["before"]]
    assert sorted({at // length for at in ups}) == rises
    assert [one["index"] * 10 for one in found] == [at * length for at in rises]


def test_the_text_of_a_finding_is_a_sentence_with_its_evidence() -> None:
    text = printed(str(RECORDED / "catch_up" / "one-sample.json.gz"))

    assert "to 61.9 s from sample 36 (6 min) until sample 37, cause catch_up_read" in text
    assert "A backlog began to drain" in text


def test_a_file_without_a_rise_says_so() -> None:
    assert "no rise of latency in 4 samples" in printed(str(RECORDED / "upstream.json"))


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("name: a\ntopics: 1\n")
    done = CliRunner().invoke(build(["omb"]), ["omb", "analyse", str(path)])

    assert isinstance(done.exception, PlanError)
    assert "workload.yaml" in str(done.exception)
    assert done.stdout == ""


def changed(folder: Path, change: Callable[[int, Any], Any], *stems: str) -> str:
    """Write a real result with every entry of some lists changed; return its path."""
    body = result_file.parse_json(result_file.read_text(RUN), "a")
    assert isinstance(body, dict)
    for key, row in body.items():
        if isinstance(row, list) and key.startswith(stems):
            body[key] = [change(at, value) for at, value in enumerate(row)]
    path = folder / "changed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(body).encode()))
    return str(path)


def notes(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("  note: ")]


@pytest.mark.parametrize("output", ["text", "jsonl"])
@pytest.mark.parametrize(
    ("change", "stems"),
    [
        (lambda *_: None, ("",)),
        (lambda *_: None, LATENCIES),
        (lambda *_: 0, LATENCIES),
        (lambda _, value: -abs(value), LATENCIES),
        (
            lambda *_: 0,
            tuple(f"{stem}{at}" for stem in LATENCIES for at in ("50", "99", "999")),
        ),
    ],
    ids=["all null", "null", "zero", "negative", "zero below a maximum"],
)
def test_a_run_whose_latency_was_not_measured_is_refused_before_anything_is_printed(
    tmp_path: Path, change: Callable[[int, Any], Any], stems: tuple[str, ...], output: str
) -> None:
    """A run without measurements is not a clean run; a second file, with a finding, is not printed either."""
    path = changed(tmp_path, change, *stems)
    done = CliRunner().invoke(
        build(["omb"]), ["omb", "analyse", "--format", output, str(RUN), path]
    )

    assert isinstance(done.exception, PlanError)
    assert str(done.exception) == (
        f"{path}: no latency was measured: publishLatency and endToEndLatency (50pct, 99pct, 999pct)"
        " hold no value above 0 in 48 samples"
    )
    assert done.output == ""


def test_a_result_without_a_sample_is_refused(tmp_path: Path) -> None:
    body = json.loads((RECORDED / "upstream.json").read_text())
    path = tmp_path / "a.json"
    path.write_text(json.dumps({k: [] if isinstance(v, list) else v for k, v in body.items()}))
    done = CliRunner().invoke(build(["omb"]), ["omb", "analyse", str(path)])

    assert isinstance(done.exception, PlanError)
    assert "no value above 0 in 0 samples" in str(done.exception)


def test_a_run_with_missing_samples_is_analysed_with_a_note(tmp_path: Path) -> None:
    path = changed(tmp_path, lambda at, value: None if at % 8 == 0 else value, "publishLatency")
    text = printed(path)

    assert "from sample 36 (6 min) until sample 37, cause catch_up_read" in text
    assert "  note: publish_latency: 6 of 48 samples missing" in notes(text)
    assert "  note: end_to_end_latency: 11 of 48 samples missing" in notes(text)


def test_negative_samples_are_counted_in_a_note(tmp_path: Path) -> None:
    """They are not searched, which without a note would look like a complete run."""
    path = changed(tmp_path, lambda at, value: -1.0 if at % 8 == 0 else value, "publishLatency")

    assert (
        "  note: publish_latency: 6 samples hold values of 0 or below: kept, but "
        "not searched for steps" in notes(printed(path))
    )


@pytest.mark.parametrize(
    "stems",
    [("publishLatency",), ("publishLatency5", "publishLatency9")],
    ids=["all", "quantiles alone"],
)
def test_a_rise_to_the_cap_of_the_recorder_has_a_note_on_the_cap(
    tmp_path: Path, stems: tuple[str, ...]
) -> None:
    path = changed(tmp_path, lambda at, _: 60_000.0 if at > 23 else 5.0, *stems)
    text = printed(path)

    assert "5 ms to 60 s from sample 24" in text
    assert f"  note: publish_latency: 24 samples {CAP_NOTE}" in notes(text)


def test_a_file_without_end_to_end_latency_has_a_note(tmp_path: Path) -> None:
    body = json.loads((RECORDED / "upstream.json").read_text())
    path = tmp_path / "a.json"
    path.write_text(json.dumps({k: v for k, v in body.items() if not k.startswith("endToEnd")}))

    assert "  note: end_to_end_latency: no values in the file" in notes(printed(str(path)))


def test_the_text_has_the_same_notes_as_the_import() -> None:
    path = str(RECORDED / "upstream.json")
    imported = CliRunner().invoke(build(["omb"]), ["omb", "import", path])

    assert len(notes(imported.stdout)) > 3
    assert notes(printed(path)) == notes(imported.stdout)


def test_a_finding_in_json_holds_the_remarks_on_its_file() -> None:
    (row,) = [json.loads(line) for line in printed("--format", "jsonl", str(RUN)).splitlines()]

    assert row["remarks"] == list(load(RUN).remarks)
    assert row["remarks"][1:] == ITS_NOTES


def test_in_json_a_file_without_a_finding_has_its_notes_on_stderr(tmp_path: Path) -> None:
    """Stdout has one object for each finding; notes go to stderr."""
    path = tmp_path / "steady.json"
    body = json.loads((RECORDED / "upstream.json").read_text())
    body["publishRate"] = [500.0] * 4
    path.write_text(json.dumps(body))
    done = CliRunner().invoke(build(["omb"]), ["omb", "analyse", "--format", "jsonl", str(path)])

    assert done.stdout == ""
    assert done.stderr.splitlines() == [f"note: {path}: {text}" for text in load(path).remarks]
