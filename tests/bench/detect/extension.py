"""False alarms at rates that can be counted, and the line from there to one in 30 days over 100 series.

Of each generated noise, and of what was recorded of a lab Kafka and a lab Pulsar in blocks of two minutes and
more, the confirmed alarms of four rates are counted, each on series of its own. Nothing but the threshold
holds an alarm back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray

from detectors.extrapolation import Ratio, Rung, extended
from detectors.level_shift import Config, Panel
from detectors.quiet_rows import Quiet, drawn
from soak.core.model import Column
from soak.core.units import SECOND_NS
from tests.bench.detect import recorded
from tests.bench.detect.noises import NOISES, Make
from tests.bench.figures import Figure, Goal

RATES = (300, 1_200, 4_800, 19_200)
SET_SECONDS = 30 * 86_400 * 100
WITHIN_TWO = Goal(ratio_least=0.5, ratio_most=2.0)
_FAR = 1000.0  # the level of generated noise, so that no ratio of levels is odd
_LEARNT = 120


@dataclass(frozen=True, slots=True)
class Noise:
    """A source of series in which nothing happens, and their unit."""

    name: str
    unit: str
    make: Make


@dataclass(frozen=True, slots=True)
class Extended:
    """What was counted of one noise, and what it comes to at the set rate."""

    noise: str
    rungs: tuple[Rung, ...]
    ratio: Ratio


def every_noise() -> Iterator[Noise]:
    for name, make in NOISES.items():
        yield Noise(name, "", partial(_far, make))
    for broker in ("kafka", "pulsar"):
        paths = sorted(recorded.FOLDER.glob(broker + recorded.SECONDS))
        many = [recorded.read(path) for path in paths]
        if many:
            yield Noise(f"recorded, {broker}", "seconds", partial(_mixed, many))


def every_recorded() -> Iterator[Noise]:
    """Yield each recorded series in blocks of its own."""
    for path in sorted(recorded.FOLDER.glob("*.csv.gz")):
        one = recorded.read(path)
        yield Noise(path.name.partition(".")[0], one.unit, partial(_mixed, [one]))


def measure(noise: Noise, rows: int, series: int, seed: int) -> Extended:
    """Count at each rate and draw the line; `rows` seconds of `series` series a rate."""
    rungs = tuple(
        counted(noise, every, rows, series, np.random.default_rng([seed, every])) for every in RATES
    )
    return Extended(noise.name, rungs, extended(rungs, SET_SECONDS))


def figures(found: Sequence[Extended]) -> list[Figure]:
    """Return a line a noise; `spread` holds 95 % of what the counts leave open."""
    return [
        Figure(
            f"{one.noise}: one in 30 days over 100",
            one.ratio.middle,
            1.0,
            one.ratio.middle,
            (one.ratio.low, one.ratio.high),
            WITHIN_TWO.text,
            WITHIN_TWO.holds(one.ratio.middle, one.ratio.middle),
        )
        for one in found
    ]


def draw(found: Sequence[Extended], path: Path) -> None:
    """Draw alarms over those allowed against the time between two that is set, and the line of each noise."""
    drawing = Drawing(figsize=(8.0, 5.0), layout="constrained")
    axes = drawing.subplots()
    at = np.geomspace(RATES[0], SET_SECONDS, 12)
    for number, one in enumerate(found):
        color, dashes = f"C{number % 10}", ("-", "--")[number // 10 % 2]
        counted = [(rung.allowed_seconds, rung.confirmed / rung.allowed) for rung in one.rungs]
        axes.plot(*zip(*counted, strict=True), "o", color=color, markersize=4)
        line = [extended(one.rungs, float(seconds)).middle for seconds in at]
        axes.plot(at, line, label=one.noise, linewidth=1.2, color=color, linestyle=dashes)
    axes.axhspan(0.5, 2.0, color="0.92", zorder=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="seconds between two false alarms of a series, as set",
        ylabel="confirmed / allowed",
    )
    axes.legend(fontsize=7, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Date": None})


def counted(noise: Noise, every: int, rows: int, series: int, rng: np.random.Generator) -> Rung:
    """Count at one in `every` seconds, after a baseline, in `rows` seconds of `series` series."""
    config = Config(
        false_alarms=every * SECOND_NS,
        panel_size=1,
        smallest_step_ratio=1.000001,
        smallest_step_seconds=0.0,
    )
    columns = [Column("x", (("i", str(i)),), noise.unit) for i in range(series)]
    panel, states = Panel(config), []
    for row, values in enumerate(noise.make(rng, _LEARNT + rows, series)):
        states += [one.state for one in panel.update("s", columns, row, values, True, "soak")]
    seconds = float(rows * series)
    return Rung(every, seconds, states.count("warning"), states.count("confirmed"))


def _far(make: Make, rng: np.random.Generator, rows: int, series: int) -> NDArray[np.float64]:
    return _FAR + make(rng, rows, series)


def _mixed(
    many: Sequence[Quiet], rng: np.random.Generator, rows: int, series: int
) -> NDArray[np.float64]:
    """Return series of blocks, of each recorded one about as many."""
    copies = -(-series // len(many))
    return np.hstack([drawn(rng, one, rows, copies) for one in many])[:, :series]
