"""The digest of a journal file as a row of a table, kept as parquet while the file stays as it is.

A row is kept in the run folder with the length and checksum of its file, and what it was asked for: the
report of a long run is made again in a fraction of the time. One that cannot be read back is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from soak.core.errors import JournalError
from soak.store.journal.reader import CHUNK_BYTES, segments
from spark.batch.digest import Scope, digest
from spark.sources.schema import columns_text

Row = Mapping[str, Any]
"""One row of `SCHEMA`."""

SCHEMA = pa.schema(
    [
        ("error", pa.string()),
        ("source", pa.string()),
        ("seconds", pa.list_(pa.int64())),
        ("columns", pa.string()),
        ("k", pa.list_(pa.int64())),
        ("values", pa.list_(pa.list_(pa.float64()))),
        ("extremes_k", pa.list_(pa.int64())),
        ("extremes", pa.binary()),
        ("untrusted", pa.string()),
        ("silent", pa.list_(pa.int64())),
        ("standing", pa.list_(pa.int64())),
        ("short", pa.list_(pa.list_(pa.int64()))),
        ("rough_columns", pa.string()),
        ("rough_k", pa.list_(pa.int64())),
        ("rough", pa.binary()),
        ("minutes", pa.string()),
        ("totals", pa.string()),
        ("events", pa.string()),
        ("damage", pa.string()),
        ("incs", pa.list_(pa.int32())),
        ("file", pa.string()),
        ("audit", pa.binary()),
    ]
)

_LOG = logging.getLogger(__name__)
_VERSION = 5
"""Counted up when the same file would give another row."""

_KEY, _RANGE, _PHASES = b"soak_key", b"soak_seconds", b"soak_phases"


def cached_row(path: Path, step: int, scope: Scope) -> pa.RecordBatch:
    """Return the digest of one journal file, from the run folder if it is kept there.

    The newest file of a source is not kept: it may be growing.
    """
    if path == segments(path.parent)[-1]:
        return digest_row(path, step, scope)
    kept = path.parents[2] / "digests" / path.parent.name / f"{path.stem}.parquet"
    key = _key(path, step, scope)
    found = _read(kept, key, scope)
    if found is None:
        found = digest_row(path, step, scope)
        if found.column("error")[0].as_py() is None:
            _keep(kept, found, key, scope)
    return found


_ARRAYS = ("seconds", "k")
_TABLE = "values"


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Give the rows of a table of `SCHEMA`; seconds and values, which are millions, as arrays."""
    plain = table.drop_columns([*_ARRAYS, _TABLE]).to_pylist()
    for at, row in enumerate(plain):
        arrays = {name: _array(table.column(name)[at]) for name in _ARRAYS}
        nested = table.column(_TABLE)[at].values
        values = [] if nested is None else [_array(one) for one in nested]
        yield {**row, **arrays, _TABLE: values}


def _array(found: pa.ListScalar) -> NDArray[Any]:
    return np.empty(0) if found.values is None else found.values.to_numpy(zero_copy_only=False)


def digest_row(path: Path, step: int, scope: Scope) -> pa.RecordBatch:
    """Return the digest of one journal file in the form of `SCHEMA`."""
    try:
        found = digest(path, step, scope)
    except JournalError as error:  # in a worker it would end as Spark's traceback
        return pa.RecordBatch.from_pylist([{"error": f"{path}: {error}"}], schema=SCHEMA)
    row = {
        "error": None,
        "source": found.source,
        "seconds": found.seconds.tolist(),
        "columns": columns_text(found.columns),
        "k": found.k.tolist(),
        "values": found.values.tolist(),
        "extremes_k": found.extremes.k.tolist(),
        "extremes": np.stack([found.extremes.low, found.extremes.high]).tobytes(),
        "untrusted": json.dumps(found.invalid),
        "silent": found.load.silent.tolist(),
        "standing": found.load.standing.tolist(),
        "short": found.load.short.tolist(),
        "rough_columns": columns_text(found.rough.columns),
        "rough_k": found.rough.k.tolist(),
        "rough": found.rough.values.tobytes(),
        "minutes": json.dumps(
            {number: [astuple(one) for one in counts] for number, counts in found.minutes.items()}
        ),
        "totals": found.totals.to_text(),
        "events": json.dumps(found.event_seconds),
        "damage": json.dumps([[k, f"{path.name}:{at}", why] for k, at, why in found.damage]),
        "incs": list(found.epochs),
        "file": path.name,
        "audit": found.audit,
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def _key(path: Path, step: int, scope: Scope) -> bytes:
    """Return what a row was made of: file, step and objectives."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    asked = f"{_VERSION} {path.stat().st_size} {checksum} {step} {scope.max_k} {scope.objectives}"
    return hashlib.sha256(asked.encode()).hexdigest().encode()


def _read(kept: Path, key: bytes, scope: Scope) -> pa.RecordBatch | None:
    try:
        table = pq.read_table(kept, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None  # not kept yet, or damaged
    noted = table.schema.metadata or {}
    if noted.get(_KEY) != key or not table.schema.equals(SCHEMA) or table.num_rows != 1:
        return None
    first, last = map(int, noted[_RANGE].split())
    if noted[_PHASES] != _phases(scope, first, last):
        return None
    return table.replace_schema_metadata(None).to_batches()[0]


def _keep(kept: Path, row: pa.RecordBatch, key: bytes, scope: Scope) -> None:
    seconds = row.column("seconds")[0].as_py() or [0]
    first, last = seconds[0], seconds[-1]
    noted = {_KEY: key, _RANGE: b"%d %d" % (first, last), _PHASES: _phases(scope, first, last)}
    draft = kept.with_name(f".{kept.name}.{uuid4().hex}")  # hosts share the folder, not process ids
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([row]).replace_schema_metadata(noted)
        pq.write_table(table, draft, compression="zstd", write_page_checksum=True)
        draft.replace(kept)
    except OSError as error:
        _LOG.warning("digest_not_kept path=%s error=%s", kept, error)
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _phases(scope: Scope, first: int, last: int) -> bytes:
    """Return the phases of these seconds: those of a run that goes on may have been decided since."""
    held = scope.phases.held(last + 1)
    found = [(one.phase, max(one.from_k, first), edge) for one, edge in held if edge > first]
    return hashlib.sha256(repr(found).encode()).hexdigest().encode()
