"""Texts from outside, printed: no terminal obeys them, and they read in the order in which they stand."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.app.host import SafeConsole
from soak.core.wording import escaped, printable
from soak.service.systemd import EscapedStream, LineFormatter

EVIL = "a\x1b[2J\x1b]0;title\x07b\u202ec\u2066d\x9b31me\rf\u200fg\u061ch\U000e0041"


def is_harmless(text: str) -> bool:
    return all(
        one in "\t\n\u200c\u200d" or unicodedata.category(one) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        for one in text
        if unicodedata.name(one, "") != "" or unicodedata.category(one) != "Cf"
    )


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "L"]), max_size=40))
def test_a_printed_line_has_neither_commands_nor_marks(text: str) -> None:
    """Arabic and Indic joiners stay: words need them, and they turn nothing."""
    line = printable(text)

    assert "\n" not in line
    assert not set("\x1b\x9b\x07\r\u202e\u2066\u200f") & set(
        line + escaped(text).replace("\r\n", "")
    )
    assert printable(line) == line


def test_what_is_escaped_can_be_read() -> None:
    assert printable("x\x1b[31m\u202ey\nz") == r"x\x1b[31m\u202ey z"
    assert escaped("x\x1b[2J\ty\r\nz\r") == "x\\x1b[2J\ty\r\nz\\r"


def test_a_stream_escapes_what_is_printed_and_not_what_rich_draws() -> None:
    raw = io.StringIO()
    stream = EscapedStream(raw)

    print(EVIL, file=stream)
    printed = raw.getvalue()
    Console(file=stream, force_terminal=True).print(Text("red", style="red"))  # type: ignore[arg-type]  # as above

    assert is_harmless(printed)
    assert "\x1b[31mred" in raw.getvalue()


def test_a_console_escapes_the_texts_of_tables() -> None:
    raw = io.StringIO()
    table = Table("name")
    table.add_row(Text(EVIL))

    SafeConsole(file=raw, width=200).print(table, Text(EVIL), EVIL)

    assert is_harmless(raw.getvalue())


def test_a_log_line_is_one_line() -> None:
    """A field with line breaks makes no line that looks like another one of ours."""
    record = logging.LogRecord(
        "x", logging.INFO, "f", 1, "got=%s", (f"{EVIL}\nERROR x forged",), None
    )

    line = LineFormatter("%(levelname)s %(message)s").format(record)

    assert "\n" not in line
    assert is_harmless(line)
    assert line.endswith(r"\nERROR x forged")


@pytest.mark.long
def test_an_error_of_a_plan_is_escaped(tmp_path: Path) -> None:
    """As a user sees it."""
    plan = tmp_path / "plan.yaml"
    plan.write_text('name: x\n"\\e[2J\\u202Ekey": 1\n')

    done = subprocess.run(
        [sys.executable, "-m", "soak.cli.main", "check", str(plan)],
        capture_output=True,
        check=False,
    )

    assert is_harmless(done.stderr.decode())
    assert r"\x1b[2J\u202ekey" in done.stderr.decode()
