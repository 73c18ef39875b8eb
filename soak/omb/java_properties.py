"""Reads the settings of a Java client as they stand in a driver file: Java's properties syntax."""

from __future__ import annotations

import re

_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\s=:\\])+)\s*[=:\s]\s*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<other>.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse(text: str) -> dict[str, str]:
    """Return the settings in their order; the last of a name stands. A name alone has an empty value."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _ENTRY.fullmatch(line)
        key, value = (match["key"], match["value"]) if match else (line, "")
        found[_unescaped(key)] = _unescaped(value)
    return found


def _logical_lines(text: str) -> list[str]:
    """Return lines that say something, joined where an odd number of backslashes ends one."""
    found: list[str] = []
    open_line = ""
    for raw in text.splitlines():
        line = open_line + raw.lstrip()
        if not open_line and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            open_line = line[:-1]
            continue
        open_line = ""
        found.append(line.rstrip())
    return [*found, open_line] if open_line else found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda m: chr(int(m["code"], 16)) if m["code"] else _NAMED.get(m["other"], m["other"]), text
    )
