"""`make bench-compare`: how often `soak compare` calls equal runs the same, and slower ones worse.

Equal and slower runs are simulated with autocorrelation and noise between runs. Recorded seconds of real runs
are dealt out to two sides in blocks, so that in truth both are equal.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from detectors.comparison import (
    Difference,
    Distribution,
    Estimate,
    band_of,
    difference,
    estimate,
    estimate_of_samples,
)
from soak.store.run_folder import RunFolder, read_phases
from spark.batch.compared_run import SHARES, ComparedRun, read_recorded
from tests.support.paths import RECORDED

RESULT = Path("build/bench/compare.json")
RATIOS = (1.0, 1.05, 1.1, 1.2)
MARGINS, RUN_NOISE = (0.05, 0.1), 0.01
ERROR_RATE = 0.05 / 6  # as for three quantiles of two latencies
PAIRS = 20
_DEALT_SECONDS = 60
_MESSAGES = 300


@dataclass(frozen=True, slots=True)
class Figure:
    """Of many pairs: how often which verdict was given, and the power that was stated for "worse"."""

    figure: str
    pairs: int
    same: int
    worse: int
    better: int
    cannot_tell: int
    stated_power: float | None
    half_interval_percent: float  # median of 95 %


def main() -> int:
    """Measure, print the table, and write the result."""
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--pairs", type=int, default=100, help="of simulated runs")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a recorded run")
    parser.add_argument("--from-second", type=int, default=0, help="of its soak")
    arguments = parser.parse_args()
    pairs, seconds = (10, 600) if arguments.quick else (arguments.pairs, 3600)
    found = [*_simulated(pairs, seconds), *_recorded_quantiles()]
    for path in arguments.run:
        found += _recorded_run(path, arguments.from_second)
    Console(width=140).print(_table(found))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 0


def simulated_run(
    rng: np.random.Generator, seconds: int, ratio: float = 1.0, run_noise: float = RUN_NOISE
) -> Distribution:
    """Return a run whose level has a memory of ten seconds and one of two minutes; a twentieth is slow."""
    offset = rng.normal(0.0, run_noise) + math.log(ratio)
    level = offset + _noise(rng, seconds, 10.0, 0.05) + _noise(rng, seconds, 120.0, 0.02)
    logs = np.log(0.002) + level[:, None] + rng.normal(0.0, 0.3, (seconds, _MESSAGES))
    logs += np.where(rng.random((seconds, _MESSAGES)) < 0.05, rng.gamma(2.0, 0.4, logs.shape), 0.0)
    bands = band_of(np.exp(logs))
    first, last = int(bands.min()), int(bands.max())
    counts = np.zeros((seconds, last - first + 1))
    np.add.at(counts, (np.arange(seconds)[:, None], bands - first), 1)
    return Distribution(counts, first, 1)


def _noise(
    rng: np.random.Generator, size: int, memory: float, spread: float
) -> NDArray[np.float64]:
    """Return an autoregression of the first order with a time constant and a standard deviation."""
    keep = math.exp(-1.0 / memory)
    steps = rng.normal(0.0, spread * math.sqrt(1.0 - keep**2), size)
    found = np.empty(size)
    value = rng.normal(0.0, spread)
    for at in range(size):
        value = keep * value + steps[at]
        found[at] = value
    return found


def _simulated(pairs: int, seconds: int) -> Iterator[Figure]:
    by_case: dict[tuple[str, float], list[Difference]] = {}
    for seed in range(pairs):
        rng = np.random.default_rng(seed)
        runs = [(0.0, simulated_run(rng, seconds))]
        runs += [(ratio, simulated_run(rng, seconds, ratio)) for ratio in RATIOS]
        for name, share in SHARES.items():
            found = [estimate(f"{ratio}", run, share) for ratio, run in runs]
            for ratio, after in zip(RATIOS, found[1:], strict=True):
                one = difference(found[:1], [after], RUN_NOISE)
                by_case.setdefault((name, ratio), []).append(one)
    for (name, ratio), several in by_case.items():
        title = f"simulated, {seconds} s, {name} {100 * (ratio - 1):+.0f} %"
        yield from _figures(title, several, None if ratio == 1.0 else ratio)


def _recorded_quantiles() -> Iterator[Figure]:
    """Give figures of an hour of Kafka and Pulsar of which only the quantiles of each second are kept."""
    for path in sorted((RECORDED / "noise").glob("*_p*_seconds.csv.gz")):
        values = pd.read_csv(path).iloc[:, -1].dropna().to_numpy(dtype=np.float64)
        values = values[values > 0]

        def of_side(chosen: NDArray[np.int64], values: NDArray[np.float64] = values) -> Estimate:
            part = values[chosen]
            return estimate_of_samples(
                str(chosen[0]), float(np.exp(np.log(part).mean())), part, 1.0
            )

        title = f"recorded, {path.name.removesuffix('_seconds.csv.gz')}"
        yield from _figures(title, _dealt(values.size, of_side))


def _recorded_run(path: Path, first: int) -> Iterator[Figure]:
    folder = RunFolder(path)
    recorded = read_recorded(folder, read_phases(folder.phases))
    run = ComparedRun(path, path.name, path.name, 0, recorded, {}, ())
    for latency in recorded.cells:
        whole = run.distribution(latency, most=10**9)
        if whole is None:
            continue
        counts = whole.counts[first:]
        for name, share in SHARES.items():

            def of_side(
                chosen: NDArray[np.int64],
                counts: NDArray[np.float64] = counts,
                whole: Distribution = whole,
                share: float = share,
            ) -> Estimate:
                part = Distribution(counts[chosen], whole.first_band, 1)
                return estimate(str(chosen[0]), part, share)

            title = f"recorded, {path.name}, {latency} {name}, {counts.shape[0]} s"
            yield from _figures(title, _dealt(counts.shape[0], of_side))


def _dealt(size: int, of_side: Callable[[NDArray[np.int64]], Estimate]) -> list[Difference]:
    """Return the differences of pairs of sides to which blocks of seconds are dealt at random."""
    blocks = np.array_split(np.arange(size), max(2, size // _DEALT_SECONDS))
    found = []
    for seed in range(PAIRS):
        order = np.random.default_rng(seed).permutation(len(blocks))
        half = len(blocks) // 2
        sides = [
            np.concatenate([blocks[at] for at in sorted(part)])
            for part in (order[:half], order[half:])
        ]
        found.append(difference([of_side(sides[0])], [of_side(sides[1])], 0.0))
    return found


def _figures(
    title: str, several: Sequence[Difference], ratio: float | None = None
) -> Iterator[Figure]:
    for margin in MARGINS:
        yield _figure(f"{title}, margin {100 * margin:g} %", several, ratio, margin)


def _figure(
    title: str, several: Sequence[Difference], ratio: float | None, margin: float
) -> Figure:
    verdicts = Counter(one.verdict(margin, ERROR_RATE) for one in several)
    stated = [one.power(ratio, margin, ERROR_RATE) for one in several] if ratio else []
    widths = [
        math.log(one.interval()[1] / one.interval()[0]) / 2
        for one in several
        if math.isfinite(one.error)
    ]
    return Figure(
        title,
        len(several),
        verdicts["same"],
        verdicts["worse"],
        verdicts["better"],
        verdicts["cannot tell"],
        round(float(np.mean(stated)), 3) if stated else None,
        round(100.0 * float(np.median(widths)), 1) if widths else -1.0,
    )


def _table(found: Sequence[Figure]) -> Table:
    shown = Table(title="soak compare", title_justify="left")
    shown.add_column("pairs of runs", no_wrap=True)
    for name in ("pairs", "same", "worse", "better", "cannot tell", "stated power", "+- %"):
        shown.add_column(name, justify="right")
    for one in found:
        stated = "" if one.stated_power is None else f"{one.stated_power:.2f}"
        counts = (one.pairs, one.same, one.worse, one.better, one.cannot_tell)
        shown.add_row(one.figure, *map(str, counts), stated, f"{one.half_interval_percent:g}")
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
