"""How good the online detector is, beside what is asked for; a naive GLR beside it on the same values."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import process_time

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tests.bench.detect import (
    delays,
    extension,
    false_alarms,
    injected,
    naive,
    one_cut,
    recorded,
    traces,
)
from tests.bench.detect.extension import WITHIN_TWO
from tests.bench.detect.feed import FAR, config, feed
from tests.bench.detect.noises import NOISES
from tests.bench.figures import Figure, Goal, ratio_of

IN_A_PLAN = (1.5, 1.55, 1.6, 1.8, 2.0, 3.0, 10.0)  # times the level before
DELAYS = ((0.0, 1.25), (0.6, 1.5))  # autocorrelation, and how many times the bound is allowed
FOUND = ((2.0, 0.80), (3.0, 0.95), (5.0, 0.99))  # size, and the share that must be found
LEAST_ROWS = 600  # of a quiet stretch
_PIECE = 520  # rows of noise that a step is put into


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rows: int
    series: int
    steps: int
    panels: int
    seeds: int  # of each generated panel with a cause
    rounds: int  # beside peers


FULL = Size(rows=129_600, series=800, steps=2000, panels=20, seeds=50, rounds=3)
QUICK = Size(rows=1_200, series=20, steps=40, panels=1, seeds=2, rounds=1)


def on_traces(shared: Path) -> list[Figure]:
    """Score the labelled traces; none where they are not there."""
    read_traces = [
        traces.read(path) for path in sorted(shared.glob("latency-traces/real-*.csv.gz"))
    ]
    if not read_traces:
        return []
    score = traces.pooled(read_traces, traces.score_online)
    return [
        figure("online: F1", score.f1, 0.69, Goal(ratio_least=1.0)),
        figure("online: precision", score.precision, 0.72, Goal(ratio_least=1.0)),
        figure("online: recall", score.recall, 0.70, Goal(ratio_least=1.0)),
        figure("online: false per 1000 values", score.false_per_1000, 0.85, Goal(ratio_most=1.0)),
        figure("online: median delay, rows", score.delay, 6.0, Goal(ratio_most=1.0)),
    ]


def on_steps(shared: Path, size: Size) -> list[Figure]:
    """Put steps, outliers and stalls into noise that was recorded, here and elsewhere."""
    labelled = [traces.read(path) for path in sorted(shared.glob("latency-traces/real-*.csv.gz"))]
    noise = injected.quiet_stretches(labelled, LEAST_ROWS)
    noise += injected.omb_series(shared / "omb-results", LEAST_ROWS)
    paths = sorted(recorded.FOLDER.glob(recorded.SECONDS))
    noise += [np.log10(recorded.read(path).values) for path in paths]
    usable = [y for y in noise if y.size >= _PIECE]
    if not usable:
        return []
    every = injected.pieces(usable, size.steps, _PIECE, seed=1)
    quiet = every[:, injected.is_quiet(every)]
    return [*_on_pieces("quiet", quiet), *_on_pieces("all", every)]


def _on_pieces(name: str, noise: NDArray[np.float64]) -> list[Figure]:
    pieces = f"{name} {noise.shape[1]} pieces"
    without = injected.confirmed_without(noise)
    disturbed = injected.confirmed_on_disturbances(noise)
    hourly = injected.alarms(noise, false_alarms.HOUR)
    beside = [one for peer in one_cut.peers_on_pieces() for one in _peer(peer, pieces, noise)]
    return [
        *(
            figure(
                f"{pieces}, step of {sd:g} long-run sd: share found in {injected.FOUND_WITHIN} rows",
                injected.steps(noise, sd).share,
                least,
                Goal(ratio_least=1.0),
            )
            for sd, least in FOUND
        ),
        figure(f"{pieces}, confirmed at one in 1 h", hourly.confirmed, hourly.allowed, WITHIN_TWO),
        figure(f"{pieces}, confirmed without a step at one in 30 days", without, 0.0, Goal()),
        figure(f"{pieces}, with outliers and stalls", disturbed, without, Goal(ratio_most=1.0)),
        *beside,
    ]


def _peer(name: str, pieces: str, noise: NDArray[np.float64]) -> list[Figure]:
    """Return what another method makes of the same pieces, its own figure in the place of ours."""
    shares = [(sd, injected.peer_steps(name, noise, sd).share) for sd, _ in FOUND]
    return [
        *(
            figure(f"{pieces}, step of {sd:g} long-run sd: {name}", share, nan, Goal())
            for sd, share in shares
        ),
        figure(
            f"{pieces}, cut without a step: {name}",
            injected.peer_without(name, noise),
            nan,
            Goal(),
        ),
        figure(
            f"{pieces}, with outliers and stalls: {name}",
            injected.peer_without(name, noise, is_disturbed=True),
            nan,
            Goal(),
        ),
    ]


def on_delays(size: Size) -> list[Figure]:
    found = []
    for correlation, most in DELAYS:
        for sd in (0.5, 1.0, 2.0):
            series, history = min(size.series, 200), min(size.rows, 14_400)
            one = delays.measure(correlation, sd, series, history, seed=2)
            name = f"autocorrelation {correlation:g}, step of {sd:g} long-run sd"
            found.append(figure(f"{name}: rows", one.confirmed, one.bound, Goal(ratio_most=most)))
            found.append(figure(f"{name}: missed of {series}", one.missed, nan, Goal()))
    for ratio in IN_A_PLAN:
        rows = delays.in_a_plan(ratio, min(size.series, 200), min(size.rows, 600), seed=2)
        found.append(
            figure(f"a plan's defaults, 10 ms to {ratio:g} times: rows", rows, nan, Goal())
        )
    return found


def on_noises(size: Size) -> list[Figure]:
    """Count at one an hour and at one a day; a line each as it is known, for it takes hours."""
    console, found = Console(), []
    for one in false_alarms.measure(size.rows, size.series, seed=3):
        name = f"{one.noise}, one in {one.every_seconds / false_alarms.HOUR:g} h: confirmed"
        console.print(f"{name} {one.confirmed}, allowed {one.allowed:.0f}")
        found.append(figure(name, one.confirmed, one.allowed, WITHIN_TWO))
    return found


def beside_naive(size: Size) -> list[Figure]:
    """Count at one an hour on a tenth of the series: the peer goes through them row by row, too."""
    found = []
    for noise, make in NOISES.items():
        values = FAR + make(
            np.random.default_rng(6), min(size.rows, 14_400), max(10, size.series // 10)
        )
        ours = false_alarms.counted(noise, values, false_alarms.HOUR).confirmed
        theirs = len(naive.alarms(values, false_alarms.HOUR))
        found.append(
            figure(f"{noise}, one in 1 h: a naive GLR", ours, theirs, Goal(ratio_most=1.0))
        )
    return found


def on_recorded(size: Size) -> list[Figure]:
    """Count at one an hour in two hours of 20 series of blocks of each recorded series."""
    rows, series = min(size.rows, 7_200), min(size.series, 20)
    found = []
    for noise in extension.every_recorded():
        rng = np.random.default_rng(10)
        one = extension.counted(noise, int(false_alarms.HOUR), rows, series, rng)
        name = f"{noise.name} in blocks, one in 1 h: confirmed"
        found.append(figure(name, one.confirmed, one.allowed, WITHIN_TWO))
    return found


def on_panels(size: Size) -> list[Figure]:
    confirmed = false_alarms.quiet_panels(size.panels, 100, size.rows, seed=4)
    allowed = size.panels * size.rows / (30.0 * false_alarms.DAY)
    hours = size.rows / false_alarms.HOUR
    name = f"{size.panels} panels of 100 series x {hours:.1f} h, one in 30 days: confirmed"
    return [figure(name, confirmed, allowed, Goal(ours_most=4.0))]


def on_speed(size: Size) -> list[Figure]:
    """Measure CPU a value and bytes of state a series, in a panel of 500."""
    values = FAR + np.random.default_rng(5).standard_normal((min(size.rows, 1800), 500))
    begin = process_time()
    feed(values, config(30.0 * false_alarms.DAY, 500))
    used = (process_time() - begin) / values.size * 1e6
    return [figure("500 series: microseconds a value", used, 4.0, Goal(ratio_most=1.0))]


def figure(name: str, ours: float, peer: float, goal: Goal) -> Figure:
    ratio = ratio_of(ours, peer)
    return Figure(name, ours, peer, ratio, (ratio, ratio), goal.text, goal.holds(ours, ratio))
