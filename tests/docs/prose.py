"""Sentences and words of the pages: `python -m tests.docs.prose` prints counts and what is wrong (-v).

Code, tables, headings, pictures and generated blocks are no prose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

MAX_WORDS = 35
OLD_WORDS = re.compile(
    r"\b(?:lanes?|incarnations?|told|said|gone|looks? back|looking back|held back|held up|missed sends?|"
    r"combs?|swings?|hangs? together|tied|wander(?:s|ing)?|calm|calmer|spared|excursions?|owe[ds]|beside|"
    r"crew|recollection|foreseen|foretold|turn-over|doubts|nobody|anew|(?:un)?trusted seconds?)\b",
    re.IGNORECASE,
)
"""Words of the glossary's left column, and idioms of the house style that are not used any more."""
_NO_PROSE = (
    re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL),
    re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^ *\|.*$", re.MULTILINE),
    re.compile(r"^ *#.*$", re.MULTILINE),
    re.compile(r"^!\[.*$", re.MULTILINE),
)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*\[`A-Z0-9])")


@dataclass(frozen=True)
class Sentence:
    page: str
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())


def is_evidence(page: Path) -> bool:
    """True for measurements and history, whose sentences may be long: evidence, decisions, the changelog."""
    return bool({"evidence", "adr"} & set(page.parts)) or page.name == "CHANGELOG.md"


def all_pages(root: Path = ROOT) -> list[Path]:
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def prose(text: str) -> str:
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    return text


def sentences(page: Path, root: Path = ROOT) -> Iterator[Sentence]:
    """Give the sentences of a page; an item of a list and a paragraph end one."""
    text = re.sub(r"`[^`\n]*(?:\n[^`\n]*)?`", "`x`", prose(page.read_text()))
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    for paragraph in re.split(r"\n\s*\n| · ", _ITEM.sub("\n\n", text)):
        for one in _END.split(" ".join(paragraph.split())):
            if one:
                yield Sentence(str(page.relative_to(root)), one)


def long_sentences(page: Path, root: Path = ROOT) -> list[Sentence]:
    return [one for one in sentences(page, root) if one.words > MAX_WORDS]


def old_words(page: Path, root: Path = ROOT) -> list[str]:
    """Return the words that pages no longer use, each with its sentence."""
    found = []
    for one in sentences(page, root):
        found += [f"{word}: {one.text[:120]}" for word in OLD_WORDS.findall(one.text)]
    return found


def words(page: Path) -> int:
    return len(page.read_text().split())


def run(root: Path) -> int:
    """Print words, long sentences and old words, for users and evidence, and where they are."""
    totals: dict[bool, list[int]] = {True: [0, 0, 0], False: [0, 0, 0]}
    for page in all_pages(root):
        own = totals[is_evidence(page)]
        longs, old = long_sentences(page, root), old_words(page, root)
        own[0] += words(page)
        own[1] += len(longs)
        own[2] += len(old)
        if not is_evidence(page) and (longs or old):
            sys.stdout.write(f"{page.relative_to(root)}: {len(longs)} long, {len(old)} old\n")
            if "-v" in sys.argv:
                sys.stdout.write("".join(f"  {one.words}: {one.text}\n" for one in longs))
                sys.stdout.write("".join(f"  {one}\n" for one in old))
    for is_old, (count, longs_count, old_count) in totals.items():
        name = "evidence" if is_old else "pages of users"
        sys.stdout.write(f"{name}: {count} words, {longs_count} long, {old_count} old\n")
    return 0


if __name__ == "__main__":
    folders = [Path(one) for one in sys.argv[1:] if not one.startswith("-")]
    sys.exit(run(folders[0] if folders else ROOT))
