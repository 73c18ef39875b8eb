"""Cron expressions of five fields as APScheduler triggers.

APScheduler 3 counts weekdays from Monday, cron from Sunday.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from apscheduler.triggers.cron import CronTrigger

_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[1-9]\d*))?")


def cron_trigger(text: str) -> CronTrigger:
    """Return the trigger of an expression, in UTC.

    Raises:
        ValueError: the expression is malformed, is never due, or restricts both the day of the month and the
            day of the week: cron is then due on either, APScheduler only on both.
    """
    fields = text.split()
    if len(fields) != 5:  # noqa: PLR2004  # minute, hour, day, month, weekday
        raise ValueError(f"{len(fields)} fields instead of five")
    *others, day, month, weekday = fields
    if not (day.startswith("*") or weekday.startswith("*")):
        raise ValueError("restrict the day of the month or the day of the week, not both")
    weekdays = ",".join(_weekday_names(item) for item in weekday.split(","))
    found = CronTrigger.from_crontab(" ".join([*others, day, month, weekdays]), timezone=UTC)
    if found.get_next_fire_time(None, datetime.fromtimestamp(0, UTC)) is None:
        raise ValueError("there is no such day")
    return found


def _weekday_names(item: str) -> str:
    """Return the weekdays of one list item by name: names mean the same to cron and APScheduler."""
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ValueError(f"{item!r} is not a weekday")
    first, last, step = match["first"], match["last"], match["step"]
    if first == "*":
        low, high = 0, 6
    else:
        low = _weekday_number(first)
        high = _weekday_number(last) if last else 6 if step else low
        high += 7 * (high == 0 < low)  # a week may end with Sunday
    if low > high:
        raise ValueError(f"{item!r} ends before it begins")
    return ",".join(_WEEKDAYS[day % 7] for day in range(low, high + 1, int(step or 1)))


def _weekday_number(text: str) -> int:
    """Return a weekday as cron counts: 0 and 7 are Sunday."""
    if text.lower() in _WEEKDAYS:
        return _WEEKDAYS.index(text.lower())
    if text in set("01234567"):
        return int(text)
    raise ValueError(f"{text!r} is not a weekday: use 0 to 7 or {', '.join(_WEEKDAYS)}")
