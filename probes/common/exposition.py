"""Reads the wanted series of a metrics page: Prometheus' text formats 0.0.4 and 1.0.0, and OpenMetrics 1.0.

Timestamps (milliseconds, or seconds as OpenMetrics has them), start times (`st@`, OpenMetrics 2.0) and
exemplars behind a value are allowed and ignored, as are blanks before a line; names of metrics and labels
may be quoted, in UTF-8. A page has thousands of lines and is read every second: one regular expression finds
the wanted ones, and the name and labels of a line are parsed once and cached. That is why this is no library:
prometheus-client's reader takes ten times as long for a page of wanted lines, and accepts a number with a
hole in it. Tests compare the two.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soak.core.errors import ProbeError
from soak.core.series import Labels

MAX_SERIES = 50_000  # the default limit of a page: 100 MB, and 0.5 s of CPU a reading

MAX_LABEL_BYTES = 2048  # of the labels of a series; Kubernetes' longest are some 700
_MAX_LINE_BYTES = 2**16
_MAX_KNOWN_BYTES = 2**24  # of the lines whose labels are kept from reading to reading

# Possessive quantifiers: no line can make them backtrack.
_QUOTED = rb'"((?:[^"\\\n]|\\.)*+)"'
_BARE = rb"([a-zA-Z_][a-zA-Z0-9_]*+)"
_TERM = rb"[ \t]*+(?:%s|%s)(?:[ \t]*+=[ \t]*+%s)?+[ \t]*+" % (_BARE, _QUOTED, _QUOTED)
_TERMS = re.compile(_TERM)
"""A label, or the quoted name of the metric, which has no value."""

_LABELS = rb"\{((?:%s(?:,|(?=\})))*+[ \t]*+)\}" % re.sub(rb"\((?!\?)", b"(?:", _TERM)
_HEAD = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*+)?+[ \t]*+(?:%s)?+[ \t]*+" % _LABELS)
_EXPONENT = rb"(?:e[+-]?\d++)?+"
_NUMBER_TEXT = rb"[+-]?(?i:\d++\.?+\d*+%s|\.\d++%s|inf(?:inity)?+|nan)" % (_EXPONENT, _EXPONENT)
_NUMBER = re.compile(_NUMBER_TEXT)
# Milliseconds, or seconds; a shorter number may be the end of one that was cut in two.
_TIME = rb"(?:\d{13}|\d{10}(?:\.\d*+)?+|\d\.\d*+[eE]\+?0?9)"
_BLANK = rb"[ \t]++"
_EXEMPLAR = rb"#[ \t]*+%s%s%s(?:%s%s)?" % (
    re.sub(rb"\((?!\?)", b"(?:", _LABELS),
    _BLANK,
    _NUMBER_TEXT,
    _BLANK,
    _TIME,
)
_VALUE = re.compile(
    rb"(%s)(?:%s%s)?(?:%sst@%s)?(?:%s%s)?[ \t\r]*+"
    % (_NUMBER_TEXT, _BLANK, _TIME, _BLANK, _TIME, _BLANK, _EXEMPLAR)
)
_QUOTED_START = rb'\{[ \t]*+"(?:[^"\\\n]|\\.)*+"[ \t]*+[,}]'
# Starts neither a sample nor a comment.
_STRAY = re.compile(rb"\n(?!%s)[^#a-zA-Z_:\r\n \t]" % _QUOTED_START)
# If a number was cut in two, its end is the next line.
_FOLLOWED = rb"(?=(\n(?:#[ \r\n]|[a-zA-Z_:][^ \t\n]*+[ \t]|%s|[\r\n]|\Z))?)" % _QUOTED_START
_INDENTED = re.compile(rb"\n[ \t]++")
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

SeriesKey = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Page:
    """The wanted series by name; `damaged` holds the names with a line that cannot be read.

    Each NaN is `math.nan` itself, so that dicts of equal pages are equal.
    """

    series: dict[str, dict[Labels, float]]
    damaged: frozenset[str]


class ExpositionParser:
    """Parses the pages of one source, always for the same names."""

    def __init__(self, names: Iterable[str], max_series: int = MAX_SERIES) -> None:
        wanted = one_of(sorted(set(names))).encode()
        quoted = one_of(sorted({_escaped(name) for name in names})).encode()
        self._lines = re.compile(
            rb'(\n(?:%s(?![a-zA-Z0-9_:])|\{[ \t]*+"%s")[^\n]*+)%s' % (wanted, quoted, _FOLLOWED)
        )
        self._max_series = max_series
        self._heads: dict[bytes, SeriesKey] = {}
        self._labels: dict[Labels, Labels] = {}  # many series of a page have the same
        self._known_bytes = 0

    def parse(self, text: bytes) -> Page:
        """Return the wanted series.

        A name is damaged if one of its series appears twice with different values, or has a line that
        cannot be read: the rest of such a metric would be taken for the whole.

        Raises:
            ProbeError: the page was cut, so its last line has no end and is not `# EOF`; a line is neither a
                sample nor a comment; or there are too many series.
        """
        if not text.endswith((b"\n", b"\n# EOF")):
            raise ProbeError(f"the page was cut after {len(text)} bytes")
        text = b"\n" + text.removeprefix(codecs.BOM_UTF8)
        if b"\n " in text or b"\n\t" in text:
            text = _INDENTED.sub(b"\n", text)
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
        key = self._heads.get(head)
        if key is not None and _NUMBER.fullmatch(text):
            return key, _number(text)
        match = _HEAD.match(line, 1)
        value = _VALUE.fullmatch(line, match.end()) if match else None
        if match is None or value is None or len(match[2] or b"") > MAX_LABEL_BYTES:
            return None, None
        head = b"\n" + match[0].removesuffix(b" ")
        if head not in self._heads:
            key = _key(match)
            if key is None:
                return None, None
            is_full = len(self._heads) >= 2 * self._max_series
            if is_full or self._known_bytes > _MAX_KNOWN_BYTES:
                self._heads.clear()
                self._labels.clear()
                self._known_bytes = 0
            self._known_bytes += len(head)
            name, labels = key
            self._heads[head] = sys.intern(name), self._labels.setdefault(labels, labels)
        return self._heads[head], _number(value[1])


def _number(text: bytes) -> float:
    value = float(text)
    return math.nan if math.isnan(value) else value


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def one_of(names: Sequence[str]) -> str:
    """Return a regular expression of sorted texts that tries a common prefix once: far faster than a list."""
    common = os.path.commonprefix(names)  # noqa: RUF071  # of characters, not of path parts
    rests: dict[str, list[str]] = {}
    for name in names:
        rest = name[len(common) :]
        rests.setdefault(rest[:1], []).append(rest)
    if len(rests) == 1:
        return re.escape(common)
    # The empty rest comes last: it is the name that the others start with.
    branches = (
        one_of(group) if first else "" for first, group in sorted(rests.items(), reverse=True)
    )
    return f"{re.escape(common)}(?:{'|'.join(branches)})"


def _key(match: re.Match[bytes]) -> SeriesKey | None:
    """Return name and labels of a line; None if they are no UTF-8, or if it has two names or none."""
    name, pairs = match[1], dict[str, str]()
    try:
        for at, term in enumerate(_TERMS.finditer(match[2] or b"")):
            bare, quoted, value = term.groups()
            if value is not None:
                pairs[_text(quoted if bare is None else bare)] = _text(value)
            elif quoted is None or name is not None or at:
                return None
            else:
                name = quoted
        return None if name is None else (_text(name), tuple(sorted(pairs.items())))
    except UnicodeDecodeError:
        return None


def _text(quoted: bytes) -> str:
    return _ESCAPED.sub(_unescaped, quoted.decode("utf-8"))


def _unescaped(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[0])


def _name_of(line: bytes) -> str:
    match = re.match(rb'\n(?:([a-zA-Z0-9_:]++)|\{[ \t]*+"((?:[^"\\]|\\.)*+)")', line)
    name = b"" if match is None else match[1] or match[2]
    return _ESCAPED.sub(_unescaped, name.decode("utf-8", errors="replace"))
