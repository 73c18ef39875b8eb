"""Offline methods on whole series: cuts where nothing changes, power for steps, intervals of onsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log10
from pathlib import Path
from statistics import median

import numpy as np

from tests.bench.detect import feed, noises, peers
from tests.bench.detect.feed import Cut
from tests.bench.detect.noises import NOISES, SD, Floats, long_run_sd
from tests.bench.detect.parts import OURS, Measurement, Run, worst

_MAX_SHARE = 0.05  # of series without a change that show a cut
_RATIOS = (1.1, 1.2, 1.5)
_LENGTHS = {"60 s": 60, "10 min": 600, "2 h": 7_200}
_POWER_ROWS = 21_600
_NEAR = 30  # rows, at least, within which a cut is that of the step
_PEER_SEEDS = 3
_ROWS, _FIRST, _LAST = 600, 200, 400  # of a series with one step, and where the step begins
_SMALLEST, _LARGEST = 1.0, 5.0  # step, long-run sd
_KNOWN_ROWS = 20_000  # that the long-run sd of a noise is judged from
_NEAR_STEP = 60
_HELD = (0.93, 0.97)  # of the onsets, by intervals of 95 %


# ---- series without a change


def measure(run: Run) -> list[Measurement]:
    """Search series without a change: ours and the reference at full length, all methods on shorter ones."""
    long = [peers.REFERENCE] if run.are_peers_shown else []
    methods = peers.offline_methods(run.references, with_peers=run.are_peers_shown)
    sizes = [(OURS, run.size.quiet_rows, run.size.seeds)]
    sizes += [(method, run.size.quiet_rows, run.size.seeds) for method in methods if method in long]
    peer_seeds = min(_PEER_SEEDS, run.size.seeds)
    sizes += [(method, run.size.peer_rows, peer_seeds) for method in methods if len(methods) > 1]
    jobs = [
        (method, noise, rows, seeds, run.references)
        for method, rows, seeds in sizes
        for noise in NOISES
    ]
    cuts: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(dict)
    for (method, noise, rows, *_), many in zip(jobs, run.map(_cut_counts, jobs), strict=True):
        cuts[method, rows][noise] = many
    return [
        figure
        for (method, rows), by_noise in cuts.items()
        for figure in quiet_figures(method, rows, by_noise)
    ]


def quiet_figures(method: str, rows: int, cuts: dict[str, list[int]]) -> list[Measurement]:
    """Return the share of series with a cut, by noise and for the worst; `cuts`: number by series."""
    one = partial(Measurement, method=method)
    name = f"no change, {rows / 3600:.3g} h"
    shares = {noise: sum(map(bool, many)) / len(many) for noise, many in cuts.items()}
    highest = worst([*shares.items()])
    return [
        *(
            one(
                figure=f"{name}, {noise}: share with a cut",
                value=share,
                at_most=_MAX_SHARE,
                note=f"{sum(cuts[noise])} cuts in {len(cuts[noise])} series",
            )
            for noise, share in shares.items()
        ),
        one(
            figure=f"{name}: share with a cut, all noises",
            value=float(np.mean([*shares.values()])),
            at_most=_MAX_SHARE,
        ),
        one(
            figure=f"{name}: share with a cut, worst noise",
            value=highest[1],
            at_most=_MAX_SHARE,
            note=highest[0] if highest[1] else "",
        ),
    ]


def _cut_counts(job: tuple[str, str, int, int, Path | None]) -> list[int]:
    method, noise, rows, seeds, references = job
    detect = peers.offline_methods(references)[method]
    return [len(detect(noises.on_log10(noise, [12, seed], rows))) for seed in range(seeds)]


# ---- power


def measure_power(run: Run) -> list[Measurement]:
    """Raise recorded latencies for a while and count the onsets that are found; six hours a series.

    Sources are the lab's latencies and the longest quiet stretch of each labelled trace, read forwards and
    backwards in turn, a row as a second. A cut counts within a quarter of the length of its step, at least 30
    rows; what is found at such places without a step is no merit.
    """
    methods = [
        method
        for method in peers.offline_methods(run.references, with_peers=run.are_peers_shown)
        if method not in (peers.RBF, peers.OTAVAS)  # their time grows with the square of the rows
    ]
    by_length = sorted(noises.stretches(run.shared), key=lambda one: one.y.size)
    longest = {one.name: one for one in by_length}
    groups = {"lab": noises.recorded(), "quiet stretches": [*longest.values()]}
    cases = [
        (group, method, ratio, name, one)
        for group, sources in groups.items()
        for method in methods
        for ratio in (1.0, *_RATIOS)
        for name in _LENGTHS
        for one in sources
    ]
    jobs = [
        (method, one, ratio, _LENGTHS[name], run.size.positions, run.references)
        for _, method, ratio, name, one in cases
    ]
    shares: dict[tuple[str, str, float, str], dict[str, list[float]]] = defaultdict(dict)
    for (group, method, ratio, name, one), share in zip(cases, run.map(_power, jobs), strict=True):
        shares[group, method, ratio, name].setdefault(one.name, []).append(share)
    return [power_figure(*key, by_source) for key, by_source in shares.items()]


def power_figure(
    group: str, method: str, ratio: float, length: str, shares: dict[str, list[float]]
) -> Measurement:
    """Return the share of steps found, and the source in which the fewest are."""
    step = f"{100 * (ratio - 1):.0f} %" if ratio > 1.0 else "no step"
    means = {name: float(np.mean(many)) for name, many in shares.items()}
    least = min(means, key=lambda name: means[name])
    return Measurement(
        figure=f"{group}, {step} for {length}: found",
        method=method,
        value=float(np.mean([one for many in shares.values() for one in many])),
        note=f"{least}: {means[least]:.0%}" if ratio > 1.0 and means[least] < 1.0 else "",
    )


def _power(job: tuple[str, noises.Source, float, int, int, Path | None]) -> float:
    method, source, ratio, length, positions, references = job
    detect = peers.offline_methods(references)[method]
    noise = noises.reflected(source.y, _POWER_ROWS)
    rng = np.random.default_rng([13, *source.name.encode()])
    near, found = max(_NEAR, length // 4), 0
    for at in rng.integers(_POWER_ROWS // 8, _POWER_ROWS // 2, positions):
        y = noise.copy()
        y[at : at + length] += log10(ratio)
        found += any(abs(cut - at) <= near for cut in detect(y))
    return found / positions


# ---- intervals


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of steps put into one noise: the number, those held by their intervals, and rows from cut to onset."""

    noise: str
    steps: int
    held: int
    errors: tuple[int, ...]  # of those that were found
    allowed: tuple[float, ...]  # for each of them 1 / size^2 + 1

    @property
    def share(self) -> float:
        return self.held / max(1, len(self.errors))


def measure_coverage(run: Run) -> list[Measurement]:
    """Put one step of 1 to 5 long-run sd into each of many short series of every noise."""
    jobs = [(noise, -(-run.size.steps // len(NOISES))) for noise in NOISES]
    return coverage_figures(list(run.map(covered, jobs)))


def coverage_figures(many: Sequence[Coverage]) -> list[Measurement]:
    one = partial(Measurement, method=OURS)
    steps, errors = sum(each.steps for each in many), [x for each in many for x in each.errors]
    held = sum(each.held for each in many) / max(1, len(errors))
    allowed = [x for each in many for x in each.allowed]
    least = worst([(each.noise, each.share) for each in many], lambda share: -share)
    return [
        *(
            one(
                figure=f"onset within its interval: {each.noise}",
                value=each.share,
                note=f"{len(each.errors)} of {each.steps} steps found",
            )
            for each in many
        ),
        one(
            figure="onset within its interval, all noises",
            value=held,
            at_least=_HELD[0],
            at_most=_HELD[1],
        ),
        one(figure="onset within its interval, worst noise", value=least[1], note=least[0]),
        one(figure="steps of 1 to 5 sd found", value=len(errors) / steps),
        one(
            figure="rows from the cut to the onset, median",
            value=median(errors or [_ROWS]),
            at_most=median(allowed or [0.0]),
        ),
    ]


def covered(job: tuple[str, int]) -> Coverage:
    """Search so many series of one noise, each with a step."""
    noise, steps = job
    rng = np.random.default_rng([9, *noise.encode()])
    sd = long_run_sd(NOISES[noise](rng, _KNOWN_ROWS, 1)[:, 0])
    held, errors, allowed = 0, [], []
    for column in NOISES[noise](rng, _ROWS, steps).T:
        at, size = int(rng.integers(_FIRST, _LAST)), rng.uniform(_SMALLEST, _LARGEST)
        cut = _nearest(SD * (column + np.where(np.arange(_ROWS) < at, 0.0, size * sd)), at)
        if cut is not None:
            held += cut.first <= at <= cut.last
            errors.append(abs(cut.row - at))
            allowed.append(1.0 / size**2 + 1.0)
    return Coverage(noise, steps, held, tuple(errors), tuple(allowed))


def _nearest(y: Floats, at: int) -> Cut | None:
    near = [cut for cut in feed.offline_cuts(y) if abs(cut.row - at) <= _NEAR_STEP]
    return min(near, key=lambda cut: abs(cut.row - at), default=None)
