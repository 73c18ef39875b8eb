"""Prints imported results: a summary for people, or one row a sample."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import numpy as np

from soak.cli._text import span
from soak.core import wording
from soak.omb.fields import FAMILIES, Family, statistic_name
from soak.omb.result import Floats, Result

_SHOWN = ("p50", "p99", "p99.9", "max")
_RATES = ("publish_rate_per_second", "publish_error_rate_per_second", "consume_rate_per_second")

Imported = tuple[Path, Result]


class Format(StrEnum):
    """A summary for people, or one row a sample."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


class Findings(StrEnum):
    """Sentences for people, or one object a finding."""

    text = "text"
    jsonl = "jsonl"


def summary(path: Path, result: Result) -> Iterator[str]:
    """Give the lines about one file: what ran, rates, latencies of the whole run, remarks."""
    seconds = int(result.seconds[-1]) if result.seconds.size else 0
    yield (
        f"{path}: {result.dialect}, workload {result.workload or '?'}, driver {result.driver or '?'}, "
        f"{result.seconds.size} samples of {result.step_seconds:g} s in {span(seconds)}"
    )
    for name in (*_RATES, "backlog_messages"):
        if name in result.samples:
            yield f"  {name.replace('_', ' ')}: {_range(result.samples[name])}"
    for family in FAMILIES:
        line = _latency(result, family)
        if line:
            yield f"  {family.name.replace('_', ' ')}: {line}"
    yield from notes(result)


def notes(result: Result) -> Iterator[str]:
    """Give a line for each thing that must be known of the numbers."""
    for remark in result.remarks:
        yield f"  note: {wording.printable(remark)}"


def json_rows(path: Path, result: Result) -> Iterator[str]:
    """Give one object a sample; null is missing."""
    for row in range(result.seconds.size):
        body: dict[str, object] = {"file": str(path), "index": row}
        body["seconds"] = float(result.seconds[row])
        for name, values in result.samples.items():
            value = float(values[row])
            body[name] = None if math.isnan(value) else value
        yield json.dumps(body)


def csv_text(imported: list[Imported]) -> str:
    """Return one row a sample, `seconds` first; an empty cell is missing. The last column names the file."""
    names = list(dict.fromkeys(name for _, result in imported for name in result.samples))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["seconds", *names, "file"])
    for path, result in imported:
        empty = np.full(result.seconds.size, np.nan)
        columns = [result.samples.get(name, empty) for name in names]
        for row, seconds in enumerate(result.seconds):
            cells = [
                "" if np.isnan(column[row]) else repr(float(column[row])) for column in columns
            ]
            table.writerow([repr(float(seconds)), *cells, str(path)])
    return text.getvalue()


def _range(values: Floats) -> str:
    found = values[np.isfinite(values)]
    if not found.size:
        return "missing"
    low, middle, high = (
        wording.amount(float(x), "") for x in (found.min(), np.median(found), found.max())
    )
    return f"{middle} (median; {low} to {high})"


def _latency(result: Result, family: Family) -> str:
    """Return the percentiles of the whole run; intervals' percentiles cannot be merged into them."""
    names = {name: statistic_name(family, name) for name in _SHOWN}
    told = [
        f"{name} {wording.amount(result.totals[column], 'seconds')}"
        for name, column in names.items()
        if column in result.totals and not math.isnan(result.totals[column])
    ]
    return ", ".join(told)
