"""The state of a panel as bytes: a header with the version, a JSON head, then raw little-endian arrays."""

from __future__ import annotations

import dataclasses
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np

from detectors import _block
from detectors._block import Block, Book, Pending
from detectors._spread import Spread
from detectors._windows import ROWS, Slope
from soak.core.model import Change, Column
from soak.core.series import series_name

VERSION = 11
_MAGIC = b"SKST"
_STANDING = struct.Struct("<qiiiddd")


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
            "columns": [tuple(column) for column in block.columns],
            "absent": block.absent,
            "left": {name: [*map(_packed, changes)] for name, changes in block.left.items()},
            "inc": block.epoch,
            "last_k": block.last_k,
            "rows": block.rows,
            "edge_k": block.edge_k,
            "phase": block.phase,
            "cells": [block.cells.whole, block.cells.rows, block.cells.k],
            "books": {
                name: {
                    "pending": dataclasses.astuple(book.pending) if book.pending else None,
                    "standing": [*map(_packed, book.standing)],
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
        block = _block.empty(tuple(_column(*fields) for fields in head["columns"]))
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
        block.left = {
            name: _unpacked(series_name(source, name), changes)
            for name, changes in head["left"].items()
        }
        block.books = {
            name: _book(series_name(source, name), book) for name, book in head["books"].items()
        }
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


def _column(metric: str, labels: list[list[str]], unit: str, lag_seconds: float) -> Column:
    return Column(metric, tuple((key, value) for key, value in labels), unit, lag_seconds)


def _book(series: str, head: dict[str, Any]) -> Book:
    pending = Pending(*head["pending"]) if head["pending"] else None
    return Book(pending, _unpacked(series, head["standing"]))


def _packed(change: Change) -> str:
    """Return a confirmed change as text, without its series."""
    k = change.raised_k
    first, last = change.interval
    numbers = k, change.onset_k - k, first - k, last - k
    raw = _STANDING.pack(*numbers, change.before, change.after, change.confidence)
    return b64encode(raw).decode()


def _unpacked(series: str, texts: Sequence[str]) -> list[Change]:
    changes = []
    for text in texts:
        k, onset, first, last, before, after, confidence = _STANDING.unpack(b64decode(text))
        span = k + first, k + last
        changes.append(Change(series, k, k + onset, span, before, after, "confirmed", confidence))
    return changes


class _Reader:
    def __init__(self, blob: bytes, at: int) -> None:
        self._blob, self._at = blob, at

    def take(self, kind: str, count: int) -> np.ndarray[tuple[int], np.dtype[Any]]:
        found = np.frombuffer(self._blob, dtype=kind, count=count, offset=self._at)
        self._at += found.nbytes
        return found
