"""Which changes are one incident, and which are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.client_seconds import identity
from detectors.incidents import group, improvements
from soak.core.model import Change
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
    withdrawn,
)


def onsets(*changes: Change) -> list[list[int]]:
    return [[one.onset_k for one in incident.changes] for incident in group(changes)]


def test_all_that_changes_while_it_is_open_is_one_incident() -> None:
    changes = [rise(100), rise(400, series=END_TO_END), fall(900), fall(905, series=END_TO_END)]

    assert onsets(*changes) == [[100, 400, 900, 905]]


def test_what_rises_long_after_the_end_is_another() -> None:
    assert onsets(rise(100), fall(200), rise(500), fall(600)) == [[100, 200], [500, 600]]


def test_ten_rises_and_falls_in_ten_minutes_are_one() -> None:
    flapping = [one for k in range(100, 700, 60) for one in (rise(k), fall(k + 30))]
    (incident,) = group(flapping)

    assert len(incident.rises) == 10
    assert (incident.state, incident.resolved_k) == ("gone", 670)


def test_an_outage_with_the_steps_around_it_is_one() -> None:
    """Latency rises before it; afterwards the messages that waited come late, and then all is well."""
    changes = [
        rise(95, 4.0, 60.0),
        over(outage(100, 61.0), 161),
        rise(162, 60.0, 61_000.0, END_TO_END),
        fall(170, 61_000.0, 4.0, END_TO_END),
        fall(172, 60.0, 4.0),
    ]
    (incident,) = group(changes)

    assert (incident.headline.kind, incident.state) == ("outage", "gone")
    assert (incident.opening.onset_k, incident.resolved_k) == (95, 172)


def test_a_rise_that_is_reported_late_by_a_source_that_lags_joins_the_incident() -> None:
    assert len(group([rise(100), replace(rise(95, series=END_TO_END), raised_k=140)])) == 1


def test_the_key_is_the_first_raise_and_later_reports_do_not_change_it() -> None:
    first = rise(104, series=P50)
    second = replace(rise(98, series=END_TO_END), raised_k=140)
    (alone,), (both,) = group([first]), group([second, first])

    assert alone.raised_k == both.raised_k == 110


def test_a_slow_change_opens_an_incident_when_it_is_known() -> None:
    """A drift that began hours ago takes no step of that time to itself."""
    drift = replace(rise(2000, series=P50), raised_k=9000, kind="drift")

    assert [len(one.changes) for one in group([rise(3000), fall(3100), drift])] == [2, 1]


def test_an_improvement_is_no_incident() -> None:
    assert group([fall(100)]) == []
    assert improvements([fall(100)], []) == [fall(100)]


def test_a_recovery_is_no_improvement() -> None:
    changes = [rise(100), fall(200)]

    assert improvements(changes, group(changes)) == []


def test_a_fall_that_is_not_confirmed_is_no_improvement() -> None:
    assert improvements([warned(fall(100)), withdrawn(fall(200))], []) == []


def test_the_end_of_a_dip_is_no_incident() -> None:
    assert group([fall(100, 10.0, 4.0), rise(200, 4.0, 11.0)]) == []


def test_what_rises_beyond_a_dip_or_long_after_it_is_one() -> None:
    dip = fall(100, 10.0, 4.0)

    assert onsets(dip, rise(200, 4.0, 40.0)) == [[200]]
    assert onsets(dip, rise(800, 4.0, 11.0)) == [[800]]


@pytest.mark.parametrize(
    ("changes", "resolved_k"),
    [
        ((fall(100, 10.0, 4.0), rise(200, 4.0, 400.0), fall(300, 400.0, 11.0)), 300),
        ((fall(100, 10.0, 4.0), rise(200, 4.0, 400.0), fall(300, 400.0, 40.0)), None),
        ((fall(100, 10.0, 4.0), rise(800, 4.0, 400.0), fall(900, 400.0, 11.0)), None),
        ((fall(100, 300.0, 4.0), rise(200, 4.0, 600.0), fall(300, 600.0, 290.0)), None),
        ((over(rise(20, 4.0, 10.0), 100), rise(200, 4.0, 400.0), fall(300, 400.0, 11.0)), None),
        (
            (
                rise(20, 4.0, 10.0),
                fall(100, 10.0, 4.0),
                rise(200, 4.0, 400.0),
                fall(300, 400.0, 11.0),
            ),
            None,
        ),
    ],
    ids=["back", "higher", "long_after", "from_as_high", "was_a_rise_over", "was_a_rise_that_fell"],
)
def test_what_rose_out_of_a_dip_is_back_where_it_was_before_the_dip(
    changes: tuple[Change, ...], resolved_k: int | None
) -> None:
    """The lowest level of a median that wanders is no measure of whether it has recovered."""
    assert group(changes)[-1].resolved_k == resolved_k


def test_changes_of_other_series_make_none() -> None:
    assert group([change("produce.0@h|acked_messages", 100, 10.0, 400.0)]) == []


def test_a_withdrawn_warning_counts_for_nothing() -> None:
    doubtful = warned(rise(92, series=P50))
    (incident,) = group([doubtful, withdrawn(doubtful), rise(100)])

    assert incident.changes == (rise(100),)


def test_the_last_state_of_a_change_counts() -> None:
    (incident,) = group([over(rise(100), 150), rise(100), warned(rise(100))])

    assert incident.resolved_k == 150


def test_a_change_stays_where_it_was_assigned_when_its_onset_is_refined() -> None:
    p99, p999 = rise(100), rise(101, series=P999)
    assigned = {identity(p99): "r-106", identity(p999): "r-106"}
    later = rise(100, series=END_TO_END)
    (incident,) = group([replace(p99, onset_k=115), p999, later], assigned)

    assert (incident.key, len(incident.changes)) == ("r-106", 3)


def test_incidents_that_come_to_lie_together_stay_two() -> None:
    """Both were reported; what is new joins the one with the nearer onset."""
    first, second = rise(100), rise(125, series=END_TO_END)
    assigned = {identity(first): "a", identity(second): "b"}
    found = group([first, second, rise(126, series=P999)], assigned)

    assert [(one.key, len(one.changes)) for one in found] == [("a", 1), ("b", 2)]


SERIES = st.sampled_from([P99, P50, P999, END_TO_END])
CHANGES = st.lists(
    st.builds(
        lambda series, onset, levels, end: (
            change(series, onset, *levels)
            if end is None
            else over(change(series, onset, *levels), onset + end)
        ),
        SERIES,
        st.integers(0, 2_000),
        st.permutations([4.0, 40.0, 400.0]).map(lambda levels: tuple(levels[:2])),
        st.none() | st.integers(15, 300),
    ),
    max_size=12,
    unique_by=identity,
)


@pytest.mark.long
@given(CHANGES, st.randoms())
def test_the_order_in_which_changes_are_given_does_not_matter(
    changes: list[Change], random: object
) -> None:
    shuffled = list(changes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own Random

    assert group(shuffled) == group(changes)


@given(CHANGES)
def test_every_change_is_in_one_incident_at_most_and_every_incident_has_a_rise(
    changes: list[Change],
) -> None:
    found = group(changes)
    taken = [identity(one) for incident in found for one in incident.changes]

    assert len(taken) == len(set(taken))
    assert all(incident.rises for incident in found)


@given(CHANGES)
def test_what_is_assigned_stays_whatever_is_grouped_again(changes: list[Change]) -> None:
    """A batch that is delivered again, or a process that starts anew, finds the same incidents."""
    found = group(changes)
    assigned = {
        identity(one): f"r-{at}" for at, incident in enumerate(found) for one in incident.changes
    }
    again = group(changes, assigned)

    assert {(one.key, one.changes) for one in again} == {
        (f"r-{at}", incident.changes) for at, incident in enumerate(found)
    }


@pytest.mark.parametrize("apart", [59, 61])
def test_a_rise_within_a_minute_of_the_end_reopens_the_incident(apart: int) -> None:
    changes = [rise(100), fall(200), rise(200 + apart)]

    assert len(group(changes)) == (1 if apart < 60 else 2)


def test_a_missed_objective_is_an_incident_of_its_own() -> None:
    """Also while latency is worse, and under the key that it was given."""
    missed = replace(
        outage(300, 3.0), series='producers|objective_bad_minutes{objective="o"}', kind="objective"
    )
    latency, breach = group([rise(100), missed], {identity(missed): "r-304"})

    assert [one.onset_k for one in latency.changes] == [100]
    assert (breach.key, breach.headline.kind, breach.state) == ("r-304", "objective", "confirmed")
    assert missed.series not in latency.moved


def test_a_change_whose_onset_may_lie_in_an_incident_joins_it_in_whatever_batch_it_comes() -> None:
    """Its likeliest onset is earlier; the intervals of both overlap."""
    first = replace(rise(110), interval=(95, 112))
    later = replace(rise(95, series=END_TO_END), raised_k=130, interval=(94, 112))
    (at_once,) = group([first, later])
    (in_turn,) = group([first, later], {identity(first): "run-1"})

    assert {identity(one) for one in at_once.changes} == {identity(one) for one in in_turn.changes}
    assert in_turn.key == "run-1"
