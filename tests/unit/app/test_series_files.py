"""Reading CSV files: errors name file, line and column, and no row or unit is guessed."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
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
        (text("t p99_ms"), "value column is needed, separated by commas, semicolons or tabs"),
        (
            text("0,4", "1,5\n"),
            "a.csv:1: a header is needed: '0' is a time, not the name of a column",
        ),
        (text("-1.5,", "2,5\n"), "a.csv:1: a header is needed: '-1.5' is a time"),
        (text("2024-01-31,5", "2024-02-01,5\n"), "is needed: '2024-01-31' is a time"),
        ('{"publishRate": [1.0, 2.0]}', "a.csv:1: JSON, not CSV; `soak omb analyse` reads"),
        ("sep=,\n\nt,a,a\n", "a.csv:3: 2 columns are named 'a'"),
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
    [
        *(("t", 1), ("seconds", 1), ("at_s", 1)),
        *(("t_ms", 10**3), ("Time (ms)", 10**3), ("elapsedMs", 10**3), ("millis", 10**3)),
        *(("ts_us", 10**6), ("t [us]", 10**6), ("at.\u00b5s", 10**6), ("t_microseconds", 10**6)),
        *(("time_ns", 10**9), ("Start-Nanoseconds", 10**9)),
    ],
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


@pytest.mark.parametrize(
    "content",
    [
        "t;p99_ms\n0;4,5\n0,25;5,5\n",
        '"t";"p99_ms"\r\n"0";"4,5"\r\n"0,25";"5,5"\r\n',
        "sep=;\nt;p99_ms\n0;4,5\n0,25;5,5\n",
        "t\tp99_ms\n0\t4.5\n0.25\t5.5\n",
        "sep=,\r\nt,p99_ms\r\n0,4.5\r\n0.25,5.5\r\n",
        "\nt,p99_ms\n0,4.5\n,\n0.25,5.5\n , \n",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_what_spreadsheets_write_is_read(tmp_path: Path, content: str, encoding: str) -> None:
    """Semicolons with decimal commas, tabs, Excel's first line, rows without any text, Windows' encoding."""
    path = tmp_path / "a.csv"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes((mark + content).encode(encoding))
    found = series_files.read_series(path, None)

    assert (found.name, found.seconds.tolist()) == ("p99_ms", [0.0, 0.25])
    assert found.values.tolist() == [4.5, 5.5]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2024-01-31 10:00:00", "2024-01-31 10:00:01.500"),
        ("2024-01-31T10:00:00Z", "2024-01-31T10:00:01.5Z"),
        ("2024-01-31T11:00:00+01:00", "2024-01-31T10:00:01.5+00:00"),
        ("2024-01-31 10:00:00 UTC", "2024-01-31 10:00:01.5 UTC"),
    ],
)
def test_a_time_may_be_a_date(tmp_path: Path, first: str, second: str) -> None:
    """Without a zone it is one in UTC."""
    path = tmp_path / "a.csv"
    path.write_text(text(rows=f"{first},4.5\n{second},5.5\n"))
    begin = datetime(2024, 1, 31, 10, tzinfo=UTC).timestamp()

    assert series_files.read_series(path, None).seconds.tolist() == [begin, begin + 1.5]


@pytest.mark.parametrize("cell", ["2024-13-01 10:00:00", "31/01/2024 10:00", "10:00:00"])
def test_a_time_that_is_no_date_is_named(tmp_path: Path, cell: str) -> None:
    message = f"a.csv:2:t: '{cell}' is not a number, nor an ISO date"

    assert message in refused(tmp_path / "a.csv", text(rows=f"{cell},1\n").encode())


def test_for_people_a_change_in_a_file_of_dates_has_a_date(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    values = np.log10(0.004) + np.random.default_rng(3).normal(0.0, 0.05, 600)
    values[301:] += 0.6
    begin = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    rows = [
        f"{begin + row * timedelta(milliseconds=250)},{10.0**value:.6g}"
        for row, value in enumerate(values)
    ]
    path.write_text("\n".join(["Time,p99 (ms)", *rows, ""]))
    (line,) = CliRunner().invoke(build(["detect"]), ["detect", str(path)]).output.splitlines()

    assert " at 2023-11-14 22:14:35.250000 UTC (between 2023-11-14 22:14:35.2" in line


@pytest.mark.parametrize(
    ("name", "is_latency"),
    [
        *(("p99 (ms)", True), ("latencyMs", True), ("p99Us", True), ("rtt_usec", True)),
        *(("requests_per_second", False), ("rate_per_s", False), ("msgsPerSecond", False)),
        *(("msg/s", False), ("throughput (MB/s)", False), ("status", False)),
    ],
)
def test_a_unit_of_time_makes_a_latency_and_a_rate_none(
    tmp_path: Path, name: str, *, is_latency: bool
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text(f"t,{name}"))

    assert series_files.read_series(path, None).is_latency == is_latency


@pytest.mark.parametrize(
    ("name", "values"),
    [("p99", [0.00095, 0.0125, 1.02, 0.0]), ("p99_ms", [0.95, 12.5, 1020.0, 0.0])],
)
def test_a_cell_may_name_its_unit_of_time(tmp_path: Path, name: str, values: list[float]) -> None:
    """As dashboards format them, one by one; values are in the unit of the column, or in seconds."""
    path = tmp_path / "a.csv"
    rows = "0,950 \u00b5s\n1,12.5 ms\n2,1.02s\n3,0 ns\n"
    path.write_text(text(f"t,{name}", rows), encoding="utf-8")
    found = series_files.read_series(path, None)

    assert found.values.tolist() == pytest.approx(values)
    assert found.is_latency
    assert found.is_unit_named


@pytest.mark.parametrize("cell", ["5 apples", "1,234.5 ms", "12 mss", "ms"])
def test_a_value_in_no_unit_of_time_is_refused(tmp_path: Path, cell: str) -> None:
    result = refused(tmp_path / "a.csv", text(rows=f'0,"{cell}"\n').encode())

    assert "a.csv:2:p99_ms: '" in result
    assert "is not a number" in result


def test_a_missing_value_may_have_a_word_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text(rows="0,NaN\n1,null\n2,N/A\n3,NA\n4,\n5,4.5\n"))
    found = series_files.read_series(path, None)

    assert np.isnan(found.values).tolist() == [True] * 5 + [False]
