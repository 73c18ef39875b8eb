"""Metrics pages for tests: recorded ones, a source that gives them in turn, and the slow reader of a page."""

from __future__ import annotations

import codecs
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from probes.prometheus.name_map import Entry
from probes.prometheus.probe import Config, Prometheus, Target
from probes.prometheus.sources import MetricsPage
from soak.clients.http import Answer
from soak.core.errors import ProbeError
from soak.core.model import Reading
from soak.core.series import Labels
from tests.support.fakes import FakeClock
from tests.support.paths import DATA

RECORDED = DATA / "recorded" / "pages"
URL = "http://127.0.0.1:9644/metrics"

Series = dict[str, dict[Labels, float]]


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.txt").read_bytes()


class Answers:
    """Gives pages in turn, the last one for ever; an error among them is raised."""

    def __init__(self, *pages: bytes | ProbeError) -> None:
        self.pages = list(pages)
        self.is_closed = False

    def get_answer(self, url: str) -> Answer:
        assert url == URL
        page = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        if isinstance(page, ProbeError):
            raise page
        return Answer(200, "OK", page)

    def close(self) -> None:
        self.is_closed = True


class Watched:
    """The probe with one target, without threads: a look is a fetch and a reading one second later."""

    def __init__(self, maps: Sequence[str], *pages: bytes | ProbeError) -> None:
        self.clock = FakeClock()
        self.answers = Answers(*pages)
        config = Config(targets={"b": Target(url=URL, maps=tuple(maps))})
        self.probe = Prometheus(config, self.clock, open_source=self.open_source)
        self.probe.open()
        (self.target,) = self.probe.targets

    def open_source(self, target: Target, entries: Sequence[Entry], *_: object) -> MetricsPage:
        names = {name for entry in entries for name in entry.names()}
        return MetricsPage(target.url, self.answers, names, self.clock)  # type: ignore[arg-type]  # stands in

    def look(self) -> Reading:
        self.clock.advance(1.0)
        failures = {}
        try:
            self.target.fetch()
        except ProbeError as error:
            failures["b"] = error
        return self.probe.taken(failures, self.clock.mono_ns())

    def values(self) -> dict[str, float]:
        """Return one look's samples by text, without the label of the target and without our own."""
        return {
            column.name.replace('target="b",', "")
            .replace(',target="b"', "")
            .replace('{target="b"}', ""): value
            for column, value in self.look().samples
            if column.metric not in ("up", "scrape_duration_seconds")
        }


def later(page: bytes, grown: Mapping[str, float]) -> bytes:
    """Return the page a second later: each of these series is larger by so much."""
    lines = []
    for line in page.decode().splitlines():
        series, _, value = line.rpartition(" ")
        lines.append(f"{series} {float(value) + grown[series]}" if series in grown else line)
    return ("\n".join(lines) + "\n").encode()


def rated(maps: list[str], page: bytes, grown: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the second of two looks at a page."""
    watched = Watched(maps, page, later(page, grown))
    watched.values()
    return watched.values()


def slow_page(text: bytes, names: Iterable[str]) -> tuple[Series, set[str]]:
    """Read a page character by character, by the definition of the format: series, and damaged names."""
    series: Series = {}
    damaged: set[str] = set()
    whole = text.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="surrogateescape")
    lines = [line.lstrip(" \t") for line in whole.split("\n")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        name = _taken(line, string.ascii_letters + string.digits + "_:")
        inside = line[1:].lstrip(" \t") if line.startswith("{") else ""
        if inside.startswith('"'):
            with suppress(ValueError, IndexError):
                name = _quoted(inside[1:])[0]
        if name not in names:
            continue
        try:
            labels, value = _sample("" if inside else name, line if inside else line[len(name) :])
        except (ValueError, IndexError):
            damaged.add(name)
            continue
        if not _may_follow(following):
            damaged.add(name)
            continue
        known = series.setdefault(name, {})
        if labels in known and known[labels] != value:
            damaged.add(name)
        known[labels] = value
    return series, damaged


def _may_follow(line: str) -> bool:
    if line in ("", "#") or line[0] == "\r" or line[:2] in ("# ", "#\r"):
        return True
    if line[0] == "{":
        rest = line[1:].lstrip(" \t")
        try:
            return rest[0] == '"' and _closing(rest[1:]).lstrip(" \t")[0] in ",}"
        except IndexError:
            return False
    is_name = line[0] in string.ascii_letters + "_:"
    return is_name and (" " in line or "\t" in line)


def _closing(text: str) -> str:
    """Return what follows the closing quote."""
    at = 0
    while text[at] != '"':
        at += 2 if text[at] == "\\" else 1
    return text[at + 1 :]


def _taken(text: str, characters: str) -> str:
    for at, one in enumerate(text):
        if one not in characters:
            return text[:at]
    return text


def _sample(name: str, text: str) -> tuple[Labels, float]:
    """Return labels and value of what follows a name, or of a line whose name is quoted in the braces."""
    labels, text = _labels(name, text.lstrip(" \t"))
    text, mark, exemplar = text.replace("\t", " ").replace("\r", " ").partition(" #")
    words = text.split(" ")
    words = [word for word in words if word]
    if len(words) > 1 and words[-1].startswith("st@") and _is_time(words[-1][3:]):
        words.pop()
    if len(words) not in (1, 2) or (len(words) == 2 and not _is_time(words[1])):
        raise ValueError(text)
    if mark:
        if not exemplar.lstrip(" ").startswith("{"):
            raise ValueError(text)
        _, rest = _labels("exemplar", exemplar.lstrip(" "))
        found = [word for word in rest.split(" ") if word]
        _number(found[0])
        if not rest.startswith(" ") or len(found) > 2:
            raise ValueError(text)
        if len(found) == 2 and not _is_time(found[1]):
            raise ValueError(text)
    return labels, _number(words[0])


def _labels(name: str, text: str) -> tuple[Labels, str]:
    """Return the labels, and what follows them; a name in quotes is the first of them."""
    labels: dict[str, str] = {}
    if text.startswith("{"):
        text = text[1:].lstrip(" \t")
        is_first = True
        while not text.startswith("}"):
            if text.startswith('"'):
                key, text = _quoted(text[1:])
            else:
                key = _taken(text, string.ascii_letters + string.digits + "_")
                if not key or key[0].isdigit():
                    raise ValueError(text)
                text = text[len(key) :]
                is_first = False
            text = text.lstrip(" \t")
            if is_first and not name and text[:1] in (",", "}"):
                name = key
            else:
                if text[:1] != "=" or not text[1:].lstrip(" \t").startswith('"'):
                    raise ValueError(text)
                labels[key], text = _quoted(text[1:].lstrip(" \t")[1:])
                text = text.lstrip(" \t")
            is_first = False
            if text.startswith(","):
                text = text[1:].lstrip(" \t")
            elif not text.startswith("}"):
                raise ValueError(text)
        text = text[1:]
    if not name:
        raise ValueError(text)
    return tuple(sorted(labels.items())), text


def _is_time(word: str) -> bool:
    """Tell whether a word is milliseconds or seconds since 1970, and not the end of a number cut in two."""
    whole, dot, fraction = word.partition(".")
    digits = set(string.digits)
    if dot and len(whole) == 1 and "e" in fraction.lower():
        fraction, _, exponent = fraction.lower().partition("e")
        return exponent in ("9", "+9", "09", "+09") and set(whole + fraction) <= digits
    return set(whole + fraction) <= digits and len(whole) in ((10,) if dot else (10, 13))


def _quoted(text: str) -> tuple[str, str]:
    """Return a label's value and what follows its closing quote."""
    found = []
    at = 0
    while text[at] != '"':
        if text[at] == "\\":
            at += 1
            found.append({"n": "\n", '"': '"', "\\": "\\"}.get(text[at], "\\" + text[at]))
        else:
            found.append(text[at])
        at += 1
    value = "".join(found)
    value.encode("utf-8")  # a ValueError where the page is not UTF-8
    return value, text[at + 1 :]


def _number(word: str) -> float:
    special = word.lower().lstrip("+-")
    if special in ("nan", "inf", "infinity"):
        return float(word)
    if not set(word) <= set(string.digits + "+-.eE"):
        raise ValueError(word)
    return float(word)


def same(one: Series, other: Series) -> bool:
    """Tell whether two readings of a page agree, NaN with NaN."""
    if {name: set(found) for name, found in one.items()} != {
        name: set(found) for name, found in other.items()
    }:
        return False
    return all(
        value == other[name][labels] or (math.isnan(value) and math.isnan(other[name][labels]))
        for name, found in one.items()
        for labels, value in found.items()
    )
