"""What a daemon says in systemd's journal has a priority, so that `journalctl -p warning` finds it."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from soak.service.journal_lines import Lines, is_journal, with_priority

SPEAKS = """
import logging
from soak.cli import main

def command():
    logging.getLogger("soak.x").warning("late seconds=3")
    {then}

main.build = lambda _: lambda prog_name: command()
main.run()
"""


def said(tmp_path: Path, then: str, *, to_journal: bool) -> tuple[int, list[str]]:
    """Return the exit code and the lines of the program, its errors on a stream as of the journal."""
    ours, theirs = socket.socketpair()
    found = os.fstat(theirs.fileno())
    stream = f"{found.st_dev}:{found.st_ino}" if to_journal else "1:1"
    with ours, theirs, ours.makefile() as reader:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKS.format(then=then)],
            env={**os.environ, "JOURNAL_STREAM": stream},
            cwd=tmp_path,
            stderr=theirs.fileno(),
            check=False,
            timeout=60,
        )
        theirs.close()
        return done.returncode, reader.read().splitlines()


def test_a_line_has_its_priority_and_no_second_stamp(tmp_path: Path) -> None:
    """The journal has the time already."""
    assert said(tmp_path, "pass", to_journal=True) == (0, ["<4>WARNING soak.x late seconds=3"])


def test_elsewhere_a_line_has_a_stamp_and_no_priority(tmp_path: Path) -> None:
    """A daemon inherits the variable, while what it writes may go to a file."""
    code, (line,) = said(tmp_path, "pass", to_journal=False)

    assert code == 0
    assert re.fullmatch(r"\d{4}-[-:, \d]+ WARNING soak.x late seconds=3", line)


def test_why_a_program_ended_is_an_error(tmp_path: Path) -> None:
    then = "from soak.core.errors import SoakError; raise SoakError('no room')"

    code, lines = said(tmp_path, then, to_journal=True)

    assert (code, lines[1:]) == (1, ["<3>soak: no room"])


def test_each_line_of_a_crash_is_found(tmp_path: Path) -> None:
    """The journal takes each line for a message: none of the traceback may be lost to a filter."""
    code, lines = said(tmp_path, "1 / 0", to_journal=True)

    assert code == 1
    assert lines[1] == "<2>CRITICAL soak.cli.main crashed error=ZeroDivisionError"
    assert lines[-1] == "<2>ZeroDivisionError: division by zero"
    assert {line[:3] for line in lines[1:]} == {"<2>"}


@pytest.mark.parametrize(
    ("level", "priority"),
    [(5, 7), (10, 7), (20, 6), (25, 6), (30, 4), (40, 3), (50, 2), (60, 2)],
)
def test_levels_become_priorities_of_syslog(level: int, priority: int) -> None:
    assert with_priority(level, "a\nb") == f"<{priority}>a\n<{priority}>b"


def test_a_record_of_many_lines_has_one_on_each() -> None:
    record = logging.LogRecord("soak.x", logging.ERROR, "", 0, "two\nlines", None, None)

    assert Lines().format(record) == "<3>ERROR soak.x two\n<3>lines"


def test_a_closed_stream_is_no_journal() -> None:
    first, second = os.pipe()
    os.close(first)
    os.close(second)

    assert not is_journal({"JOURNAL_STREAM": "0:0"}, second)
