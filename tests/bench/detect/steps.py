"""Steps of known size: in quiet recorded pieces, beside stalls, and against the least delay possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log, log10, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.bench.detect import feed, noises, peers
from tests.bench.detect.feed import FAR, Alarm
from tests.bench.detect.noises import Pieces, Table, autocorrelated
from tests.bench.detect.parts import OURS, Measurement, Run

SIZES = (0.5, 1.0, 2.0, 3.0, 5.0)
"""Of a step, in long-run standard deviations."""
MONTH = 30 * 86_400.0
ROWS, BEFORE, WITHIN = 520, 400, 60
"""Rows of a piece, before the step, and within which it must be found."""
STALL_ROWS, STALL_SD = 6, 30.0
_GOALS = {2.0: 0.95, 3.0: 0.99, 5.0: 0.995}  # share that is found
_MAX_ALARMING, _MAX_STALLS = 0.05, 0.03  # share of the pieces
_NEAR = 5  # rows that an offline cut may lie before the step
_LEAST_OF_SOURCE = 10  # pieces, for a source to be named as the worst
_MAX_DELAY = {1.0: 1.35, 2.0: 1.35}  # over the bound
_DELAY_SIZES, _CORRELATIONS = (0.5, 1.0, 2.0), (0.0, 0.6)
_HISTORY, _LATEST = 3_600, 900  # rows before the step, and after it until it counts as missed
_PANEL_SIZE = 100
_PLAN_RATIOS = (1.5, 1.6, 2.0, 3.0)
_PLAN_HISTORY = 600


@dataclass(frozen=True, slots=True)
class Delay:
    """Of steps of one size: mean rows until confirmed, shares of series, the bound 2 log(ARL) / D^2."""

    rows: float
    missed: float
    too_early: float  # alarm in the hour before: short delays of such a method are no merit
    bound: float

    @property
    def ratio(self) -> float:
        return self.rows / self.bound


# ---- in recorded pieces


def measure(run: Run) -> list[Measurement]:
    """Put steps and stalls into quiet pieces of recorded noise; nothing is put into them for false alarms."""
    quiet = _quiet_pieces(run)
    offline = peers.offline_methods(run.references, with_peers=run.are_peers_shown)
    jobs = [(method, quiet, run.references, run.are_peers_shown) for method in offline]
    later = [one for many in run.map(_offline_figures, jobs) for one in many]
    return [*_measure_online(run, quiet), *later]


def measure_online(run: Run) -> list[Measurement]:
    """Measure what `measure` does, online only."""
    return _measure_online(run, _quiet_pieces(run))


def _quiet_pieces(run: Run) -> Pieces:
    noise = noises.pieces(noises.sources(run.shared), run.size.pieces, ROWS, seed=1)
    return noise.chosen(noises.is_quiet(noise.values))


def _measure_online(run: Run, quiet: Pieces) -> list[Measurement]:
    methods = peers.online_methods(run.references, with_peers=run.are_peers_shown)
    jobs = [
        (method, quiet, run.size.stalls, run.references, run.are_peers_shown) for method in methods
    ]
    return [one for many in run.map(_online_figures, jobs) for one in many]


def stepped(table: Table, size: float) -> tuple[Table, NDArray[np.bool_]]:
    """Return the columns with a step after 400 rows, and which of them it goes up in: every other one."""
    is_up = np.arange(table.shape[1]) % 2 == 0
    values = table.copy()
    values[BEFORE:] += size * np.where(is_up, 1.0, -1.0)
    return values, is_up


def found_in_time(alarms: Sequence[Alarm], is_up: NDArray[np.bool_]) -> set[int]:
    """Return the columns whose step was confirmed in its direction within 60 rows."""
    return {
        one.series
        for one in alarms
        if BEFORE <= one.row < BEFORE + WITHIN and one.is_up == is_up[one.series]
    }


def stalled(table: Table) -> Table:
    """Return the columns with a stall of six rows after 400 rows."""
    values = table.copy()
    values[BEFORE : BEFORE + STALL_ROWS] += STALL_SD
    return values


def _online_figures(job: tuple[str, Pieces, int, Path | None, bool]) -> list[Measurement]:
    method, quiet, stalls, references, with_peers = job
    detect = peers.online_methods(references, with_peers=with_peers)[method]
    table, many = quiet.values, quiet.values.shape[1]
    one = partial(Measurement, method=method)
    found = []
    held = stalled(table[:, :stalls])
    tables = [FAR + each for each in (*(stepped(table, size)[0] for size in SIZES), table, held)]
    *of_steps, of_noise, of_stalls = peers.alarms_of_each(detect, tables, "", MONTH)
    for size, alarms in zip(SIZES, of_steps, strict=True):
        seen = found_in_time(alarms, stepped(table, size)[1])
        missed = Counter(quiet.sources[i] for i in range(many) if i not in seen)
        found.append(
            one(
                figure=f"online: step of {size:g} sd found within {WITHIN} rows",
                value=len(seen) / many,
                at_least=_GOALS.get(size),
                note=_worst_source(missed, quiet, "missed"),
            )
        )
    alarming = {alarm.series for alarm in of_noise}
    by_source = Counter(quiet.sources[i] for i in alarming)
    confirmed = {
        alarm.series for alarm in of_stalls if BEFORE <= alarm.row < BEFORE + STALL_ROWS + WITHIN
    }
    return [
        *found,
        one(
            figure=f"online: quiet pieces of {ROWS} rows that alarm",
            value=len(alarming) / many,
            at_most=_MAX_ALARMING,
            note=f"{len(alarming)} of {many}; {_worst_source(by_source, quiet, 'alarm')}",
        ),
        one(
            figure=f"online: stalls of {STALL_ROWS} rows confirmed",
            value=len(confirmed) / held.shape[1],
            at_most=_MAX_STALLS,
            note=f"{len(confirmed)} of {held.shape[1]}",
        ),
    ]


def _offline_figures(job: tuple[str, Pieces, Path | None, bool]) -> list[Measurement]:
    """Search each piece up to 60 rows after its step; any cut since the step counts."""
    method, quiet, references, with_peers = job
    detect = peers.offline_methods(references, with_peers=with_peers)[method]
    one = partial(Measurement, method=method)
    found = []
    for size in (0.0, *SIZES):
        values, _ = stepped(noises.SD * quiet.values[: BEFORE + WITHIN], noises.SD * size)
        cuts = peers.cuts_of_all(method, detect, [np.ascontiguousarray(y) for y in values.T])
        if size:
            share = sum(any(at >= BEFORE - _NEAR for at in each) for each in cuts) / len(cuts)
            figure = f"offline, {WITHIN} rows after a step of {size:g} sd: found"
        else:
            share = sum(bool(each) for each in cuts) / len(cuts)
            figure = "offline: quiet pieces with a cut"
        found.append(one(figure=figure, value=share))
    return found


def _worst_source(counts: Counter[str], quiet: Pieces, what: str) -> str:
    """Return the source with the greatest share of such pieces."""
    totals = Counter(quiet.sources)
    shares = [
        (count / totals[name], name)
        for name, count in counts.items()
        if totals[name] >= _LEAST_OF_SOURCE
    ]
    if not shares:
        return ""
    share, name = max(shares)
    return f"{name}: {share:.0%} {what}"


# ---- delays


def measure_delays(run: Run) -> list[Measurement]:
    """Step series of an AR(1) after an hour, at one false alarm in thirty days over a hundred series."""
    methods = peers.online_methods(run.references, with_peers=run.are_peers_shown)
    jobs = [(method, run.size.delays, run.references, run.are_peers_shown) for method in methods]
    found = [one for many in run.map(_delay_figures, jobs) for one in many]
    return [*found, *_in_a_plan(run.size.delays)]


def delay(alarms: Sequence[Alarm], series: int, size: float, every_seconds: float) -> Delay:
    """Return the mean rows until the first alarm since the step; alarms before it do not count."""
    waits: dict[int, int] = {}
    for one in alarms:
        if _HISTORY <= one.row < _HISTORY + _LATEST:
            waits.setdefault(one.series, one.row - _HISTORY + 1)
    rows = float(np.mean([*waits.values()])) if waits else float("nan")
    early = {one.series for one in alarms if one.row < _HISTORY}
    return Delay(
        rows,
        missed=1.0 - len(waits) / series,
        too_early=len(early) / series,
        bound=2.0 * log(every_seconds) / size**2,
    )


def _delay_figures(job: tuple[str, int, Path | None, bool]) -> list[Measurement]:
    method, series, references, with_peers = job
    detect = peers.online_methods(references, with_peers=with_peers)[method]
    kinds = [(correlation, size) for correlation in _CORRELATIONS for size in _DELAY_SIZES]
    every = MONTH * _PANEL_SIZE
    tables = [_late_steps(correlation, size, series) for correlation, size in kinds]
    one = partial(Measurement, method=method)
    found = []
    for (correlation, size), alarms in zip(
        kinds, peers.alarms_of_each(detect, tables, "", every), strict=True
    ):
        seen = delay(alarms, series, size, every)
        name = f"AR(1) {correlation:g}, step of {size:g} long-run sd"
        found += [
            one(
                figure=f"{name}: rows / bound",
                value=seen.ratio,
                at_most=_MAX_DELAY.get(size),
                note=f"{seen.rows:.3g} / {seen.bound:.3g} rows",
            ),
            one(figure=f"{name}: missed", value=seen.missed),
            one(figure=f"{name}: alarm in the hour before", value=seen.too_early),
        ]
    return found


def _late_steps(correlation: float, size: float, series: int) -> Table:
    """Return series of an AR(1) with a step, in long-run sd, after an hour."""
    values = FAR + autocorrelated(correlation)(np.random.default_rng(2), _HISTORY + _LATEST, series)
    values[_HISTORY:] += size * sqrt((1.0 + correlation) / (1.0 - correlation))
    return values


def _in_a_plan(series: int) -> Iterator[Measurement]:
    """Yield the median rows until a plan without settings confirms that 10 ms step up so many times.

    Ten minutes after the start, in noise of 0.02 on log10, far below the smallest step. Infinite: half is
    missed.
    """
    for ratio in _PLAN_RATIOS:
        y = np.random.default_rng(2).normal(-2.0, 0.02, (_PLAN_HISTORY + _LATEST, series))
        y[_PLAN_HISTORY:] += log10(ratio)
        waits = dict.fromkeys(range(series), inf)
        for one in feed.confirmed(feed.feed(10.0**y, feed.plan_config(), "seconds")):
            if one.row >= _PLAN_HISTORY:
                waits[one.series] = min(waits[one.series], one.row - _PLAN_HISTORY + 1)
        yield Measurement(
            figure=f"defaults of a plan, 10 ms to {ratio:g} times: median rows",
            method=OURS,
            value=float(np.median([*waits.values()])),
        )
