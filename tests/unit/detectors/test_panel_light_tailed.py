"""Noise known for hardly ever bursting is clipped less, and what it shows is believed sooner."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors import _spread
from detectors._spread import Spread
from detectors.level_shift import Config, Panel
from soak.core.model import Column
from tests.bench.detect.noises import autocorrelated, independent, spikes

KNOWN, SERIES = 1800, 20
STEP, CORRELATED_STEP = 2.0, 4.0  # both of 2 long-run sd
STALLS, STALL_ROWS = 200, 5
CONFIG = Config(smallest_step_ratio=1.000001, smallest_step_seconds=0.0)


@lru_cache(maxsize=1)
def waits() -> dict[str, list[int]]:
    """Return after how many rows each series is confirmed as changed, of those that are, by their noise."""
    rng, rows = np.random.default_rng(4), KNOWN + 60
    tables = {
        "independent": independent(rng, rows, SERIES),
        "correlated": autocorrelated(0.6)(rng, rows, SERIES),
        "bursting": spikes(rng, rows, SERIES),
        "stalled": independent(rng, rows, STALLS),
    }
    for name, step in (("independent", STEP), ("correlated", CORRELATED_STEP), ("bursting", STEP)):
        tables[name][KNOWN:] += step
    tables["stalled"][KNOWN : KNOWN + STALL_ROWS] += 30.0
    columns = [
        Column(name, (("i", str(i)),))
        for name, table in tables.items()
        for i in range(table.shape[1])
    ]
    found: dict[str, list[int]] = {name: [] for name in tables}
    panel = Panel(CONFIG)
    for k, row in enumerate(1000.0 + np.hstack(list(tables.values()))):
        for change in panel.update("s", columns, k, row, True, "soak"):
            if change.state == "confirmed":
                found[change.series.removeprefix("s|").partition("{")[0]].append(k - KNOWN + 1)
    return found


@pytest.mark.parametrize(("noise", "most"), [("independent", 15.0), ("correlated", 17.0)])
@pytest.mark.long
def test_a_step_of_two_long_run_sd_is_seen_in_a_quarter_of_a_minute(
    noise: str, most: float
) -> None:
    """The least that any method needs is 10 rows; clipped as narrowly as noise that bursts it takes 20."""
    assert len(waits()[noise]) == SERIES
    assert np.mean(waits()[noise]) <= most


@pytest.mark.long
def test_noise_that_bursts_is_not_believed_as_soon() -> None:
    assert np.mean(waits()["bursting"]) >= 1.3 * np.mean(waits()["independent"])


@pytest.mark.long
def test_a_stall_of_five_seconds_is_no_step_where_noise_is_calm_either() -> None:
    assert waits()["stalled"] == []


def spread_of(rows: int, far: int) -> Spread:
    """Return what is learnt of this many rows, thirty at a time, so many of them far off in the first."""
    spread, z = Spread.empty(1), np.zeros((30, 1))
    z[:far] = 9.0
    for _ in range(rows // 30):
        _spread.learn_far(spread, z)
        spread.seen[0] += 30
        z[:] = 0.0
    return spread


@pytest.mark.parametrize(
    ("rows", "far", "calm"),
    [(0, 0, 0.0), (300, 0, 0.0), (900, 0, 0.65), (1800, 0, 1.0), (1800, 10, 0.0)],
)
def test_noise_counts_as_calm_by_the_rows_that_showed_it(rows: int, far: int, calm: float) -> None:
    none: NDArray[np.float64] = np.zeros(1)

    assert _spread.calm(spread_of(rows, far), none)[0] == pytest.approx(calm, abs=0.1)


def test_noise_below_the_smallest_step_is_not_known_to_be_calm() -> None:
    assert _spread.calm(spread_of(3600, 0), np.array([2.0]))[0] == 0.0
