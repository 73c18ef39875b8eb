"""Every call of `soak` in the docs is one that the command line takes: people copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from soak.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^(?:\.venv/bin/soak|soak| *\$\(command -v soak\)) (.+)", re.MULTILINE)
_INLINE = re.compile(r"`soak ([^`]+)`")


@pytest.fixture(scope="module")
def soak() -> Any:
    return get_command(main.build([]))


def calls(text: str) -> Iterator[list[str]]:
    """Give the words behind `soak`, up to what the shell takes for itself."""
    blocks = "".join(_BLOCK.findall(text)).replace("\\\n", "")
    lines = [*_LINE.findall(blocks), *_INLINE.findall(_BLOCK.sub("", text))]
    for line in lines:
        words = shlex.split(line, comments=True)
        ends = [at for at, word in enumerate(words) if word in {">", "|", "<"}]
        yield words[: ends[0]] if ends else words


def refusal(command: Any, words: list[str]) -> str:
    """Return the word that the command line does not know; empty when it knows all."""
    for word in words:
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        if word.startswith("-") and word != "--help" and word.partition("=")[0] not in known:
            return word
        below = getattr(command, "commands", {})  # of a group
        if below and not word.startswith("-"):
            if word not in below:
                return word
            command = below[word]
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_calls_soak_as_it_can_be_called(page: Path, soak: Any) -> None:
    found = {" ".join(words): refusal(soak, words) for words in calls(page.read_text())}

    assert {call: word for call, word in found.items() if word} == {}


def test_what_soak_does_not_take_is_seen(soak: Any) -> None:
    """A command, an option and one of a group that there are none of."""
    text = "```\nsoak dance\n.venv/bin/soak run p.yaml --fast  # quickly\n```\n`soak lab sing` `soak run P`"

    assert [refusal(soak, words) for words in calls(text)] == ["dance", "--fast", "sing", ""]
