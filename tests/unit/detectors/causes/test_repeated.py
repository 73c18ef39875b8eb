"""How much of a step events make: alone, beside another cause, and where nothing can be compared."""

from __future__ import annotations

import pytest

from detectors.attribution import attribute
from detectors.causes.locking import Locking, explained_ratio
from soak.core.model import Change
from tests.support.detection.cause_panels import END, ONSET, around, channel, told

SERIES = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'
STEP = Change(SERIES, 106, 100, (99, 101), 0.004, 0.124, "confirmed", 0.999)


def locking(median_with: float, median_without: float) -> Locking:
    return Locking(0, 40, 40, median_with, median_without, 0.002)


def test_events_that_make_all_of_a_step_explain_all_of_it() -> None:
    assert explained_ratio(STEP, locking(0.124, 0.004)) == pytest.approx(1.0)


def test_what_adds_to_another_cause_counts_by_its_seconds() -> None:
    """Twice as slow in seconds with an event, half of the 120 ms: as a ratio it is a fifth."""
    assert explained_ratio(STEP, locking(0.124, 0.064)) == pytest.approx(0.5)


def test_a_little_of_a_high_level_is_noise_and_counts_as_a_ratio() -> None:
    """A quarter more is 30 ms, and as likely by chance as a quarter of 4 ms."""
    assert explained_ratio(STEP, locking(0.15, 0.12)) == pytest.approx(0.065, abs=0.001)


def test_a_step_down_is_not_explained() -> None:
    down = Change(SERIES, 106, 100, (99, 101), 0.1, 0.01, "confirmed", 0.999)

    assert explained_ratio(down, locking(0.124, 0.004)) == 0.0


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("retention_deletion", "retention_cliff"),
        ("segment_roll", "segment_roll"),
        ("gc_pause", "gc_pause"),
    ],
)
def test_events_in_every_second_may_make_all_of_a_step(kind: str, cause: str) -> None:
    """No second is without one to compare it with, whatever they are."""
    events = told(kind, *range(ONSET, END), pause_seconds=0.1)
    (found,) = attribute(STEP, around(channel(SERIES, 0.004, 0.124), events=events))

    assert found.cause == cause
