"""What rises again after a dip is no news; what rises after the rest of a rise went away is."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.incidents import group, is_recovery
from soak.core.model import Change
from tests.panel_world import latencies, run

RATIO = 1.5


def last_rise(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Change, bool]:
    """Return the newest rise, and whether it is called a recovery."""
    changes = [change for _, change in run(values)]
    known = {(change.series, change.raised_k): change for change in changes}
    ups = [one for one in group(changes) if one.direction == "up" and one.state != "warning"]
    newest = max(ups, key=lambda one: one.raised_k)
    return newest.headline, is_recovery(newest, known.values(), RATIO)


@pytest.mark.parametrize("seed", range(4, 10))
@pytest.mark.parametrize("rise", [2.6, 3.2])
def test_a_step_after_the_rest_of_an_earlier_one_went_away_is_news(seed: int, rise: float) -> None:
    """A hundredfold step is gone at 2.4 times the old level; that goes away too, and another one comes."""
    values = latencies(seed, 660)
    values[100:150] *= 100.0
    values[150:330] *= 2.4
    values[500:] *= rise

    change, is_called_recovery = last_rise(values)

    assert abs(change.onset_k - 500) <= 20
    assert not is_called_recovery


@pytest.mark.parametrize("seed", range(4, 10))
def test_the_end_of_a_dip_is_no_news_though_there_was_a_rise_before(seed: int) -> None:
    values = latencies(seed, 660)
    values[100:150] *= 100.0
    values[330:500] /= 3.0

    change, is_called_recovery = last_rise(values)

    assert abs(change.onset_k - 500) <= 20
    assert is_called_recovery
