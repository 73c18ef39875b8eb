"""The content of a message, and its two forms: plain text for a terminal, HTML for a mail program.

Mail programs drop style sheets, so every element of the HTML carries its own style.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, TypeAlias

from soak.core import wording
from soak.core.ports import CHART_URL

COLUMNS = 78
_KEY_COLUMNS = 10
_CELL_COLUMNS = 11
CHART_PIXELS = 640
"""The width of the chart on a wide screen; the image has more pixels, for a dense screen."""
MAX_POINT_LINES = 4

Tone = Literal["bad", "good", "warning", "neutral"]
_COLORS: dict[Tone, str] = {
    "bad": "#b3261e",
    "good": "#1b6e3c",
    "warning": "#8a5a00",
    "neutral": "#4a5568",
}
_FONT = (
    "font-family:-apple-system,'Segoe UI',Roboto,Arial,sans-serif;font-size:15px;line-height:1.4"
)
_MUTED = "color:#5f6b7a"
_CELL = "padding:3px 14px 3px 0;vertical-align:top;text-align:left;overflow-wrap:anywhere"
_NUMBER = "padding:3px 0 3px 14px;text-align:right;white-space:nowrap"
_ADDRESS = re.compile(r"https?://[^\s<>\"']+")
_IN_BRACKETS = re.compile(r"\((.+)\)")
_LEAST_LABEL = 8  # columns, of a topic or path in a name that is too long
_FIXED = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px"


@dataclass(frozen=True, slots=True)
class Paragraphs:
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Rows of a key and a text; texts of the keys in `copied` are commands, whose lines are not wrapped."""

    rows: Sequence[tuple[str, str]]
    copied: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of numbers as they are shown; the first column of each row is its name."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """A list below a heading; `key` makes the heading a fact."""

    heading: str
    points: Sequence[str]
    key: str = ""
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Pairs:
    """A list of names with a text for each, below a heading; a long name loses its middle."""

    heading: str
    rows: Sequence[tuple[str, str]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart of a mail; plain text has lines instead."""

    lines: Sequence[str]
    is_drawn: bool
    alternative: str = ""  # what it shows, where images are not shown


Block: TypeAlias = Paragraphs | Facts | Numbers | Points | Pairs | Chart


@dataclass(frozen=True, slots=True)
class Document:
    """A message: in HTML the badge and the title stand above the blocks, which plain text has alone."""

    badge: str
    tone: Tone
    title: str
    blocks: Sequence[Block]


def as_text(document: Document, max_lines: int = MAX_POINT_LINES) -> str:
    """Return lines of at most 78 columns, except for longer words; a point has at most `max_lines`."""
    blocks = [_text_lines(block, max_lines) for block in document.blocks]
    return "\n\n".join("\n".join(map(wording.printable, lines)) for lines in blocks if lines) + "\n"


def as_html(document: Document) -> str:
    """Return a page for screens of any width; a chart refers to `CHART_URL`."""
    color = _COLORS[document.tone]
    badge = (
        f'<span style="display:inline-block;padding:2px 10px;border-radius:10px;color:#ffffff;'
        f'background-color:{color};font-size:12px;font-weight:bold">{_shown(document.badge)}</span>'
    )
    title = (
        f'<p style="margin:8px 0 12px;font-size:18px;font-weight:bold">{_shown(document.title)}</p>'
    )
    parts = "\n".join(filter(None, map(_html_block, document.blocks)))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_shown(document.title)}</title></head>\n"
        f'<body style="margin:0;padding:12px"><div style="max-width:{CHART_PIXELS}px;{_FONT}">\n'
        f"{badge}\n{title}\n{parts}\n</div></body></html>\n"
    )


def _text_lines(block: Block, max_lines: int) -> list[str]:
    match block:
        case Paragraphs(lines):
            return [part for line in lines for part in _wrapped(line)]
        case Facts(rows, copied):
            return [
                line
                for key, text in rows
                for line in ([_key(key) + text] if key in copied else _fact(key, text))
            ]
        case Numbers(columns, rows, note):
            width = max([_KEY_COLUMNS - 2, *(len(name) for name, *_ in rows)])
            cell = max([_CELL_COLUMNS, *(len(one) + 2 for one in columns)])
            table = [_row(one, width, cell) for one in (["", *columns], *rows)] if rows else []
            return table + _wrapped(note)
        case Points():
            return _point_lines(block, max_lines)
        case Pairs(heading, rows, left_out):
            lines = [_pair(name, text) for name, text in rows]
            return [heading, *lines, *_more(left_out)] if rows else []
        case Chart(lines):
            return list(lines)


def _wrapped(text: str, **options: Any) -> list[str]:  # noqa: ANN401  # those of the library
    """Return a text in lines; a name with hyphens stays whole, so that it can be copied and searched for."""
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False, **options)


def _key(key: str) -> str:
    return f"{key:<{_KEY_COLUMNS}}"


def _fact(key: str, text: str) -> list[str]:
    return _wrapped(text, initial_indent=_key(key), subsequent_indent=" " * _KEY_COLUMNS)


def _row(cells: Sequence[str], width: int, cell: int) -> str:
    name, *others = cells
    return f"{name:<{width}}" + "".join(f"{one:>{cell}}" for one in others)


def _point_lines(block: Points, max_lines: int) -> list[str]:
    if not block.points and not block.key:
        return []
    lines = _fact(block.key, block.heading) if block.key else [block.heading]
    for point in block.points:
        lines += _wrapped(
            point,
            initial_indent="  - ",
            subsequent_indent="    ",
            max_lines=max_lines,
            placeholder=" ...",
        )
    return lines + _more(block.left_out)


def _pair(name: str, text: str) -> str:
    if not text:
        return f"  {_shortened_name(name, COLUMNS - 2)}"
    return f"  {_shortened_name(name, COLUMNS - 4 - len(text))}  {text}"


def _shortened_name(name: str, width: int) -> str:
    """Return a name that fits: first its topic or path, in brackets, loses its middle, then the name does."""
    found = _IN_BRACKETS.search(name)
    over = len(name) - width
    if found is not None and over > 0:
        left = len(found[1]) - over
        label = wording.shortened(found[1], left) if left >= _LEAST_LABEL else "..."
        name = f"{name[: found.start(1)]}{label}{name[found.end(1) :]}"
    return wording.shortened(name, width)


def _more(count: int) -> list[str]:
    """Return how many were left out, if any were: the report has them all."""
    return [f"  and {count} more"] if count > 0 else []


def _html_block(block: Block) -> str:
    match block:
        case Paragraphs(lines):
            return "".join(f'<p style="margin:0 0 8px">{_shown(line)}</p>' for line in lines)
        case Facts(rows, copied):
            return _html_table(
                f'<tr><th style="{_CELL};{_MUTED};font-weight:normal;white-space:nowrap">{_shown(key)}</th>'
                f'<td style="{_CELL}{";" + _FIXED if key in copied else ""}">{_linked(text)}</td></tr>'
                for key, text in rows
            )
        case Numbers():
            return _html_numbers(block)
        case Points():
            return _html_points(block)
        case Pairs():
            return _html_pairs(block)
        case Chart():
            return _html_chart(block)


def _html_table(rows: Iterable[str]) -> str:
    body = "\n".join(rows)
    return f'<table role="presentation" style="border-collapse:collapse;margin:0 0 12px">\n{body}\n</table>'


def _html_numbers(block: Numbers) -> str:
    note = f'<p style="margin:0 0 12px">{_shown(block.note)}</p>' if block.note else ""
    if not block.rows:
        return note
    names = "".join(
        f'<th style="{_NUMBER};{_MUTED};font-weight:normal">{_shown(one)}</th>'
        for one in block.columns
    )
    rows = "\n".join(
        f'<tr><th style="{_CELL};font-weight:normal">{_shown(name)}</th>'
        + "".join(f'<td style="{_NUMBER}">{_shown(one)}</td>' for one in cells)
        + "</tr>"
        for name, *cells in block.rows
    )
    return (
        '<table style="border-collapse:collapse;margin:0 0 4px;font-variant-numeric:tabular-nums">\n'
        f"<tr><td></td>{names}</tr>\n{rows}\n</table>\n{note}"
    )


def _html_points(block: Points) -> str:
    if not block.points and not block.key:
        return ""
    heading = f"{block.key}: {block.heading}" if block.key else block.heading
    body = "".join(f"<li>{_shown(one)}</li>" for one in block.points)
    return _html_list(_shown(heading), body, block.left_out)


def _html_pairs(block: Pairs) -> str:
    body = "".join(
        f'<li>{_shown(name)} <span style="{_MUTED}">{_shown(text)}</span></li>'
        for name, text in block.rows
    )
    return _html_list(_shown(block.heading), body, block.left_out) if body else ""


def _html_chart(block: Chart) -> str:
    if block.is_drawn:
        return (
            f'<p style="margin:12px 0"><img src="{CHART_URL}" alt="{_shown(block.alternative)}"'
            f' width="{CHART_PIXELS}" style="max-width:100%;height:auto"></p>'
        )
    text = "\n".join(map(_shown, block.lines))
    return f'<pre style="{_FIXED};white-space:pre-wrap">{text}</pre>' if text else ""


def _html_list(heading: str, items: str, left_out: int) -> str:
    items += "".join(f'<li style="{_MUTED}">{line.strip()}</li>' for line in _more(left_out))
    points = f'<ul style="margin:4px 0 12px;padding-left:20px">{items}</ul>' if items else ""
    return f'<p style="margin:12px 0 0;font-weight:bold">{heading}</p>\n{points}'


def _linked(text: str) -> str:
    """Return a text, as a link if it is a web address."""
    shown = _shown(text)
    if not _ADDRESS.fullmatch(text):
        return shown
    return f'<a href="{escape(text)}" style="color:#0b57d0">{shown}</a>'


def _shown(text: str) -> str:
    return escape(wording.printable(text)).replace(
        "-&gt;", "\N{RIGHTWARDS ARROW}"
    )  # breaks nowhere
