"""Changes into incidents: one story, one finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from detectors.channels import is_headline
from detectors.incidents import group, is_regression
from soak.core.model import Change, Column, Explanation
from soak.core.series import SeriesId, parse_series


def change(name: str, onset: int, after: float = 0.06, raised: int | None = None) -> Change:
    at = onset + 6 if raised is None else raised
    return Change(name, at, onset, (onset, onset), 0.004, after, "confirmed", 0.99)


def publish(quantile: str) -> str:
    return f'produce.0@h|publish_latency_seconds{{quantile="{quantile}"}}'


END_TO_END = 'consume.0@h|end_to_end_latency_seconds{quantile="0.99"}'


def test_onsets_within_ten_seconds_are_one_incident() -> None:
    members = [change(publish("0.99"), 100), change(END_TO_END, 105), change(publish("0.5"), 110)]
    later = change(publish("0.999"), 121)

    assert [len(i.changes) for i in group([*members, later])] == [3, 1]


def test_a_row_of_steps_is_not_one_incident_without_end() -> None:
    """Each lies within ten seconds of the one before; an incident takes twenty."""
    found = group([change(publish("0.99"), onset) for onset in range(100, 160, 10)])

    assert [len(incident.changes) for incident in found] == [3, 3]


def test_a_change_stays_where_it_was_assigned_when_its_onset_is_refined() -> None:
    """And one that comes later joins the nearest of all members."""
    p99, p999 = change(publish("0.99"), 100, raised=110), change(publish("0.999"), 101, raised=111)
    assigned = {(p99.series, 110): "r-110", (p999.series, 111): "r-110"}
    later = change(END_TO_END, 100, raised=115)
    (incident,) = group([replace(p99, onset_k=115), p999, later], assigned)

    assert (incident.key, len(incident.changes)) == ("r-110", 3)


def test_incidents_that_come_to_lie_together_stay_two() -> None:
    """Both were told."""
    first, second = change(publish("0.99"), 100), change(END_TO_END, 125)
    assigned = {(first.series, first.raised_k): "a", (second.series, second.raised_k): "b"}
    found = group([first, replace(second, onset_k=105)], assigned)

    assert [incident.key for incident in found] == ["a", "b"]


def test_a_change_joins_the_nearest_incident() -> None:
    first, second = change(publish("0.99"), 100), change(publish("0.999"), 114)
    assigned = {(first.series, first.raised_k): "a", (second.series, second.raised_k): "b"}
    found = group([first, second, change(END_TO_END, 109)], assigned)

    assert [(incident.key, len(incident.changes)) for incident in found] == [("a", 1), ("b", 2)]


def test_a_withdrawn_warning_anchors_nothing() -> None:
    warned = replace(change(publish("0.5"), 92, raised=95), state="warning")
    p99 = change(publish("0.99"), 100)
    (incident,) = group([warned, replace(warned, state="withdrawn"), p99])

    assert incident.changes == (p99,)


def test_a_warning_has_not_moved_yet() -> None:
    warned = replace(change("probe@h|host_cpu_ratio", 101), state="warning")
    p99, p50 = change(publish("0.99"), 100), replace(change(publish("0.5"), 100), state="warning")
    (incident,) = group([p99, p50, warned])

    assert incident.moved == (p99.series,)


def test_the_key_is_the_first_raise_and_later_words_do_not_change_it() -> None:
    first = change(publish("0.5"), 104, raised=106)
    second = change(END_TO_END, 95, raised=140)
    (alone,), (both,) = group([first]), group([second, first])

    assert alone.raised_k == both.raised_k == 106


def test_the_headline_is_p99_of_the_largest_ratio() -> None:
    members = [
        change(publish("0.999"), 100, 5.0),
        change(publish("0.99"), 100, 0.05),
        change(END_TO_END, 100, 0.07),
    ]
    (incident,) = group(members)

    assert incident.headline.series == END_TO_END


def test_an_outage_names_its_incident() -> None:
    """A cluster that acknowledges nothing has no latency; what is known of it later comes second."""
    name = "produce.0@h|acknowledgement_outage_seconds"
    outage = replace(change(name, 100, after=5.0), before=0.0, kind="outage")
    slow = change(publish("0.99"), 104, 60.0)

    (alone,), (both,) = group([outage]), group([outage, slow])

    assert (alone.headline, both.headline) == (outage, outage)
    assert is_regression(alone, ())


def test_a_step_of_counts_makes_no_incident() -> None:
    assert group([change("produce.0@h|acked_messages", 100)]) == []


def test_other_series_never_make_an_incident() -> None:
    cpu = change("probe@h|host_cpu_ratio", 101)
    (incident,) = group([cpu, change(publish("0.99"), 100)])

    assert incident.related == (cpu,)
    assert group([cpu]) == []


def test_up_and_down_are_different_stories() -> None:
    found = group([change(publish("0.99"), 100), change(END_TO_END, 104, 0.001)])

    assert [incident.direction for incident in found] == ["up", "down"]


def test_the_last_state_of_a_change_counts() -> None:
    up = change(publish("0.99"), 100)
    (incident,) = group([replace(up, state="gone"), up, replace(up, state="warning")])

    assert incident.state == "gone"


def test_an_incident_is_gone_when_all_of_it_is() -> None:
    up = change(publish("0.99"), 100)
    (incident,) = group([replace(up, state="gone"), change(END_TO_END, 100)])

    assert incident.state == "confirmed"


def test_an_incident_is_not_gone_while_one_of_it_is_pending() -> None:
    up = change(publish("0.99"), 100)
    pending = replace(change(publish("0.5"), 100), state="warning")
    (incident,) = group([replace(up, state="gone", resolved_k=180), pending])

    assert (incident.state, incident.resolved_k) == ("confirmed", None)


def test_an_incident_is_gone_when_the_last_of_it_went() -> None:
    changes = [change(publish("0.99"), 100), change(END_TO_END, 101)]
    (incident,) = group(
        replace(one, state="gone", resolved_k=k) for one, k in zip(changes, (180, 195), strict=True)
    )

    assert incident.resolved_k == 195


@pytest.mark.parametrize(
    ("state", "after", "cause", "expected"),
    [
        ("confirmed", 0.06, "unknown", True),
        ("gone", 0.06, "retention_cliff", True),
        ("warning", 0.06, "unknown", False),
        ("confirmed", 0.001, "unknown", False),
        ("confirmed", 0.06, "client", False),
    ],
)
def test_a_regression_is_a_confirmed_rise_that_is_not_ours(
    state: Literal["warning", "confirmed", "gone"],
    after: float,
    cause: str,
    *,
    expected: bool,
) -> None:
    (incident,) = group([replace(change(publish("0.99"), 100, after), state=state)])

    assert is_regression(incident, [Explanation(cause, 0.9, ())]) is expected


def test_the_name_of_a_series_gives_its_column_back() -> None:
    column = Column("publish_latency_seconds", (("quantile", "0.99"),))

    assert parse_series(f"produce.0@h|{column.name}") == SeriesId("produce.0@h", *column[:2])
    assert is_headline(column)
    assert not is_headline(Column("publish_latency_seconds", (("quantile", "max"),)))
    assert not is_headline(Column("schedule_lag_seconds", (("quantile", "0.99"),)))
