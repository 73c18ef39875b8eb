"""What rises again after a dip is no news; what rises after the rest of a rise went away is."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from detectors.incidents import Incident, group, is_recovery
from soak.core.model import Change, Kind
from tests.support.detection.panel_world import latencies, run

RATIO = 1.5
SERIES = "consume-1|end_to_end_latency_seconds{quantile=0.99}"


def change(
    onset_k: int,
    before: float,
    after: float,
    state: Literal["confirmed", "gone"] = "confirmed",
    resolved_k: int | None = None,
) -> Change:
    near = (onset_k - 2, onset_k + 2)
    return Change(
        SERIES, onset_k + 10, onset_k, near, before, after, state, 0.99, resolved_k=resolved_k
    )


def last_rise(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Change, bool]:
    """Return the newest rise, and whether it is called a recovery."""
    changes = [one for _, one in run(values)]
    known = {(one.series, one.raised_k): one for one in changes}
    ups = [one for one in group(changes) if one.direction == "up" and one.state != "warning"]
    newest = max(ups, key=lambda one: one.raised_k)
    return newest.headline, is_recovery(newest, known.values(), RATIO)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 10))
@pytest.mark.parametrize("rise", [2.6, 3.2])
def test_a_step_after_the_rest_of_an_earlier_one_went_away_is_news(seed: int, rise: float) -> None:
    """A hundredfold step is gone at 2.4 times the old level; that goes away too, and another one comes."""
    values = latencies(seed, 660)
    values[100:150] *= 100.0
    values[150:330] *= 2.4
    values[500:] *= rise

    found, is_called_recovery = last_rise(values)

    assert abs(found.onset_k - 500) <= 20
    assert not is_called_recovery


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 10))
def test_the_end_of_a_dip_is_no_news_though_there_was_a_rise_before(seed: int) -> None:
    values = latencies(seed, 660)
    values[100:150] *= 100.0
    values[330:500] /= 3.0

    found, is_called_recovery = last_rise(values)

    assert abs(found.onset_k - 500) <= 20
    assert is_called_recovery


def is_called_recovery_after_a_fall_to(
    lowest: float, *others: Change, resolved_k: int = 8900
) -> bool:
    """Return what a step back to 5 is called; a rise from 1 to 50 was gone, at 5, in a second before."""
    older = change(100, 1.0, 50.0, state="gone", resolved_k=resolved_k)
    fall, back = change(9000, 5.0, lowest), change(9120, lowest, 5.0)
    return is_recovery(Incident((back,)), (older, fall, back, *others), RATIO)


@pytest.mark.parametrize("lowest", [0.1, 0.5])
def test_a_fall_far_below_the_foot_of_an_earlier_rise_is_a_dip(lowest: float) -> None:
    assert is_called_recovery_after_a_fall_to(lowest)


@pytest.mark.parametrize("lowest", [0.9, 1.0, 1.4])
def test_a_fall_to_the_foot_of_an_earlier_rise_is_its_end(lowest: float) -> None:
    assert not is_called_recovery_after_a_fall_to(lowest)


def test_what_a_rise_left_behind_for_long_is_how_the_cluster_is() -> None:
    """A fall from there is a dip like any other, though it ends where the rise began."""
    assert is_called_recovery_after_a_fall_to(1.0, resolved_k=200)


@pytest.mark.parametrize("kind", ["spikes", "tail"])
def test_what_is_no_level_makes_no_news_of_the_end_of_a_dip(kind: Kind) -> None:
    beside = replace(change(1000, 5.0, 9.0), kind=kind)

    assert is_called_recovery_after_a_fall_to(0.5, beside)


@pytest.mark.parametrize(("kind", "expected"), [("step", True), ("spikes", False), ("tail", False)])
def test_only_a_level_comes_back(kind: Kind, *, expected: bool) -> None:
    """Spikes that begin after a fall are no end of a dip, however high."""
    fall, up = change(9000, 5.0, 1.0), replace(change(9120, 1.0, 5.0), kind=kind)

    assert is_recovery(Incident((up,)), (fall, up), RATIO) is expected
