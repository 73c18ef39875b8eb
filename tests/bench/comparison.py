"""`make bench-compare`: how often `soak compare` calls equal runs the same, and slower ones worse.

Equal runs come from three places. Some are simulated, with autocorrelation and noise between runs. Some are
made of recorded quiet seconds, in blocks of a minute that are drawn at random. Some are windows of a recorded
run. A slower run is an equal one whose latencies are multiplied. Besides: trends, and other durability.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from detectors.comparison import (
    MOST_INTERVALS,
    Difference,
    Distribution,
    Estimate,
    Verdict,
    band_of,
    difference,
    estimate,
    estimate_of_samples,
    level_changes,
    overall,
)
from soak.app.comparison import compare_runs
from soak.core import json_text
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_phases, read_run
from spark.batch.comparison.comparison import Settings
from spark.batch.comparison.run import SHARES, ComparedRun, read_recorded
from tests.support.compared import ComparedShape, write_compared_run
from tests.support.paths import RECORDED

RESULT = Path("build/bench/compare.json")
RATIOS = (1.0, 1.05, 1.1, 1.2)
MARGINS, RUN_NOISE = (0.05, 0.1), 0.01
ERROR_RATE = 0.05 / 6  # as for three quantiles of two latencies
PAIRS = 20
TREND_RUNS, TREND_NOISE, TREND_RATIOS, TRENDS = 30, 0.02, (1.0, 1.15, 1.2), 100
PARTS = ("simulated", "quantiles", "made", "windows", "trend", "durability")
_BLOCK_SECONDS = 60
_AFTER_SECONDS = 60  # so long after a trouble nothing is quiet
_MESSAGES = 300
_ISO = "%Y-%m-%dT%H:%M:%SZ"


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
    half_interval_percent: float | None  # median of 95 %


def main() -> int:
    """Measure, print the table, and write the result."""
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of runs, for each figure")
    parser.add_argument("--minutes", type=int, default=240, help="that a run lasts")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a recorded run")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this")
    arguments = parser.parse_args()
    pairs, seconds = (10, 1200) if arguments.quick else (arguments.pairs, 60 * arguments.minutes)
    parts, found = arguments.part or PARTS, list[Figure]()
    if "simulated" in parts:
        found += _simulated(pairs, seconds)
    if "quantiles" in parts:
        found += _recorded_quantiles()
    for path in arguments.run:
        found += _recorded_run(path, pairs, seconds, parts)
    facts = []
    if "trend" in parts:
        for ratio in TREND_RATIOS:
            change = f"a change of {100 * (ratio - 1):g} %" if ratio > 1.0 else "no change"
            named = "name its run and no other" if ratio > 1.0 else "name none"
            count = f"{trends_named(ratio)} of {TRENDS}"
            facts.append(f"trends over {TREND_RUNS} runs with {change}: {count} {named}")
    if "durability" in parts:
        facts.append(f"runs at durability 1 and 2, first line: {durability_warning()}")
    if found:
        Console(width=140).print(_table(found))
    Console(width=140).print("\n".join(facts))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    body = {"pairs": [asdict(one) for one in found], "facts": facts}
    RESULT.write_text(json.dumps(body, indent=2) + "\n")
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
    def drawn(seed: int) -> Distribution:
        return _merged(simulated_run(np.random.default_rng(seed), seconds))

    yield from _of_pairs(f"simulated, {seconds // 60} min", drawn, pairs)


def _of_pairs(title: str, drawn: Callable[[int], Distribution], pairs: int) -> Iterator[Figure]:
    """Give the figures of pairs of equal runs, and of pairs whose second run is slower."""
    by_share: dict[str, list[Difference]] = {name: [] for name in SHARES}
    for pair in range(pairs):
        runs = [drawn(2 * pair), drawn(2 * pair + 1)]
        for name, share in SHARES.items():
            sides = [estimate(f"{side}", run, share) for side, run in enumerate(runs)]
            by_share[name].append(difference(sides[:1], sides[1:], RUN_NOISE))
    for ratio in RATIOS:
        for name, several in by_share.items():
            slower = [replace(one, log_ratio=one.log_ratio + math.log(ratio)) for one in several]
            row = f"{title}, {name} {100 * (ratio - 1):+.0f} %"
            yield from _figures(row, slower, None if ratio == 1.0 else ratio)
    for margin in MARGINS:
        yield _whole(f"{title}, all three equal, margin {100 * margin:g} %", by_share, margin)


def _whole(title: str, by_share: dict[str, list[Difference]], margin: float) -> Figure:
    """Return the verdicts on runs, each of all its quantiles together."""
    pairs = zip(*by_share.values(), strict=True)
    found = [overall([one.verdict(margin, ERROR_RATE) for one in several]) for several in pairs]
    return _counted(title, found, None, None)


def _merged(run: Distribution) -> Distribution:
    """Return a run with as many intervals as a comparison has at most."""
    length = -(-run.counts.shape[0] // MOST_INTERVALS)
    whole = run.counts.shape[0] // length
    counts = run.counts[: whole * length].reshape(whole, length, -1).sum(axis=1)
    return Distribution(counts, run.first_band, length)


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


def _recorded_run(path: Path, pairs: int, seconds: int, parts: Sequence[str]) -> Iterator[Figure]:
    """Give figures of runs that are made of a recorded run's quiet seconds, and of windows of it."""
    folder = RunFolder(path)
    recorded = read_recorded(folder, read_phases(folder.phases), is_cached=False)
    run = ComparedRun(path, path.name, path.name, 0, recorded, {}, ())
    quiet = np.isin(recorded.seconds, _quiet(folder, recorded.seconds))
    for latency in recorded.cells:
        whole = run.distribution(latency, most=10**9)
        if whole is None:
            continue
        pool = whole.counts[quiet[: whole.counts.shape[0]]]
        title = f"{path.name}, {latency}, {pool.shape[0]} quiet s"
        if "made" in parts:

            def drawn(
                seed: int,
                pool: NDArray[np.float64] = pool,
                first_band: int = whole.first_band,
            ) -> Distribution:
                rng = np.random.default_rng(seed)
                starts = rng.integers(0, pool.shape[0], seconds // _BLOCK_SECONDS)
                at = (starts[:, None] + np.arange(_BLOCK_SECONDS)).ravel() % pool.shape[0]
                return _merged(Distribution(pool[at], first_band, 1))

            yield from _of_pairs(f"made of {title}, {seconds // 60} min", drawn, pairs)
        if "windows" in parts:

            def window(
                number: int,
                pool: NDArray[np.float64] = pool,
                first_band: int = whole.first_band,
            ) -> Distribution:
                parts = np.array_split(pool, 2 * pairs)
                return Distribution(parts[number], first_band, 1)

            yield from _of_pairs(f"windows of {title}", window, pairs)


def _quiet(folder: RunFolder, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the seconds without an incident of the report, and without a fault that was injected."""
    start_ns, spans = read_run(folder).start_wall_ns, []
    if folder.summary.exists():
        for one in json_text.loads(folder.summary.read_text())["findings"]:
            at = datetime.strptime(one["at"], _ISO).replace(tzinfo=UTC)
            at_ns = int(at.timestamp()) * SECOND_NS
            spans.append(
                (at_ns, at_ns + one.get("seconds", 0) * SECOND_NS)
            )  # older reports have none
    if folder.faults.exists():
        for line in folder.faults.read_text().splitlines():
            body = json_text.loads(line)
            if "lifted_wall_ns" in body:
                spans.append((body["onset_wall_ns"], body["lifted_wall_ns"]))
    quiet = np.ones(seconds.size, dtype=bool)
    for begin_ns, end_ns in spans:
        begin, end = ((ns - start_ns) // SECOND_NS for ns in (begin_ns, end_ns))
        quiet &= (seconds < begin - _BLOCK_SECONDS) | (seconds > end + _AFTER_SECONDS)
    return seconds[quiet]


def _dealt(size: int, of_side: Callable[[NDArray[np.int64]], Estimate]) -> list[Difference]:
    """Return the differences of pairs of sides to which blocks of seconds are dealt at random."""
    blocks = np.array_split(np.arange(size), max(2, size // _BLOCK_SECONDS))
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


def trends_named(ratio: float) -> int:
    """Return how many of `TRENDS` trends name the run of their one change and no other; ratio 1: none."""
    least, named = math.log1p(Settings().margin), 0
    for seed in range(TRENDS):
        rng = np.random.default_rng(seed)
        changed = int(rng.integers(5, TREND_RUNS - 5))
        values = rng.normal(0.0, TREND_NOISE, TREND_RUNS)
        values[changed:] += math.log(ratio)
        places = [place for place, _, _ in level_changes(values.tolist(), least, ERROR_RATE)]
        named += places == ([changed] if ratio > 1.0 else [])
    return named


def durability_warning() -> str:
    """Return the first warning of the comparison of a run at durability 1 with one at 2."""
    with tempfile.TemporaryDirectory(prefix="soak-bench-compare-") as place:
        paths = [
            write_compared_run(
                Path(place) / f"level-{level}", ComparedShape(level=level, day=level)
            )
            for level in (1, 2)
        ]
        return compare_runs(paths, Settings(), is_cached=False)[0].warnings[0]


def _figures(
    title: str, several: Sequence[Difference], ratio: float | None = None
) -> Iterator[Figure]:
    for margin in MARGINS:
        yield _figure(f"{title}, margin {100 * margin:g} %", several, ratio, margin)


def _figure(
    title: str, several: Sequence[Difference], ratio: float | None, margin: float
) -> Figure:
    stated = [one.power(ratio, margin, ERROR_RATE) for one in several] if ratio else []
    widths = [
        math.log(one.interval()[1] / one.interval()[0]) / 2
        for one in several
        if math.isfinite(one.error)
    ]
    return _counted(
        title,
        [one.verdict(margin, ERROR_RATE) for one in several],
        round(float(np.mean(stated)), 3) if stated else None,
        round(100.0 * float(np.median(widths)), 1) if widths else None,
    )


def _counted(
    title: str, found: Sequence[Verdict], power: float | None, half: float | None
) -> Figure:
    counts = Counter(found)
    return Figure(
        figure=title,
        pairs=len(found),
        same=counts["same"],
        worse=counts["worse"],
        better=counts["better"],
        cannot_tell=counts["cannot tell"],
        stated_power=power,
        half_interval_percent=half,
    )


def _table(found: Sequence[Figure]) -> Table:
    shown = Table(title="soak compare", title_justify="left")
    shown.add_column("pairs of runs", no_wrap=True)
    for name in ("pairs", "same", "worse", "better", "cannot tell", "stated power", "+- %"):
        shown.add_column(name, justify="right")
    for one in found:
        stated = "" if one.stated_power is None else f"{one.stated_power:.2f}"
        counts = (one.pairs, one.same, one.worse, one.better, one.cannot_tell)
        half = "" if one.half_interval_percent is None else f"{one.half_interval_percent:g}"
        shown.add_row(one.figure, *map(str, counts), stated, half)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
