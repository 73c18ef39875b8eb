"""What lasts only for a while: bursts, and rises with their return."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors import bursts
from detectors.episodes import Bounds, joined
from soak.core.model import Change, Series

BOUNDS = Bounds(together=2, smallest_step_ratio=1.5)


def step(k: int, before: float, after: float, series: str = "p99") -> Change:
    return Change(series, k, k, (k, k), before, after, "confirmed", 0.99)


def episodes(*steps: tuple[Change, ...]) -> list[tuple[int, float, float, int | None]]:
    """Return onset, levels and end of the clearest change of each episode."""
    found = [changes[0] for changes in joined(steps, BOUNDS)]
    return [(one.onset_k, one.before, one.after, one.resolved_k) for one in found]


def test_a_rise_that_comes_back_is_one_episode() -> None:
    assert episodes((step(10, 4.0, 40.0),), (step(20, 40.0, 5.0),)) == [(10, 4.0, 40.0, 20)]


def test_a_return_in_stairs_is_one_return() -> None:
    down = [
        (step(k, before, after),) for k, before, after in [(20, 40, 20), (30, 20, 9), (40, 9, 4)]
    ]

    assert episodes((step(10, 4.0, 40.0),), *down) == [(10, 4.0, 40.0, 40)]


def test_it_is_gone_when_the_last_series_is_back() -> None:
    up = (step(10, 4.0, 40.0), step(10, 1.0, 3.0, "p50"))

    assert episodes(up, (step(20, 40.0, 4.0),), (step(27, 3.0, 1.0, "p50"),)) == [
        (10, 4.0, 40.0, 27)
    ]


def test_a_further_rise_is_an_episode_of_its_own() -> None:
    assert episodes((step(10, 4.0, 8.0),), (step(30, 8.0, 40.0),)) == [
        (10, 4.0, 8.0, 30),
        (30, 8.0, 40.0, None),
    ]


def test_changes_close_together_in_one_direction_are_one() -> None:
    up = [(step(10, 4.0, 8.0),), (step(11, 8.0, 40.0), step(11, 1.0, 3.0, "p50"))]

    assert [[(c.series, c.before, c.after) for c in changes] for changes in joined(up, BOUNDS)] == [
        [("p99", 4.0, 40.0), ("p50", 1.0, 3.0)]
    ]


def test_a_larger_rise_beside_a_return_is_not_lost() -> None:
    """Publish latency comes back from below when end-to-end latency leaves."""
    found = episodes(
        (step(10, 2.0, 1.0, "publish"),),
        (step(20, 1.0, 2.0, "publish"), step(20, 3.0, 9000.0, "end to end")),
    )

    assert found == [(10, 2.0, 1.0, 20), (20, 3.0, 9000.0, None)]


def burst_edges(y: NDArray[np.float64], unit: float = 1.0) -> list[int]:
    series = Series("p50", np.arange(y.size), unit * 10.0**y)
    return [edge.onset_k for edge in bursts.detect(series, bursts.Config())]


@given(
    seed=st.integers(0, 2**32 - 1),
    at=st.integers(1, 80),
    rows=st.integers(1, 6),
    unit=st.sampled_from([1e-2, 1.0, 1e3]),
)
def test_a_burst_has_two_edges_in_any_unit(seed: int, at: int, rows: int, unit: float) -> None:
    y = np.random.default_rng(seed).normal(0.0, 0.05, 100)
    y[at : at + rows] += 3.0

    assert burst_edges(y, unit) == [at, at + rows]


@pytest.mark.parametrize("rows", [7, 30, 50])
def test_what_lasts_is_no_burst(rows: int) -> None:
    y = np.random.default_rng(1).normal(0.0, 0.05, 100)
    y[50 : 50 + rows] += 3.0

    assert burst_edges(y) == []


def test_a_level_just_far_enough_is_no_row_of_bursts() -> None:
    """Ten rows of four times the level: some lie just above the bound, those between just below."""
    for seed in range(20):
        y = np.random.default_rng(seed).normal(0.0, 0.05, 100)
        y[50:60] += np.log10(4.0)

        assert burst_edges(y) == []


def test_noise_has_no_bursts() -> None:
    """200 series with heavy tails."""
    found = [
        burst_edges(0.03 * np.random.default_rng(seed).standard_t(5, 100)) for seed in range(200)
    ]

    assert sum(map(len, found)) == 0


def test_a_burst_in_noise_of_a_decade_is_found_alone() -> None:
    """Among values that are often ten times their level, only one that is a thousand times it stands out."""
    rng = np.random.default_rng(1)
    y = rng.normal(0.0, 0.1, 90) + np.where(rng.random(90) < 0.15, rng.uniform(0.6, 1.1, 90), 0.0)
    y[40:42] = 3.5, 2.0

    assert burst_edges(y) == [40, 42]


def test_a_series_without_its_bursts_keeps_all_other_rows() -> None:
    y = np.zeros(60)
    y[[20, 21, 40]] = 3.0
    y[::2] += 0.01
    series = Series("p50", np.arange(60), 10.0**y)
    calm = bursts.without(series, bursts.detect(series, bursts.Config()))

    assert np.setdiff1d(series.k, calm.k).tolist() == [20, 21, 40]
