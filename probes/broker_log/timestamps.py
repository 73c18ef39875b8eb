"""Reads the timestamp of a log line, of whatever program, as wall clock of this host.

Known are dates in the order of ISO 8601, those with the name of the month (log4j, syslog, asctime,
java.util.logging), those of three short numbers in the order of any country, klog, times without a date,
seconds to nanoseconds since 1970 (at the beginning, or in a field of logfmt), uptimes of a JVM, and all of
these in the usual fields of a JSON object.

A message in JSON with a timestamp of its own has that, in the time zone that the one around it shows: a log
collector may write there when it read the message.

A timestamp without a time zone is taken to be in this host's; a log whose fresh lines are off by whole
quarters of an hour was written in another one. What a timestamp leaves out, the year or the date, is chosen
so that it is nearest to now, and so is the order of three short numbers. A timestamp that counts from the
start of a JVM is placed by the line of the last minutes that was read soonest after it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal

from probes.broker_log import json_lines
from soak.core.journal_format import MAX_TIME_NS
from soak.core.units import SECOND_NS

_QUARTER_NS = 900 * SECOND_NS
_FRESH_NS = 120 * SECOND_NS  # a fresh line is at most this far in the past or the future
_SEARCHED = 96  # characters: the header of syslog may come first
_PLAUSIBLE_NS = 366 * 86_400 * SECOND_NS  # from now to a number that counts from 1970
_SAME_NS = 2 * SECOND_NS  # between two timestamps of one line
_MAX_ZONE_NS = 14 * 3600 * SECOND_NS  # from one time zone to UTC
_RESTARTED_NS = SECOND_NS  # lines of several threads of one process are out of order by less
_WINDOW_NS = 120 * SECOND_NS  # of uptime
"""A line places others in its window and the next one, not for ever: the wall clock may be set."""

_TIME = r"(?P<hour>\d\d?):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,:](?P<fraction>\d{1,9}))?"
_DIGITS = r"(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)"
_ZONE = (  # behind a blank may be another number
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d)?| [+-](?:0\d|1[0-4]):?(?:00|15|30|45)(?!\w)| ?UTC| ?GMT)?"
)
_BETWEEN = "(?:T|[ _-]|,? at |, )"  # date and time
_HALF = "(?P<half>[ \u202f][AP]M)?"  # newer JDKs write a narrow blank
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})[a-z]*"
_CALENDARS, _RARE_CALENDARS = (
    tuple(re.compile(text, re.ASCII | re.IGNORECASE) for text in texts)
    for texts in (
        (
            r"(?<!\d)(?P<year>\d{4})(?P<_>[-/.]?)(?P<month>\d\d)(?P=_)(?P<day>\d\d)"
            + _BETWEEN
            + _TIME
            + _ZONE,
            r"(?<!\d)(?P<day>\d\d?)[ /-]"
            + _MONTH
            + r"[ /-](?P<year>\d{4}|\d\d)[ :T]"
            + _TIME
            + _ZONE,
            r"\b" + _MONTH + r" +(?P<day>\d\d?)(?:,? (?P<year>\d{4}),?)? " + _TIME + _HALF + _ZONE,
        ),
        (
            r"(?<!\d)(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)T"  # the basic form of ISO 8601
            + _DIGITS
            + r"(?:[.,](?P<fraction>\d{1,9}))?"
            + _ZONE,
            # log4j's COMPACT, and dates of which only the time has no separators
            r"(?<![\w.,:/-])(?P<year>20\d\d)(?P<month>\d\d)(?P<day>\d\d)[T -]?"
            + _DIGITS
            + r"(?:[.,]?(?P<fraction>\d{3}))?(?![\w.,:/-])",
            r"(?<![\d.])(?P<one>\d\d?)(?P<_>[-/.])(?P<two>\d\d?)(?P=_)(?P<three>\d{4}|\d\d)"
            + _BETWEEN
            + _TIME
            + _HALF
            + _ZONE,
        ),
    )
)
_AT_FIRST = tuple(
    re.compile(text, re.ASCII)
    for text in (
        r"[IWEF](?P<month>\d\d)(?P<day>\d\d) +" + _TIME,  # klog
        r"[\[(<]? *(?:[A-Z]{4,7} *[\])>:|]? +[\[(<]? *)?" + _TIME + r"(?![\d:])",
    )
)
_OF_DAY = re.compile(r"(?<![\d:.])" + _TIME + r"(?![\d:])", re.ASCII)
_SINCE_1970 = (
    r"(?P<number>\d{10}[.,]\d{1,9}s?|\d\.\d{9,17}e\+?0?9|\d{19}(?:ns)?|\d{16}(?:us)?|\d{13}(?:ms)?|\d{10}s?)"
    r"(?![\w.,:/-])"
)
_EPOCH = re.compile(r"(?:\[[^\]]{0,24}\])?[\[(<]? {0,16}" + _SINCE_1970, re.ASCII)
_EPOCH_OF_KEY = re.compile(  # logfmt
    r"(?<![\w.])@?(?:ts|t|time|timestamp)=[\"']?" + _SINCE_1970, re.ASCII
)
_UPTIME = re.compile(
    r"\[ {0,16}(?P<whole>\d{1,18})(?:[.,](?P<fraction>\d{3,9}))?(?P<unit>s|ms|ns)\]"
    r"|(?P<whole_8>\d{1,9})[.,](?P<fraction_8>\d{3}): ",  # JDK 8
    re.ASCII,
)
_UNIT_NS = {"s": SECOND_NS, "ms": SECOND_NS // 1000, "ns": 1}
_CONTINUED = re.compile(
    r"\s|$|at |Caused by|Suppressed|\.\.\. \d+ more|(?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b",
    re.ASCII,
)
_LEVEL = "(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|SEVERE|CONFIG|FINE|FINER|FINEST)"
_PADDED = re.compile(
    r" {1,16}(?="
    rf"{_LEVEL} *[ :|]|(?i:{_LEVEL}) +[\[(<]?\d\d(?:\d\d[-/.]|:)|[\[(<] *{_LEVEL} *[\])>]"
    # a date or a time that is not all of the line, such as one that is quoted
    r"|[\[(<]? *(?:\d{4}([-/.]?)\d\d\1\d\d[T _-])?\d\d:\d\d:\d\d\S* +\S"
    r"|[\[(<]? *(?:\d{10}[.,]\d{3,9}|\d{13})[\])>]? +\S"
    r")",
    re.ASCII,
)
"""Before a level or a timestamp of a fixed width at the beginning of a line, as log4j's `%5p` has it."""
_CENTURY = 100
_FIRST_YEAR, _LAST_YEAR = 1824, 2115  # a journal holds times of these years


def continues_previous(line: str) -> bool:
    """Return whether a line without a timestamp is part of the previous one, such as of a stack trace."""
    return _CONTINUED.match(line) is not None and _PADDED.match(line) is None


class TimestampReader:
    """Reads the timestamps of one log."""

    def __init__(self) -> None:
        self._shift_ns = 0
        self._starts_ns: dict[int, int] = {}  # the earliest start, by window of the uptime
        self._uptime_ns = 0  # the longest

    def wall_ns(self, line: str, now_ns: int, *, is_fresh: bool) -> int | None:
        """Return when a line was written; None without a timestamp that can be read and that a journal holds.

        `is_fresh`: it was written a moment ago, since the last read, so it shows the time zone of the log.
        """
        at_ns = self._wall_ns(line, now_ns, is_fresh=is_fresh)
        return at_ns if at_ns is not None and abs(at_ns) <= MAX_TIME_NS else None

    def _wall_ns(self, line: str, now_ns: int, *, is_fresh: bool) -> int | None:
        line = _unpadded(line)
        if line[:1].isspace():
            return None
        if not line.startswith("{"):
            at_ns = self._of_text(line, now_ns, is_fresh=is_fresh)
            if at_ns is not None:
                return at_ns
        text, messages = json_lines.timestamp(line), list(json_lines.messages(line))
        if not text:
            text = _unpadded(next(iter(messages), line))
            return None if text[:1].isspace() else self._of_text(text, now_ns, is_fresh=is_fresh)
        at_ns = self._of_text(text, now_ns, is_fresh=is_fresh)
        if at_ns is None:
            return None
        written = (_as_written(message, at_ns) for message in messages)
        return next((one_ns for one_ns in written if one_ns is not None), at_ns)

    def _of_text(self, line: str, now_ns: int, *, is_fresh: bool) -> int | None:
        head = line[:_SEARCHED]
        epoch_ns = _epoch_ns(_EPOCH.match(head), now_ns)
        if epoch_ns is not None:
            return epoch_ns
        found = _calendars(head, now_ns)
        of_key = _EPOCH_OF_KEY.search(head)
        if of_key is not None and not (found and found[0][0].start() < of_key.start()):
            epoch_ns = _epoch_ns(of_key, now_ns)
            if epoch_ns is not None:
                return epoch_ns
        if found:
            return self._in_zone(*_most_precise(found), now_ns, is_fresh=is_fresh)
        uptime = _UPTIME.match(head)
        return None if uptime is None else self._of_uptime(uptime, now_ns, is_fresh=is_fresh)

    def _in_zone(self, match: re.Match[str], at_ns: int, now_ns: int, *, is_fresh: bool) -> int:
        if _has_zone(match):
            return at_ns
        if is_fresh:
            away_ns = now_ns - at_ns
            shift_ns = _whole_quarters(away_ns)
            self._shift_ns = shift_ns if abs(away_ns - shift_ns) < _FRESH_NS else 0
        return at_ns + self._shift_ns

    def _of_uptime(self, match: re.Match[str], now_ns: int, *, is_fresh: bool) -> int:
        whole, fraction = (
            match["whole"] or match["whole_8"],
            match["fraction"] or match["fraction_8"],
        )
        scale_ns = _UNIT_NS[match["unit"] or "s"]
        uptime_ns = (
            int(whole) * scale_ns + int((fraction or "").ljust(9, "0")) * scale_ns // SECOND_NS
        )
        start_ns = now_ns - uptime_ns
        is_restarted = uptime_ns < self._uptime_ns - _RESTARTED_NS
        late_ns = start_ns - min(self._starts_ns.values(), default=start_ns)
        if is_restarted or (is_fresh and late_ns > _FRESH_NS):
            self._starts_ns, self._uptime_ns = {}, 0
        window = uptime_ns // _WINDOW_NS
        recent = {at: ns for at, ns in self._starts_ns.items() if at >= window - 1}
        self._starts_ns = {**recent, window: min(start_ns, recent.get(window, start_ns))}
        self._uptime_ns = max(self._uptime_ns, uptime_ns)
        return min(self._starts_ns.values()) + uptime_ns


def _unpadded(line: str) -> str:
    padding = _PADDED.match(line)
    return line[padding.end() :] if padding else line


def _whole_quarters(ns: int) -> int:
    return round(ns / _QUARTER_NS) * _QUARTER_NS


def _as_written(message: str, around_ns: int) -> int | None:
    """Return when a message says that it was written; None where that does not fit the time around it.

    The time around it knows the time zone, which the message may leave out.
    """
    found = _calendars(message[:_SEARCHED], around_ns)
    if not any(match["fraction"] for match, _ in found):  # the time around it is as good
        return None
    match, written_ns = _most_precise(found)
    if not _has_zone(match):
        shift_ns = _whole_quarters(around_ns - written_ns)
        written_ns += shift_ns if abs(shift_ns) <= _MAX_ZONE_NS else 0
    return written_ns if abs(around_ns - written_ns) < _FRESH_NS else None


def _calendars(head: str, now_ns: int) -> list[tuple[re.Match[str], int]]:
    """Return the timestamps with a date in order, then those without, as wall clock of this host."""
    at_first = [match for one in _AT_FIRST if (match := one.match(head))]
    anywhere = [match for one in _CALENDARS for match in one.finditer(head)]
    if not (at_first or anywhere):
        anywhere = [match for one in _RARE_CALENDARS for match in one.finditer(head)]
    first = at_first or sorted(anywhere, key=lambda match: match.start())
    dated = _known(first, now_ns)
    return dated + _known(_OF_DAY.finditer(head), now_ns) if dated else []


def _known(matches: Iterable[re.Match[str]], now_ns: int) -> list[tuple[re.Match[str], int]]:
    return [
        (match, at_ns)
        for match in matches
        if (at_ns := _calendar_ns(match.groupdict(), now_ns)) is not None
    ]


def _most_precise(found: list[tuple[re.Match[str], int]]) -> tuple[re.Match[str], int]:
    """Return the first timestamp, to the fraction of one that means the same moment in whatever time zone.

    That one itself, if it alone has its time zone.
    """
    first, first_ns = found[0]
    for match, at_ns in found:
        shift_ns = _whole_quarters(first_ns - at_ns)
        if match["fraction"] and abs(first_ns - at_ns - shift_ns) < _SAME_NS:
            if _has_zone(match) and not _has_zone(first):
                return match, at_ns
            return first, at_ns + shift_ns
    return found[0]


def _has_zone(match: re.Match[str]) -> bool:
    return bool(match.groupdict().get("zone"))


def _calendar_ns(parts: Mapping[str, str | None], now_ns: int) -> int | None:
    """Return the time of a date in its zone, or in this host's; None for a month 13 or a year too far."""
    try:
        zone = _zone(parts.get("zone"))
        moments = [
            moment
            for date in _dates(parts, datetime.fromtimestamp(now_ns // SECOND_NS, zone))
            if (moment := _moment(date, parts, zone)) is not None
        ]
        seconds = min(
            (round(moment.timestamp()) for moment in moments),
            key=lambda at: abs(at - now_ns // SECOND_NS),
        )
    except (ValueError, OverflowError, OSError):  # none; a year unknown to the C library
        return None
    return seconds * SECOND_NS + int((parts.get("fraction") or "").ljust(9, "0"))


def _dates(parts: Mapping[str, str | None], now: datetime) -> list[tuple[int, int, int]]:
    """Return the dates that are possible: one, or those around now for what is left out."""
    if parts.get("one"):
        return _orders(*(int(parts[name] or 0) for name in ("one", "two", "three")))
    month, day, year = parts.get("month"), parts.get("day"), parts.get("year")
    if not month or not day:
        days = (now + timedelta(days=away) for away in (-1, 0, 1))
        return [(one.year, one.month, one.day) for one in days]
    number = int(month) if month.isdigit() else 1 + _MONTHS.index(month[:3].lower())
    years = [_whole_year(int(year))] if year else [now.year - 1, now.year, now.year + 1]
    return [(one, number, int(day)) for one in years if _FIRST_YEAR <= one <= _LAST_YEAR]


def _orders(one: int, two: int, three: int) -> list[tuple[int, int, int]]:
    """Return what three numbers may mean: year, month, day; day, month, year; month, day, year."""
    found = [(_whole_year(three), two, one), (_whole_year(three), one, two)]
    return [(_whole_year(one), two, three), *found] if three < _CENTURY else found


def _whole_year(year: int) -> int:
    return year + 2000 if year < _CENTURY else year


def _moment(
    date: tuple[int, int, int], parts: Mapping[str, str | None], zone: timezone | None
) -> datetime | None:
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    half = (parts.get("half") or "").strip().upper()
    if half:
        hour = hour % 12 + (12 if half == "PM" else 0)
    try:
        return datetime(*date, hour, minute, second, tzinfo=zone)
    except ValueError:  # a 29th of February in another year
        return None


def _epoch_ns(match: re.Match[str] | None, now_ns: int) -> int | None:
    """Return the time of seconds, milliseconds, microseconds or nanoseconds since 1970, by their length.

    None if there is no such number, or if it is too far from now to be one.
    """
    if match is None:
        return None
    number = match["number"].rstrip("smun").replace(",", ".")
    if "e" in number or "." in number:  # zap writes seconds with an exponent
        epoch_ns = int(Decimal(number) * SECOND_NS)
    else:
        epoch_ns = int(number.ljust(19, "0"))
    return epoch_ns if abs(epoch_ns - now_ns) < _PLAUSIBLE_NS else None


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    name = text.strip().upper()
    if name in {"Z", "UTC", "GMT"}:
        return timezone(timedelta())
    digits = name[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if name[0] == "-" else offset)
