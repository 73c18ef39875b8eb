"""Which incidents count against the cluster, and which rise only ends a dip."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detectors.incidents import group, is_regression
from soak.core.model import Change, Explanation, Kind
from tests.support.detection.incident_world import fall, outage, over, rise, warned


@pytest.mark.parametrize(
    ("change", "cause", "expected"),
    [
        (rise(100), "unknown", True),
        (over(rise(100), 200), "retention_cliff", True),
        (outage(100, 5.0), "unknown", True),
        (warned(rise(100)), "unknown", False),
        (rise(100), "client", False),
    ],
)
def test_a_confirmed_incident_counts_unless_the_client_is_to_blame(
    change: Change, cause: str, *, expected: bool
) -> None:
    (incident,) = group([change])

    assert is_regression(incident, [Explanation(cause, 0.9, ())]) is expected
    assert is_regression(incident, ()) is (change.state != "warning")


def is_incident_after_a_fall_to(lowest: float, *others: Change, resolved_k: int = 8900) -> bool:
    """Return whether a step back to 5 is one; a rise from 1 to 50 was over, at 5, in a second before."""
    older = over(rise(100, 1.0, 50.0), resolved_k)
    found = group([older, fall(9000, 5.0, lowest), rise(9120, lowest, 5.0), *others])
    return any(one.opening.onset_k == 9120 for one in found)


@pytest.mark.parametrize("lowest", [0.1, 0.5])
def test_a_fall_far_below_the_foot_of_an_earlier_rise_is_a_dip(lowest: float) -> None:
    assert not is_incident_after_a_fall_to(lowest)


@pytest.mark.parametrize("lowest", [0.9, 1.0, 1.4])
def test_a_fall_to_the_foot_of_an_earlier_rise_is_its_end(lowest: float) -> None:
    """What rises again is news."""
    assert is_incident_after_a_fall_to(lowest)


def test_what_a_rise_left_behind_for_long_is_how_the_cluster_is() -> None:
    """A fall from there is a dip like any other, though it ends where the rise began."""
    assert not is_incident_after_a_fall_to(1.0, resolved_k=200)


@pytest.mark.parametrize(("kind", "expected"), [("step", []), ("spikes", [1]), ("tail", [1])])
def test_only_a_level_comes_back(kind: Kind, expected: list[int]) -> None:
    """Spikes that begin after a fall are no end of a dip, however high."""
    up = replace(rise(9120, 1.0, 5.0), kind=kind)

    assert [len(one.changes) for one in group([fall(9000, 5.0, 1.0), up])] == expected
