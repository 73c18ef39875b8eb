"""Files, logs and answers of others, spoilt at random: each is read, or refused with an error that says so.

A sample that is right is cut, doubled, and has odd values put in the places of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from probes.broker_log import json_lines, patterns
from probes.broker_log.timestamps import TimestampReader
from probes.common.exposition import ExpositionParser
from probes.retention_pulsar.ledgers import parse_internal_stats
from probes.smart.ocp_logs import parse_health_log, parse_latency_log
from probes.smart.tools import parse_nvme, parse_smartctl
from soak.app.analysis.series_files import read_together
from soak.core import json_text
from soak.core.errors import SoakError
from soak.core.plan import text as plan_text
from soak.omb import plan_import
from soak.omb.load_faults import load_faults
from soak.omb.result import latency_series, series_by_second
from soak.omb.result_file import MAX_BYTES, parse_json, parse_result, read_text
from spark.batch.comparison.run import read_compared, started
from tests.support.hostile_servers import rounds
from tests.support.omb.plans import KAFKA, PULSAR, WORKLOAD
from tests.support.paths import DATA, RECORDED, ROOT

ODD = (
    *("", "null", "true", "-1", "0", "1e999", "-1e999", "NaN", "9" * 40, "9" * 5000, "0x10", "1_0"),
    *(
        "1.5",
        "1,5",
        "\u0661\u0662",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "'",
        '"',
        "\\",
        "{",
        "[",
        "[" * 3000,
    ),
    *(
        "&a [*a]",
        "*a",
        "<<: 1",
        "!!python/object:os.system x",
        "%s",
        "\r",
        "\n",
        "\t",
        "a" * 70_000,
    ),
    *(
        "-9223372036854775809",
        "18446744073709551616",
        "1970-01-01",
        "9999-12-31T23:59:59Z",
        "{}",
        "[]",
    ),
    *(
        "12345678901234567890 days",
        "1e308h",
        "-5min",
        "${env:HOME}",
        "../../etc/passwd",
        "\ufeff",
        "# ",
    ),
)
NOW_NS = 1_796_000_000_000_000_000
LOG_PATTERNS = ("kafka", "pulsar", "redpanda", "jvm_gc")


def spoilt(source: random.Random, sample: str) -> str:
    """Return a text with one to four faults."""
    for _ in range(source.randint(1, 4)):
        numbers = list(re.finditer(r"\d+(\.\d+)?|\w+", sample))
        begin = source.randint(0, len(sample))
        end = min(len(sample), begin + source.randint(0, 30))
        kind = source.randrange(5)
        if kind == 0:
            sample = sample[:begin]
        elif kind == 1:
            sample = sample[:begin] + source.choice(ODD) + sample[end:]
        elif kind == 2:
            sample = sample[:end] + sample[begin:]
        elif kind == 3:
            lines = sample.split("\n")
            at = source.randrange(len(lines))
            sample = "\n".join(
                [*lines[:at], *[lines[at]] * source.choice((0, 2, 50)), *lines[at + 1 :]]
            )
        elif numbers:
            found = source.choice(numbers)
            sample = sample[: found.start()] + source.choice(ODD) + sample[found.end() :]
    return sample


def read_plan(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # former names, when the fault is another
        plan_text.load_with_faults(text, "plan.yaml")
        plan_text.load(text, "plan.yaml")


def read_omb_files(text: str) -> None:
    files = [plan_import.read_source_file(text, "a.yaml")]
    plan_text.load(plan_import.import_plan(files, None, "plan"), "plan")


def read_result(text: str) -> None:
    result = parse_result(parse_json(text, "result.json"), "result.json")
    load_faults(result)
    latency_series(result)
    series_by_second(result)


SCANNER = patterns.Scanner(patterns.load(LOG_PATTERNS))


def read_log(text: str) -> None:
    reader = TimestampReader()
    for line in text.split("\n"):
        at_ns = reader.wall_ns(line, NOW_NS, is_fresh=len(line) % 2 == 0)
        assert at_ns is None or type(at_ns) is int
        assert all(isinstance(one, str) for one in json_lines.messages(line))
    for match in SCANNER.found(text.encode(errors="surrogatepass")):
        values = [one for one in match.fields.values() if isinstance(one, float)]
        assert all(math.isfinite(one) for one in values)


def answer_of(text: str) -> object:
    """Return the JSON of an answer; None where it is none, as the client of the server says."""
    try:
        return json_text.loads(text)
    except (ValueError, RecursionError):
        return None


def read_drive(text: str) -> None:
    body = answer_of(text)
    for parse in (parse_smartctl, parse_nvme):
        health = parse(body) if isinstance(body, dict) else {}
        assert all(type(one) is float and math.isfinite(one) for one in health.values())
    for parse_log in (parse_health_log, parse_latency_log):
        parse_log(text.encode(errors="surrogatepass"))


def read_ledgers(text: str) -> None:
    parse_internal_stats(answer_of(text))


def read_page(text: str) -> None:
    names = set(re.findall(r"^\w+", text, re.MULTILINE))
    ExpositionParser(names).parse(text.encode(errors="surrogatepass"))


def samples(*folders_and_suffixes: tuple[Path, str]) -> list[str]:
    return [
        read_text(path)[:40_000] if suffix != ".json" else read_text(path)
        for folder, suffix in folders_and_suffixes
        for path in sorted(folder.glob(f"*{suffix}"))
    ]


GATES: dict[str, tuple[Callable[[str], None], list[str]]] = {
    "plans": (read_plan, samples((ROOT / "configs/plans", ".yaml"), (DATA / "plans", ".yaml"))),
    "workloads and drivers of the benchmark": (read_omb_files, [WORKLOAD, KAFKA, PULSAR]),
    "results of the benchmark": (read_result, samples((RECORDED / "omb", ".json"))),
    "broker logs": (read_log, samples((RECORDED / "logs", ".log"))),
    "health of drives": (read_drive, samples((RECORDED / "smart", ".json"))),
    "ledgers of Pulsar": (read_ledgers, samples((RECORDED / "pulsar", ".json"))),
    "recorded metrics pages": (read_page, samples((RECORDED / "pages", ".txt"))),
}


@pytest.mark.long
@pytest.mark.parametrize("gate", GATES)
def test_what_is_spoilt_is_read_or_refused(gate: str) -> None:
    read, found = GATES[gate]
    for source in rounds(gate, 20):
        with contextlib.suppress(SoakError):
            read(spoilt(source, source.choice(found)))


@pytest.mark.timeout(5)
def test_a_table_of_many_columns_is_read_at_once(tmp_path: Path) -> None:
    """The time was that of their number squared: minutes for these."""
    path = tmp_path / "series.csv"
    names = [f"v{at}_ms" for at in range(50_000)]
    path.write_text(f"t,{','.join(names)}\n1,{','.join('7' * len(names))}\n")

    found = read_together(path, [])

    assert [one.name for one in found] == names
    assert {float(one.values[0]) for one in found} == {7.0}


def result_that_began(folder: Path, begin: str) -> Path:
    path = folder / "result.json"
    keys = ("publishRate", "consumeRate", "publishLatency99pct")
    lists = ", ".join(f'"{key}": [1.0, 1.0]' for key in keys)
    path.write_text(f'{{"beginTime": {begin}, {lists}}}')
    return path


@pytest.mark.parametrize("begin", ["NaN", "Infinity", "-1", "1e300", str(2**63)])
def test_a_result_that_began_at_no_time_is_refused(tmp_path: Path, begin: str) -> None:
    """Such a number ended `soak compare` with a traceback."""
    path = result_that_began(tmp_path, begin)

    with pytest.raises(SoakError, match=r"result\.json"):
        read_compared(path)


@pytest.mark.parametrize(
    ("begin", "shown"),
    [("0", "-"), ("1790000000000", "2026-09-21 14:13"), ('"2026-09-21T14:13:20"', "-")],
)
def test_a_result_has_the_start_that_it_says(tmp_path: Path, begin: str, shown: str) -> None:
    """A text has no time zone, so it is no instant."""
    path = result_that_began(tmp_path, begin)

    assert started(read_compared(path)) == shown


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress(b" " * 2**24) * (MAX_BYTES // 2**24 + 1))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.long
@pytest.mark.parametrize("write", [packed, sparse])
def test_a_file_of_gigabytes_is_refused_and_not_read_whole(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """A packed one may have 300 KiB."""
    path = tmp_path / "result.json.gz"
    write(path)

    with pytest.raises(SoakError, match=r"result\.json\.gz: more than 256 MiB"):
        read_text(path)


CSV = "seconds,p99_seconds,p50_seconds\n" + "".join(f"{k},0.0{k % 7},0.001\n" for k in range(200))


def test_a_table_that_is_spoilt_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    for source in rounds("tables", 20):
        path.write_text(spoilt(source, CSV), errors="surrogatepass")
        with contextlib.suppress(SoakError):
            for series in read_together(path, []):
                assert series.name
