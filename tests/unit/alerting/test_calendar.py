"""Maintenance windows and due digests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from soak.alerting.calendar import Calendar, bad_crons
from soak.core.plan.plan import Alerts, Maintenance
from soak.core.units import SECOND_NS

NIGHTLY = Alerts(
    digest="0 7 * * *", maintenance=(Maintenance(cron="0 2 * * sun", length=7200 * SECOND_NS),)
)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-09-20T01:59:59", False),  # a Sunday
        ("2026-09-20T02:00:00", True),
        ("2026-09-20T03:59:59", True),
        ("2026-09-20T04:00:00", False),
        ("2026-09-21T03:00:00", False),
    ],
)
def test_a_window_lasts_from_its_begin_to_its_end(moment: str, *, expected: bool) -> None:
    assert Calendar(NIGHTLY).is_quiet(at(moment)) == expected


@pytest.mark.parametrize(
    ("after", "now", "due"),
    [
        ("2026-09-20T07:00:00", "2026-09-21T06:59:59", None),
        ("2026-09-20T07:00:00", "2026-09-21T07:00:00", "2026-09-21T07:00:00"),
        ("2026-09-01T12:00:00", "2026-09-21T12:00:00", "2026-09-21T07:00:00"),
        ("2026-09-21T07:00:00", "2026-09-20T12:00:00", None),  # the clock stepped back
    ],
)
def test_one_of_many_missed_digests_is_due(after: str, now: str, due: str | None) -> None:
    """After a week without the daemon there is one mail, not seven."""
    assert Calendar(NIGHTLY).digest_due_ns(at(after), at(now)) == (due and at(due))


def test_a_plan_without_alerts_has_no_windows_and_no_digests() -> None:
    calendar = Calendar(Alerts())

    assert not calendar.is_quiet(at("2026-09-20T02:00:00"))
    assert calendar.digest_due_ns(0, at("2026-09-20T02:00:00")) is None


def test_each_bad_cron_expression_is_reported_with_its_key() -> None:
    window = Maintenance(cron="0 25 * * *", length=SECOND_NS)

    (digest, why), (maintenance, _) = bad_crons(Alerts(digest="daily", maintenance=(window,)))

    assert bad_crons(NIGHTLY) == []
    assert (digest, maintenance) == (("digest",), ("maintenance", 0, "cron"))
    assert why.startswith("'daily' is not a cron")
