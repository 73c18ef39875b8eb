"""Every command of ours in the docs is there to be called: people copy them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from soak.cli import main
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^(?:\.venv/bin/soak|soak| *\$\(command -v soak\)) (.+)", re.MULTILINE)
_INLINE = re.compile(r"`soak ([^`]+)`")
_MAKE_LINE = re.compile(r"^make ([a-z-]+)", re.MULTILINE)
_MAKE_INLINE = re.compile(r"`make ([a-z-]+)")
_MODULE = re.compile(r"(?:^|[ `/])python -m ([a-z_.]+)", re.MULTILINE)
_UNIT = re.compile(r"soak[a-z-]*@[A-Za-z0-9.-]*\.(?:service|target|timer)")
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


@pytest.fixture(scope="module")
def soak() -> Any:
    return get_command(main.build([]))


def blocks(text: str) -> str:
    """Return what a page shows of a shell: its blocks of no other language, continued lines as one."""
    shown = [body for language, body in _BLOCK.findall(text) if not language]
    return "".join(shown).replace("\\\n", "")


def calls(text: str) -> Iterator[list[str]]:
    """Give the words behind `soak`, up to what the shell takes for itself."""
    lines = [*_LINE.findall(blocks(text)), *_INLINE.findall(_BLOCK.sub("", text))]
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


def quoted_in_code() -> dict[str, str]:
    """Return what the code and the comments of plans quote as a command, with its file."""
    found = {}
    for package in ("soak", "probes", "spark", "detectors", "configs", "systemd"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in {".py", ".yaml", ".service", ".toml"}:
                for line in _INLINE.findall(path.read_text()):
                    found[" ".join(line.split())] = str(path.relative_to(ROOT))
    return found


def test_messages_comments_and_docstrings_name_commands_that_exist(soak: Any) -> None:
    """People read them in a mail, a log, or a plan; `{...}` stands for a value."""
    wrong = {}
    for line, place in quoted_in_code().items():
        words = re.sub(r"\{[^}]*\}?", "X", line).replace('"', "").replace("'", "").split()
        if words[0] != "X" and words[0].isalpha() and line not in main.renamed():
            refused = refusal(soak, words)
            if refused:
                wrong[f"{place}: soak {line}"] = refused

    assert wrong == {}


def makes(text: str) -> set[str]:
    """Return the targets that a page calls: in its blocks at the start of a line, elsewhere quoted."""
    return {*_MAKE_LINE.findall(blocks(text)), *_MAKE_INLINE.findall(_BLOCK.sub("", text))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_calls_targets_modules_and_units_that_are_there(page: Path) -> None:
    """A target of the Makefile, a module that Python finds, a unit that is shipped."""
    text = page.read_text()
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    shipped = {path.name for path in (ROOT / "systemd").iterdir()}
    modules = set(_MODULE.findall(text))
    units = {re.sub("@.*\\.", "@.", unit) for unit in _UNIT.findall(text)}

    assert makes(text) - targets == set()
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()
    assert units - shipped == set()


def test_targets_are_distinguished_from_words() -> None:
    """In a block at the start of a line, elsewhere only where it is quoted."""
    text = "make no fuss, and `make tea`\nmake it so\n```\nmake coffee ARGS=-x\n# make haste\n```\n"

    assert makes(text) == {"tea", "coffee"}


def test_what_soak_does_not_take_is_seen(soak: Any) -> None:
    """A command, an option and one of a group that there are none of."""
    text = "```\nsoak dance\n.venv/bin/soak run p.yaml --fast  # quickly\n```\n`soak lab sing` `soak run P`"

    assert [refusal(soak, words) for words in calls(text)] == ["dance", "--fast", "sing", ""]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_pattern_for_prometheus_is_one_that_it_takes(page: Path) -> None:
    """An asterisk in the last part alone: else it refuses its whole configuration."""
    patterns = re.findall(r"[\w./*-]+\.json", page.read_text())

    assert [one for one in patterns if "*" in one.rpartition("/")[0]] == []
