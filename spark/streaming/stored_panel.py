"""A panel as parts of a keyed state, of which a batch writes little: a base, and the rows that came since.

What a panel says and keeps follows from its rows. So a batch writes its rows, 8 bytes a value, and not the
panel, which has some 800 bytes a series. Once the rows are half as large as the panel, the panel is written
as the new base and they are removed: a panel that is read takes few rows again, and of all that is written
the bases are two thirds.

Between batches the panel stays in the memory of the Python worker (`LivePanels`), named by a digest of all
rows that it took. A worker that has not the panel of the state, because another one had the last batch or the
last batch was not committed, takes the rows that it has not, or reads all of it from the parts, so it never
goes on from anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from detectors.online.state import CELL, pack_header, unpack_header
from detectors.panel import Panel
from soak.core import json_text
from soak.core.model import Change, Column
from spark.sources.schema import columns_of

VERSION = 2
"""Version of the parts; the base in them has a version of its own."""
_MAGIC = b"SKRW"
_BASE_SHARE = 0.5
"""The rows since a base may have so many bytes of it."""
_MOST_SERIES = 50_000  # in the live panels of a worker, 2 to 3 KB each


class Parts(Protocol):
    """What is used of Spark's `MapState`; keys and values are tuples of one."""

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None: ...  # noqa: N802
    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None: ...  # noqa: N802
    def removeKey(self, key: tuple[Any, ...]) -> None: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class Row:
    """One record of one source, as a panel takes it; `columns` is the text of its columns."""

    source: str
    epoch: int
    k: int
    columns_id: str
    is_valid: bool
    phase: str
    values: NDArray[np.float64]


ColumnTexts = dict[tuple[str, str], str]
"""The text of columns by source and id; sources may use one id for different columns."""

OF_THESE_ROWS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(AssertionError, RecursionError),
)
"""What a panel may raise that says something of a row, and nothing of the machine."""
MAX_SINGLE = 8
"""So many rows of a batch are set aside one by one; after that all rows of a source at which one fails."""
MAX_TRIES = 64
"""After so many failures what is left of the batch is set aside."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that no panel could take, and why; the query goes on without it."""

    source: str
    epoch: int
    k: int
    reason: str


@dataclass(slots=True)
class Feeding:
    """Where in its rows an attempt is."""

    at: int = 0


T = TypeVar("T")


def without_failing(
    rows: Sequence[Row], attempt: Callable[[Sequence[Row], Feeding], T]
) -> tuple[T, list[SetAside]]:
    """Return what an attempt gives for these rows without those that it fails at, and these.

    Each attempt begins again from the stored state, and notes in `Feeding` which row is next. The
    same rows are tried twice before one is set aside: the first failure may be due to what was kept in
    memory. Rows are fed in order, so the one at which it fails ends the shortest part that fails.
    """
    aside: list[SetAside] = []
    is_second = False
    for _ in range(MAX_TRIES):
        feeding = Feeding()
        try:
            return attempt(rows, feeding), aside
        except OF_THESE_ROWS as error:
            if not is_second or not rows:
                is_second = True
                continue
            wrong = rows[feeding.at]
            is_whole = len(aside) >= MAX_SINGLE
            taken_out = [
                at
                for at, row in enumerate(rows)
                if at == feeding.at or (is_whole and row.source == wrong.source)
            ]
            aside += [_set_aside(rows[at], error) for at in taken_out]
            left_out = set(taken_out)
            rows = [row for at, row in enumerate(rows) if at not in left_out]
    aside += [_set_aside(row, ValueError("too many rows of its batch fail")) for row in rows]
    return attempt([], Feeding()), aside


def _set_aside(row: Row, error: Exception) -> SetAside:
    return SetAside(row.source, row.epoch, row.k, f"{type(error).__name__}: {error}"[:300])


@dataclass(slots=True)
class _Head:
    """Which parts there are, and which rows have made them."""

    rows_id: str = ""  # of all rows
    base_id: str = ""  # of the rows in the base
    first: int = 0  # number of the first block of rows since the base
    end: int = 0  # and that after the last
    base_bytes: int = 0
    block_bytes: int = 0
    columns: list[list[str]] = field(default_factory=list)  # source and id of those kept


@dataclass(slots=True)
class LivePanel:
    """A panel in memory, and the digest of the rows that it took."""

    panel: Panel
    rows_id: str = ""
    end: int = 0  # number of the block of rows that comes next
    columns: dict[tuple[str, str], tuple[str, tuple[Column, ...]]] = field(default_factory=dict)

    @property
    def series(self) -> int:
        return sum(len(columns) for _, columns in self.columns.values())

    def take(
        self, rows: Sequence[Row], texts: ColumnTexts, feeding: Feeding | None = None
    ) -> list[Change]:
        """Feed the rows in their order; return the changes in the order of their discovery."""
        feeding = feeding or Feeding()
        changes: list[Change] = []
        for feeding.at, row in enumerate(rows):
            columns = self._columns_of(row, texts)
            if len(columns) != row.values.size:
                raise ValueError(f"{row.values.size} values of {len(columns)} columns")
            found = self.panel.update(
                row.source,
                columns,
                row.k,
                row.values,
                row.is_valid,
                row.phase,
                epoch=row.epoch,
                following=partial(_following, rows, feeding.at),
            )
            changes += [replace(one, discovered_k=row.k) for one in found]
        return changes

    def _columns_of(self, row: Row, texts: ColumnTexts) -> tuple[Column, ...]:
        name = row.source, row.columns_id
        text, known = texts.get(name), self.columns.get(name)
        if text is not None and (known is None or known[0] != text):
            known = self.columns[name] = text, columns_of(text)
        if known is None:
            raise ValueError(f"nothing says what columns {row.columns_id:.40} are")
        return known[1]


def _following(rows: Sequence[Row], at: int) -> list[NDArray[np.float64]]:
    """Return the values of the rows behind `at` that are of the same source and columns, as many as count."""
    own = rows[at]
    found = []
    for row in rows[at + 1 : at + CELL]:
        if (row.source, row.columns_id, row.values.size) != (
            own.source,
            own.columns_id,
            own.values.size,
        ):
            break
        found.append(row.values)
    return found


@dataclass(slots=True)
class LivePanels:
    """The panels that this process had last, by key; those used longest ago go first."""

    most_series: int = _MOST_SERIES
    _panels: dict[Hashable, LivePanel] = field(default_factory=dict)

    def take_out(self, key: Hashable) -> LivePanel | None:
        return self._panels.pop(key, None)

    def put(self, key: Hashable, one: LivePanel) -> None:
        self._panels[key] = one
        while len(self._panels) > 1 and self._series() > self.most_series:
            del self._panels[next(iter(self._panels))]

    def _series(self) -> int:
        return sum(one.series for one in self._panels.values())


@dataclass(frozen=True, slots=True)
class StoredPanel:
    """The panel of one key; `new` makes an empty one, `read` one of the bytes of another."""

    parts: Parts
    new: Callable[[], Panel]
    read: Callable[[bytes], Panel]

    def take(
        self, live: LivePanel | None, rows: Sequence[Row], texts: ColumnTexts
    ) -> tuple[LivePanel, list[Change], list[SetAside]]:
        """Take the rows of a batch and write what changed.

        Returns the panel, its changes, and the rows that it could not take.

        `live`: the panel of this key that the process had last, of whatever rows.

        Raises:
            ValueError: a part is damaged or of another version.
        """
        head = self._head()
        panels = [self._current(live, head)]

        def attempt(
            rows: Sequence[Row], feeding: Feeding
        ) -> tuple[LivePanel, list[Change], Sequence[Row]]:
            one = panels.pop() if panels else self._current(None, head)
            return one, one.take(rows, texts, feeding), rows

        (one, changes, rows), aside = without_failing(rows, attempt)
        block = encode(rows)
        one.rows_id, one.end = _digest(one.rows_id, block), head.end + 1
        used = {(row.source, row.columns_id) for row in rows}
        if head.block_bytes + len(block) >= _BASE_SHARE * head.base_bytes:
            self._write_base(head, one)
            one.columns = {name: found for name, found in one.columns.items() if name in used}
        else:
            self._write_rows(head, used, block, one)
        return one, changes, aside

    def panel(self) -> Panel:
        """Return the panel as the parts have it."""
        return self._current(None, self._head()).panel

    def _head(self) -> _Head:
        found = self._part("head")
        return _Head() if found is None else _Head(**json_text.loads(found))

    def _part(self, name: str) -> bytes | None:
        found = self.parts.getValue((name,))
        return None if found is None else bytes(found[0])

    def _known_part(self, name: str) -> bytes:
        found = self._part(name)
        if found is None:
            raise ValueError(f"the detector's state has no part {name}")
        return found

    def _current(self, live: LivePanel | None, head: _Head) -> LivePanel:
        """Return the panel after the rows of `head`: the live one, or from the parts."""
        if live is not None and live.rows_id == head.rows_id:
            return live
        if live is not None and head.first <= live.end < head.end and self._goes_on(live, head):
            return live
        one = LivePanel(self.read(self._known_part("base")) if head.base_id else self.new())
        one.rows_id, one.end = head.base_id, head.first
        if not self._goes_on(one, head):
            raise ValueError("the rows in the detector's state are not those that made it")
        return one

    def _goes_on(self, one: LivePanel, head: _Head) -> bool:
        """Take the rows that a panel has not; return False, and leave it, where others come before these.

        A worker that had not the last batch has that of before, as a rule.
        """
        blocks = [self._known_part(_rows_part(number)) for number in range(one.end, head.end)]
        rows_id = one.rows_id
        for block in blocks:
            rows_id = _digest(rows_id, block)
        if rows_id != head.rows_id:
            return False
        texts = {
            (source, name): self._known_part(_columns_part(source, name)).decode()
            for source, name in head.columns
        }
        for block in blocks:
            one.take(list(decode(block)), texts)
        one.rows_id, one.end = rows_id, head.end
        return True

    def _write_base(self, head: _Head, one: LivePanel) -> None:
        blob = one.panel.to_bytes()
        self.parts.updateValue(("base",), (blob,))
        for number in range(head.first, head.end):
            self.parts.removeKey((_rows_part(number),))
        for source, name in head.columns:
            self.parts.removeKey((_columns_part(source, name),))
        self._write_head(_Head(one.rows_id, one.rows_id, one.end, one.end, len(blob)))

    def _write_rows(
        self, head: _Head, used: set[tuple[str, str]], block: bytes, one: LivePanel
    ) -> None:
        kept = {(source, name) for source, name in head.columns}
        for source, name in sorted(used - kept):
            text = one.columns[source, name][0]
            self.parts.updateValue((_columns_part(source, name),), (text.encode(),))
            head.columns.append([source, name])
        self.parts.updateValue((_rows_part(head.end),), (block,))
        head.rows_id = one.rows_id
        head.end += 1
        head.block_bytes += len(block)
        self._write_head(head)

    def _write_head(self, head: _Head) -> None:
        found = {name: getattr(head, name) for name in _Head.__slots__}
        text = json.dumps(found, separators=(",", ":"))
        self.parts.updateValue(("head",), (text.encode(),))


def encode(rows: Sequence[Row]) -> bytes:
    """Return rows as bytes, which `decode` reads."""
    head = [
        [one.source, one.epoch, one.k, one.columns_id, one.is_valid, one.phase, one.values.size]
        for one in rows
    ]
    text = json.dumps(head, separators=(",", ":")).encode()
    values = [one.values.astype("<f8").tobytes() for one in rows]
    return b"".join([pack_header(_MAGIC, VERSION, len(text)), text, *values])


def decode(block: bytes) -> Iterator[Row]:
    """Give the rows that `encode` described.

    Raises:
        ValueError: the bytes are damaged or of another version.
    """
    at, (size,) = unpack_header(block, _MAGIC, VERSION, 1)
    heads = json_text.loads(block[at : at + size])
    at += size
    for source, epoch, k, columns_id, is_valid, phase, count in heads:
        values = np.frombuffer(block, "<f8", count, at).astype(np.float64)
        at += values.nbytes
        yield Row(source, epoch, k, columns_id, is_valid, phase, values)


def _digest(rows_id: str, block: bytes) -> str:
    return blake2b(rows_id.encode() + block, digest_size=12).hexdigest()


def _rows_part(number: int) -> str:
    return f"rows {number}"


def _columns_part(source: str, name: str) -> str:
    return f"columns {name} {source}"
