"""Reading CSV files: errors name file, line and column, and no row or unit is guessed."""

from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.app.analysis import series_files
from soak.cli.main import build
from soak.core.errors import PlanError


def text(header: str = "t,p99_ms", rows: str = "0,4.5\n0.25,5.5\n0.5,6.5\n") -> str:
    return f"{header}\n{rows}"


PACKED = gzip.compress(text(rows="".join(f"{row},{row % 7}\n" for row in range(900))).encode())
DAMAGED = PACKED[:200] + bytes(one ^ 0x5A for one in PACKED[200:260]) + PACKED[260:]


def refused(path: Path, content: bytes, command: str = "detect") -> str:
    path.write_bytes(content)
    result = CliRunner().invoke(build([command]), [command, str(path)])

    assert isinstance(result.exception, PlanError), result.output
    return str(result.exception)


@pytest.mark.parametrize("command", ["detect", "calibrate"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DAMAGED, "a.csv.gz: the packed file is damaged"),
        (PACKED[:300], "a.csv.gz: cut off after 300 packed bytes"),
        (b"t,v\n0,\xff\n", "a.csv.gz: not text: byte 6 is not UTF-8"),
        (
            text(rows='0,5\n1,"5\n' + "2,5.123456\n" * 20_000).encode(),
            "a.csv.gz:3: not CSV; is a quote not closed? field larger",
        ),
        (
            text("t,v,word", '0,5,calm\n1,5,"calm\n2,5,calm\n').encode(),
            "a.csv.gz:3: not CSV; is a quote not closed? unexpected end",
        ),
        (b"t,v\n0,1\n1e-300,1\n2e-300,1\n", "rows 1e-300 s apart; a nanosecond is the minimum"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_place(
    tmp_path: Path, command: str, content: bytes, message: str
) -> None:
    assert message in refused(tmp_path / "a.csv.gz", content, command)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text("t;p99_ms"), "is needed; this one has semicolons as separators, use commas"),
        (text("t\tp99_ms"), "is needed; this one has tabs as separators, use commas"),
        (
            text("0,4", "1,5\n"),
            "a.csv:1: a header is needed: '0' is a time, not the name of a column",
        ),
        (text("-1.5,", "2,5\n"), "a.csv:1: a header is needed: '-1.5' is a time"),
        (text("t,a_ms,a_ms", "0,1,2\n"), "a.csv:1: 2 columns are named 'a_ms'"),
        (text("t,a_ms,b_s, b_s", "0,1,2,3\n"), "a.csv:1: 2 columns are named 'b_s'"),
        (text("t,a,t", "0,1,2\n"), "a.csv:1: 2 columns are named 't'"),
        (text("t,", "0,1\n"), "a.csv:1: column 2 has no name"),
    ],
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    assert message in refused(tmp_path / "a.csv", content.encode())


@pytest.mark.parametrize("header", ["t,p99_ms,x,x", " t , p99_ms ,x,x", '"t", "p99_ms",,'])
def test_only_columns_that_are_looked_at_need_a_name_of_their_own(
    tmp_path: Path, header: str
) -> None:
    """Blanks about a name are no part of it."""
    path = tmp_path / "a.csv"
    path.write_text(text(header, "0,4.5,,\n1,5.5,,\n"))
    series = [series_files.read_series(path, value) for value in (None, "p99_ms", " p99_ms")]

    assert [(one.name, one.values.tolist()) for one in series] == [("p99_ms", [4.5, 5.5])] * 3


def test_a_packed_file_needs_no_suffix(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(text().encode()))

    assert series_files.read_series(path, None).values.tolist() == [4.5, 5.5, 6.5]


@pytest.mark.parametrize(
    ("name", "a_second"),
    [("t", 1), ("seconds", 1), ("at_s", 1), ("t_ms", 10**3), ("ts_us", 10**6), ("time_ns", 10**9)],
)
def test_time_is_in_the_unit_that_its_name_ends_in(
    tmp_path: Path, name: str, a_second: int
) -> None:
    path = tmp_path / "a.csv"
    seconds = [1_700_000_000.0, 1_700_000_000.25, 1_700_000_000.5]
    cells = [f"{(Decimal(one) * a_second).normalize():f}" for one in seconds]
    path.write_text(text(f"{name},v", "".join(f"{cell},1\n" for cell in cells)))
    found = series_files.read_series(path, None)

    assert (found.seconds.tolist(), found.spacing_seconds) == (seconds, 0.25)


@pytest.mark.parametrize("command", ["detect", "calibrate"])
@pytest.mark.parametrize(
    ("name", "at"), [("t", 1_700_000_000_000), ("t_ms", 1_700_000_000_000_000), ("t", -1e308)]
)
def test_a_time_that_is_no_second_of_an_epoch_asks_for_its_unit(
    tmp_path: Path, name: str, at: float, command: str
) -> None:
    result = refused(tmp_path / "a.csv", text(f"{name},v", f"{at},1\n").encode(), command)

    assert f"a.csv:2:{name}: '{at}' is beyond the year 9999; " in result
    assert result.endswith("end the name of the column with its unit: _ms, _us or _ns")


def test_a_message_holds_no_controls_of_a_name_and_not_all_of_a_cell(tmp_path: Path) -> None:
    result = refused(tmp_path / "a.csv", text("\x1b[31mt,v", f"{'x' * 9000},1\n").encode())

    assert "\x1b" not in result
    assert len(result) < len(str(tmp_path)) + 100
