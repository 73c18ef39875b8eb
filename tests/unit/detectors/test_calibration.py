"""`soak calibrate`: what is quiet, series made of it, and what the detector does on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from detectors import calibration
from detectors.calibration import BLOCK_ROWS, Quiet, Ratio, Rung, drawn, extended, quiet, size_seen
from detectors.level_shift import Config
from detectors.offline.steps import Config as Cuts
from detectors.offline.steps import detect
from soak.app.analysis import calibrate
from soak.app.analysis.calibrate import Calibrated
from soak.cli.main import build
from soak.core.errors import NotAvailableError, PlanError
from soak.core.model import Series
from soak.core.units import SECOND_NS
from spark.batch.calibration import quiet_seconds
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

RNG_SEED = 23


def latencies(rows: int, sd: float = 0.05, level: float = 0.02) -> NDArray[np.float64]:
    rng = np.random.default_rng(RNG_SEED)
    return np.asarray(level * 10.0 ** rng.normal(0.0, sd, rows))


def quiet_of(values: NDArray[np.float64]) -> Quiet:
    return quiet(Series("s|p99", np.arange(values.size), values), "seconds", [])


def test_a_step_is_cut_out_and_both_sides_brought_to_one_level() -> None:
    values = latencies(1000)
    values[400:] *= 10.0
    series = Series("s|p99", np.arange(1000), values)

    found = quiet(series, "seconds", detect(series, Cuts()))

    assert found.cut == 1
    assert found.values.size >= 990
    assert np.quantile(found.values, 0.99) / np.quantile(found.values, 0.01) < 2.0


def test_a_gap_and_short_stretches_are_no_neighbours() -> None:
    """A hole of a minute parts 200 rows from 100, which are fewer than a block."""
    k = np.concatenate([np.arange(200), np.arange(260, 360)])

    found = quiet(Series("s|p99", k, latencies(300)), "seconds", [])

    assert found.values.size == 200
    assert list(found.left[[0, -1]]) == [200, 1]


def test_drawn_rows_keep_their_neighbours_for_a_block_and_more() -> None:
    """A series that counts its own rows shows where each block begins."""
    found = drawn(np.random.default_rng(1), quiet_of(np.arange(1.0, 1001.0)), 5000, 3)
    for column in found.T:
        begins = np.flatnonzero(np.diff(column) != 1.0) + 1

        assert np.diff(begins).min() >= BLOCK_ROWS


def test_rates_that_are_as_set_stay_so_far_away() -> None:
    rungs = [Rung(at, 1e6, 0, round(1e6 / at)) for at in (300.0, 1200.0, 4800.0)]

    found = extended(rungs, 100 * 30 * 86_400.0)

    assert found.low < 1.0 < found.high
    assert found.middle == pytest.approx(1.0, rel=0.3)


def test_alarms_that_do_not_grow_rare_are_said_to_continue() -> None:
    """As many at one an hour as at one in five minutes."""
    rungs = [Rung(at, 1e6, 0, 3000) for at in (300.0, 1200.0, 4800.0)]

    assert extended(rungs, 100 * 30 * 86_400.0).low > 1000.0


def test_no_alarm_at_all_leaves_a_bound() -> None:
    found = extended([Rung(300.0, 3e5, 0, 0)], 300.0)

    assert found.middle < found.high < 3.0 / 1000.0


def test_the_size_seen_is_that_of_the_curve() -> None:
    rng = np.random.default_rng(RNG_SEED)
    sizes = np.geomspace(0.1, 10.0, 20)
    seen = rng.random((20, 50)) < 1.0 / (1.0 + (1.0 / sizes[:, np.newaxis]) ** 10)

    assert size_seen(sizes, seen, 0.9) == pytest.approx(9.0 ** (1 / 10), rel=0.1)
    assert size_seen(sizes, seen & False, 0.9) is None
    assert size_seen(sizes, seen | True, 0.9) == pytest.approx(0.1)


@pytest.mark.long
def test_quiet_noise_raises_nothing_and_larger_noise_hides_larger_steps() -> None:
    config = Config()
    small, large = quiet_of(latencies(1500, 0.03)), quiet_of(latencies(1500, 0.3))
    alarms = calibration.false_alarms([small], config, values=40_000, seed=1)
    seen = calibration.power([small, large], config, (60, 300), values=60_000, seed=1)

    assert [rung.confirmed for rung in alarms.rungs] == [0]
    assert alarms.ratio.middle < 0.1
    assert (seen[0].ratio(1) or 99.0) < (seen[1].ratio(1) or 99.0)


@pytest.mark.long
def test_an_alarm_elsewhere_is_no_step_that_was_seen() -> None:
    """Bursts of half a minute are confirmed all the time: they hide a step, and are not taken for it."""
    steady = latencies(1500)
    bursting = steady.copy()
    bursting[np.arange(1500) % 250 < 30] *= 10.0
    config = replace(Config(), smallest_step_ratio=1.05, smallest_step_seconds=0.0)
    in_quiet, among_bursts = (
        calibration.power([quiet_of(values)], config, (1200,), values=60_000, seed=0)[0].ratio(0)
        for values in (steady, bursting)
    )

    assert in_quiet is not None
    assert in_quiet > 1.1
    assert (among_bursts or 99.0) > in_quiet


@pytest.mark.long
def test_the_same_seed_gives_the_same_numbers() -> None:
    config = replace(Config(), smallest_step_ratio=1.01, smallest_step_seconds=0.0)
    one = [quiet_of(latencies(800, 0.3))]

    first, second = (calibration.power(one, config, (60,), values=1, seed=5) for _ in range(2))

    assert first == second


@pytest.mark.long
def test_the_quiet_seconds_of_a_run_leave_out_its_step_and_untrusted_seconds(
    tmp_path: Path,
) -> None:
    shape = Shape(seconds=800, warm_up=20, deletions_k=None, fault_k=400, invalid=range(600, 610))
    folder = write_synthetic_run(tmp_path / "run", shape)

    found = quiet_seconds(folder.journal, [(20, 795)], Config(), 3600)

    assert {one.series.partition("|")[2].partition("{")[0] for one in found} == {
        "publish_latency_seconds",
        "end_to_end_latency_seconds",
    }
    assert all(600 <= one.values.size <= 765 for one in found)
    p99 = next(one for one in found if 'end_to_end_latency_seconds{quantile="0.99"}' in one.series)
    assert p99.cut >= 1


def csv_file(
    folder: Path,
    values: NDArray[np.float64],
    spacing: int = 1,
    name: str = "p99_latency_seconds",
) -> Path:
    path = folder / "series.csv"
    rows = "".join(f"{k * spacing},{value:.6g}\n" for k, value in enumerate(values))
    path.write_text(f"seconds,{name}\n{rows}")
    return path


def test_a_calibration_is_reported_in_sentences() -> None:
    one = quiet_of(latencies(900))
    rungs = (Rung(300.0, 3e5, 7, 3),)
    found = Calibrated(
        [one],
        Config(),
        86_400 * SECOND_NS,
        10.0,
        (60, 3600),
        calibration.FalseAlarms(rungs, Ratio(0.01, 0.1, 0.5)),
        [
            calibration.Power("s|p99", "seconds", 0.0, (None, None)),
            calibration.Power("s|p99", "seconds", 0.02, (None, 0.06)),
        ],
    )

    lines = list(calibrate.calibration_text(found))
    unknown, _, known, _ = [json.loads(line) for line in calibrate.calibration_json(found)][1:]

    assert lines[1].startswith("expected false alarms: 3 a month over a panel of 100")
    assert lines[1].endswith("(95 %: 0.3 to 15); the configured rate is 1 per 1d")
    assert lines[5].startswith("  of the kind step: drift, spikes")
    assert lines[2] == "  counted at 1 per 50 min: 1000 allowed, 3 confirmed, 7 warned"
    assert lines[-1].endswith("within 1 min none of those tried; within 1 h 20 ms -> 60 ms (x3)")
    assert lines[-2].endswith("unknown: steps are factors, and the level is not above zero")
    assert (unknown["is_known"], known["is_known"]) == (False, True)


@pytest.mark.long
def test_rows_of_a_csv_that_lie_apart_are_counted_in_its_time(tmp_path: Path) -> None:
    """Ten seconds a row: one minute is too short to confirm anything."""
    path = csv_file(tmp_path, latencies(900, 0.1), spacing=10)
    arguments = ["calibrate", str(path), "--values", "100000", "--format", "jsonl"]
    arguments += ["--false-alarms", "1 per 1d"]

    output = CliRunner().invoke(build(arguments), arguments).stdout

    first, *rest = map(json.loads, output.splitlines())
    assert first["set_seconds"] == 86_400
    assert first["kinds"] == ["step"]
    assert first["counted"][0]["set_seconds"] == 3000
    assert [one["within_seconds"] for one in rest] == [60, 600, 3600]
    assert rest[0]["after"] is None
    assert rest[2]["ratio"] > 1.4


@pytest.mark.long
def test_a_latency_of_a_csv_is_in_the_unit_that_its_name_ends_in(tmp_path: Path) -> None:
    """Of 0.3 ms the smallest step of a plan, 1 ms, leads to 1.3 ms."""
    path = csv_file(tmp_path, latencies(700, level=0.3), name="p99_ms")
    arguments = ["calibrate", str(path), "--values", "100000", "--format", "jsonl"]

    output = CliRunner().invoke(build(arguments), arguments).stdout

    seen = json.loads(output.splitlines()[-1])
    assert seen["before"] == pytest.approx(3e-4, rel=0.05)
    assert seen["after"] - seen["before"] >= 0.99e-3


@pytest.mark.parametrize(("name", "is_noted"), [("p99_latency", True), ("latency_ms", False)])
def test_a_latency_without_a_unit_is_said_to_be_in_seconds(
    tmp_path: Path, name: str, *, is_noted: bool
) -> None:
    path = csv_file(tmp_path, latencies(100), name=name)
    result = CliRunner().invoke(build(["calibrate"]), ["calibrate", str(path)])

    assert ("p99_latency is assumed to be in seconds" in result.stderr) is is_noted


@pytest.mark.parametrize(
    ("rows", "rate", "error", "words"),
    [
        (900, "often", PlanError, "--false-alarms"),
        (900, "1 per 0s", PlanError, "--false-alarms: 1 per 0s is too high a rate"),
        (100, "10 per 0.0000000001s", PlanError, "--false-alarms: 1 per 0s is too high a rate"),
        (100, "1 per 1d", NotAvailableError, "quiet rows"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    tmp_path: Path, rows: int, rate: str, error: type[Exception], words: str
) -> None:
    arguments = ["calibrate", str(csv_file(tmp_path, latencies(rows))), "--false-alarms", rate]

    found = CliRunner().invoke(build(arguments), arguments)

    assert isinstance(found.exception, error)
    assert words in str(found.exception)


def test_a_rate_that_the_rows_are_too_far_apart_for_is_refused(tmp_path: Path) -> None:
    """Rows of five minutes: one alarm an hour would be one in twelve rows."""
    path = csv_file(tmp_path, latencies(900), spacing=300)
    arguments = ["calibrate", str(path), "--false-alarms", "1 per 1h"]

    with pytest.raises(
        PlanError, match="1 per 1h is too high a rate for rows 300 s apart; the maximum is 1 per 5h"
    ):
        CliRunner().invoke(build(arguments), arguments, catch_exceptions=False)


@pytest.mark.parametrize(("spacing", "least"), [(0.1, "6s"), (0.2, "12s"), (0.3, "18s")])
@pytest.mark.long
def test_the_shortest_time_between_two_alarms_is_a_round_one(
    tmp_path: Path, spacing: float, least: str
) -> None:
    """Seconds of the epoch hold a tenth of one inexactly."""
    path = tmp_path / "a.csv"
    rows = "".join(
        f"{1_700_000_000 + row * spacing!r},{value}\n" for row, value in enumerate(latencies(900))
    )
    path.write_text(f"t_s,p99_s\n{rows}")
    arguments = ["calibrate", str(path), "--false-alarms", "1 per 1s"]

    with pytest.raises(PlanError, match=f"rows {spacing} s apart; the maximum is 1 per {least}"):
        CliRunner().invoke(build(arguments), arguments, catch_exceptions=False)

    arguments = ["calibrate", str(path), "--false-alarms", f"1 per {least}", "--values", "100000"]
    assert CliRunner().invoke(build(arguments), arguments).exit_code == 0


def test_rows_more_than_an_hour_apart_are_refused(tmp_path: Path) -> None:
    path = csv_file(tmp_path, latencies(900, 0.1), spacing=7200)
    arguments = ["calibrate", str(path), "--values", "100000"]

    with pytest.raises(PlanError, match="rows 7200 s apart; the maximum is an hour"):
        CliRunner().invoke(build(arguments), arguments, catch_exceptions=False)


def test_a_seed_below_zero_is_refused(tmp_path: Path) -> None:
    arguments = ["calibrate", str(csv_file(tmp_path, latencies(100))), "--seed", "-1"]
    result = CliRunner().invoke(build(arguments), arguments)

    assert result.exit_code == 2
    assert "--seed" in result.stderr


@pytest.mark.long
def test_a_column_is_not_for_a_run(tmp_path: Path) -> None:
    arguments = ["calibrate", str(write_synthetic_run(tmp_path / "run").path), "--value", "x"]

    with pytest.raises(PlanError, match="is a folder of a run: --value is for files"):
        CliRunner().invoke(build(arguments), arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("spacing", "values", "within", "noted"),
    [
        (1.0, 100_000, [60, 600, 3600], ""),
        (3600.0, 100_000, [3600], ""),
        (0.1, 100_000, [60], "note: left out: 10 min of rows 0.1 s apart needs --values 358400"),
        (
            0.001,
            4_000_000,
            [60],
            "left out: 1 h of rows 0.001 s apart needs --values 201622400",
        ),
    ],
)
def test_times_that_the_values_do_not_pay_for_are_left_out(
    spacing: float,
    values: int,
    within: list[int],
    noted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulation = calibrate.Simulation(values=values, max_values=100_000_000, seed=0)

    assert calibrate.affordable_times(1, spacing, simulation) == within
    err = capsys.readouterr().err
    assert noted in err
    assert bool(noted) == bool(err)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_rows_that_no_time_can_be_paid_for_are_refused(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "a.csv"
    step = 1e-9 if unit == "s" else 1e-6
    rows = "".join(f"{row * step!r},{value}\n" for row, value in enumerate(latencies(700)))
    path.write_text(f"t_{unit},p99_s\n{rows}")

    with pytest.raises(PlanError, match="1 min of rows 1e-09 s apart needs --values 3360000022400"):
        CliRunner().invoke(build(["calibrate"]), ["calibrate", str(path)], catch_exceptions=False)
