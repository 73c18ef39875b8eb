"""What the detector keeps of each source, and its form as bytes.

The bytes are a header with the version, a JSON head, then raw little-endian arrays. Everything else follows
from them, so a panel that is stored and read again continues bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core.model import Change, Column

ROWS, CELL, CELLS = 64, 8, 48
"""Newest rows kept as they are; rows in a cell; cells kept."""
SLOTS = ROWS + CELL
WINDOWS = 23
"""Candidate onsets of a series."""

VERSION = 14
"""Version of the state; it grows with every change of what is kept."""
_MAGIC = b"SKST"

_OUTLIER_PRIOR, _OUTLIER_PRIOR_ROWS = 0.0067, 100.0  # the share of a clip of 2.07

Floats = NDArray[np.float32]
_Bytes = NDArray[np.uint8]


def _kept(first: float, *shape: int, kind: str = "<f4") -> dict[str, Any]:
    """Return what is kept of one series, a number or this shape: type, and value before anything is known."""
    return {"kind": kind, "first": first, "shape": shape}


@dataclass(slots=True)
class SeriesArrays:
    """What is kept of the series of one source; every array has the series last."""

    y: Floats = field(metadata=_kept(np.nan, SLOTS))  # oldest first; NaN: no value
    cell: Floats = field(metadata=_kept(0.0, CELLS))  # means, newest first
    cell_count: _Bytes = field(metadata=_kept(0, CELLS, kind="<u1"))  # rows in each
    far: Floats = field(metadata=_kept(0.0))  # forgetting sum of the rows before the cells
    far_rows: Floats = field(metadata=_kept(0.0))  # and their number
    is_linear: _Bytes = field(metadata=_kept(0, kind="<u1"))  # 1: a latency without logarithm
    center: Floats = field(metadata=_kept(0.0))  # median of the newest rows
    scale: Floats = field(metadata=_kept(0.0))  # s
    grid: Floats = field(metadata=_kept(0.0))  # distance of neighbouring values; 0: unknown
    seen: Floats = field(metadata=_kept(0.0))  # rows that taught the scale
    clip: Floats = field(metadata=_kept(2.0))  # bound of a score
    outliers: Floats = field(metadata=_kept(_OUTLIER_PRIOR))  # share of the differences
    outlier_rows: Floats = field(metadata=_kept(_OUTLIER_PRIOR_ROWS))  # of that share
    variance: Floats = field(metadata=_kept(1.0, WINDOWS))  # of contrasts, as learnt
    taught: Floats = field(metadata=_kept(0.0))  # rows that taught it
    threshold: Floats = field(metadata=_kept(0.0))
    clusters: Floats = field(metadata=_kept(0.0))  # of exceedances
    excess: Floats = field(metadata=_kept(0.0))  # of their peaks, summed up
    rows: Floats = field(metadata=_kept(0.0))  # in which the series could alarm
    peak: Floats = field(metadata=_kept(0.0))  # of the cluster that is not over; 0: none
    below: Floats = field(metadata=_kept(99.0))  # rows since the last exceedance
    cluster_rows: Floats = field(
        metadata=_kept(0.0)
    )  # since the cluster began, or the last one ended
    is_muted: _Bytes = field(metadata=_kept(0, kind="<u1"))  # 1: no candidate until the ratio falls

    @classmethod
    def empty(cls, n: int) -> SeriesArrays:
        return cls(
            *(
                np.full((*one.metadata["shape"], n), one.metadata["first"], one.metadata["kind"])
                for one in dataclasses.fields(cls)
            )
        )

    def put(self, to: NDArray[np.int64], other: SeriesArrays, at: NDArray[np.int64]) -> None:
        """Set the series `to` to those of `other` that stand `at`."""
        for name in _FIELDS:
            getattr(self, name)[..., to] = getattr(other, name)[..., at]


_FIELDS = SeriesArrays.__slots__


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that was raised and waits for its confirmation; `raised_row` counts the rows of the source."""

    raised_k: int
    raised_row: int
    onset_k: int
    before: float
    after: float


@dataclass(slots=True)
class SourceState:
    """One source: its series, their rows, and the changes that are not over."""

    columns: tuple[Column, ...]  # those of the last record, then those absent
    arrays: SeriesArrays
    used: int = ROWS  # slots that hold rows
    rows: int = 0  # of the source so far
    k: NDArray[np.int64] = field(default_factory=lambda: np.zeros(SLOTS, np.int64))
    cell_k: NDArray[np.int64] = field(default_factory=lambda: np.zeros(CELLS, np.int64))
    gate: dict[str, Any] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)  # by name
    opened: dict[str, list[Change]] = field(default_factory=dict)  # confirmed and not resolved
    absent: dict[str, int] = field(default_factory=dict)  # series and its last second, oldest first
    left: dict[str, list[Change]] = field(default_factory=dict)  # open changes of forgotten series

    @classmethod
    def empty(cls, columns: tuple[Column, ...]) -> SourceState:
        return cls(columns, SeriesArrays.empty(len(columns)))


def pack_header(magic: bytes, version: int, *sizes: int) -> bytes:
    """Return four bytes that name the format, then the version and the sizes of the parts, 32 bits each."""
    return magic + struct.pack(f"<{1 + len(sizes)}I", version, *sizes)


def unpack_header(
    blob: bytes, magic: bytes, version: int, parts: int
) -> tuple[int, tuple[int, ...]]:
    """Return where the parts begin, and their sizes.

    Raises:
        ValueError: the bytes are of another format, of another version, or cut short.
    """
    start = 4 * (2 + parts)
    if len(blob) < start or not blob.startswith(magic):
        raise ValueError(f"not a state of format {magic.decode()}: it begins with {blob[:8]!r}")
    found, *sizes = struct.unpack_from(f"<{1 + parts}I", blob, len(magic))
    if found != version:
        raise ValueError(f"the state has version {found}, this program reads version {version}")
    return start, tuple(sizes)


def encode(sources: Mapping[str, SourceState]) -> bytes:
    """Return the state of all sources."""
    head = [
        {
            "source": name,
            "columns": [column.to_json() for column in one.columns],
            "used": one.used,
            "rows": one.rows,
            "gate": one.gate,
            "candidates": {
                series: dataclasses.astuple(found) for series, found in one.candidates.items()
            },
            "opened": _to_rows(one.opened),
            "absent": one.absent,
            "left": _to_rows(one.left),
        }
        for name, one in sources.items()
    ]
    text = json.dumps(head, separators=(",", ":")).encode()
    parts = [pack_header(_MAGIC, VERSION, len(text)), text]
    for one in sources.values():
        parts += [one.k.astype("<i8").tobytes(), one.cell_k.astype("<i8").tobytes()]
        parts += [getattr(one.arrays, name).tobytes() for name in _FIELDS]
    return b"".join(parts)


def decode(blob: bytes) -> dict[str, SourceState]:
    """Return the state that `encode` described.

    Raises:
        ValueError: the bytes are damaged or of another version.
    """
    at, (size,) = unpack_header(blob, _MAGIC, VERSION, 1)
    heads = json.loads(blob[at : at + size])
    at += size
    sources = {}
    for head in heads:
        one = SourceState.empty(tuple(map(Column.from_json, head["columns"])))
        one.used, one.rows, one.gate = head["used"], head["rows"], head["gate"]
        one.candidates = {name: Candidate(*found) for name, found in head["candidates"].items()}
        one.opened, one.left = _from_rows(head["opened"]), _from_rows(head["left"])
        one.absent = head["absent"]
        for array in (one.k, one.cell_k, *(getattr(one.arrays, name) for name in _FIELDS)):
            found = np.frombuffer(blob, array.dtype.newbyteorder("<"), array.size, at)
            array[:] = found.reshape(array.shape)
            at += found.nbytes
        sources[head["source"]] = one
    return sources


def _to_rows(changes: Mapping[str, Sequence[Change]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one.to_row() for one in many] for name, many in changes.items()}


def _from_rows(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Change]]:
    return {name: [*map(Change.from_row, many)] for name, many in rows.items()}
