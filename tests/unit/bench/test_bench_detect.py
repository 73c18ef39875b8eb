"""`make bench-detect`: scores, rates, delays and tables on inputs whose answer is counted by hand."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from soak.app.analysis.series_files import CsvSeries
from tests.bench.detect import __main__ as bench
from tests.bench.detect import false_alarms, feed, noises, parts, peers, steps, traces
from tests.bench.detect.false_alarms import Count
from tests.bench.detect.feed import Alarm
from tests.bench.detect.parts import OURS, Measurement, Run, Size

BROKERS = ("kafka", "pulsar")
TINY = Size(
    hour_rows=400,
    day_rows=400,
    series=2,
    pieces=12,
    stalls=2,
    delays=1,
    seeds=1,
    quiet_rows=600,
    peer_rows=600,
    positions=1,
    steps=14,
    drains=2,
    panels=1,
    cost_rows=600,
    rounds=1,
)


def trace(rows: int, *labels: int) -> traces.Trace:
    return traces.Trace(CsvSeries("x", np.arange(float(rows)), np.full(rows, 10.0)), labels)


def score(labels: int, found: int, right: int) -> traces.Score:
    return traces.Score(100, labels, found, (1,) * right)


def by_figure(found: list[Measurement]) -> dict[str, Measurement]:
    return {one.figure: one for one in found}


def shown(table: Table) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


def tiny_run(shared: Path) -> Run:
    return Run(size=TINY, shared=shared, references=None, are_peers_shown=False, pool=None)


# ---- traces


def test_an_alarm_belongs_to_one_label_and_must_not_come_before_it() -> None:
    found = traces.online_score(trace(100, 10, 50), [9, 12, 15, 81])

    assert (found.found, found.labels, found.delays) == (4, 2, (2,))


def test_a_cut_belongs_to_one_label() -> None:
    found = traces.offline_score(trace(100, 10, 14), [12, 40])

    assert (found.found, found.labels, found.delays) == (2, 2, (2,))


def test_scores_are_pooled_over_traces() -> None:
    one = traces.Score(1000, 4, 3, (1, 5))
    both = traces.together([one, traces.Score(1000, 0, 2, ())])

    assert (both.precision, both.recall, both.false_per_1000) == (0.4, 0.5, 1.5)
    assert both.delay == 3.0


def test_the_spread_is_that_of_f1_without_one_trace() -> None:
    """All right in a, nothing in b, half in c."""
    found = traces.left_out({"a": score(2, 2, 2), "b": score(2, 2, 0), "c": score(2, 2, 1)})

    assert found == traces.Spread(low=0.25, without_for_low="a", high=0.75, without_for_high="b")


def test_a_trace_gets_the_setting_that_is_best_on_the_others() -> None:
    first = {"a": score(2, 2, 2), "b": score(2, 2, 0), "c": score(2, 2, 0)}
    second = {"a": score(2, 2, 0), "b": score(2, 2, 1), "c": score(2, 2, 1)}

    found = traces.chosen_by_others([first, second])

    assert found == {"a": second["a"], "b": first["b"], "c": first["c"]}


# ---- noise


@pytest.mark.parametrize("noise", noises.NOISES)
def test_every_noise_has_one_column_a_series_and_depends_on_its_seed_alone(noise: str) -> None:
    first, again = (noises.NOISES[noise](np.random.default_rng(1), 300, 7) for _ in range(2))

    assert first.shape == (300, 7)
    assert np.array_equal(first, again)
    assert np.isfinite(first).all()


def test_there_are_fourteen_noises() -> None:
    assert len(noises.NOISES) == 14


def test_whole_milliseconds_are_whole_online_and_offline() -> None:
    name = "whole milliseconds"
    table = noises.NOISES[name](np.random.default_rng(1), 100, 2)
    values = noises.as_measured(name, table)

    assert noises.unit_of(name) == "seconds"
    assert 1e3 * values == pytest.approx(np.round(1e3 * values))


@pytest.mark.long
def test_the_long_run_sd_counts_correlation() -> None:
    y = noises.autocorrelated(0.6)(np.random.default_rng(1), 60_000, 1)[:, 0]

    assert noises.long_run_sd(y) == pytest.approx(2.0, rel=0.15)


def test_a_piece_with_a_level_of_its_own_for_a_minute_is_not_quiet() -> None:
    noise = np.random.default_rng(3).normal(size=(520, 3))
    noise[300:390, 1] += 1.5

    assert noises.is_quiet(noise).tolist() == [True, False, True]


def test_quiet_stretches_keep_away_from_labels_and_leave_missing_values_out() -> None:
    values = np.full(2400, 10.0)
    values[800:850] = np.nan
    one = traces.Trace(CsvSeries("x", np.arange(2400.0), values), (700, 1600))

    assert [y.size for y in noises.quiet_stretches(one)] == [660, 770, 760]


def test_pieces_have_unit_sd_and_know_their_source() -> None:
    rng = np.random.default_rng(1)
    many = [noises.Source("a", rng.normal(0.0, 3.0, 5000)), noises.Source("b", np.ones(900))]

    found = noises.pieces(many, 8, 400, seed=1)

    assert found.values.shape == (400, 8)
    assert set(found.sources) == {"a"}
    assert found.values.std() == pytest.approx(1.0, rel=0.2)


def test_a_recorded_series_is_continued_backwards() -> None:
    assert noises.reflected(np.array([1.0, 2.0, 3.0]), 8).tolist() == [1, 2, 3, 3, 2, 1, 1, 2]


@pytest.mark.parametrize("broker", BROKERS)
def test_an_hour_of_each_latency_was_recorded(broker: str) -> None:
    found = [one for one in noises.recorded() if one.name.startswith(broker)]

    assert len(found) == 8
    assert min(one.y.size for one in found) > 3600


# ---- false alarms


@pytest.mark.long
def test_what_is_allowed_is_counted_after_the_baseline() -> None:
    tables = {"none": np.zeros((420, 12)), "nothing": np.zeros((420, 6))}
    found = list(false_alarms.counted(tables, "", OURS, 3600.0, feed.alarms))

    assert [(one.noise, one.allowed, one.alarms) for one in found] == [
        ("none", 1.0, 0),
        ("nothing", 0.5, 0),
    ]


@pytest.mark.long
def test_tables_searched_together_keep_their_alarms_apart() -> None:
    tables = [np.zeros((600, 1)), np.zeros((600, 2)), np.zeros((600, 1))]
    tables[1][400:, 1] = tables[2][400:, 0] = 1.0

    found = peers.alarms_of_each(feed.alarms, tables, "", 3600.0)

    assert [[one.series for one in alarms] for alarms in found] == [[], [1], [0]]


def test_the_noise_furthest_from_the_rate_is_named() -> None:
    counts = [
        Count("a", OURS, 60.0, 10, 10.0),
        Count("b", OURS, 60.0, 50, 10.0),
        Count("c", OURS, 60.0, 2, 10.0),
    ]

    found = by_figure(false_alarms.rate_figures("one a minute", counts))

    assert found["one a minute: noises within a factor of 2, of 3"].value == 1
    highest = found["one a minute: alarms / allowed, highest of all noises"]
    assert (highest.value, highest.note, highest.holds) == (5.0, "b", False)
    lowest = found["one a minute: alarms / allowed, lowest of all noises"]
    assert (lowest.value, lowest.note) == (0.2, "c")


def test_a_source_has_a_value_in_every_column() -> None:
    values = false_alarms.kinds_values(np.random.default_rng(1), noises.independent, 50)

    assert values.shape == (50, len(false_alarms.KINDS_COLUMNS))
    assert (values > 0.0).all()


# ---- steps


def test_every_other_step_goes_up() -> None:
    values, is_up = steps.stepped(np.zeros((steps.ROWS, 2)), 3.0)

    assert is_up.tolist() == [True, False]
    assert values[steps.BEFORE - 1].tolist() == [0.0, 0.0]
    assert values[steps.BEFORE].tolist() == [3.0, -3.0]


def test_a_step_is_found_in_its_direction_and_in_time() -> None:
    alarms = [
        Alarm(399, 0, is_up=True),  # too early
        Alarm(405, 1, is_up=True),  # the step of this column goes down
        Alarm(459, 2, is_up=True),
        Alarm(460, 3, is_up=False),  # too late
    ]

    assert steps.found_in_time(alarms, np.array([True, False, True, False])) == {2}


def test_a_delay_counts_the_first_alarm_since_the_step() -> None:
    """Of three series one alarms 10 rows, one 20 rows after the step, and one only before it."""
    alarms = [Alarm(row, i, is_up=True) for row, i in ((3609, 0), (3700, 0), (3619, 1), (9, 2))]
    found = steps.delay(alarms, 3, size=2.0, every_seconds=math.e**30)

    assert (found.rows, found.bound, found.ratio) == pytest.approx((15.0, 15.0, 1.0))
    assert (found.missed, found.too_early) == pytest.approx((1 / 3, 1 / 3))


@pytest.mark.long
def test_steps_that_are_put_in_are_found_and_stalls_are_not() -> None:
    quiet = np.random.default_rng(2).normal(size=(steps.ROWS, 20))
    values, is_up = steps.stepped(quiet, 5.0)

    found = feed.alarms(feed.FAR + values, "", steps.MONTH)
    stalled = feed.alarms(feed.FAR + steps.stalled(quiet), "", steps.MONTH)

    assert len(steps.found_in_time(found, is_up)) == 20
    assert not stalled


# ---- parts and results


def test_a_goal_has_two_sides_and_nan_meets_none() -> None:
    held = Measurement(figure="x", method=OURS, value=1.0, at_least=0.5, at_most=2.0)
    unknown = Measurement(figure="x", method=OURS, value=math.nan, at_most=2.0)
    free = Measurement(figure="x", method=OURS, value=1.0)

    assert (held.goal, held.holds) == (">= 0.5, <= 2", True)
    assert (unknown.holds, free.holds) == (False, None)


def test_nan_is_worse_than_any_number() -> None:
    assert parts.worst([("a", 1.0), ("b", 3.0)]) == ("b", 3.0)
    assert parts.worst([("a", 1.0), ("b", math.nan), ("c", 9.0)])[0] == "b"
    assert parts.worst([("a", 1.0), ("b", 3.0)], lambda value: -value) == ("a", 1.0)


def test_a_table_has_a_column_for_each_method() -> None:
    found = [
        Measurement(figure="F1", method=OURS, value=0.5, at_least=0.7, note="trace 7"),
        Measurement(figure="F1", method="CUSUM", value=0.25),
    ]

    text = shown(parts.table("traces", found))

    assert all(word in text for word in ("0.5", ">= 0.7", "NO", "CUSUM", "0.25", "trace 7"))


def test_results_are_json_without_infinity(tmp_path: Path) -> None:
    found = [Measurement(figure="rows", method=OURS, value=math.inf)]
    parts.write(tmp_path / "build/x.json", parts.to_json(found))

    (line,) = json.loads((tmp_path / "build/x.json").read_text())

    assert (line["figure"], line["value"], line["holds"]) == ("rows", None, None)


def test_each_of_the_constants_is_halved_and_doubled() -> None:
    constants = feed.constants()
    found = {name: (low, high) for name, low, high in bench.variants(constants)}

    assert list(found) == [field.name for field in dataclasses.fields(constants)]
    for name, (low, high) in found.items():
        value = getattr(constants, name)
        assert low == replace(constants, **{name: value / 2})
        assert high == replace(constants, **{name: 2 * value})


@pytest.mark.long
def test_the_detector_of_this_process_takes_other_constants() -> None:
    """A level that no ratio exceeds keeps every threshold above it."""
    constants = feed.constants()
    values = (
        feed.FAR
        + np.repeat([[0.0], [9.0]], 200, axis=0)
        + noises.independent(np.random.default_rng(1), 400, 1)
    )
    before = feed.alarms(values, "", 3600.0)
    feed.use(replace(constants, level=1e9))
    changed = feed.alarms(values, "", 3600.0)
    feed.use(constants)

    assert changed == []
    assert before == feed.alarms(values, "", 3600.0) != []


def test_a_sensitivity_table_shows_the_figures_that_change() -> None:
    base = [
        Measurement(figure="F1", method=OURS, value=0.7),
        Measurement(figure="delay", method=OURS, value=6.0),
    ]
    doubled = [base[0], Measurement(figure="delay", method=OURS, value=7.0)]

    text = shown(parts.sensitivity_table("share", base, base, doubled))

    assert "share: 1 of 2 figures change" in text
    assert "delay" in text
    assert "F1" not in text


@pytest.mark.long
@pytest.mark.parametrize("part", ["steps", "panels", "quiet", "coverage", "drains", "cost"])
def test_a_part_measures_ours_once_a_figure_and_states_a_goal(part: str, tmp_path: Path) -> None:
    found = bench.PARTS[part](tiny_run(tmp_path))

    assert {one.method for one in found} == {OURS}
    assert len(by_figure(found)) == len(found)
    assert any(one.goal for one in found)


def test_without_traces_there_are_no_scores(tmp_path: Path) -> None:
    assert traces.measure(tiny_run(tmp_path)) == []
