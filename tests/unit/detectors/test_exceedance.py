"""Which thresholds are taken for p99 and p99.9, and that a source may be started anew with others."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.kinds.tail import ROWS, Exceedance

SECONDS = 0.004 * np.random.default_rng(2).lognormal(0.0, 0.5, 100_000)
COARSE = ("0.001", "0.01", "0.0125", "0.016", "0.02", "0.025")
FINE = ("0.0005", *COARSE[:2], "0.011", *COARSE[2:])
OTHER = ("0.0011", "0.0111", "0.0141", "0.0181", "0.0221")


def counts(thresholds: tuple[str, ...], messages: int) -> NDArray[np.float64]:
    """Return how many of so many messages are above each threshold, in the mean."""
    levels = np.array([float(at) for at in thresholds])
    return np.asarray(messages * (SECONDS[:, np.newaxis] >= levels).mean(axis=0))


def learnt(thresholds: tuple[str, ...], messages: int = 1000) -> Exceedance:
    known = Exceedance()
    for _ in range(ROWS):
        known.odds(thresholds, counts(thresholds, messages), messages)
    return known


@pytest.mark.long
@pytest.mark.parametrize(
    ("messages", "chosen"),
    [(1000, ["0.0125", "0.02"]), (100, ["0.0125", "0.016"]), (30, ["0.0125", None])],
)
def test_a_threshold_has_thirty_messages_above_it_in_two_minutes(
    messages: int, chosen: list[str | None]
) -> None:
    """With fewer messages p99.9 is that of a larger share, up to four in a thousand, or none."""
    assert learnt(COARSE, messages).chosen == chosen


@pytest.mark.long
def test_a_threshold_that_was_chosen_is_kept_wherever_it_stands() -> None:
    """An upgrade within a run brings finer thresholds."""
    known = learnt(COARSE)
    before = known.odds(COARSE, counts(COARSE, 1000), 1000.0)

    assert known.odds(FINE, counts(FINE, 1000), 1000.0) == before


@pytest.mark.long
def test_thresholds_that_are_all_others_are_learnt_anew() -> None:
    known = Exceedance(**asdict(learnt(COARSE)))
    odds = [known.odds(OTHER, counts(OTHER, 1000), 1000.0) for _ in range(ROWS + 1)]

    assert np.isnan(odds[:-1]).all()
    assert np.isfinite(odds[-1]).all()
    assert known.chosen == ["0.0141", "0.0181"]


def test_thresholds_that_change_while_they_are_learnt_are_learnt_anew() -> None:
    known = Exceedance()
    known.odds(COARSE, counts(COARSE, 1000), 1000.0)
    known.odds(FINE, counts(FINE, 1000), 1000.0)

    assert (known.rows, known.total) == (1, 1000.0)


@pytest.mark.long
def test_a_second_without_counts_teaches_nothing() -> None:
    """One that was not measured would else leave the latency without a threshold for good."""
    known, unmeasured = Exceedance(), np.full(len(COARSE), np.nan)
    for row in range(ROWS + 1):
        known.odds(COARSE, unmeasured if row == 50 else counts(COARSE, 1000), 1000)

    assert known.chosen == learnt(COARSE).chosen
    assert np.isnan(known.odds(COARSE, unmeasured, 1000)).all()
