from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from detectors.level_shift import Config
from detectors.online.panel import Panel
from soak.core.model import Change
from soak.core.plan.phases import (
    CatchUp,
    Decision,
    PhaseLengths,
    Phases,
    Ramp,
    decisions_from_soak,
    drain_k,
    parse_phases,
    planned_phases,
)
from soak.core.units import SECOND_NS
from soak.core.wording import iso
from soak.runtime.context import PhaseFile
from soak.runtime.recorder import quantile_column
from spark.batch.coverage import coverage
from spark.batch.offline_analysis import offline_changes
from spark.batch.timeline import Timeline
from spark.report.page import Page
from spark.report.sections.phases import render
from spark.report.summary import summary
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import Shape

LENGTHS = PhaseLengths(
    warm_up=10 * SECOND_NS,
    soak=100 * SECOND_NS,
    cool_down=7 * SECOND_NS,
    drain=30 * SECOND_NS,
    catch_up=CatchUp(backlog_age=20 * SECOND_NS, drain_limit=50 * SECOND_NS, settle=6 * SECOND_NS),
)


def _text(*decisions: Decision) -> str:
    return "".join(one.to_line() for one in decisions)


def test_a_decision_comes_back_from_its_line() -> None:
    rate = Fraction("12500.5")
    written = Decision(
        "ramp", 7, "8k/s: sustained", "rest", rate, {"sustained": "8k/s", "tries": 2}
    )

    (read,) = parse_phases(written.to_line()).decisions

    assert read == written


def test_a_line_of_an_older_program_is_still_read() -> None:
    (read,) = parse_phases('{"phase": "soak", "from_k": 10, "reason": "planned"}\n').decisions

    assert read == Decision("soak", 10)


def test_an_unknown_phase_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown phase 'party'"):
        parse_phases('{"phase": "party", "from_k": 1, "reason": ""}\n')


def test_the_plan_stands_in_the_file_from_the_start() -> None:
    """What depends on data stands at its latest: the backlog is drained at its limit."""
    found = [(one.from_k, one.phase, one.part) for one in planned_phases(LENGTHS).decisions]

    assert found == [
        (0, "warm-up", ""), (10, "soak", ""), (110, "catch-up", "build"), (130, "catch-up", "drain"),
        (180, "cool-down", ""), (186, "cool-down", ""), (193, "drain", ""),
    ]  # fmt: skip


def test_behind_a_ramp_nothing_is_planned_until_it_is_over() -> None:
    lengths = replace(LENGTHS, ramp=Ramp())

    found = planned_phases(lengths)

    assert found.names == ("warm-up", "ramp")
    assert found.decisions[1].rate == 1000
    assert drain_k(found, lengths) == 193


def test_the_end_of_the_load_is_known_as_far_as_it_is_decided() -> None:
    later = Phases((*planned_phases(LENGTHS).decisions[:1], *decisions_from_soak(LENGTHS, 60)))
    stopped = parse_phases(_text(*planned_phases(LENGTHS).decisions, Decision("end", 42)))

    assert [drain_k(one, LENGTHS) for one in (Phases(), later, stopped)] == [193, 243, 42]


def test_stretches_of_a_phase_end_where_the_next_decision_begins() -> None:
    phases = Phases(
        (Decision("soak", 5), Decision("catch-up", 9), Decision("soak", 12), Decision("drain", 30))
    )

    assert phases.spans("soak", 20) == [(5, 9), (12, 20)]
    assert phases.spans("drain", 20) == []
    assert [one.phase for one in phases.after(9)] == ["soak", "drain"]


def test_consumers_pause_only_while_a_backlog_is_built() -> None:
    phases = planned_phases(LENGTHS)

    assert [k for k in range(200) if phases.is_building(k)] == list(range(110, 130))


@pytest.mark.long
def test_nothing_outside_the_soak_is_ever_a_finding() -> None:
    """Slow warm-up, slower ramp, a catch-up at 100 times the latency, a cool-down: 12 seeds, no change."""
    names = (
        "warm-up",
        "ramp",
        "soak",
        "catch-up",
        "cool-down",
        "soak",
        "catch-up",
        "cool-down",
        "soak",
    )
    lengths = (20, 60, 80, 40, 10, 60, 40, 10, 60)
    factors = (3.0, 20.0, 1.0, 100.0, 30.0, 1.0, 100.0, 30.0, 1.0)
    phases = np.repeat(names, lengths)
    found: list[Change] = []
    for seed in range(12):
        panel = Panel(Config(baseline=30 * SECOND_NS))
        values = np.random.default_rng(seed).lognormal(-5.5, 0.1, phases.size)
        for k, value in enumerate(values * np.repeat(factors, lengths)):
            columns = [quantile_column("end_to_end_latency_seconds", "0.99")]
            found += panel.update("consume.0@h", columns, k, np.array([value]), True, phases[k])

    assert found == []


def test_a_step_between_two_catch_ups_is_found_all_the_same() -> None:
    phases = np.repeat(["soak", "catch-up", "cool-down", "soak"], [80, 40, 10, 80])
    values = np.random.default_rng(3).lognormal(-5.5, 0.1, phases.size)
    values[80:130] *= 100
    values[160:] *= 5
    panel, found = Panel(Config(baseline=30 * SECOND_NS)), []
    columns = [quantile_column("end_to_end_latency_seconds", "0.99")]
    for k, value in enumerate(values):
        found += panel.update("consume.0@h", columns, k, np.array([value]), True, phases[k])

    (confirmed,) = [change for change in found if change.state == "confirmed"]
    assert abs(confirmed.onset_k - 160) <= 2


def _with_catch_up(tmp_path: Path, shape: Shape) -> Timeline:
    """Return a run in which 112 to 150 was a catch-up."""
    found = timeline(tmp_path, shape)
    between = (
        Decision("catch-up", 112, part="build"),
        Decision("cool-down", 140),
        Decision("soak", 150),
        Decision("drain", 235),
        Decision("end", 240),
    )
    return replace(found, phases=parse_phases(_text(*found.phases.decisions, *between)))


@pytest.mark.long
def test_offline_analysis_finds_no_step_in_a_catch_up(tmp_path: Path) -> None:
    """The tail is slow from 112 to 150: a step, unless these seconds were a catch-up."""
    shape = Shape(fault_k=112, lifted_k=150, deletions_k=None)

    found = _with_catch_up(tmp_path, shape)

    assert offline_changes(found) == []
    assert offline_changes(timeline(tmp_path / "plain", shape)) != []


@pytest.mark.long
def test_the_report_says_what_was_decided_and_why(tmp_path: Path) -> None:
    found = _with_catch_up(tmp_path, Shape(fault_k=None, deletions_k=None))
    soak = Decision("soak", 150, "7 messages were <b>read</b>", rate=Fraction(12500))
    phases = parse_phases(_text(*found.phases.decisions, soak, Decision("end", 240)))

    page = str(render(Page(replace(found, phases=phases), [], coverage(found), "clean", None)))

    assert "catch-up build" in page
    assert "7 messages were &lt;b&gt;read&lt;/b&gt;" in page
    assert "12.5k/s" in page
    assert "1 min 30 s" in page


@pytest.mark.long
def test_invalid_intervals_of_a_catch_up_are_not_part_of_the_soak(tmp_path: Path) -> None:
    shape = Shape(fault_k=None, deletions_k=None, invalid=range(100, 150))

    found = coverage(_with_catch_up(tmp_path, shape))

    assert found.invalid_seconds == 12
    assert found.invalid_ratio == pytest.approx(12 / (92 + 85))


def test_a_growing_file_reads_the_same_piece_by_piece_and_whole(tmp_path: Path) -> None:
    """Through a torn line, which the next writer drops, and a file that is written anew."""
    path = tmp_path / "phases.jsonl"
    followed = PhaseFile(path)
    whole = _text(*planned_phases(LENGTHS).decisions)
    texts = (whole, whole + '{"phase": "en', whole + Decision("drain", 40).to_line(), whole[:60])
    for text in texts:
        path.write_text(text)

        assert followed.poll() == parse_phases(text)


@pytest.mark.long
def test_the_summary_says_when_a_catch_up_was_and_what_it_came_to(tmp_path: Path) -> None:
    """For tools that read no journal: each phase with its ends, the outcome where it was found."""
    found = timeline(tmp_path, Shape(fault_k=None, deletions_k=None))
    result: dict[str, str | int | float] = {
        "window": 0,
        "outcome": "drained",
        "seconds": 19,
        "messages": 2300,
        "left": 7,
    }
    catch_up = (
        Decision("catch-up", 112, part="build", fields={"window": 0}),
        Decision("catch-up", 121, part="drain", fields={"window": 0}),
        Decision("cool-down", 140, "2300 messages were read in 19 s", fields=result),
        Decision("soak", 150, rate=Fraction(12500)),
        Decision("drain", 235),
        Decision("end", 240),
    )
    phases = parse_phases(_text(*found.phases.decisions, *catch_up))

    phases_of_summary = summary(replace(found, phases=phases), [], coverage(found), {})["phases"]

    assert isinstance(phases_of_summary, list)
    assert [one["phase"] for one in phases_of_summary] == [
        "warm-up", "soak", "catch-up", "catch-up", "cool-down", "soak", "drain",
    ]  # fmt: skip
    assert [one["outcome"] for one in phases_of_summary if one["outcome"]] == [result]
    assert phases_of_summary[3] == {
        "phase": "catch-up",
        "part": "drain",
        "from": iso(found.wall_ns(121)),
        "to": iso(found.wall_ns(140)),
        "rate": "400/s",
        "planned_per_second": 400.0,
        "sent_per_second": 400.0,
        "received_per_second": 400.0,
        "sent_bytes_per_second": 409_600.0,
        "received_bytes_per_second": 409_600.0,
        "latency_seconds": {},
        "reason": "planned",
        "outcome": result,
    }
    assert phases_of_summary[5]["rate"] == "12.5k/s"
