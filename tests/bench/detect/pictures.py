"""Draws the pictures of docs/detection.md: what looking back finds in a recorded series, and where it fails.

python -m tests.bench.detect.pictures [--into docs]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from detectors.segmentation import Config, detect
from soak.core.model import Change, Series
from tests.bench.detect import recorded
from tests.bench.detect.noises import autocorrelated

INTO = Path("docs")
_RECORDED = "kafka_publish_p99_seconds.csv.gz"
_HOUR = 3600
_ANY_STEP = Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
_TENTH = Config(smallest_step_ratio=1.1, smallest_step_seconds=0.0)


def draw_recorded(series: Series, path: Path) -> None:
    """Draw a series with its steps, each with its interval."""
    drawing = Figure(figsize=(9.0, 3.2), layout="constrained")
    axes = drawing.subplots()
    _draw(axes, series, detect(series, Config()))
    axes.set(yscale="log", xlabel="second", ylabel="p99, ms")
    _save(drawing, path)


def draw_failing(path: Path) -> None:
    """Draw an hour of noise that wanders, and a rise too short for a drift: both are cut into steps."""
    rng = np.random.default_rng(1)
    wanders = 0.05 * autocorrelated(0.95)(rng, _HOUR, 1)[:, 0]
    rise = np.clip((np.arange(_HOUR) - 1200.0) / 900.0, 0.0, 1.0) * np.log10(2.0)
    rises = 0.02 * rng.standard_normal(_HOUR) + rise
    cases = (
        (wanders, _ANY_STEP, "AR(1) 0.95, smallest step 0.5 %: nothing happens"),
        (rises, _TENTH, "a rise to twice the level within 15 min: stairs, and no drift"),
    )
    drawing = Figure(figsize=(9.0, 4.6), layout="constrained")
    for axes, (y, config, title) in zip(drawing.subplots(2, sharex=True), cases, strict=True):
        series = Series("p99", np.arange(_HOUR), 0.01 * 10.0**y)
        _draw(axes, series, detect(series, config))
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="second", ylabel="ms")
    _save(drawing, path)


def _draw(axes: Axes, series: Series, changes: Sequence[Change]) -> None:
    axes.plot(series.k, 1e3 * series.values, color="0.6", linewidth=0.6)
    for change in changes:
        axes.axvspan(*change.interval, color="tab:orange", alpha=0.3, linewidth=0.0)
        axes.axvline(change.onset_k, color="tab:red", linewidth=1.0)


def _save(drawing: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=INTO)
    args = parser.parse_args()
    draw_recorded(recorded.series(recorded.FOLDER / _RECORDED), args.into / "offline-recorded.png")
    draw_failing(args.into / "offline-failing.png")


if __name__ == "__main__":
    main()
