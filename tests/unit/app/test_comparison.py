"""`soak compare`, `soak list` and `soak acknowledge`: what they print and write."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from soak.app.comparison import compare_runs, compare_trend
from soak.cli.main import build
from soak.core.errors import PlanError, RunFolderError
from soak.store.run_folder import RunFolder, counting_verdict
from spark.batch.comparison.comparison import Settings
from spark.batch.comparison.objectives import shares_of
from spark.batch.comparison.run import acknowledge, read_compared
from spark.batch.export import export
from spark.report.comparison import comparison_html
from tests.support.compared import OBJECTIVE as MEASURED
from tests.support.compared import ComparedShape, write_compared_run, write_summary
from tests.support.paths import RECORDED

SHAPE = ComparedShape()
OBJECTIVE = {
    "objective": "p99 publish <= 50ms for 99% of minutes",
    "unit": "minutes",
    "bad": 0,
    "judged": 2000,
    "target_ratio": 0.99,
    "state": "kept",
}


def soak(*arguments: object) -> Result:
    words = [str(one) for one in arguments]
    return CliRunner().invoke(build(words[:1]), words)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write_compared_run(tmp_path / "before", SHAPE)


@pytest.mark.long
def test_a_run_with_itself_is_the_same(before: Path) -> None:
    done = soak("compare", before, before)

    assert done.exit_code == 0
    assert "Verdict: same (margin 10 %)" in done.output
    assert "WARNING" not in done.output


@pytest.mark.long
def test_an_equal_run_is_the_same_and_a_slower_one_worse(before: Path, tmp_path: Path) -> None:
    equal = write_compared_run(tmp_path / "equal", replace(SHAPE, seed=2))
    slower = write_compared_run(tmp_path / "slower", replace(SHAPE, seed=3, factor=1.2))

    same, worse = compare_runs([before, equal, slower], Settings())

    assert {one.name: one.verdict for one in same.quantities[:2]} == {
        "publish p50": "same",
        "publish p99": "same",
    }
    assert [one.verdict for one in worse.quantities][:2] == ["worse", "worse"]
    low, high = worse.quantities[1].interval or (0.0, 0.0)
    assert low < 1.2 < high


def test_the_warm_up_does_not_count(before: Path) -> None:
    """It is fifty times as slow."""
    assert read_compared(before).value("publish", "p99.9") < 0.004


@pytest.mark.long
def test_a_pipeline_gets_exit_code_json_and_junit(before: Path, tmp_path: Path) -> None:
    slower = write_compared_run(tmp_path / "slower", replace(SHAPE, seed=3, factor=1.5))
    out, junit = tmp_path / "out.json", tmp_path / "out.xml"

    done = soak("compare", before, slower, "--json", out, "--junit", junit)

    assert done.exit_code == 3
    body = json.loads(out.read_text())
    assert body["verdict"] == "worse"
    assert body["comparisons"][0]["quantities"][1]["name"] == "publish p99"
    suite = ET.parse(junit).getroot()[0]  # our own file
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) == "3"


@pytest.mark.long
def test_other_durability_is_the_first_line_after_the_names(before: Path, tmp_path: Path) -> None:
    other = write_compared_run(tmp_path / "other", replace(SHAPE, seed=2, level=1))

    lines = soak("compare", before, other).output.splitlines()

    assert lines[1] == "WARNING: DURABILITY differs: level 2 before, 1 after"
    assert lines[2] == "WARNING: durability: acks is all before, 1 after"


def cluster_warnings(before: ComparedShape, after: ComparedShape, folder: Path) -> list[str]:
    """Return what is said about cluster and versions of two runs."""
    paths = (folder / "old", folder / "new")
    for path, shape in zip(paths, (before, after), strict=True):
        write_compared_run(path, replace(shape, seconds=20))
    (found,) = compare_runs(paths, Settings())
    return [one for one in found.warnings if one.startswith(("cluster", "version"))]


def at(*brokers: str, **versions: str) -> ComparedShape:
    shape = replace(SHAPE, brokers=brokers, broker="kafka: {bootstrap_servers: 'b1:9092'}")
    return replace(shape, versions=tuple(versions.items()))


@pytest.mark.long
def test_another_cluster_is_warned_of_with_brokers_versions_and_addresses(tmp_path: Path) -> None:
    before = at("b1:9092", "b2:9092", "b3:9092", kafka="4.0", librdkafka="2.12.1")
    after = at("b1:9092", "b4:9092", kafka="4.1", librdkafka="2.12.1")

    assert cluster_warnings(before, after, tmp_path) == [
        "cluster: the number of brokers is 3 before, 2 after",
        "cluster: the address is b2:9092, b3:9092 before, b4:9092 after",
        "version of kafka is 4.0 before, 4.1 after",
    ]


@pytest.mark.long
def test_versions_that_an_earlier_soakd_did_not_record_are_one_warning(tmp_path: Path) -> None:
    before = at(soakd="0.1.0")
    after = at("b1:9092", "b2:9092", soakd="0.1.0", java="21.0.5", kafka="4.1")

    assert cluster_warnings(before, after, tmp_path) == [
        "versions that were recorded after only: java, kafka"
    ]


@pytest.mark.long
def test_the_ports_of_labs_are_no_difference_and_their_nodes_are(tmp_path: Path) -> None:
    before = replace(SHAPE, lab="{nodes: 1}", broker="kafka: {bootstrap_servers: '127.0.0.1:1'}")
    after = replace(SHAPE, lab="{nodes: 3}", broker="kafka: {bootstrap_servers: '127.0.0.1:2'}")

    assert cluster_warnings(before, after, tmp_path) == [
        "cluster: the number of brokers is 1 before, 3 after"
    ]


@pytest.mark.long
def test_a_lab_is_no_cluster_at_an_address(tmp_path: Path) -> None:
    lab = replace(SHAPE, lab="{nodes: 1}", broker="kafka: {bootstrap_servers: '127.0.0.1:1'}")

    assert cluster_warnings(at(soakd="0.1.0"), lab, tmp_path) == [
        "cluster: the address is b1:9092 before, a broker of a lab after"
    ]


@pytest.mark.long
def test_a_run_that_was_cut_short_is_compared_as_far_as_it_goes(
    before: Path, tmp_path: Path
) -> None:
    short = write_compared_run(
        tmp_path / "short", replace(SHAPE, seed=2, seconds=80, is_ended=False)
    )

    (found,) = compare_runs([before, short], Settings())

    assert found.seconds == 80
    assert "the soaks lasted 80 to 120 s: the first 80 s are compared" in found.warnings
    assert (
        f"{short} was cut short or goes on: what there is of its soak is compared" in found.warnings
    )


def slow_from(k: int, **more: Any) -> ComparedShape:
    """Return a soak whose latencies are a hundred times as high from a second of the run on."""
    return replace(SHAPE, slow=(k, 10_000), **more)


@pytest.mark.long
def test_runs_are_aligned_at_their_first_deletion(tmp_path: Path) -> None:
    """What a deletion does is compared with what one does, however long either soak was before."""
    before = slow_from(45, first_deletion=45.0, seconds=100)
    after = slow_from(75, first_deletion=75.0, seconds=120, seed=2)
    sides = [
        write_compared_run(tmp_path / name, one) for name, one in (("a", before), ("b", after))
    ]

    (found,) = compare_runs(sides, Settings(align="first-deletion"))
    (by_soak,) = compare_runs(sides, Settings())

    body = found.to_json()
    assert body["aligned"] == {"at": "first-deletion", "from": 0.0, "to": 49.0, "unit": "seconds"}
    assert body["compared"] == [
        {"run": str(sides[0]), "from_second": 45, "to_second": 95},
        {"run": str(sides[1]), "from_second": 75, "to_second": 125},
    ]
    assert found.aligned_text == (
        "the soaks from 0 to 50 s after the first deletion by retention of each run"
    )
    quantity = found.quantities[0]
    assert (round(quantity.before, 1), round(quantity.after, 1)) == (0.2, 0.2)
    assert by_soak.quantities[0].after < 0.01


@pytest.mark.long
def test_runs_are_compared_between_equal_bytes_written(tmp_path: Path) -> None:
    """At half the rate it takes twice the seconds, warm-up included."""
    before = write_compared_run(tmp_path / "a", replace(SHAPE, seconds=40))
    after = write_compared_run(tmp_path / "b", replace(SHAPE, seconds=120, rate=100, seed=2))

    (found,) = compare_runs([before, after], Settings(align="bytes-written"))

    body = found.to_json()
    assert body["compared"] == [
        {"run": str(before), "from_second": 5, "to_second": 45},
        {"run": str(after), "from_second": 11, "to_second": 90},
    ]
    assert found.aligned_text == (
        "the soaks between equal bytes written, from 1.17 MiB to 8.79 MiB since the load began"
    )


@pytest.mark.parametrize(
    ("align", "deletion", "text"),
    [
        (
            "first-deletion",
            None,
            "cannot be aligned at the first deletion by retention: its report saw",
        ),
        (
            "first-deletion",
            30.0,
            "cannot be aligned at the first deletion by retention, which came after",
        ),
        ("bytes-written", None, "has no second of its soak in common with"),
    ],
)
def test_a_run_that_cannot_be_aligned_is_named(
    tmp_path: Path, align: str, deletion: float | None, text: str
) -> None:
    first = write_compared_run(tmp_path / "a", replace(SHAPE, seconds=20, first_deletion=9.0))
    few = replace(SHAPE, seconds=20, rate=1, first_deletion=deletion)
    short = write_compared_run(tmp_path / "b", few)

    done = soak("compare", first, short, "--align", align)

    assert str(done.exception).startswith(f"{short} {text}")
    assert str(done.exception).endswith("with --align soak")


def test_a_benchmark_result_cannot_be_aligned_at_an_event(before: Path) -> None:
    result = next(iter(sorted((RECORDED / "omb").glob("*.json"))))

    with pytest.raises(RunFolderError, match="it is a benchmark result; compare it with --align"):
        compare_runs([result, before], Settings(align="bytes-written"))


def test_a_trend_has_no_alignment(tmp_path: Path) -> None:
    done = soak("compare", "--trend", tmp_path, "--align", "bytes-written")

    assert isinstance(done.exception, PlanError)


@pytest.mark.long
def test_a_folder_of_runs_is_one_side_whose_noise_is_measured(tmp_path: Path) -> None:
    for side, factor in (("old", 1.0), ("new", 1.3)):
        for seed in range(3):
            shape = replace(SHAPE, seed=seed + int(100 * factor), factor=factor, seconds=40)
            write_compared_run(tmp_path / side / f"{side}-{seed}", shape)

    (found,) = compare_runs([tmp_path / "old", tmp_path / "new"], Settings())

    assert found.quantities[0].verdict == "worse"
    assert "noise between runs measured" in found.quantities[0].why


@pytest.mark.long
def test_an_objective_that_was_kept_and_then_missed_is_worse(before: Path, tmp_path: Path) -> None:
    write_summary(RunFolder(before), replace(SHAPE, objectives=[OBJECTIVE]))
    missed = OBJECTIVE | {"bad": 40, "state": "missed"}
    after = write_compared_run(tmp_path / "after", replace(SHAPE, seed=2, objectives=[missed]))

    (found,) = compare_runs([before, after], Settings())

    objective = found.quantities[-1]
    assert (objective.name, objective.verdict) == (OBJECTIVE["objective"], "worse")
    assert (objective.before, objective.after) == (0.0, 0.02)


def with_summary(run: Path, **changes: object) -> Path:
    """Change `summary.json` of a run."""
    summary = RunFolder(run).summary
    summary.write_text(json.dumps(json.loads(summary.read_text()) | changes))
    return run


@pytest.mark.long
def test_a_run_that_lost_messages_is_worse_however_fast_it_was(
    before: Path, tmp_path: Path
) -> None:
    after = write_compared_run(tmp_path / "after", replace(SHAPE, seed=2))
    with_summary(after, audit={"acked": 24_000, "lost": 5, "duplicated": 2})

    (found,) = compare_runs([before, after], Settings())

    by_name = {one.name: one for one in found.quantities}
    assert (by_name["lost messages"].verdict, by_name["publish p99"].verdict) == ("worse", "same")
    assert f"{after} lost 5 acknowledged messages" in found.warnings
    assert ("duplicated", None, 2.0, "messages") in found.costs


@pytest.mark.long
def test_a_latency_that_one_run_alone_measured_is_no_sameness(before: Path, tmp_path: Path) -> None:
    """Such as of a run in which nothing was acknowledged."""
    after = write_compared_run(tmp_path / "after", replace(SHAPE, seed=2))
    for path in RunFolder(after).journal.glob("*/*"):
        path.write_text("")
    junit = tmp_path / "out.xml"

    done = soak("compare", "--junit", junit, before, after)

    assert done.exit_code == 4
    assert "publish p99: measured before only" in done.output
    assert ET.parse(junit).getroot()[0].get("skipped") == "3"


@pytest.mark.long
def test_runs_of_one_side_that_differ_are_named(tmp_path: Path) -> None:
    for name, rate in (("old/a", 200), ("old/b", 300), ("new/a", 200)):
        write_compared_run(tmp_path / name, replace(SHAPE, seconds=20, rate=rate))

    (found,) = compare_runs([tmp_path / "old", tmp_path / "new"], Settings())

    assert "the runs before differ: load.rate is 200 and 300" in found.warnings


def test_an_objective_of_one_run_alone_is_named(before: Path, tmp_path: Path) -> None:
    write_summary(RunFolder(before), replace(SHAPE, objectives=[OBJECTIVE]))
    after = write_compared_run(tmp_path / "after", replace(SHAPE, seed=2))

    (found,) = compare_runs([before, after], Settings())

    name = OBJECTIVE["objective"]
    assert f"objective {name} is not compared: {after} has no verdict on it" in found.warnings


@pytest.mark.parametrize(
    ("findings", "acknowledged", "expected"),
    [
        ([{"key": "a", "is_counted": True}], [], "regressed"),
        ([{"key": "a", "is_counted": True}], ["a"], "inconclusive"),
        ([{"key": "a", "is_counted": True}, {"key": "b", "is_counted": True}], ["a"], "regressed"),
        (
            [{"key": "a", "is_counted": True}, {"key": "b", "kind": "objective"}],
            ["a"],
            "inconclusive",
        ),
    ],
)
def test_the_verdict_without_known_incidents_is_that_of_the_report(
    findings: list[dict[str, object]], acknowledged: list[str], expected: str
) -> None:
    """Here too little was recorded for a clean run."""
    summary = {
        "verdict": "regressed",
        "verdict_without_incidents": "inconclusive",
        "findings": findings,
    }

    assert counting_verdict(summary, dict.fromkeys(acknowledged, "known")) == expected


@pytest.mark.parametrize(
    ("verdict", "expected"), [("regressed", "clean"), ("inconclusive", "inconclusive")]
)
def test_the_summary_of_an_earlier_version_has_the_verdict_that_it_had(
    verdict: str, expected: str
) -> None:
    findings = [{"key": "a", "is_about_cluster": True}]

    assert counting_verdict({"verdict": verdict, "findings": findings}, {"a": "known"}) == expected


@pytest.mark.long
def test_an_acknowledged_incident_counts_no_more(before: Path, tmp_path: Path) -> None:
    after = write_compared_run(
        tmp_path / "after", replace(SHAPE, seed=2, incidents=["leader_move"])
    )
    known = compare_runs([before, after], Settings())[0]

    done = soak("acknowledge", after, "leader_move", "--note", "brokers were rolled")

    assert done.exit_code == 0
    assert [one.cause for one in known.only_after] == ["leader_move"]
    (found,) = compare_runs([before, after], Settings())
    assert found.only_after == ()
    assert found.after.runs[0].verdict == "clean"
    assert found.notes == (
        f"{after}: run-after-leader_move is acknowledged and does not count: brokers were rolled",
    )


SLOW = replace(
    SHAPE,
    seconds=600,
    slow=(120, 240),
    incidents=["leader_move"],
    objectives=[
        OBJECTIVE
        | {"objective": MEASURED, "bad": 2, "judged": 10, "target_ratio": 0.9, "state": "missed"}
    ],
)


@pytest.mark.long
def test_the_minutes_of_an_acknowledged_incident_that_was_found_offline_are_not_bad(
    tmp_path: Path,
) -> None:
    """The report judged them; the journals say what is left. No detector has seen the incident."""
    kept = [SLOW.objectives[0] | {"bad": 0, "state": "kept"}]
    clean = replace(SLOW, seed=2, slow=(0, 0), incidents=(), objectives=kept)
    before = write_compared_run(tmp_path / "before", clean)
    after = write_compared_run(tmp_path / "after", SLOW)
    (missed,) = compare_runs([before, after], Settings())

    acknowledge(after, "leader_move", "brokers were rolled")

    (found,) = compare_runs([before, after], Settings())
    assert (missed.quantities[-1].verdict, missed.quantities[-1].after) == ("worse", 0.2)
    assert (found.quantities[-1].verdict, found.quantities[-1].after) == ("same", 0.0)
    assert found.after.runs[0].value("publish", "p99.9") < 0.004


@pytest.mark.long
def test_the_minutes_of_an_acknowledged_incident_do_not_count_in_a_trend(tmp_path: Path) -> None:
    run = write_compared_run(tmp_path / "run", SLOW)
    before, _ = compare_trend(tmp_path, Settings())

    acknowledge(run, "leader_move", "brokers were rolled")

    after, _ = compare_trend(tmp_path, Settings())
    assert (before.values[MEASURED], after.values[MEASURED]) == ((0.2,), (0.0,))


def test_an_objective_whose_breach_is_acknowledged_is_not_compared(tmp_path: Path) -> None:
    run = write_compared_run(tmp_path / "run", SLOW)
    summary = RunFolder(run).summary
    body = json.loads(summary.read_text())
    body["findings"][0] |= {
        "kind": "objective",
        "labels": {"objective": MEASURED},
        "is_over": False,
    }
    summary.write_text(json.dumps(body))
    before = set(shares_of(read_compared(run)))

    acknowledge(run, "leader_move", "known")

    assert (before, shares_of(read_compared(run))) == ({MEASURED}, {})


def test_an_unknown_incident_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    run = write_compared_run(tmp_path / "run", replace(SHAPE, incidents=["leader_move"]))

    with pytest.raises(RunFolderError, match="no incident '7'; its incidents: run-run-leader_move"):
        acknowledge(run, "7", "why")


@pytest.mark.long
def test_the_trend_over_thirty_runs_names_the_run_of_the_one_change(tmp_path: Path) -> None:
    for at in range(30):
        factor = 1.0 if at < 18 else 1.15
        shape = replace(SHAPE, seconds=20, seed=at, day=at, factor=factor)
        write_compared_run(tmp_path / f"night-{at:02d}", shape)

    found, skipped = compare_trend(tmp_path, Settings())

    assert {one.run.path.name for one in found.changes if one.name == "publish p99"} == {"night-18"}
    assert (found.verdict, skipped) == ("worse", [])


@pytest.mark.long
def test_a_trend_without_a_change_is_the_same(tmp_path: Path) -> None:
    for at in range(12):
        write_compared_run(
            tmp_path / f"night-{at:02d}", replace(SHAPE, seconds=20, seed=at, day=at)
        )
    (tmp_path / "night-03" / "report" / "summary.json").unlink()

    found, skipped = compare_trend(tmp_path, Settings())

    assert (found.verdict, len(found.runs)) == ("same", 11)
    assert "night-03 has no report yet" in skipped[0]


@pytest.mark.long
def test_of_few_runs_a_trend_cannot_tell(tmp_path: Path) -> None:
    """Chance puts six values in two levels in one of ten orders."""
    for at in range(6):
        factor = 1.0 if at < 3 else 100.0
        shape = replace(SHAPE, seconds=20, seed=at, day=at, factor=factor, rate=200 + at // 5)
        write_compared_run(tmp_path / f"night-{at}", shape)
    junit = tmp_path / "out.xml"

    done = soak("compare", "--trend", tmp_path, "--no-cache", "--junit", junit)

    assert done.exit_code == 4
    assert "fewer than 10 runs: a change of level cannot be distinguished from noise" in done.output
    assert "WARNING: the runs differ: load.rate is 200 and 201" in done.output
    assert ET.parse(junit).getroot()[0].get("skipped") == "1"
    assert not list(tmp_path.glob("*/digests/latencies.npz"))


@pytest.mark.long
def test_an_objective_within_its_budget_has_no_trend(tmp_path: Path) -> None:
    for at in range(12):
        kept = OBJECTIVE | {"bad": 0 if at < 6 else 1}
        shape = replace(SHAPE, seconds=20, seed=at, day=at, objectives=[kept])
        write_compared_run(tmp_path / f"night-{at:02d}", shape)

    found, _ = compare_trend(tmp_path, Settings())

    assert found.values[str(OBJECTIVE["objective"])][-1] > 0
    assert found.verdict == "same"


def test_a_report_of_an_older_version_asks_for_a_new_one(before: Path) -> None:
    summary = RunFolder(before).summary
    body = json.loads(summary.read_text())
    summary.write_text(json.dumps({key: value for key, value in body.items() if key != "soak"}))

    with pytest.raises(RunFolderError) as error:
        read_compared(before)

    assert str(error.value) == (
        f"{summary} has no 'soak': an older version of soakd made it; make it with `soak report {before}`"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("report/summary.json", "{"),
        ("report/summary.json", '{"verdict": "clean", "findings": 7, "audit": {}, "soak": {}}'),
        ("acknowledged.json", '{"incident": 1}'),
        ("run.json", "[]"),
    ],
)
def test_a_damaged_file_is_named(before: Path, name: str, text: str) -> None:
    (before / name).write_text(text)

    with pytest.raises(RunFolderError, match=str(before / name)):
        read_compared(before)


@pytest.mark.parametrize("interval", [None, [], ["a", 1], {}])
def test_a_damaged_span_of_an_acknowledged_incident_asks_for_a_new_report(
    tmp_path: Path, interval: object
) -> None:
    run = write_compared_run(tmp_path / "run", replace(SHAPE, slow=(9, 12), incidents=["known"]))
    acknowledge(run, "known", "known")
    summary = RunFolder(run).summary
    body = json.loads(summary.read_text())
    body["findings"][0]["interval_seconds"] = interval
    summary.write_text(json.dumps(body))

    with pytest.raises(RunFolderError, match=f"{summary}: findings are damaged; make it again"):
        read_compared(run)


def test_one_run_alone_is_a_wrong_call(before: Path) -> None:
    with pytest.raises(PlanError, match="at least two runs"):
        compare_runs([before], Settings())


@pytest.mark.long
def test_a_benchmark_result_can_be_a_side(before: Path) -> None:
    result = next(iter(sorted((RECORDED / "omb").glob("*.json"))))

    (found,) = compare_runs([result, before], Settings())
    (itself,) = compare_runs([result, result], Settings())

    assert "a run is compared with a benchmark result" in " ".join(found.warnings)
    assert itself.verdict == "same"


@pytest.mark.long
@pytest.mark.parametrize("is_first", [True, False])
def test_the_export_of_a_run_for_the_benchmark_can_be_either_side(
    before: Path, tmp_path: Path, *, is_first: bool
) -> None:
    exported = tmp_path / "exported.json"
    assert soak("omb", "export", before, "--out", exported).exit_code == 0

    (found,) = compare_runs([exported, before] if is_first else [before, exported], Settings())

    assert {one.name for one in found.quantities} == {
        "publish p50",
        "publish p99",
        "publish p99.9",
    }
    for one in found.quantities:
        assert one.verdict != "worse"
        assert one.after == pytest.approx(one.before, rel=0.02)
    assert found.warnings[0] == (
        "a run is compared with a benchmark result: its load, cluster and durability are not known, and its "
        "publish latency counts from the actual send"
    )


@pytest.mark.parametrize("name", ["exported", "exported/samples/produce.0@host-000000.parquet"])
def test_an_export_as_parquet_says_what_to_compare_instead(
    before: Path, tmp_path: Path, name: str
) -> None:
    """It has quantiles of seconds, and none of a soak can be made of these."""
    export(RunFolder(before), tmp_path / "exported")

    with pytest.raises(RunFolderError) as error:
        compare_runs([before, tmp_path / name], Settings())

    assert str(error.value) == (
        f"{tmp_path / name} is parquet of `soak export`, which has no histograms: compare the folder of its "
        "run, or what `soak omb export` writes of it"
    )


@pytest.mark.long
def test_what_was_read_is_kept_and_read_anew_when_damaged(before: Path) -> None:
    first = read_compared(before).value("publish", "p99")
    kept = before / "digests" / "latencies.npz"
    assert kept.is_file()

    assert read_compared(before).value("publish", "p99") == first
    kept.write_bytes(kept.read_bytes()[:100])
    assert read_compared(before).value("publish", "p99") == first


@pytest.mark.long
def test_the_page_is_self_contained_and_escapes_what_it_shows(before: Path, tmp_path: Path) -> None:
    hostile = write_compared_run(
        tmp_path / "<script>alert(1)<", replace(SHAPE, seed=2, incidents=["<img src=x>"])
    )
    page = tmp_path / "page.html"

    soak("compare", before, hostile, "--page", page)

    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("<svg") == 7


HOSTILE = "<script>\u202e\u200f" + "n" * 10_000


@pytest.mark.long
def test_names_of_any_text_and_length_are_cut_and_spelled_out(before: Path, tmp_path: Path) -> None:
    """Incidents, notes, objectives and versions come from files; a folder has a name of any bytes."""
    objective = OBJECTIVE | {"objective": HOSTILE}
    write_summary(RunFolder(before), replace(SHAPE, objectives=[objective]))
    shape = replace(SHAPE, seed=2, incidents=[HOSTILE, "known"], objectives=[objective])
    after = write_compared_run(tmp_path / "<b>\u202e", shape)
    acknowledge(after, "known", HOSTILE)
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"

    done = soak("compare", before, after, "--page", page, "--junit", junit)

    text = page.read_text()
    assert done.exit_code in {0, 3, 4}
    assert "\u202e" not in text + done.output + junit.read_text()
    assert "<script" not in text
    assert "<b>\u2039" not in text
    assert "n" * 500 not in text
    assert "characters)" in text
    ET.parse(junit)  # our own file


@pytest.mark.long
def test_each_picture_of_the_page_has_a_title_and_names_what_its_marks_mean(
    before: Path, tmp_path: Path
) -> None:
    after = write_compared_run(
        tmp_path / "after", replace(SHAPE, seed=2, incidents=["leader_move"])
    )

    text = comparison_html(compare_runs([before, after], Settings()))

    assert re.findall("<h3>(.*?)</h3>", text) == [
        "Difference of each latency",
        "Quantiles, after against before",
        "Share of messages above each latency",
        "Share of messages in each band of latency, by time",
        "Acknowledged messages per second",
    ]
    assert "Green band: 10 % either way count as no difference." in text
    assert text.count('<b class="a">before</b>, <b class="b">after</b>.') == 2
    labels = re.findall("<text[^>]*>([^<]*)</text>", text)
    assert {"latency", "below 1 %", "30 % or more", "incident", "after against before"} <= set(
        labels
    )


def test_the_list_has_each_run_once_in_order_of_time(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "b", replace(SHAPE, seconds=20, day=0))
    write_compared_run(tmp_path / "a", replace(SHAPE, seconds=20, day=1, incidents=["x"]))
    (tmp_path / "current").symlink_to("a")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("[]")

    lines = soak("list", tmp_path).output.splitlines()

    assert [line.split()[0] for line in lines] == ["run", "b", "a", "c"]
    assert lines[2].split()[-3:] == ["4", "ms", "1"]
    assert "run.json is damaged" in lines[3]
