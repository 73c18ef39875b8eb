"""Incidents of whole series, with the changes that the detector of steps finds in them."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.incidents import Incident, group
from tests.support.detection.panel_world import latencies, run

pytestmark = pytest.mark.long


def incidents(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[Incident]:
    found = group([change for _, change in run(values)])
    return [incident for incident in found if incident.state != "warning"]


@pytest.mark.parametrize("seed", range(4, 10))
@pytest.mark.parametrize("rise", [2.6, 3.2])
def test_a_step_after_the_rest_of_an_earlier_one_went_away_is_an_incident(
    seed: int, rise: float
) -> None:
    """A hundredfold step falls to 2.4 times the old level, then to that level; another one comes."""
    values = latencies(seed, 1300)
    values[700:750] *= 100.0
    values[750:930] *= 2.4
    values[1100:] *= rise

    assert abs(incidents(values)[-1].opening.onset_k - 1100) <= 20


@pytest.mark.parametrize("seed", range(4, 10))
def test_the_end_of_a_dip_is_none_though_there_was_a_rise_before(seed: int) -> None:
    values = latencies(seed, 660)
    values[100:150] *= 100.0
    values[330:500] /= 3.0

    assert all(incident.opening.onset_k < 330 for incident in incidents(values))


@pytest.mark.parametrize("seed", range(4, 8))
def test_a_rise_and_its_return_are_one_resolved_incident(seed: int) -> None:
    values = latencies(seed, 660)
    values[200:400] *= 20.0

    (incident,) = incidents(values)
    assert incident.state == "gone"
    first, last = incident.opening.interval
    assert first <= 200 <= last
    assert abs(incident.opening.onset_k - 200) <= 5
