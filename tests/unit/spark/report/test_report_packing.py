"""The numbers of the page: what it unpacks is what was measured, and neither spikes nor dips vanish."""

from __future__ import annotations

import base64
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spark.batch.digest import extremes_of
from spark.report.packing import (
    MISSING,
    MOST_BUCKETS,
    Bands,
    Grid,
    Scale,
    band_words,
    bands,
    block,
    scale_of,
    usual_distance,
    windows,
)

Floats = NDArray[np.float64]


def unpacked(text: str) -> NDArray[np.uint16]:
    """Return words as the page's program reads them."""
    raw = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)
    low, high = np.split(raw, 2)
    return np.asarray(low.astype(np.uint16) + 256 * high.astype(np.uint16), np.uint16)


def values_of(words: NDArray[np.uint16], scale: Scale) -> Floats:
    """Return values of words, from the definition of the format."""
    values = scale.offset + scale.step * words.astype(np.float64)
    values = np.where(words == MISSING, np.nan, values)
    return np.exp(values) if scale.is_log else values


@given(seed=st.integers(0, 2**32 - 1), level=st.sampled_from([1e-6, 1.0, 1e12]))
def test_unpacked_values_are_the_measured_ones_to_a_fraction_of_their_noise(
    seed: int, level: float
) -> None:
    """With a step of a factor of a hundred in the middle, and seconds that were not measured."""
    rng = np.random.default_rng(seed)
    values = level * np.exp(rng.normal(0.0, 0.1, 600))
    values[300:] *= 100.0
    values[rng.integers(0, 600, 20)] = np.nan
    band = bands(values.reshape(-1, 1))
    scale = scale_of(values, band)

    found = values_of(unpacked(block([band_words(scale, band, with_extremes=False)])), scale)

    assert scale.is_log
    assert np.array_equal(np.isnan(found), np.isnan(values))
    known = ~np.isnan(values)
    assert np.max(np.abs(np.log(found[known] / values[known]))) < 0.02


def test_a_spike_and_a_dip_of_one_second_are_the_ends_of_their_bucket() -> None:
    values = np.full(120, 10.0)
    values[30], values[90] = 500.0, 1.0
    grid = Grid(seconds=120, step=1, bucket=60)
    band = bands(grid.rows(values, 1))

    assert band.high.tolist() == [500.0, 10.0]
    assert band.low.tolist() == [10.0, 1.0]
    assert band.middle.tolist() == [10.0, 10.0]


def test_of_a_long_run_the_digest_keeps_the_extremes_of_each_minute() -> None:
    """A second that was not measured counts as nothing, a minute without any has none."""
    k = np.arange(180)
    values = np.full((1, 180), 2.0)
    values[0, [30, 70]] = 9.0, 0.5
    values[0, 100] = np.nan
    values[0, 120:] = np.nan

    found = extremes_of(k, values)

    assert found.k.tolist() == [0, 60, 120]
    assert found.high[0, :2].tolist() == [9.0, 2.0]
    assert found.low[0, :2].tolist() == [2.0, 0.5]
    assert np.isnan(found.high[0, 2])


def test_whole_numbers_are_kept_exactly() -> None:
    values = np.array([200.0, 201.0, 0.0, 199.0, 200.0] * 20)
    band = bands(values.reshape(-1, 1))
    scale = scale_of(values, band)

    assert (
        values_of(band_words(scale, band, with_extremes=False), scale).tolist() == values.tolist()
    )


@pytest.mark.parametrize("value", [0.0, 3.5, -2.0])
def test_a_constant_series_is_itself(value: float) -> None:
    values = np.full(10, value)
    band = bands(values.reshape(-1, 1))
    scale = scale_of(values, band)

    assert values_of(band_words(scale, band, with_extremes=False), scale).tolist() == [value] * 10


def test_nothing_measured_is_nothing() -> None:
    nothing = np.full(5, np.nan)
    band = Bands(nothing, nothing, nothing)

    assert band_words(scale_of(nothing, band), band, with_extremes=False).tolist() == [MISSING] * 5


@pytest.mark.parametrize(
    ("seconds", "step", "bucket"),
    [
        (1, 1, 1),
        (2160, 1, 1),
        (2161, 1, 2),
        (7200, 1, 5),
        (9000, 10, 60),
        (129_600, 10, 60),
        (2_592_000, 10, 1800),
    ],
)
def test_a_grid_is_as_fine_as_the_page_has_room_for(seconds: int, step: int, bucket: int) -> None:
    grid = Grid.of(seconds, step)

    assert grid.bucket == bucket
    assert grid.buckets <= MOST_BUCKETS


def test_the_usual_distance_of_values_is_that_of_three_in_four() -> None:
    every_ten = np.full(100, np.nan)
    every_ten[[3, 13, 23, 33, 43, 83, 93]] = 1.0

    assert usual_distance(every_ten, 1) == 10.0
    assert usual_distance(np.ones(50), 10) == 10.0
    assert usual_distance(np.full(50, np.nan), 10) == 10.0


def test_windows_around_onset_and_end_are_merged_and_end_with_the_run() -> None:
    assert windows([(1000, 1200), (9000, 9900)], 10_000) == [
        (700, 1600),
        (8700, 9600),
        (9720, 10_000),
    ]
    assert windows([(100, 5000)], 10_000) == [(0, 700), (4820, 5300)]
