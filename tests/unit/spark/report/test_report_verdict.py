"""Whether enough of a run is there to judge it, and what is said of the rest."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.errors import JournalError
from soak.core.journal_format import Columns, decode, encode
from soak.core.model import Record
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from spark.batch.coverage import coverage, judged_seconds
from spark.batch.digest import Extremes, digest
from spark.batch.timeline import assemble
from spark.report import job as report
from spark.report.summary import MOST_POINTS, overview
from spark.sources.offsets import newest
from tests.support.spark.report_run import as_planned, read, summary, timeline
from tests.support.spark.synthetic_run import PRODUCER, START_WALL_NS, Shape, write_synthetic_run

pytestmark = pytest.mark.long


def test_gaps_are_named_with_their_source_and_too_many_make_it_inconclusive(tmp_path: Path) -> None:
    few = timeline(tmp_path / "few", Shape(fault_k=None, gaps=((PRODUCER, range(50, 53)),)))
    many = timeline(tmp_path / "many", Shape(fault_k=None, gaps=((PRODUCER, range(50, 90)),)))

    (gap,) = coverage(few).gaps
    assert (gap.source, gap.from_k, gap.to_k) == (PRODUCER, 50, 53)
    assert (report.write(few, [], None), report.write(many, [], None)) == (0, 4)


def test_a_host_of_the_load_without_cpu_is_named_first(tmp_path: Path) -> None:
    """What is short all the time has no onset, so no cause names it."""
    found = timeline(tmp_path, Shape(fault_k=None))
    name = "probe@host|host_cpu_ratio"
    k, values = found.series[name]
    busy = replace(found, series={**found.series, name: (k, np.full_like(values, 0.97))})
    sentence = "97% or more of the CPU was in use in half of the soak&#39;s seconds: latencies may"

    assert report.write(found, [], None) == 0
    assert summary(found.folder)["soak"]["busy_hosts"] == {}
    assert sentence not in found.folder.report.read_text()
    report.write(busy, [], None)
    assert summary(found.folder)["soak"]["busy_hosts"] == {"host": 0.97}
    assert sentence in found.folder.report.read_text()


def test_the_chart_of_the_last_mail_has_gaps_and_incidents(tmp_path: Path) -> None:
    """At most 240 points, each the highest p99 of all clients in its seconds."""
    found = timeline(tmp_path, Shape(gaps=((PRODUCER, range(50, 53)),)))

    report.write(found, [], None)

    body = json.loads(found.folder.overview.read_text())
    (incident,) = summary(found.folder)["findings"]
    ((first, end),) = body["incidents"]
    publish = body["p99_seconds"]["publish"]
    assert len(body["k"]) == len(publish) <= MOST_POINTS
    nothing = [k for k, value in zip(body["k"], publish, strict=True) if value is None]
    assert [k for k in nothing if k < found.soak[1]] == [50, 51, 52]
    assert (end - first, body["start_wall_ns"]) == (incident["seconds"], START_WALL_NS)
    assert publish[first + 1] > 5 * publish[first - 2]


def test_the_chart_of_a_long_run_has_its_highest_seconds(tmp_path: Path) -> None:
    """Its series are medians of ten seconds: four slow seconds in a minute were in none of them."""
    found = timeline(tmp_path, Shape(fault_k=None))
    minutes = np.arange(0, 240, 60)
    high = np.array([0.005, 0.005, 2.0, np.nan], np.float32)
    name = f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}'
    extremes = {name: Extremes(minutes, high, high)}

    body = json.loads(json.dumps(overview(replace(found, step=10, extremes=extremes), [])))

    assert (body["step_seconds"], body["k"]) == (60, [0, 60, 120, 180])
    publish = body["p99_seconds"]["publish"]
    assert publish == [pytest.approx(0.005), pytest.approx(0.005), 2.0, None]


def test_a_share_of_almost_all_is_not_all(tmp_path: Path) -> None:
    """One of 720 records is missing, and 22 of 215 seconds are invalid: 10.23 % of them."""
    gap, invalid = ((PRODUCER, range(50, 51)),), range(60, 82)
    found = timeline(tmp_path, Shape(fault_k=None, gaps=gap, invalid=invalid))

    report.write(found, [], None)
    page = found.folder.report.read_text()

    assert summary(found.folder)["coverage"]["ratio"] == 0.9986
    assert page.count("99.86% of the expected records are there") == 2
    assert "99.8%" not in page
    assert "22 s, 10.24% of the soak, are invalid (10 % are allowed)." in page
    assert "was the bottleneck in 10.24% of the soak's seconds" in page.replace("&#39;", "'")
    assert '<td class="text">the producer sent late (schedule_lag)</td>' in page


def test_gaps_beyond_the_table_are_counted(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None))
    damage = tuple((PRODUCER, k, "000000.jsonl", "torn") for k in range(203))

    report.write(replace(found, damage=damage), [], None)

    assert "<p>3 more are in summary.json.</p>" in found.folder.report.read_text()
    assert len(summary(found.folder)["coverage"]["gaps"]) == 203


def test_untrusted_seconds_beyond_a_tenth_make_it_inconclusive(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None, invalid=range(60, 100)))

    assert report.write(found, [], None) == 4
    assert coverage(found).invalid_seconds == 40


@pytest.mark.parametrize(("seconds", "code"), [(9, 0), (10, 4)])
def test_a_cluster_that_acknowledges_nothing_is_not_clean(
    seconds: int, code: int, tmp_path: Path
) -> None:
    """There is no latency then, so there is no step; seconds in which we ourselves were late do not count."""
    found = timeline(tmp_path, Shape(fault_k=None))
    standing = replace(found, standing={PRODUCER: np.arange(100, 100 + seconds)})
    ours = replace(standing, invalid={PRODUCER: dict.fromkeys(range(100, 110), "schedule_lag")})

    assert [(gap.source, gap.from_k, gap.to_k) for gap in coverage(standing).blockers] == [
        ("cluster", 100, 110)
    ] * (code > 0)
    assert report.write(standing, [], None) == code
    assert coverage(ours).blockers == ()


def unacknowledged(raw: bytes, seconds: list[int]) -> bytes:
    """Return a producer's journal in which nothing was acknowledged in these seconds."""
    lines = [decode(line) for line in raw.splitlines()]
    columns = next(line.columns for line in lines if isinstance(line, Columns))
    at = [column.name for column in columns].index("acked_messages")
    return b"".join(
        encode(
            replace(line, values=(*line.values[:at], 0.0, *line.values[at + 1 :]))
            if isinstance(line, Record) and line.k in seconds
            else line
        )
        for line in lines
    )


@pytest.mark.parametrize("step", [1, 10])
def test_seconds_without_an_acknowledgement_are_reported_one_by_one(
    step: int, tmp_path: Path
) -> None:
    """A standstill of 12 s from 104 on fills no bucket of ten seconds but one, and a short one fills none."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    (path,) = (folder.journal / PRODUCER).glob("*.jsonl")
    standing = [*range(104, 116), *range(150, 153)]
    path.write_bytes(unacknowledged(path.read_bytes(), standing))

    assert digest(path, step).load.standing.tolist() == standing


def test_a_damaged_line_is_a_gap_with_its_place(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(damaged_k=77))

    gaps = coverage(found).gaps

    assert {(gap.from_k, gap.to_k) for gap in gaps if gap.to_k > gap.from_k} == {(77, 78)}
    assert [gap.from_k for gap in gaps if "000000.jsonl:" in gap.why] == [77]


def test_a_run_that_is_still_going_on_can_be_reported(tmp_path: Path) -> None:
    """What there is by now is judged: what is planned for later is not missing."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    as_planned(folder, state="running", soak="36h")

    found = assemble(folder, read)

    assert report.write(found, [], None) == 0
    assert "So far: Clean" in found.folder.report.read_text()


@pytest.mark.parametrize("state", ["running", "ended", "failed"])
def test_a_run_that_was_killed_is_inconclusive(tmp_path: Path, state: str) -> None:
    """Of 36 hours four minutes are there; a killed supervisor leaves the state as it was."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    as_planned(folder, state=state, soak="36h")
    for path in folder.journal.rglob("*.jsonl"):
        os.utime(path, (0, 0))
    found = assemble(folder, read)

    assert report.write(found, [], None) == 4
    assert coverage(found).ratio < 0.01
    assert "it has no recorded end" in found.folder.report.read_text()


def test_a_run_without_enough_soak_is_inconclusive(tmp_path: Path) -> None:
    """Killed or interrupted in the warm-up, or soon after: nothing was compared with anything."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None, invalid=range(30, 40)))
    as_planned(folder, detectors="{level_shift: {baseline: 150s, confirm: 60s}}")
    found = assemble(folder, read)

    assert judged_seconds(found) == 205
    assert report.write(found, [], None) == 4
    assert [gap.why for gap in coverage(found).blockers] == [
        "205 s of soak could be judged, at least 210 s are needed"
    ]
    folder.phases.write_text(decision_line("warm-up", 0) + decision_line("end", 240))
    assert report.write(assemble(folder, read), [], None) == 4


@pytest.mark.parametrize("named", ["", "detection: {detectors: {}}"])
def test_a_run_whose_plan_does_not_name_its_detector_is_judged_all_the_same(
    tmp_path: Path, named: str
) -> None:
    """An older program wrote such plans into its folders; the stream ran on the defaults."""
    shape = Shape(seconds=45, deletions_k=None, fault_k=None)
    folder = write_synthetic_run(tmp_path / "run", shape)
    text = folder.plan.read_text()
    begin, end = text.index("detection:"), text.index("sinks:")
    folder.plan.write_text(f"{text[:begin]}{named}\n{text[end:]}")

    assert report.write(assemble(folder, read), [], None) == 4
    written = folder.report.read_text()
    assert "20 s of soak could be judged, at least 130 s are needed" in written
    assert "1 per 30d" in written


def test_an_interrupted_run_is_judged_by_what_there_is(tmp_path: Path) -> None:
    """Stopped on purpose: the end is decided, and the sources stopped seconds before it."""
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    as_planned(folder, state="interrupted", soak="36h")
    folder.phases.write_text(folder.phases.read_text() + decision_line("end", 243))
    found = assemble(folder, read)

    assert report.write(found, [], None) == 0
    assert coverage(found).seconds == 240


def test_sources_that_stop_long_before_the_end_make_it_inconclusive(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(is_ended=False, fault_k=None))
    folder.phases.write_text(folder.phases.read_text() + decision_line("end", 246))
    found = assemble(folder, read)

    assert coverage(found).ratio > 0.97
    assert report.write(found, [], None) == 4


def test_a_detector_that_never_wrote_makes_it_inconclusive(tmp_path: Path) -> None:
    """No finding is no news only where somebody looked; a plan that names no detector has one, too."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    folder.findings.unlink()

    assert report.write(assemble(folder, read), [], None) == 4
    assert summary(folder)["coverage"]["gaps"][0]["why"] == "never wrote"


def test_a_detector_that_never_came_to_a_cluster_of_findings_makes_it_inconclusive(
    tmp_path: Path,
) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    text = folder.plan.read_text().replace("\nstore: null\n", "\nstore: kafka://127.0.0.1:1\n")
    folder.plan.write_text(text)
    before = coverage(assemble(folder, read)).gaps
    for name, text in (("commits", ""), ("offsets", "v1\n{}\n{}\n")):
        (folder.checkpoint / name).mkdir(parents=True)
        (folder.checkpoint / name / "0").write_text(text)

    assert [gap.why for gap in before] == ["never wrote"]
    assert coverage(assemble(folder, read)).gaps == ()


@pytest.mark.parametrize(
    ("is_begun", "behind_bytes", "code"), [(False, 0, 4), (True, 1, 4), (True, 0, 0)]
)
def test_a_detector_that_did_not_read_all_makes_it_inconclusive(
    tmp_path: Path, *, is_begun: bool, behind_bytes: int, code: int
) -> None:
    """It may have been starved of the processor, with an empty database to show for it."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    as_planned(folder, detectors="{level_shift: {baseline: 120s}}")
    with FindingsStore(folder.findings):  # as a detector that is asked to end leaves it
        pass
    offset = newest(folder.journal, {}, None)
    segment, end = offset[PRODUCER]
    for name in ("commits", "offsets"):
        (folder.checkpoint / name).mkdir(parents=True)
    if is_begun:
        done = json.dumps({**offset, PRODUCER: [segment, end - behind_bytes]})
        (folder.checkpoint / "offsets" / "7").write_text(f"v1\n{{}}\n{done}\n")
        (folder.checkpoint / "commits" / "7").touch()

    assert report.write(assemble(folder, read), [], None) == code


def test_damaged_findings_are_a_gap_that_names_the_file(tmp_path: Path) -> None:
    """The rest of the report is not lost with them."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    folder.findings.write_bytes(b"no database" * 500)

    online, changes, unread = report.seen_online(folder, "synthetic-1")

    assert report.write(assemble(folder, read), online, None, changes, unread) == 4
    assert "findings.db" in summary(folder)["coverage"]["gaps"][0]["why"]


def test_a_journal_of_a_newer_version_is_one_clear_error(tmp_path: Path) -> None:
    """It comes out of a Spark task as a row, not as Spark's traceback."""
    folder = write_synthetic_run(tmp_path / "run", Shape(seconds=30, warm_up=5))
    (path,) = (folder.journal / PRODUCER).glob("*.jsonl")
    head, rest = path.read_bytes().split(b"\n", 1)
    body = head.rpartition(b"\t")[0].replace(b'"version":1', b'"version":99')
    path.write_bytes(b"%s\t%08x\n" % (body, zlib.crc32(body)) + rest)

    with pytest.raises(JournalError, match=r"produce.0@host/000000.jsonl: journal of version 99"):
        assemble(folder, read)


def test_torn_notes_on_restarts_are_left_out(tmp_path: Path) -> None:
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    good = {"daemon": "consume.0", "how": "exit 1", "at_ns": START_WALL_NS + 7 * SECOND_NS}
    lines = [b'{"daemon": "pro', b"null", b'{"daemon": "x"}', b"\xff", json.dumps(good).encode()]
    (folder.path / "restarts.jsonl").write_bytes(b"\n".join(lines))

    (gap,) = coverage(assemble(folder, read)).gaps

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
