"""`soak calibrate`: the false alarms to expect on noise like this, and the smallest step that is detected."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from detectors import calibration
from detectors.calibration import Quiet, quiet
from detectors.level_shift import Config
from detectors.offline.steps import Config as Steps
from detectors.offline.steps import detect
from detectors.online import threshold
from soak.app.analysis import series_files
from soak.core import wording
from soak.core.errors import NotAvailableError, PlanError
from soak.core.model import Series
from soak.core.plan.plan import STREAM_DETECTOR
from soak.core.units import SECOND_NS, format_per_duration, per_duration_ns
from soak.store.journal.history import History
from soak.store.run_folder import RunFolder, read_phases, read_plan


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Input and result of a calibration; `set_ns` is the configured mean time between two false alarms."""

    many: Sequence[Quiet]
    config: Config
    set_ns: int
    spacing_seconds: float
    within_seconds: Sequence[int]
    alarms: calibration.FalseAlarms
    power: Sequence[calibration.Power]

    @property
    def a_month(self) -> tuple[float, float, float]:
        """Return the expected false alarms a month: lower bound, estimate and upper bound, at 95 %."""
        return self.alarms.ratio.of(calibration.MONTH_NS / self.set_ns)


def calibration_text(found: Calibrated) -> Iterator[str]:
    for one in found.many:
        yield (
            f"{_title(one.series)}: {one.values.size} quiet rows at "
            f"{wording.amount(one.level, one.unit)}, {one.cut} steps removed"
        )
    low, middle, high = (wording.amount(number, "") for number in found.a_month)
    yield (
        f"expected false alarms: {middle} a month over a panel of {found.config.panel_size} such series "
        f"(95 %: {low} to {high}); the configured rate is {format_per_duration(found.set_ns)}"
    )
    for rung in found.alarms.rungs:
        apart = wording.span(rung.allowed_seconds * found.spacing_seconds)
        yield (
            f"  counted at 1 per {apart}: {rung.allowed:.0f} allowed, {rung.confirmed} confirmed, "
            f"{rung.warned} warned"
        )
    yield "  extrapolated to the configured rate on a log-log line"
    piece, known = (
        wording.span(rows * found.spacing_seconds)
        for rows in (calibration.RUN_ROWS, threshold.PRIOR_ROWS)
    )
    yield (
        f"  counted in pieces of {piece}: after {known} of rows, or later with autocorrelation, the "
        "threshold adapts to the noise, towards the configured rate"
    )
    yield f"  of the kind {calibration.KIND}: drift, spikes and shares of slow messages are not simulated"
    yield f"smallest step up that is confirmed with a probability of {calibration.PROBABILITY:.0%}:"
    for seen in found.power:
        times = [
            f"within {wording.span(seconds)} {_step(seen, at)}"
            for at, seconds in enumerate(found.within_seconds)
        ]
        if not seen.is_known:
            times = ["unknown: steps are factors, and the level is not above zero"]
        yield f"  {_title(seen.series)}: {'; '.join(times)}"


def calibration_json(found: Calibrated) -> Iterator[str]:
    low, middle, high = found.a_month
    yield json.dumps(
        {
            "what": "false_alarms",
            "kinds": [calibration.KIND],
            "set_seconds": found.set_ns / 1e9,
            "panel_size": found.config.panel_size,
            "expected_a_month": middle,
            "interval": [low, high],
            "counted": [
                {
                    "set_seconds": rung.allowed_seconds * found.spacing_seconds,
                    "allowed": rung.allowed,
                    "confirmed": rung.confirmed,
                    "warned": rung.warned,
                }
                for rung in found.alarms.rungs
            ],
        }
    )
    for seen in found.power:
        for at, seconds in enumerate(found.within_seconds):
            yield json.dumps(
                {
                    "what": "power",
                    "series": seen.series,
                    "within_seconds": seconds,
                    "probability": calibration.PROBABILITY,
                    "before": seen.before,
                    "after": seen.after[at],
                    "ratio": seen.ratio(at),
                    "is_known": seen.is_known,
                }
            )


def _step(seen: calibration.Power, at: int) -> str:
    after = seen.after[at]
    return "none of those tried" if after is None else wording.step(seen.before, after, seen.unit)


def _title(series: str) -> str:
    return wording.printable(wording.title_with_source(series) if "|" in series else series)


WITHIN_SECONDS = (60, 600, 3600)
MAX_SECONDS = 4 * 3600
"""Of the soak of a run, in evenly spaced pieces."""
MIN_ROWS_BETWEEN = 60
"""Between two false alarms on average: the detector cannot be set to a higher rate."""
MAX_BETWEEN_NS = 1000 * 365 * 86_400 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How many values are simulated, how many may be, and the seed of the random blocks."""

    values: int
    max_values: int
    seed: int


def calibrate_lines(
    target: Path,
    value: str | None,
    false_alarms: str | None,
    simulation: Simulation,
    *,
    is_json: bool,
) -> Iterator[str]:
    """Give the output of `soak calibrate` for a CSV file or the folder of a run.

    Raises:
        PlanError: the rate, the file or an option is wrong.
        NotAvailableError: there is too little quiet data.
    """
    set_ns = None if false_alarms is None else _parse_rate(false_alarms)
    many, config, spacing = (
        _quiet_run(target, value) if target.is_dir() else _quiet_file(target, value)
    )
    set_ns = config.false_alarms if set_ns is None else set_ns
    _check_rate(set_ns, spacing)
    if not many:
        raise NotAvailableError(f"{target}: no series has {calibration.LEAST_ROWS} quiet rows")
    # the minimum again, because the spacing is a difference of two floats
    rate = max(MIN_ROWS_BETWEEN * SECOND_NS, round(set_ns / spacing))
    config = replace(config, false_alarms=rate)
    within = affordable_times(len(many), spacing, simulation)
    rows = [round(seconds / spacing) for seconds in within]
    found = Calibrated(
        many,
        config,
        set_ns,
        spacing,
        within,
        calibration.false_alarms(many, config, values=simulation.values // 2, seed=simulation.seed),
        calibration.power(many, config, rows, values=simulation.values // 2, seed=simulation.seed),
    )
    yield from calibration_json(found) if is_json else calibration_text(found)


def _parse_rate(text: str) -> int:
    try:
        found = per_duration_ns(text)
    except ValueError as error:
        raise PlanError(f"--false-alarms: {error}") from error
    if found > MAX_BETWEEN_NS:
        raise PlanError("--false-alarms: the minimum is one in a thousand years")
    return found


def _check_rate(set_ns: int, spacing: float) -> None:
    # in whole milliseconds
    least_ns = max(1, ceil(MIN_ROWS_BETWEEN * spacing * 1000.0 - 0.1)) * 10**6
    if set_ns < least_ns:
        raise PlanError(
            f"--false-alarms: {format_per_duration(set_ns)} is too high a rate for rows {spacing:.4g} s "
            f"apart; the maximum is {format_per_duration(least_ns)}"
        )


def affordable_times(series: int, spacing: float, simulation: Simulation) -> list[int]:
    """Return the times that the simulated values suffice for; for rows of a second always up to an hour."""
    most = max(simulation.values // 2, calibration.least_values(series, WITHIN_SECONDS[-1]))
    paid = []
    for seconds in (one for one in WITHIN_SECONDS if one >= spacing):
        cost = calibration.least_values(series, round(seconds / spacing))
        takes = f"{wording.span(seconds)} of rows {spacing:g} s apart needs --values {2 * cost}"
        if 2 * cost > simulation.max_values:
            takes = f"{takes}, and the maximum is {simulation.max_values}: use fewer rows"
        if cost <= most:
            paid.append(seconds)
        elif not paid:
            raise PlanError(takes)
        else:
            print(f"note: left out: {takes}", file=sys.stderr)
    return paid


def _quiet_run(path: Path, value: str | None) -> tuple[list[Quiet], Config, float]:
    """Return the quiet latencies of a run, its detector settings, and the spacing of rows in seconds."""
    from spark.batch.calibration import quiet_seconds

    if value is not None:
        raise PlanError(f"{path} is a folder of a run: --value is for files")
    folder = RunFolder(path.absolute())
    config = read_plan(folder).detection.detectors[STREAM_DETECTOR]
    history = History(folder.journal)
    end_k = 1 + max(history.latest().values(), default=0)
    spans = read_phases(folder.phases).spans("soak", end_k)
    return quiet_seconds(folder.journal, spans, config, MAX_SECONDS), config, 1.0


def _quiet_file(path: Path, value: str | None) -> tuple[list[Quiet], Config, float]:
    """Return the same for a CSV file, with the default settings of a plan; a row counts as one second."""
    csv, config = series_files.read_series(path, value), Config()
    if csv.spacing_seconds > WITHIN_SECONDS[-1]:
        raise PlanError(f"{path}: rows {csv.spacing_seconds:g} s apart; the maximum is an hour")
    if csv.is_latency and not csv.is_unit_named:
        name = wording.printable(csv.name)
        print(
            f"note: {name} is assumed to be in seconds: its name ends in no unit", file=sys.stderr
        )
    here = np.flatnonzero(np.isfinite(csv.values))
    whole = Series(csv.name, here.astype(np.int64), csv.unit_seconds * csv.values[here])
    steps = Steps(
        scale="log" if csv.is_latency else "linear",
        smallest_step_ratio=config.smallest_step_ratio,
        smallest_step_seconds=config.smallest_step_seconds,
        unit_seconds=csv.spacing_seconds,
    )
    unit = "seconds" if csv.is_latency else ""
    found = quiet(whole, unit, detect(whole, steps))
    return (
        [found] if found.values.size >= calibration.LEAST_ROWS else [],
        config,
        csv.spacing_seconds,
    )
