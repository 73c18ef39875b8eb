"""Drives without space: of several hosts that report it, the one that does so at the onset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detectors.attribution import attribute
from detectors.nearby import TimedEvent
from tests.support.detection.cause_panels import ONSET, STEP, around, channel, told

NO_SPACE = "cannot flush in /data: less space is free than free_space_floor"
FREE = 'probe@b3|disk_free_bytes{directory="/data"}'
EARLIER = ONSET - 90


def reports(host: str, *ks: int) -> tuple[TimedEvent, ...]:
    found = told("probe_failed", *ks, reason=NO_SPACE)
    return tuple(replace(one, source=f"probe@{host}") for one in found)


def test_a_second_host_that_runs_out_of_space_is_named() -> None:
    """The first did so a while before, and reports it again and again."""
    events = (*reports("b1", EARLIER, EARLIER + 60, ONSET), *reports("b2", ONSET))
    (found,) = attribute(STEP, around(events=events))

    assert (found.cause, found.suspect) == ("disk_full", "b2")
    assert found.evidence[0].text == f"First reported by probe@b2 at the onset: {NO_SPACE}."


def test_several_hosts_without_space_at_the_onset_are_all_named() -> None:
    one, both = (
        attribute(STEP, around(events=events))[0]
        for events in (reports("b1", ONSET), (*reports("b1", ONSET), *reports("b2", ONSET + 1)))
    )

    assert (one.suspect, both.suspect) == ("b1", "b1, b2")
    assert both.score == pytest.approx(one.score)


def test_a_host_that_reports_it_again_says_nothing_of_the_onset() -> None:
    """Nor is it said that there was space."""
    calm = channel(FREE, 50e9, 50e9)
    (found,) = attribute(STEP, around(calm, events=reports("b1", EARLIER, ONSET)))
    (beside,) = attribute(STEP, around(calm))
    ruled_out = ["Disk full is ruled out" in str(one.against) for one in (found, beside)]

    assert found.cause == "unknown"
    assert ruled_out == [False, True]


def test_what_a_client_reports_names_no_host() -> None:
    """It is the broker whose drive is full, and the client does not tell which."""
    (event,) = reports("h", ONSET)
    events = (replace(event, source="produce.0@h"),)
    (found,) = attribute(STEP, around(events=events))

    assert (found.cause, found.suspect) == ("disk_full", "")
