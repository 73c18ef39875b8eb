"""The life of an incident: it opens, escalates, eases and is resolved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.incidents import Incident, group
from soak.core.model import Change, Kind
from tests.support.detection.incident_world import (
    END_TO_END,
    P50,
    P99,
    P999,
    change,
    fall,
    outage,
    over,
    rise,
    warned,
)


def only(*changes: Change) -> Incident:
    (incident,) = group(changes)
    return incident


def test_it_opens_with_its_first_rise() -> None:
    incident = only(rise(100), rise(140, 60.0, 600.0, END_TO_END))

    assert (incident.opening.onset_k, incident.raised_k) == (100, 106)
    assert (incident.state, incident.resolved_k) == ("confirmed", None)


def test_a_warning_is_none_yet_and_its_headline_is_one_that_is_confirmed() -> None:
    doubtful, sure = warned(rise(100, series=P99)), rise(101, series=P50)

    assert only(doubtful).state == "warning"
    assert only(doubtful, sure).state == "confirmed"
    assert only(doubtful, sure).headline == sure
    assert only(doubtful, sure).moved == (P50,)


def test_it_escalates_and_eases_and_its_headline_is_its_worst_level() -> None:
    """From the level before the incident on."""
    incident = only(
        rise(100, 4.0, 40.0), rise(200, 40.0, 600.0), fall(300, 600.0, 50.0), rise(400, 50.0, 90.0)
    )

    assert (incident.headline.before, incident.headline.after) == (4.0, 600.0)
    assert (incident.opening.onset_k, incident.headline.onset_k) == (100, 200)
    assert incident.state == "confirmed"


def test_a_smaller_escalation_counts_from_the_level_before_the_incident() -> None:
    incident = only(rise(100, 4.0, 40.0), rise(200, 40.0, 100.0))

    assert (incident.headline.before, incident.headline.after) == (4.0, 100.0)


def test_it_is_resolved_when_a_fall_takes_it_back_to_where_it_was() -> None:
    eased = fall(200, 40.0, 8.0), fall(260, 8.0, 5.0)
    incident = only(rise(100, 4.0, 40.0), *eased)

    assert (incident.state, incident.resolved_k) == ("gone", 260)


def test_a_fall_above_the_minimum_effect_only_eases_it() -> None:
    assert only(rise(100, 4.0, 40.0), fall(200, 40.0, 8.0)).state == "confirmed"


def test_it_is_resolved_when_its_detector_found_every_rise_to_be_over() -> None:
    first, second = over(rise(100), 180), over(rise(101, series=END_TO_END), 195)

    assert only(first, rise(101, series=END_TO_END)).state == "confirmed"
    assert only(first, warned(rise(101, series=END_TO_END))).resolved_k is None
    assert (only(first, second).state, only(first, second).resolved_k) == ("gone", 195)


def test_a_fall_of_another_series_resolves_nothing() -> None:
    assert only(rise(100), fall(200, series=END_TO_END)).state == "confirmed"


def test_a_fall_that_went_away_again_resolves_nothing() -> None:
    assert only(rise(100), over(fall(200), 230)).state == "confirmed"


@pytest.mark.parametrize("kind", ["spikes", "tail", "outage"])
def test_what_has_no_level_is_over_when_its_detector_says_so(kind: Kind) -> None:
    without = replace(rise(100), kind=kind)

    assert only(without, fall(200)).state == "confirmed"
    assert only(over(without, 250), fall(200)).resolved_k == 250


def test_an_outage_is_worse_than_any_latency() -> None:
    incident = only(rise(98, 4.0, 9_000.0), outage(100, 61.0), outage(100, 40.0, "produce.1@h"))

    assert (incident.headline.kind, incident.headline.after) == ("outage", 61.0)


def test_of_latencies_p99_names_it_then_the_largest_ratio() -> None:
    changes = [
        rise(100, 4.0, 5_000.0, P999),
        rise(100, 4.0, 50.0, P99),
        rise(100, 4.0, 70.0, END_TO_END),
    ]

    assert only(*changes).headline.series == END_TO_END


def test_a_step_names_the_incident_that_it_shares_with_a_tail() -> None:
    tail = replace(rise(100), kind="tail")

    assert only(tail, rise(101, series=P50)).headline.kind == "step"


def test_other_series_that_changed_with_the_worst_change_are_related() -> None:
    cpu = change("probe@h|host_cpu_ratio", 201, 0.2, 0.9)
    long_before = replace(cpu, onset_k=100, raised_k=106)
    incident = only(rise(100, 4.0, 40.0), rise(200, 40.0, 600.0), cpu, long_before)

    assert incident.related == (cpu,)
    assert incident.moved == ("probe@h|host_cpu_ratio", P99)


LEVELS = st.lists(st.sampled_from([1.0, 10.0, 100.0, 1000.0]), min_size=1, max_size=12)


@given(LEVELS)
def test_it_is_open_if_and_only_if_latency_is_above_the_level_before(levels: list[float]) -> None:
    """Of one series that steps through these levels, five seconds each, from 1 on."""
    changes, level = [], 1.0
    for at, following in enumerate(levels):
        if following != level:
            changes.append(change(P99, 100 + 5 * at, level, following))
        level = following
    incidents = group(changes)

    assert len(incidents) == any(one != 1.0 for one in levels)
    for incident in incidents:
        assert (incident.state == "confirmed") == (level > 1.0)
        assert (incident.headline.before, incident.headline.after) == (1.0, max(levels))
        assert incident.opening == changes[0]
