"""Reads the timestamp of a log line: log4j, JVM and Redpanda formats, as wall clock of this host.

A timestamp without a time zone is taken to be in this host's; a log whose fresh lines are off by whole
quarters of an hour was written in another one. A timestamp that counts from the start of a JVM is placed by
the line that was read soonest after it was written.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from soak.core.units import SECOND_NS

_QUARTER_NS = 900 * SECOND_NS
_FRESH_NS = 120 * SECOND_NS  # a fresh line is at most this far in the past or the future
_SEARCHED = 64  # characters

_CALENDAR = re.compile(
    r"(?:\[|[A-Z]{4,5} +)?(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d)[.,](?P<fraction>\d{1,9})(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_UPTIME = re.compile(r"\[(?P<whole>\d{1,9})(?:[.,](?P<fraction>\d{3}))?(?P<unit>s|ms)\]", re.ASCII)
_FIRST_YEAR, _LAST_YEAR = 1678, 2261  # 64 bits hold the nanoseconds of these years


class TimestampReader:
    """Reads the timestamps of one log."""

    def __init__(self) -> None:
        self._shift_ns = 0
        self._start_ns: int | None = None
        self._uptime_ns = 0

    def wall_ns(self, line: str, now_ns: int, *, is_fresh: bool) -> int | None:
        """Return when a line was written; None if it has no timestamp and continues the previous line.

        `is_fresh`: it was written a moment ago, since the last read, so it shows the time zone of the log.
        """
        head = line[:_SEARCHED]
        calendar = _CALENDAR.match(head)
        if calendar is not None:
            return self._of_calendar(calendar, now_ns, is_fresh=is_fresh)
        uptime = _UPTIME.match(head)
        return None if uptime is None else self._of_uptime(uptime, now_ns)

    def _of_calendar(self, match: re.Match[str], now_ns: int, *, is_fresh: bool) -> int | None:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        if not _FIRST_YEAR <= year <= _LAST_YEAR:
            return None
        try:
            there = datetime(year, month, day, hour, minute, second, tzinfo=_zone(match["zone"]))
            seconds = there.timestamp()
        except (
            ValueError,
            OverflowError,
            OSError,
        ):  # a 31st of June; a year unknown to the C library
            return None
        at_ns = round(seconds) * SECOND_NS + int(match["fraction"].ljust(9, "0"))
        if match["zone"]:
            return at_ns
        if is_fresh:
            away_ns = now_ns - at_ns
            shift_ns = round(away_ns / _QUARTER_NS) * _QUARTER_NS
            self._shift_ns = shift_ns if abs(away_ns - shift_ns) < _FRESH_NS else 0
        return at_ns + self._shift_ns

    def _of_uptime(self, match: re.Match[str], now_ns: int) -> int:
        scale = SECOND_NS if match["unit"] == "s" else SECOND_NS // 1000
        uptime_ns = int(match["whole"]) * scale + int(match["fraction"] or 0) * (scale // 1000)
        start_ns = now_ns - uptime_ns
        if self._start_ns is None or uptime_ns < self._uptime_ns:  # of another process
            self._start_ns = start_ns
        self._start_ns = min(self._start_ns, start_ns)
        self._uptime_ns = uptime_ns
        return self._start_ns + uptime_ns


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text == "Z":
        return timezone(timedelta())
    digits = text[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)
