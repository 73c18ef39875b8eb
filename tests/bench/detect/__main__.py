"""`make bench-detect`: how good the detectors are, part by part, beside what is asked for or beside peers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path

from rich.console import Console

from tests.bench.detect import (
    attribution,
    coverage,
    drains,
    extension,
    kinds_alarms,
    looking_back,
    offline,
    one_cut,
    online,
)
from tests.bench.detect.noises import NOISES
from tests.bench.detect.online import FULL, QUICK, Size, figure
from tests.bench.figures import Figure, Goal, table, write

SHARED = Path("../shared/data")
RESULT = Path("build/bench/detect.json")
PICTURE = Path("build/bench/extension.svg")
_TABLE_WIDTH = 140
_HELD = 0.95  # of the onsets, by their intervals
_STEPS_A_DRAIN = 10  # a result of a benchmark costs as much as so many series with a step
_SOURCES = 40  # series of other parts that cost as much as a source of all kinds
_MOST_ROWS, _MOST_SERIES = 14_400, 500  # of a noise and rate, for the lines

Part = Callable[[Size, Path], list[Figure]]


def on_traces(_: Size, shared: Path) -> list[Figure]:
    return online.on_traces(shared) + looking_back.on_traces(shared)


def on_attribution(size: Size, _: Path) -> list[Figure]:
    found = []
    for name, variant in attribution.VARIANTS.items():
        rates = attribution.rates(list(attribution.plain(variant, size.seeds)))
        found.append(figure(f"{name}: first cause right", rates.right, 0.90, Goal(ratio_least=1.0)))
        found.append(figure(f"{name}: first cause wrong", rates.wrong, 0.05, Goal(ratio_most=1.0)))
    return found


def on_offline(size: Size, _: Path) -> list[Figure]:
    return offline.alone(size.rows) + offline.beside(size.rows // 20, size.rounds)


def on_coverage(size: Size, _: Path) -> list[Figure]:
    many = coverage.measure(-(-size.steps // len(NOISES)), seed=9)
    whole = coverage.together(many)
    error, allowed = coverage.median_error(whole)
    held = Goal(ratio_least=0.93 / _HELD, ratio_most=0.97 / _HELD)
    return [
        *(
            figure(f"onset within its interval: {one.noise}", one.share, _HELD, Goal())
            for one in many
        ),
        figure(f"onset within its interval: {whole.steps} steps", whole.share, _HELD, held),
        figure("steps found", len(whole.errors), whole.steps, Goal()),
        figure("rows beside the onset, median", error, allowed, Goal(ratio_most=1.0)),
    ]


def on_drains(size: Size, _: Path) -> list[Figure]:
    one = drains.measure(size.steps // _STEPS_A_DRAIN, seed=11)
    kept = Goal(ratio_least=1.0)
    return [
        figure("drains begun within a sample of a finding", one.found, one.runs, kept),
        figure("that finding's first cause is the catch-up read", one.named, one.found, kept),
        figure("runs with more than one other finding", one.crowded, nan, Goal(ours_most=0.0)),
    ]


def on_noises(size: Size, _: Path) -> list[Figure]:
    return online.on_noises(size) + online.beside_naive(size)


def on_extension(size: Size, _: Path) -> list[Figure]:
    found = [
        extension.measure(noise, min(size.rows, _MOST_ROWS), min(size.series, _MOST_SERIES), seed=7)
        for noise in extension.every_noise()
    ]
    extension.draw(found, PICTURE)
    return extension.figures(found)


def on_kinds(size: Size, _: Path) -> list[Figure]:
    sources = max(1, size.series // _SOURCES)
    return [
        figure(
            f"{one.noise}, one in 1 h: {one.kind}",
            one.confirmed,
            one.allowed,
            Goal(ratio_most=2.0),
        )
        for one in kinds_alarms.measure(size.rows, sources, seed=8)
    ]


SHORT: Mapping[str, Part] = {
    "traces": on_traces,
    "injected": lambda size, shared: online.on_steps(shared, size),
    "delay": lambda size, _: online.on_delays(size),
    "attribution": on_attribution,
    "offline": on_offline,
    "coverage": on_coverage,
    "drains": on_drains,
    "recorded": lambda size, _: online.on_recorded(size),
    "speed": lambda size, _: online.on_speed(size),
}
LONG: Mapping[str, Part] = {
    "noise": on_noises,
    "extension": on_extension,
    "kinds": on_kinds,
    "panels": lambda size, _: online.on_panels(size),
}


def main() -> None:
    parts = {**SHORT, **LONG}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=parts, help="one part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it works")
    parser.add_argument("--all", action="store_true", help="the long parts too: hours")
    parser.add_argument("--series", type=int, metavar="N", help="series of a noise, instead of 800")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of labelled traces")
    parser.add_argument("--json", type=Path, default=RESULT)
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    if args.series is not None:
        size = replace(size, series=args.series)
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    found = []
    for name in args.part or (parts if args.all else SHORT):
        figures = parts[name](size, args.shared)
        shown = table(name, figures) if figures else f"{name}: skipped, no traces in {args.shared}"
        console.print(shown)
        found += figures
    if not one_cut.is_there():
        console.print(one_cut.ABSENT)
    write(args.json, found)


if __name__ == "__main__":
    main()
