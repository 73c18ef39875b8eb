from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soak.core import plan_text, plugins
from soak.core.errors import JournalError, SoakError
from soak.core.model import Change, Evidence, Explanation, Finding
from soak.core.phases import parse, to_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_run, write_run
from spark import report
from spark.coverage import coverage, judged_seconds, runs
from spark.digest import digest
from spark.look_back import look_back, offline_steps
from spark.reports._page import Page
from spark.summary import verdict
from spark.timeline import Row, Timeline, assemble, digest_row
from tests.synthetic_run import PRODUCER, START_WALL_NS, Shape, write_synthetic_run

SERIES = 'consume.0@host|end_to_end_latency_seconds{quantile="0.99"}'


def _read(paths: Sequence[Path], step: int) -> list[Row]:
    """Do what a Spark task does, in this process."""
    return [digest_row(path, step).to_pylist()[0] for path in paths]


def _timeline(path: Path, shape: Shape | None = None) -> Timeline:
    return assemble(write_synthetic_run(path / "run", shape), _read)


def _as_planned(
    folder: RunFolder, *, state: str = "ended", soak: str = "215s", detectors: str = "{}"
) -> None:
    """Let a run have had another plan and state than it was written with."""
    write_run(folder, replace(read_run(folder), state=state))
    text = f"""
name: synthetic
broker: {{kafka: {{bootstrap_servers: "127.0.0.1:9"}}}}
phases: {{warm_up: 20s, soak: {soak}, drain: 30s}}
detection: {{detectors: {detectors}}}
"""
    plan = plan_text.load(text, "plan.yaml").plan
    folder.plan.write_text(plan_text.dump(plan))
    if not soak.endswith("h"):
        return
    decided = parse(folder.phases.read_text())
    drain_k = 20 + plan.phases.soak // SECOND_NS
    ends = [] if decided.end_k is None else [to_line("end", decided.end_k)]
    text = "".join([to_line("warm-up", 0), to_line("soak", 20), to_line("drain", drain_k), *ends])
    folder.phases.write_text(text)


def _phases(soak_k: int, drain_k: int) -> str:
    return to_line("warm-up", 0) + to_line("soak", soak_k) + to_line("drain", drain_k)


def _finding(**changes: object) -> Finding:
    cause = Explanation("retention_cliff", 0.9, (Evidence("deletions began at the onset"),))
    values = {
        "key": "synthetic-1-118",
        "run": "synthetic-1",
        "raised_k": 118,
        "onset_k": 112,
        "interval": (111, 113),
        "series": SERIES,
        "kind": "step",
        "before": 0.004,
        "after": 0.06,
        "state": "confirmed",
        "confidence": 0.999,
        "is_about_cluster": True,
        "causes": (cause,),
    }
    return Finding(**{**values, **changes})  # type: ignore[arg-type]  # literals above


def _summary(folder: RunFolder) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(folder.summary.read_text())
    return body


def test_a_step_that_both_detectors_see_is_a_regression_found_by_both(tmp_path: Path) -> None:
    found = _timeline(tmp_path)

    code = report.write(found, [_finding()], None)

    (told,) = _summary(found.folder)["findings"]
    assert (code, told["cause"], told["found"]) == (3, "retention_cliff", "both")
    assert told["at"] == "2026-09-21T14:15:12Z"
    assert told["interval_seconds"] == [-1, 1]
    assert told["labels"] == {"source": "consume.0@host", "quantile": "0.99"}


def test_a_step_that_only_looking_back_shows_is_told_with_its_cause(tmp_path: Path) -> None:
    found = _timeline(tmp_path)

    judged = look_back(found, [])

    assert [one.found for one in judged] == ["offline"]
    assert abs(judged[0].finding.onset_k - 112) <= 2
    assert judged[0].finding.cause == "retention_cliff"


def test_a_rise_from_nothing_has_no_ratio(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None))
    odd = Explanation("odd", 0.9, (Evidence("odd", {"share": float("nan"), "count": 3}),))

    report.write(found, [_finding(before=0.0, causes=(odd,))], None)

    (told,) = _summary(found.folder)["findings"]
    assert (told["before"], told["ratio"]) == (0.0, None)
    assert told["evidence"][0]["numbers"] == {"share": None, "count": 3}


@pytest.mark.parametrize("name", ["run.json", "plan.yaml", "phases.jsonl", "lab/faults.jsonl"])
@pytest.mark.parametrize("damage", [b"\xff\xfe{\n", b"[1]\n"], ids=["no text", "something else"])
def test_a_damaged_file_of_a_run_is_an_error_with_its_name(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5, is_drill=True))
    (folder.path / name).write_bytes(damage)

    with pytest.raises(SoakError, match=Path(name).name):
        report.write(assemble(folder, _read), [], report.drill_of(folder))


def test_a_quiet_run_is_clean(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None))

    code = report.write(found, [], None)

    body = _summary(found.folder)
    assert (code, body["verdict"], body["findings"]) == (0, "clean", [])


@pytest.mark.parametrize(
    "changes",
    [{"state": "warning"}, {"is_about_cluster": False}],
    ids=["a warning", "the client's fault"],
)
def test_what_is_not_a_confirmed_step_of_the_cluster_does_not_count(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None))
    judged = look_back(found, [_finding(**changes)])

    assert verdict(judged, coverage(found)) == "clean"


def test_a_finding_that_went_away_is_still_a_regression(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None))

    assert report.write(found, [_finding(state="gone", gone_k=150)], None) == 3


def test_the_step_by_which_a_finding_went_away_is_no_finding_of_its_own(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(lifted_k=175))

    judged = look_back(found, [_finding(state="gone", gone_k=190)])

    assert [(one.found, one.finding.state) for one in judged] == [("both", "gone")]


def test_gaps_are_named_with_their_source_and_too_many_make_it_inconclusive(tmp_path: Path) -> None:
    few = _timeline(tmp_path / "few", Shape(fault_k=None, gaps={PRODUCER: (range(50, 53),)}))
    many = _timeline(tmp_path / "many", Shape(fault_k=None, gaps={PRODUCER: (range(50, 90),)}))

    (gap,) = coverage(few).gaps
    assert (gap.source, gap.from_k, gap.to_k) == (PRODUCER, 50, 53)
    assert (report.write(few, [], None), report.write(many, [], None)) == (0, 4)


def test_untrusted_seconds_beyond_a_tenth_make_it_inconclusive(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None, untrusted=range(60, 100)))

    assert report.write(found, [], None) == 4
    assert coverage(found).untrusted_seconds == 40


def test_a_damaged_line_is_a_gap_with_its_place(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(damaged_k=77))

    gaps = coverage(found).gaps

    assert {(gap.from_k, gap.to_k) for gap in gaps if gap.to_k > gap.from_k} == {(77, 78)}
    assert [gap.from_k for gap in gaps if "000000.jsonl:" in gap.why] == [77]


def test_lost_messages_come_out_of_the_journals(tmp_path: Path) -> None:
    assert _timeline(tmp_path, Shape(lost=23)).audit["lost"] == 23


def test_a_run_that_is_still_going_on_can_be_reported(tmp_path: Path) -> None:
    """What there is by now is judged: what is planned for later is not missing."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    _as_planned(folder, state="running", soak="36h")

    assert report.write(assemble(folder, _read), [], None) == 0


@pytest.mark.parametrize("state", ["running", "ended", "failed"])
def test_a_run_that_was_killed_is_inconclusive(tmp_path: Path, state: str) -> None:
    """Of 36 hours four minutes are there; a killed supervisor leaves the state as it was."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    _as_planned(folder, state=state, soak="36h")
    for path in folder.journal.rglob("*.jsonl"):
        os.utime(path, (0, 0))
    found = assemble(folder, _read)

    assert report.write(found, [], None) == 4
    assert coverage(found).ratio < 0.01
    assert "its end was never decided" in found.folder.report.read_text()


def test_a_run_without_enough_soak_is_inconclusive(tmp_path: Path) -> None:
    """Killed or interrupted in the warm-up, or soon after: nothing was compared with anything."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None, untrusted=range(30, 40)))
    _as_planned(folder, detectors="{level_shift: {baseline: 150s, confirm: 60s}}")
    folder.findings.touch()
    found = assemble(folder, _read)

    assert judged_seconds(found) == 205
    assert report.write(found, [], None) == 4
    assert [gap.why for gap in coverage(found).doubts] == [
        "205 s of soak could be judged, at least 210 s are needed"
    ]
    folder.phases.write_text(to_line("warm-up", 0) + to_line("end", 240))
    assert report.write(assemble(folder, _read), [], None) == 4


def test_an_interrupted_run_is_judged_by_what_there_is(tmp_path: Path) -> None:
    """Stopped on purpose: the end is decided, and the sources stopped seconds before it."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    _as_planned(folder, state="interrupted", soak="36h")
    folder.phases.write_text(folder.phases.read_text() + to_line("end", 243))
    found = assemble(folder, _read)

    assert report.write(found, [], None) == 0
    assert coverage(found).seconds == 240


def test_sources_that_stop_long_before_the_end_make_it_inconclusive(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    folder.phases.write_text(folder.phases.read_text() + to_line("end", 246))
    found = assemble(folder, _read)

    assert coverage(found).ratio > 0.97
    assert report.write(found, [], None) == 4


def test_a_detector_that_never_wrote_makes_it_inconclusive(tmp_path: Path) -> None:
    """No finding is no news only where somebody looked."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    _as_planned(folder, detectors="{level_shift: {baseline: 120s}}")

    assert report.write(assemble(folder, _read), [], None) == 4
    assert _summary(folder)["coverage"]["gaps"][0]["why"] == "never wrote"


def test_damaged_findings_are_a_gap_that_names_the_file(tmp_path: Path) -> None:
    """The rest of the report is not lost with them."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    folder.findings.write_bytes(b"no database" * 500)

    online, changes, unread = report.seen_online(folder, "synthetic-1")

    assert report.write(assemble(folder, _read), online, None, changes, unread) == 4
    assert "findings.db" in _summary(folder)["coverage"]["gaps"][0]["why"]


def test_a_journal_of_a_newer_version_is_one_clear_error(tmp_path: Path) -> None:
    """It comes out of a Spark task as a row, not as Spark's traceback."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    (path,) = (folder.journal / PRODUCER).glob("*.jsonl")
    head, rest = path.read_bytes().split(b"\n", 1)
    body = head.rpartition(b"\t")[0].replace(b'"version":1', b'"version":99')
    path.write_bytes(b"%s\t%08x\n" % (body, zlib.crc32(body)) + rest)

    with pytest.raises(JournalError, match=r"produce.0@host/000000.jsonl: journal of version 99"):
        assemble(folder, _read)


def test_torn_notes_on_restarts_are_left_out(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    good = {"daemon": "consume.0", "how": "exit 1", "at_ns": START_WALL_NS + 7 * SECOND_NS}
    lines = [b'{"daemon": "pro', b"null", b'{"daemon": "x"}', b"\xff", json.dumps(good).encode()]
    (folder.path / "restarts.jsonl").write_bytes(b"\n".join(lines))

    (gap,) = coverage(assemble(folder, _read)).gaps

    assert (gap.source, gap.from_k) == ("consume.0", 7)


def test_the_torn_end_of_a_file_is_damage_unless_it_may_be_growing(tmp_path: Path) -> None:
    """Its writer was killed, and the next one began a file of its own."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=60, warm_up=5))
    (path,) = (folder.journal / PRODUCER).glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:31], lines[31][:50]]))
    alone = digest(path, 1).damage
    (path.parent / "000001.jsonl").write_bytes(b"".join([lines[0], *lines[32:]]))

    ((k, offset, why),) = digest(path, 1).damage

    assert (alone, k, offset) == ((), 30, len(b"".join(lines[:31])))
    assert "torn" in why


def test_a_warning_that_looking_back_confirms_is_told_under_its_key(tmp_path: Path) -> None:
    """It does not hide the step, and the step keeps the key that was minted online."""
    found = _timeline(tmp_path)

    judged = look_back(found, [_finding(state="warning")])

    assert verdict(judged, coverage(found)) == "regressed"
    (one,) = judged
    assert (one.finding.key, one.finding.state, one.found) == (
        "synthetic-1-118",
        "confirmed",
        "both",
    )
    assert one.finding.cause == "retention_cliff"


def test_an_unknown_cause_names_what_the_detector_saw_move(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(deletions_k=None))
    disk = 'probe@host|disk_write_await_seconds{device="vda"}'
    moved = Change(disk, 120, 113, (112, 114), 0.001, 0.004, "confirmed", 0.99)

    alone, (told,) = look_back(found, []), look_back(found, [], [moved])

    assert [one.finding.cause for one in alone] == ["unknown"]
    assert disk in told.finding.causes[0].evidence[0].text


def test_untrusted_seconds_stay_out_of_coarse_rows_too(tmp_path: Path) -> None:
    """Every other second of a slow minute is not trusted: no step is made of the ten with them."""
    slow = Shape(fault_k=120, lifted_k=180, untrusted=range(121, 180, 2), deletions_k=None)
    folder = write_synthetic_run(tmp_path / "run", slow)
    _as_planned(folder, soak="3h")
    edge = replace(assemble(folder, _read), phases=parse(_phases(15, 235)))

    assert edge.step == 10
    assert edge.soak == (15, 235)
    assert offline_steps(edge) == []


def test_untrusted_seconds_in_a_row_are_one_band(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(fault_k=None, untrusted=range(60, 100)))

    report.write(found, [], None)

    page = found.folder.report.read_text()
    assert page.count("produce.0@host was the bottleneck") == page.count("<svg") - 1


def test_the_page_holds_everything_and_asks_the_network_for_nothing(tmp_path: Path) -> None:
    found = _timeline(tmp_path, Shape(is_drill=True))
    report.write(found, [_finding()], {"drill": "x", "fault": "deletion_stall"})

    page = found.folder.report.read_text()

    assert page.count("<section>") == len(plugins.names("spark.reports"))
    assert "DRILL" in page
    assert not [
        word for word in ("http://", "https://", "<script", "@import", "url(") if word in page
    ]


def test_hostile_text_in_a_run_is_escaped(tmp_path: Path) -> None:
    found = _timeline(tmp_path)
    evil = Evidence("<script>alert(1)</script>")
    cause = Explanation("<img src=x>", 0.9, (evil,))
    judged = look_back(found, [_finding(causes=(cause,), series='"><b>|x{a="<i>"}')])
    page = report.html(Page(found, judged, coverage(found), "regressed", {"drill": "<u>"}))

    assert not [word for word in ("<script", "<img", "<b>", "<i>", "<u>") if word in page]


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


def test_offline_steps_stay_within_the_soak(tmp_path: Path) -> None:
    found = _timeline(tmp_path)
    begin, end = found.soak

    steps: list[Change] = offline_steps(found)

    assert steps
    assert all(begin < step.onset_k < end for step in steps)


def test_runs_of_numbers() -> None:
    assert runs(np.array([3, 4, 5, 9, 11, 12])) == [(3, 5), (9, 9), (11, 12)]
