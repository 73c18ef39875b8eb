"""Calendars as cron means them, by what the trigger does over three weeks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from soak.runtime import crontab

SUNDAY = datetime(2026, 1, 4, tzinfo=UTC)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def _due(text: str) -> set[str]:
    """Return the weekdays on which an expression of 03:00 is due, each in all of three weeks."""
    trigger = crontab.cron_trigger(text)
    found = []
    at = trigger.get_next_fire_time(None, SUNDAY)
    while at is not None and at < SUNDAY + timedelta(weeks=3):
        assert (at.hour, at.minute) == (3, 0)
        found.append(DAYS[at.isoweekday() % 7])
        at = trigger.get_next_fire_time(None, at + timedelta(seconds=1))
    assert all(found.count(day) == 3 for day in found)
    return set(found)


@pytest.mark.parametrize(
    ("weekdays", "expected"),
    [
        ("0", "sun"),
        ("7", "sun"),
        ("1", "mon"),
        ("SUN", "sun"),
        ("1-5", "mon tue wed thu fri"),
        ("5-7", "fri sat sun"),
        ("sat-sun", "sat sun"),
        ("sun-tue", "sun mon tue"),
        ("1,3,sat", "mon wed sat"),
        ("1-5/2", "mon wed fri"),
        ("4/2", "thu sat"),
        ("*/2", "sun tue thu sat"),
        ("*", " ".join(DAYS)),
    ],
)
def test_weekdays_are_those_of_cron(weekdays: str, expected: str) -> None:
    """0 and 7 are Sunday; APScheduler counts from Monday."""
    assert _due(f"0 3 * * {weekdays}") == set(expected.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 3 * *", "4 fields instead of five"),
        ("0 3 * * 8", "'8' is not a weekday"),
        ("0 3 * * 5-2", "'5-2' ends before it begins"),
        ("0 3 * * 1/0", "'1/0' is not a weekday"),
        ("0 3 1 * 1", "the day of the month or the day of the week"),
        ("0 3 31 2 *", "there is no such day"),
        ("61 3 * * *", "higher than the maximum"),
    ],
)
def test_an_expression_that_is_malformed_or_never_due_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        crontab.cron_trigger(text)
