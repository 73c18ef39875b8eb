"""`make bench-detect`: how good the detectors are, part by part, beside other methods on the same numbers."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench import attribution
from tests.bench.detect import (
    cost,
    drains,
    false_alarms,
    feed,
    lab_drains,
    offline,
    parts,
    peers,
    steps,
    traces,
)
from tests.bench.detect.feed import Constants
from tests.bench.detect.parts import FULL, OURS, QUICK, Measurement, Part, Run, Size

SHARED = Path("../shared/data")
RESULT = Path("build/bench/detect.json")
_TABLE_WIDTH = 160
_FACTORS = (0.5, 2.0)
_SENSITIVITY = replace(QUICK, series=10, pieces=300, delays=20)  # all figures in half a minute
_SEEDS = 50  # panels of a cause
_QUICK_SEEDS = 2


def _attribution(run: Run) -> list[Measurement]:
    seeds = _QUICK_SEEDS if run.size == QUICK else _SEEDS
    found = []
    for name, variant in attribution.VARIANTS.items():
        rates = attribution.rates(list(attribution.plain(variant, seeds)))
        found += [
            Measurement(
                figure=f"{name}: first cause right", method=OURS, value=rates.right, at_least=0.90
            ),
            Measurement(
                figure=f"{name}: first cause wrong", method=OURS, value=rates.wrong, at_most=0.05
            ),
        ]
    return found


PARTS: Mapping[str, Part] = {
    "traces": traces.measure,
    "steps": steps.measure,
    "delay": steps.measure_delays,
    "noise": false_alarms.measure,
    "kinds": false_alarms.measure_kinds,
    "panels": false_alarms.measure_panels,
    "quiet": offline.measure,
    "power": offline.measure_power,
    "coverage": offline.measure_coverage,
    "drains": drains.measure,
    "lab_drains": lab_drains.measure,
    "cost": cost.measure,
    "attribution": _attribution,
}
ONLINE: Mapping[str, Part] = {
    "traces": traces.measure_online,
    "steps": steps.measure_online,
    "delay": steps.measure_delays,
    "noise": false_alarms.measure_hourly,
}
"""Parts that the constants of the online detector are tried on: what needs no more than seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timed:
    """What a part measured, and how long it took."""

    part: str
    found: list[Measurement]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "seconds": round(self.seconds, 1),
            "measurements": parts.to_json(self.found),
        }


def run_parts(
    chosen: Mapping[str, Part], options: argparse.Namespace, constants: Constants | None = None
) -> Iterator[Timed]:
    """Yield each part when it is done, with these constants of the online detector."""
    with parts.processes(options.jobs, constants) as pool:
        run = Run(
            size=_size(options),
            shared=options.shared,
            references=options.reference,
            are_peers_shown=not options.alone,
            pool=pool,
        )
        for name, part in chosen.items():
            begin = time.perf_counter()
            found = part(run)
            yield Timed(name, found, time.perf_counter() - begin)


def _chosen(some: Mapping[str, Part], options: argparse.Namespace) -> dict[str, Part]:
    return {name: part for name, part in some.items() if name in (options.part or some)}


def _size(options: argparse.Namespace) -> Size:
    size = _SENSITIVITY if options.sensitivity else QUICK if options.quick else FULL
    return size if options.series is None else replace(size, series=options.series)


def variants(constants: Constants) -> Iterator[tuple[str, Constants, Constants]]:
    """Yield the name of each of the constants, and the constants with it halved and doubled."""
    for field in dataclasses.fields(constants):
        low, high = (factor * getattr(constants, field.name) for factor in _FACTORS)
        yield (
            field.name,
            replace(constants, **{field.name: low}),
            replace(constants, **{field.name: high}),
        )


def sensitivity(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Halve and double each constant of the online detector, print what changes, and return every figure."""
    constants = feed.constants()
    chosen = _chosen(ONLINE, options)
    base = [one for part in run_parts(chosen, options) for one in part.found]
    body = [{"constant": "", "factor": 1.0, "measurements": parts.to_json(base)}]
    for name, *changed in variants(constants):
        if name not in (options.constant or name):
            continue
        found = [
            [one for part in run_parts(chosen, options, each) for one in part.found]
            for each in changed
        ]
        console.print(parts.sensitivity_table(name, base, *found))
        body += [
            {"constant": name, "factor": factor, "measurements": parts.to_json(each)}
            for factor, each in zip(_FACTORS, found, strict=True)
        ]
    return body


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes: minutes, not hours")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--series", type=int, help="series of each generated noise")
    parser.add_argument("--alone", action="store_true", help="leave all other methods out")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of labelled traces")
    parser.add_argument("--reference", type=Path, help="folder of reference programs")
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="halve and double each constant of the online detector; small sizes, ours alone",
    )
    parser.add_argument(
        "--constant", action="append", help="with --sensitivity, one constant; may be repeated"
    )
    parser.add_argument("--json", type=Path, default=RESULT)
    return parser


def main() -> None:
    options = _parser().parse_args()
    if options.reference is not None and not options.reference.is_dir():
        options.reference = None
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    if options.sensitivity:
        options.alone = True
        parts.write(options.json, sensitivity(options, console))
        return
    if not options.alone and not peers.has_otava():
        console.print(peers.ABSENT)
    done = []
    for one in run_parts(_chosen(PARTS, options), options):
        title = f"{one.part} ({one.seconds:.0f} s)"
        console.print(parts.table(title, one.found) if one.found else f"{title}: no data")
        done.append(one.to_json())
        parts.write(options.json, done)


if __name__ == "__main__":
    main()
