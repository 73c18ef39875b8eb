"""The state of a panel as bytes: a header with the version, a JSON head, then raw little-endian arrays."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from detectors import _block
from detectors._block import Block, Book, Pending
from detectors._spread import Spread
from detectors._windows import ROWS, Slope
from soak.core.model import Change, Column

VERSION = 11
_MAGIC = b"SKST"


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


def encode(blocks: dict[str, Block]) -> bytes:
    head = [
        {
            "source": source,
            "columns": [column.to_json() for column in block.columns],
            "absent": block.absent,
            "left": {name: _rows(changes) for name, changes in block.left.items()},
            "inc": block.epoch,
            "last_k": block.last_k,
            "rows": block.rows,
            "edge_k": block.edge_k,
            "phase": block.phase,
            "cells": [block.cells.whole, block.cells.rows, block.cells.k],
            "books": {
                name: {
                    "pending": dataclasses.astuple(book.pending) if book.pending else None,
                    "standing": _rows(book.standing),
                }
                for name, book in block.books.items()
            },
        }
        for source, block in blocks.items()
    ]
    text = json.dumps(head, separators=(",", ":")).encode()
    parts = [pack_header(_MAGIC, VERSION, len(text)), text]
    for block in blocks.values():
        used = min(block.rows, ROWS)
        parts += [
            block.y[:used].astype("<f4").tobytes(),
            block.k[:used].astype("<i8").tobytes(),
            block.stale.astype("<u1").tobytes(),
        ]
        parts += [array.astype(_little(array)).tobytes() for array in _arrays(block)]
    return b"".join(parts)


def decode(blob: bytes) -> dict[str, Block]:
    """Return the blocks; scores and sums are made anew when a block is next adopted.

    Raises:
        ValueError: the bytes are damaged or of another version.
    """
    at, (size,) = unpack_header(blob, _MAGIC, VERSION, 1)
    reader = _Reader(blob, at + size)
    blocks = {}
    for head in json.loads(blob[at : at + size]):
        block = _block.empty(tuple(map(Column.from_json, head["columns"])))
        n, used = len(block.columns), min(head["rows"], ROWS)
        block.absent, block.epoch = head["absent"], head["inc"]
        block.last_k, block.rows = head["last_k"], head["rows"]
        block.edge_k, block.phase = head["edge_k"], head["phase"]
        block.y[:used] = reader.take("<f4", used * n).reshape(used, n)
        block.k[:used] = reader.take("<i8", used)
        block.stale[:] = reader.take("<u1", n) > 0
        block.cells.whole, block.cells.rows, block.cells.k = head["cells"]
        for array in _arrays(block):
            array[:] = reader.take(_little(array), array.size).reshape(array.shape)
        source = head["source"]
        block.left = {name: [*map(Change.from_row, rows)] for name, rows in head["left"].items()}
        block.books = {name: _book(book) for name, book in head["books"].items()}
        blocks[source] = block
    return blocks


def _arrays(block: Block) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Return what is stored whole, in its order."""
    spread, cells = block.spread, block.cells
    learnt = [getattr(spread, name) for name in Spread.__slots__]
    moves = [getattr(cells.slope, name) for name in Slope.__slots__]
    return [*learnt, cells.level, cells.counts, cells.first_k, cells.sum, cells.count, *moves]


def _little(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    return array.dtype.newbyteorder("<").str


def _rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [change.to_row() for change in changes]


def _book(head: dict[str, Any]) -> Book:
    pending = Pending(*head["pending"]) if head["pending"] else None
    return Book(pending, [*map(Change.from_row, head["standing"])])


class _Reader:
    def __init__(self, blob: bytes, at: int) -> None:
        self._blob, self._at = blob, at

    def take(self, kind: str, count: int) -> np.ndarray[tuple[int], np.dtype[Any]]:
        found = np.frombuffer(self._blob, dtype=kind, count=count, offset=self._at)
        self._at += found.nbytes
        return found
