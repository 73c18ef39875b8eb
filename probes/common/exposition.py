"""Reads the wanted series of a metrics page (Prometheus text format 0.0.4).

A page has thousands of lines and is read every second: one regular expression finds the wanted ones, and the
name and labels of a line are parsed once and cached.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soak.core.errors import ProbeError
from soak.core.series import Labels

MAX_SERIES = 50_000  # the default limit of a page: 100 MB, and 0.5 s of CPU a reading

_MAX_LINE_BYTES = 2**16

# Possessive quantifiers: no line can make them backtrack.
_NAME = rb"([a-zA-Z_:][a-zA-Z0-9_:]*+)"
_LABEL = rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\.)*+)"[ \t]*+'
_PAIR = re.compile(_LABEL)
_LABELS = _LABEL.replace(b"+(", b"+(?:").replace(b'"(', b'"(?:', 1)
_HEAD = re.compile(_NAME + rb"[ \t]*+(?:\{((?:%s(?:,|(?=\})))*+[ \t]*+)\})?+[ \t]*+" % _LABELS)
_NUMBER = re.compile(
    rb"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE
)
_TIME = re.compile(rb"\d{13}")  # milliseconds; a shorter one may be the end of a number
_STRAY = re.compile(rb"\n[^#a-zA-Z_:\r\n \t]")  # starts neither a sample nor a comment
# If a number was cut in two, its end is the next line.
_FOLLOWED = rb"(?=(\n(?:#[ \r\n]|[a-zA-Z_:][^ \t\n]*+[ \t]|[\r\n]|\Z))?)"
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

SeriesKey = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted series by name; `damaged` holds the names with a line that cannot be read."""

    series: dict[str, dict[Labels, float]]
    damaged: frozenset[str]


class ExpositionParser:
    """Parses the pages of one source, always for the same names."""

    def __init__(self, names: Iterable[str], max_series: int = MAX_SERIES) -> None:
        wanted = _one_of(sorted(set(names))).encode()
        self._lines = re.compile(rb"(\n%s(?![a-zA-Z0-9_:])[^\n]*+)%s" % (wanted, _FOLLOWED))
        self._max_series = max_series
        self._heads: dict[bytes, SeriesKey] = {}
        self._labels: dict[Labels, Labels] = {}  # many series of a page have the same

    def parse(self, text: bytes) -> Page:
        """Return the wanted series.

        A name is damaged if one of its series appears twice with different values, or has a line that
        cannot be read: the rest of such a metric would be taken for the whole.

        Raises:
            ProbeError: the page was cut, so its last line has no end; a line is neither a sample nor a
                comment; or there are too many series.
        """
        if not text.endswith(b"\n"):
            raise ProbeError(f"the page was cut after {len(text)} bytes")
        text = b"\n" + text
        stray = _STRAY.search(text)
        if stray is not None:
            line = text.count(b"\n", 0, stray.end())
            raise ProbeError(f"line {line} of the page is neither a sample nor a comment")
        series: dict[str, dict[Labels, float]] = {}
        damaged: set[str] = set()
        count = 0
        for line, is_whole in self._lines.findall(text):
            is_readable = is_whole and len(line) <= _MAX_LINE_BYTES
            key, value = self._read(line) if is_readable else (None, None)
            if key is None or value is None:
                damaged.add(_name_of(line))
                continue
            name, labels = key
            found = series.setdefault(name, {})
            count += 1
            if count > self._max_series:
                raise ProbeError(
                    f"the page has more than {self._max_series} wanted series: raise max_series"
                )
            if labels in found and found[labels] != value:
                damaged.add(name)
            found[labels] = value
        return Page(series, frozenset(damaged))

    def _read(self, line: bytes) -> tuple[SeriesKey | None, float | None]:
        head, _, text = line.rstrip(b" \t\r").rpartition(b" ")
        if head not in self._heads:
            key = _key(head)
            if key is None:
                return _with_time(line)
            if len(self._heads) >= 2 * self._max_series:
                self._heads.clear()
                self._labels.clear()
            name, labels = key
            self._heads[head] = sys.intern(name), self._labels.setdefault(labels, labels)
        return self._heads[head], _number(text)


def _one_of(names: Sequence[str]) -> str:
    """Return a regular expression that tries a common prefix once: ten times as fast as a list of names."""
    common = os.path.commonprefix(names)  # noqa: RUF071  # of characters, not of path parts
    rests: dict[str, list[str]] = {}
    for name in names:
        rest = name[len(common) :]
        rests.setdefault(rest[:1], []).append(rest)
    if len(rests) == 1:
        return re.escape(common)
    # The empty rest comes last: it is the name that the others start with.
    branches = (
        _one_of(group) if first else "" for first, group in sorted(rests.items(), reverse=True)
    )
    return f"{re.escape(common)}(?:{'|'.join(branches)})"


def _with_time(line: bytes) -> tuple[SeriesKey | None, float | None]:
    """Read a line with a tab, or with a timestamp after its value."""
    match = _HEAD.match(line, 1)
    rest = line[match.end() :].split() if match else []
    is_timed = len(rest) > 1 and _TIME.fullmatch(rest[1]) is not None
    if match is None or len(rest) != 1 + is_timed:
        return None, None
    return _key(line[: match.end()]), _number(rest[0])


def _key(head: bytes) -> SeriesKey | None:
    match = _HEAD.fullmatch(head, 1)
    if match is None:
        return None
    try:
        pairs = {
            name.decode("ascii"): _ESCAPED.sub(_unescaped, value.decode("utf-8"))
            for name, value in _PAIR.findall(match[2] or b"")
        }
    except UnicodeDecodeError:
        return None
    return match[1].decode("ascii"), tuple(sorted(pairs.items()))


def _unescaped(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[0])


def _number(text: bytes) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _name_of(line: bytes) -> str:
    match = re.match(rb"\n([a-zA-Z0-9_:]+)", line)
    return match[1].decode("ascii") if match else ""
