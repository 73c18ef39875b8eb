"""Causes that an incident keeps though its worst change is another one by now."""

from __future__ import annotations

from detectors.attribution import attribute, carried_over
from detectors.incidents import group
from soak.core.model import Change, Evidence, Explanation
from tests.support.detection.cause_panels import ONSET, P99, around, channel, told


def texts(found: list[Explanation]) -> list[list[str]]:
    return [[one.text for one in cause.evidence] for cause in found]


def test_causes_of_an_earlier_worst_change_say_so_once_however_often_it_moves() -> None:
    cause = Explanation("network", 0.8, (Evidence("It was seen."),))
    once = carried_over([cause], 40)
    twice = carried_over(once, 15)

    assert texts(once) == [
        ["It was seen.", "This is of another change, 40 s before the worst change."]
    ]
    assert texts(twice) == [
        ["It was seen.", "This is of another change, 55 s before the worst change."]
    ]
    assert carried_over(twice, -55) == [cause]


def test_what_was_found_for_the_opening_stays_so_when_the_worst_change_moves() -> None:
    """Leaders moved as the incident opened, 40 s before its worst change."""
    small = Change(P99, ONSET + 6, ONSET, (99, 101), 0.004, 0.02, "confirmed", 0.99)
    large = Change(P99, ONSET + 46, ONSET + 40, (139, 141), 0.02, 0.4, "confirmed", 0.99)
    (incident,) = group([small, large])
    moved = told("leader_change", ONSET, topic="t", partition=3)
    found = attribute(incident, around(channel(P99, 0.004, 0.02), events=moved))

    assert found[0].cause == "leader_move"
    assert texts(found)[0][-1] == "This is of the opening, 40 s before the worst change."
    assert texts(carried_over(found, 20))[0][-1] == (
        "This is of the opening, 1 min before the worst change."
    )
