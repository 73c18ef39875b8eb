"""Rolls of segments as the cause of spikes or of a step, and the period that they keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.causes.housekeeping import period_of
from detectors.nearby import Nearby
from soak.core.model import Series
from tests.support.detection.cause_panels import P99, STEP, told

SECONDS = 600
SPIKES = replace(STEP, onset_k=300, interval=(299, 301), raised_k=310, kind="spikes")


def spiky(high: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int = 0) -> Series:
    y = np.log10(0.004) + np.random.default_rng(seed).normal(0.0, 0.1, SECONDS)
    y[high] += np.log10(15.0)
    return Series(P99, np.arange(SECONDS, dtype=np.int64), 10.0**y)


def rolling(rolls: np.ndarray[tuple[int], np.dtype[np.int64]], high: Series) -> Nearby:
    events = told("segment_created", *rolls.tolist(), topic="t")
    return Nearby(0, SECONDS, {P99: high}, events=events)


@pytest.mark.parametrize("period", [12, 52])
def test_spikes_locked_to_rolls_are_theirs_and_the_period_is_told(period: int) -> None:
    rolls = np.arange(7, SECONDS, period)
    (found,) = attribute(SPIKES, rolling(rolls, spiky(rolls)))

    assert found.cause == "segment_roll"
    assert f"Segments rolled every {period} s" in found.evidence[-1].text


@pytest.mark.long
def test_spikes_of_another_period_are_not_the_rolls() -> None:
    """Twenty seeds: spikes every 41 s, rolls every 52 s."""
    wrong = 0
    for seed in range(20):
        found = rolling(np.arange(7, SECONDS, 52), spiky(np.arange(11 + seed, SECONDS, 41), seed))
        wrong += attribute(SPIKES, found)[0].cause != "unknown"

    assert wrong <= 1


def test_a_step_between_rolls_that_always_cost_as_much_is_not_theirs() -> None:
    """Latency was locked to the rolls before the step, too."""
    rolls = np.arange(7, SECONDS, 5)
    high = spiky(rolls)
    values = np.where(high.k >= 300, high.values * 10.0, high.values)
    found = rolling(rolls, Series(P99, high.k, values))

    assert attribute(replace(SPIKES, kind="step"), found)[0].cause == "unknown"


@pytest.mark.parametrize("period", [5, 17, 52])
def test_a_period_is_found_through_late_and_missing_events(period: int) -> None:
    rng = np.random.default_rng(period)
    ks = np.arange(period, 900, period)
    ks = np.unique((ks + rng.integers(0, 2, ks.size))[rng.random(ks.size) > 0.15])

    assert period_of(ks, burst_seconds=1) == pytest.approx(period, rel=0.05)


def test_events_at_random_keep_no_period() -> None:
    kept = 0
    for seed in range(50):
        gaps = np.random.default_rng(seed).exponential(30.0, 30).astype(np.int64) + 3
        kept += period_of(np.cumsum(gaps)) is not None

    assert kept <= 2


def test_few_events_keep_no_period() -> None:
    assert period_of(np.array([0, 50, 100], np.int64)) is None
