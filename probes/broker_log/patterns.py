"""Which lines of a broker's log are events, as patterns in TOML files.

There is one file in `log_patterns/` for each program; a plan may name files of its own. Most lines are no
events, so `words` are searched first, in all lines at once; only a line with them is matched against the
expression. A line that lists several things, such as the segments that are deleted, is an event for each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass as config_dataclass

from probes.broker_log import json_lines
from probes.common import toml_tables
from soak.core.journal_format import CHECKED_EVENTS
from soak.core.plan.config import STRICT

FOLDER = Path(__file__).parent / "log_patterns"
MAX_SEARCHED = 2048  # characters of a line that an expression sees
_MAX_TEXT = 200

_WORD = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_WHOLE = re.compile(r"-?0*[0-9]{1,18}", re.ASCII)  # file names have leading zeros
_DECIMAL = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)
_AMOUNT = re.compile(r"-?[0-9]{1,18}(?:[.,][0-9]{1,18})?", re.ASCII)  # some locales write a comma

_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,:+-]{0,20}Z?"
_PREFIX = re.compile(
    r"(?:"
    rf"{_ISO} (?:stdout|stderr) [FP](?::\S{{1,20}})? "  # CRI: containerd, CRI-O
    rf"|(?:<\d{{1,3}}>)?(?:{_ISO}|[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\[ *\d+\.\d+\])"
    r" [\w.:-]{1,255} [^\s:\[]{1,80}(?:\[\d+\])?: "  # RFC 3164, the journal
    r"|<\d{1,3}>\d \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]]*\])+) (?:\ufeff)?"  # RFC 5424
    rf"|{_ISO} "  # docker logs --timestamps
    r"|[\w.@-]{1,255} +\| |\[pod/[^\]]*\] "  # docker compose logs, kubectl logs --prefix
    r"){1,3}",
    re.ASCII,
)
"""What container runtimes and syslog write before a line of a program."""

Value = str | int | float


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Pattern:
    """The groups of `expression` are the fields of the event; text that looks like a number becomes one.

    A field with a factor may have a decimal comma.
    """

    kind: str  # of the event
    words: str  # part of every such line, where the match of the expression ends or before
    expression: str
    factors: dict[str, float] = field(
        default_factory=dict
    )  # of a field, from the log's unit to the base unit
    metric: str = ""  # its value is the sum of the field `sums` in each second
    sums: str = ""
    nested_by: str = ""  # a field that counts begins: an event inside the next one is left out
    more: str = ""  # right behind the match, again and again: further events, with other values of its groups

    def __post_init__(self) -> None:
        try:
            groups = re.compile(self.expression, re.ASCII).groupindex
            replaced = re.compile(self.more, re.ASCII).groupindex
        except re.error as error:
            raise ValueError(f"the expression is invalid: {error}") from error
        if not _WORD.fullmatch(self.kind) or (self.metric and not _WORD.fullmatch(self.metric)):
            raise ValueError("kind and metric must be words of a-z, 0-9 and '_'")
        if self.kind in CHECKED_EVENTS:
            raise ValueError(f"the kind {self.kind} is an event of soakd's own load")
        if not self.words or "\n" in self.words:
            raise ValueError("words must be part of a line")
        required = [self.sums] if self.metric else []
        required += [self.nested_by, self.sums] if self.nested_by else []
        for name in (*self.factors, *required, *replaced):
            if name not in groups:
                raise ValueError(f"the expression has no group {name!r}")
        for name, factor in self.factors.items():
            if not (math.isfinite(factor) and factor):
                raise ValueError(f"the factor of {name!r} must be a number other than 0")


@plain_dataclass(frozen=True, slots=True)
class Match:
    """A line that is an event."""

    pattern: Pattern
    line: str
    fields: dict[str, Value]


def load(names: Iterable[str]) -> list[Pattern]:
    """Return the patterns of several files.

    Raises:
        PlanError: a file is missing, or a pattern in it is wrong.
    """
    return [
        pattern
        for name in names
        for pattern in toml_tables.read_tables(
            toml_tables.table_path(FOLDER, name), "pattern", Pattern
        )
    ]


class Scanner:
    """Finds the events in pieces of a log."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = [
            (one, re.compile(one.expression, re.ASCII), re.compile(one.more, re.ASCII))
            for one in patterns
        ]
        words = {one.words for one in patterns}
        for _ in range(json_lines.LAYERS):
            words |= {json.dumps(text)[1:-1] for text in words}  # as in a JSON object
        in_order = sorted(words, key=lambda text: (-len(text), text))
        self._words = re.compile(b"|".join(re.escape(text.encode()) for text in in_order))

    def found(self, text: bytes) -> list[Match]:
        """Return the events in complete lines, in order.

        One that was logged inside the next one of its kind is left out: that contains its time.
        """
        next_of: dict[str, Match] = {}
        kept: list[Match] = []
        for match in reversed(list(self._matches(text))):
            kind = match.pattern.kind
            if kind not in next_of or added_by(next_of[kind], match) is None:
                next_of[kind] = match
                kept.append(match)
        return kept[::-1]

    def _matches(self, text: bytes) -> Iterator[Match]:
        at = 0
        while (match := self._words.search(text, at)) is not None:
            begin = text.rfind(b"\n", 0, match.start()) + 1
            end = text.find(b"\n", match.end())
            at = len(text) if end < 0 else end
            # JSON is parsed whole, which takes time in proportion to what was read.
            line = text[begin : min(at, begin + json_lines.MAX_LINE)]
            yield from self._events(line.decode("utf-8", errors="replace").rstrip("\r"))

    def _events(self, line: str) -> Iterator[Match]:
        """Yield the events of a line: those of the first pattern that one of its texts matches.

        What the message of a JSON object is about may be in other fields: they are searched for it, but not
        for messages of their own, such as that of an exception.
        """
        messages = list(json_lines.messages(line))
        texts = [text for text in messages if not text.startswith("{")] or [line]
        texts.append(line.partition("{")[0])  # a message may have JSON behind it
        possible = [one for one in self._patterns if any(one[0].words in text for text in texts)]
        for text in _with_and_without_prefix(*messages, line):
            head = text[:MAX_SEARCHED]
            for pattern, expression, more in possible:
                match = expression.search(head) if pattern.words in head else None
                if match is not None:
                    yield from _listed(pattern, match, more, line, text)
                    return


def _with_and_without_prefix(*texts: str) -> Iterator[str]:
    """Yield each text without what is before the line of a program, if there is that, and as it is."""
    for text in texts:
        prefix = _PREFIX.match(text, 0, MAX_SEARCHED)
        if prefix is not None:
            yield text[prefix.end() :]
        yield text


def _listed(
    pattern: Pattern, match: re.Match[str], more: re.Pattern[str], line: str, text: str
) -> Iterator[Match]:
    """Yield the event of a match, and those that follow it in the same text."""
    groups: dict[str, str | None] = match.groupdict()
    yield Match(pattern, line, _fields(pattern, groups))
    at = match.end()
    while (following := more.match(text, at)) is not None and following.end() > at:
        groups, at = {**groups, **following.groupdict()}, following.end()
        yield Match(pattern, line, _fields(pattern, groups))


def _fields(pattern: Pattern, groups: Mapping[str, str | None]) -> dict[str, Value]:
    return {
        name: _value(group, pattern.factors.get(name))
        for name, group in groups.items()
        if group is not None
    }


def added_by(outer: Match, inner: Match) -> float | None:
    """Return by how much an event is longer than one that was logged before and lies inside it; else None.

    An event lies inside another if it began as the next one and took no longer.
    """
    number, amount = inner.pattern.nested_by, inner.pattern.sums
    follows = _number(inner, number) == _number(outer, number) + 1
    added = _number(outer, amount) - _number(inner, amount)
    return added if follows and added >= 0.0 else None


def _number(match: Match, name: str) -> float:
    value = match.fields.get(name, "")
    return math.nan if isinstance(value, str) else value


def _value(text: str, factor: float | None) -> Value:
    """Return a number if it is one; else the text, bounded and without control characters."""
    if factor is not None and _AMOUNT.fullmatch(text):
        return float(text.replace(",", ".")) * factor
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return printable(text)


def printable(text: str) -> str:
    """Return at most 200 characters of a foreign text, with unprintable characters escaped."""
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii")
        for one in text[:_MAX_TEXT]
    )
    return shown[:_MAX_TEXT]
