"""The shape of rows in Spark: one row a (run, source, epoch, k), and one a change point.

Names of columns are long and rarely change, so a row carries their id, and only the first row of a
source in a batch that uses them carries their text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from soak.core import json_text
from soak.core.model import Column, Record

Row = dict[str, object]
"""One row of `ROWS` by the names of its columns; a missing one is null."""

_ROW: tuple[tuple[str, Any], ...] = (
    ("run", StringType()),
    ("shard", LongType()),
    ("source", StringType()),
    ("epoch", LongType()),
    ("k", LongType()),
    ("at_ns", LongType()),
    ("length_ns", LongType()),
    ("columns_id", StringType()),
    ("columns", StringType()),  # JSON, on the first row that uses this id, else null
    ("values", ArrayType(DoubleType(), containsNull=False)),  # NaN where nothing was measured
    ("trusted", BooleanType()),
    ("trust", StringType()),  # JSON, null when there is nothing to say
    ("events", StringType()),  # JSON list, null when there is none
    ("phase", StringType()),
    ("gap", StringType()),  # why a line could not be read; such a row has no values
)
_CHANGE: tuple[tuple[str, Any], ...] = (
    ("run", StringType()),
    ("series", StringType()),
    ("raised_k", LongType()),
    ("onset_k", LongType()),
    ("first_k", LongType()),
    ("last_k", LongType()),
    ("before", DoubleType()),
    ("after", DoubleType()),
    ("state", StringType()),
    ("confidence", DoubleType()),
    ("kind", StringType()),
    ("gone_k", LongType()),
    ("period_seconds", DoubleType()),
    ("burst_seconds", DoubleType()),
    ("failed_messages", LongType()),
    ("late_messages", LongType()),
    ("due_messages", LongType()),
    ("discovered_k", LongType()),
)
ROWS = StructType([StructField(name, kind, nullable=True) for name, kind in _ROW])
CHANGES = StructType([StructField(name, kind, nullable=True) for name, kind in _CHANGE])

_ARROW = {
    StringType(): pa.string(),
    LongType(): pa.int64(),
    BooleanType(): pa.bool_(),
    ArrayType(DoubleType(), containsNull=False): pa.list_(
        pa.field("element", pa.float64(), nullable=False)
    ),
}
ARROW_ROWS = pa.schema([pa.field(name, _ARROW[kind], nullable=True) for name, kind in _ROW])
"""As Spark sees `ROWS`: a source that gives batches of this schema spares a conversion a value."""


def columns_text(columns: Sequence[Column]) -> str:
    """Return columns as JSON."""
    return json.dumps([column.to_json() for column in columns], separators=(",", ":"))


def columns_of(text: str) -> tuple[Column, ...]:
    """Return the columns that `columns_text` described."""
    return tuple(map(Column.from_json, json_text.loads(text)))


def record_row(
    run: str, source: str, record: Record, columns: Sequence[Column] | str | None, phase: str
) -> Row:
    """Return the row of a record; `columns`, or their text, on the first row of a batch that uses them."""
    events = [asdict(event) for event in record.events]
    if columns is not None and not isinstance(columns, str):
        columns = columns_text(columns)
    return {
        "run": run,
        "shard": 0,
        "source": source,
        "epoch": record.epoch,
        "k": record.k,
        "at_ns": record.at_ns,
        "length_ns": record.length_ns,
        "columns_id": record.columns_id,
        "columns": columns,
        "values": record.values,
        "trusted": record.is_valid,
        "trust": json.dumps(dict(record.validity)) if record.validity else None,
        "events": json.dumps(events) if events else None,
        "phase": phase,
        "gap": None,
    }


def gap_row(run: str, source: str, reason: str) -> Row:
    """Return the row that says what could not be read, and where."""
    return {"run": run, "shard": 0, "source": source, "gap": reason}
