"""`make bench-spark`: what the report of a long run costs: time, CPU and memory of all its processes.

The runs are written here: 36 hours of 60 and of 500 series with five incidents, 10,000 deletions and a gap.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from tests.support.paths import ROOT
from tests.support.spark.long_run import LongShape, write_long_run

RESULT = Path("build/bench/spark.json")
_HOUR = 3600
_POLL_SECONDS = 0.5
_GOALS = {60: {"cold": 40.0}, 500: {"cold": 150.0, "cached": 60.0}}
_MOST_MIB = 1500.0
_LIMIT_SECONDS = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure; nothing else makes this report, so the peer is the goal."""

    figure: str
    ours: float
    peer: float
    ratio: float
    spread: str
    goal: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    cpu_seconds: float
    pss_mib: float


def main() -> int:
    """Measure, print the table, and write the result."""
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two hours instead of 36")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/runs"), help="of the runs")
    parser.add_argument("--series", type=int, action="append", choices=sorted(_GOALS))
    arguments = parser.parse_args()
    hours, figures = 2 if arguments.quick else 36, []
    for series in arguments.series or sorted(_GOALS):
        folder = arguments.folder / f"{hours}h-{series}"
        if not folder.exists():
            write_long_run(folder, _shape(hours, series))
        for case in ("cold", "cached"):
            if case == "cold":
                _forget(folder)
            figures += _figures(
                f"report, {hours} h x {series} series, {case}", report_cost(folder), series, case
            )
    _print(figures)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    return 0


def _shape(hours: int, series: int) -> LongShape:
    seconds = hours * _HOUR
    steps = tuple((seconds * at // 6, seconds // 20, 3.0) for at in range(1, 6))
    gap = range(seconds // 3, seconds // 3 + 90)
    return LongShape(seconds=seconds, series=series, deletions=10_000, steps=steps, gap=gap)


def _forget(folder: Path) -> None:
    for path in (folder / "digests").glob("*/*"):
        path.unlink()


def report_cost(folder: Path) -> Cost:
    """Run `soak report`, adding up what its processes have used when they were last seen; return that."""
    command = [sys.executable, "-m", "soak.cli.main", "report", str(folder)]
    began, peak = time.monotonic(), 0.0
    cpu: dict[int, float] = {}
    process = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if time.monotonic() - began > _LIMIT_SECONDS:
            process.kill()
        peak = max(peak, _pss_mib(process, cpu))
        with suppress(psutil.TimeoutExpired):
            process.wait(_POLL_SECONDS)
    return Cost(time.monotonic() - began, sum(cpu.values()), peak)


def _pss_mib(process: psutil.Process, cpu: dict[int, float]) -> float:
    total = 0.0
    with suppress(psutil.Error):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += one.memory_full_info().pss / 2**20
                cpu[one.pid] = sum(one.cpu_times()[:2])
    return total


def _figures(name: str, cost: Cost, series: int, case: str) -> list[Figure]:
    found = [_figure(f"{name}: CPU seconds", cost.cpu_seconds, None)]
    found.append(_figure(f"{name}: seconds", cost.seconds, _GOALS[series].get(case)))
    return [*found, _figure(f"{name}: MiB (PSS)", cost.pss_mib, _MOST_MIB)]


def _figure(name: str, ours: float, most: float | None) -> Figure:
    peer = ours if most is None else most
    goal = "" if most is None else f"ours <= {most:g}"
    holds = most is None or ours <= most
    return Figure(
        figure=name,
        ours=round(ours, 1),
        peer=peer,
        ratio=round(ours / peer, 2),
        spread="",
        goal=goal,
        holds=holds,
    )


def _print(figures: list[Figure]) -> None:
    table = Table(title="spark")
    for name in ("figure", "ours", "goal", "holds"):
        table.add_column(name)
    for one in figures:
        table.add_row(
            one.figure,
            f"{one.ours:g}",
            one.goal,
            "" if not one.goal else "yes" if one.holds else "no",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
