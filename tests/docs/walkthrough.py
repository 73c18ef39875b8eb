"""A page that is followed step by step: its commands, and the output that it shows for them.

A block of no language is a step; `# exit code N` in it says how it ends. The blocks of language `text` after
it are its output. Numbers, sizes, times, ids, addresses and `...` of these may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT = re.compile(r"# exit code (\d+)")
_VARYING = re.compile(
    r"\.\.\.|broker1:\d[\w:,]*|runs/\S+|soak-\d\S+|\d[\d.,:TZ]*(?: (?:[KMG]iB|h|min|s|ms|us)\b)?"
)
_OF_HOST = ("Clock: ", "Warning: the clock ")


@dataclass(frozen=True, slots=True)
class Step:
    """Commands, how they end, and what a reader is to see."""

    script: str
    exit_code: int
    expected: tuple[str, ...]


def steps(page: str) -> Iterator[Step]:
    """Give the steps of a page in order."""
    script, expected = "", list[str]()
    for language, body in [*_BLOCK.findall(page), ("", "")]:
        if language == "text":
            expected += [line for line in body.splitlines() if line]
        elif not language:
            if script:
                found = _EXIT.search(script)
                yield Step(script, int(found[1]) if found else 0, tuple(expected))
            script, expected = body, []


def pattern(line: str, instead: Sequence[tuple[str, str]] = ()) -> re.Pattern[str]:
    """Return what a line of output looks like; `instead`: texts with the expressions that replace them."""
    parts = [re.escape(part) for part in _VARYING.split(line)]
    text = re.sub(r"\b(broker|gap)s\b", r"\1s?", ".+?".join(parts))
    for shown, expression in instead:
        text = text.replace(re.escape(shown), expression)
    return re.compile(text)


def missing(
    expected: Sequence[str], output: str, instead: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Return the expected lines that the output does not have in this order; other lines may be between."""
    lines = iter(output.splitlines())
    found = []
    for line in expected:
        if line.startswith(_OF_HOST):
            continue
        looks_like = pattern(line, instead)
        if not any(looks_like.fullmatch(one) for one in lines):
            found.append(line)
    return found
