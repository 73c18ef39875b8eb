"""Draw the pictures of docs/explanation/detection.md: what the offline analysis finds and misses.

python -m tests.bench.detection_pictures [--into docs/images]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tests.bench.detect import feed, noises

INTO = Path("docs/images")
_RECORDED = "kafka_publish_p99"
_HOUR = 3600


def draw_recorded(path: Path) -> None:
    """Draw a recorded series with its steps, each with its interval."""
    (series,) = (one.y for one in noises.recorded() if one.name == _RECORDED)
    drawing = Figure(figsize=(9.0, 3.2), layout="constrained")
    axes = drawing.subplots()
    _draw(axes, series)
    axes.set(yscale="log", xlabel="second", ylabel="p99, ms")
    _save(drawing, path)


def draw_limits(path: Path) -> None:
    """Draw an hour of strongly autocorrelated noise, and a rise too short for a drift."""
    rng = np.random.default_rng(1)
    noise = 0.05 * noises.autocorrelated(0.95)(rng, _HOUR, 1)[:, 0]
    rise = np.clip((np.arange(_HOUR) - 1200.0) / 900.0, 0.0, 1.0) * np.log10(2.0)
    cases = (
        (noise, "AR(1) 0.95: nothing happens"),
        (0.02 * rng.standard_normal(_HOUR) + rise, "a rise to twice the level within 15 min"),
    )
    drawing = Figure(figsize=(9.0, 4.6), layout="constrained")
    for axes, (y, title) in zip(drawing.subplots(2, sharex=True), cases, strict=True):
        _draw(axes, y - 2.0)
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="second", ylabel="ms")
    _save(drawing, path)


def _draw(axes: Axes, y: NDArray[np.float64]) -> None:
    axes.plot(1e3 * 10.0**y, color="0.6", linewidth=0.6)
    for cut in feed.offline_cuts(y):
        axes.axvspan(cut.first, cut.last, color="tab:orange", alpha=0.3, linewidth=0.0)
        axes.axvline(cut.row, color="tab:red", linewidth=1.0)


def _save(drawing: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=INTO)
    args = parser.parse_args()
    draw_recorded(args.into / "offline-recorded.png")
    draw_limits(args.into / "offline-failing.png")


if __name__ == "__main__":
    main()
