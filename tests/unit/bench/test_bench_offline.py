"""The offline parts of `make bench-detect`, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.detect import drains, lab_drains, offline
from tests.bench.detect.offline import Coverage
from tests.bench.detect.parts import OURS, QUICK, Run


def test_series_without_a_change_count_once_however_many_cuts_they_show() -> None:
    cuts = {"a": [0, 0, 0, 0], "b": [3, 0, 1, 0]}

    found = {one.figure: one for one in offline.quiet_figures(OURS, 3600, cuts)}

    share = found["no change, 1 h, b: share with a cut"]
    assert (share.value, share.note) == (0.5, "4 cuts in 4 series")
    assert found["no change, 1 h: share with a cut, all noises"].value == 0.25
    worst = found["no change, 1 h: share with a cut, worst noise"]
    assert (worst.value, worst.note, worst.holds) == (0.5, "b", False)


def test_power_is_the_mean_over_recorded_series_and_names_the_least() -> None:
    shares = {"kafka": [1.0], "pulsar": [0.0, 1.0]}

    found = offline.power_figure("lab", OURS, 1.2, "10 min", shares)

    assert found.value == pytest.approx(2 / 3)
    assert (found.figure, found.note) == ("lab, 20 % for 10 min: found", "pulsar: 50%")


def test_coverage_is_of_the_steps_that_were_found() -> None:
    many = [
        Coverage("a", 4, held=3, errors=(0, 1, 2, 9), allowed=(2.0, 2.0, 1.5, 1.5)),
        Coverage("b", 4, held=1, errors=(0, 1), allowed=(2.0, 2.0)),
        Coverage("still", 2, held=0, errors=(), allowed=()),
    ]

    found = {one.figure: one for one in offline.coverage_figures(many)}

    assert found["onset within its interval, all noises"].value == pytest.approx(4 / 6)
    assert found["steps of 1 to 5 sd found"].value == 0.6
    rows = found["rows from the cut to the onset, median"]
    assert (rows.value, rows.goal) == (1.0, "<= 2")
    assert found["onset within its interval, worst noise"].note == "still"


def test_clear_steps_are_found_and_their_onsets_lie_in_their_intervals() -> None:
    found = offline.covered(("independent", 20))

    assert len(found.errors) >= 18
    assert found.held >= 0.8 * len(found.errors)


@pytest.mark.long
def test_a_drain_is_found_and_named_and_unknown_without_its_backlog() -> None:
    found = [drains.analysed((1, number)) for number in range(6)]

    assert found[0] == drains.analysed((1, 0))
    assert sum(one.is_found for one in found) >= 5
    assert sum(one.is_named for one in found) >= 5
    assert sum(one.is_unknown_without for one in found) >= 4


_LEAST_RESAMPLED = 0.8  # resampling joins rows that never followed each other


@pytest.mark.long
def test_catch_up_reads_of_real_runs_are_found_and_named(tmp_path: Path) -> None:
    """Ten runs on Kafka and Pulsar, three exports of each, and a run resampled from each export."""
    recorded = lab_drains.lab_runs(lab_drains.FOLDER)
    size = replace(QUICK, drains=len(recorded))
    run = Run(size=size, shared=tmp_path, references=None, are_peers_shown=False, pool=None)
    found = lab_drains.measure(run)

    assert len(recorded) >= 24
    assert {one.name.partition("-")[0] for one in recorded} == {"kafka", "pulsar"}
    real, made = found[:4], found[4:]
    assert [(one.figure, one.note) for one in real if not one.holds] == []
    assert [(one.figure, one.note) for one in made if one.value < _LEAST_RESAMPLED] == []
