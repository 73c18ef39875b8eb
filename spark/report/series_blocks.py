"""The series that the page draws, packed: buckets of the whole run, and seconds near the worst incidents.

All of it is computed from the digests; of a run longer than two hours, seconds near incidents are read from
the journals again, in tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soak.core.series import source_of
from soak.store.journal.history import MAX_WINDOW_SECONDS, History
from spark.batch.digest import reduction
from spark.batch.timeline import per_second
from spark.report.packing import (
    Grid,
    Scale,
    Words,
    band_words,
    bands,
    block,
    scale_of,
    usual_distance,
    windows,
)
from spark.report.page import Page

Floats = NDArray[np.float64]
Joined = Literal["one", "highest", "sum"]

MOST_BUCKET_BYTES, MOST_SECOND_WORDS = 4_300_000, 1_000_000
"""Room for packed buckets and for single seconds; text, pictures and the program take the remaining room."""
MOST_SERIES = 1_500
A_BLOCK = 24  # series; a block is unpacked as a whole


@dataclass(frozen=True, slots=True)
class Drawn:
    """A series as the page draws it: one of the run's, or the highest or the sum of several."""

    title: str
    note: str
    unit: str
    members: tuple[str, ...]
    joined: Joined = "one"

    @property
    def source(self) -> str:
        """Return the source whose gaps it has; "" for all clients."""
        return source_of(self.members[0]) if len(self.members) == 1 else ""


@dataclass(frozen=True, slots=True)
class SeriesBlocks:
    """Packs what is in `drawn`, the most important first, until the page is full."""

    page: Page
    grid: Grid
    drawn: Mapping[str, Drawn]

    def stretches(
        self, spans: Sequence[tuple[int, int]], near: Sequence[str]
    ) -> list[tuple[int, int]]:
        """Return what is kept second by second: the whole of a short run, or around the worst incidents."""
        if self.grid.bucket == 1:
            return []
        if self.grid.step == 1 and self.grid.seconds * max(len(near), 1) <= MOST_SECOND_WORDS:
            return [(0, self.grid.seconds)]
        found: list[tuple[int, int]] = []
        for count in range(1, len(spans) + 1):
            wanted = windows(spans[:count], self.grid.seconds)
            if sum(b - a for a, b in wanted) * max(len(near), 1) > MOST_SECOND_WORDS:
                break
            found = wanted
        return found

    def packed(
        self, near: Sequence[str], stretches: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """Return series by name as the page lists them, and their blocks, until the page is full."""
        seconds = self._seconds_near(near, stretches)
        listed: dict[str, list[Any]] = {}
        blocks: dict[str, str] = {}
        names, used = list(self.drawn)[:MOST_SERIES], 0
        for first in range(0, len(names), A_BLOCK):
            block_name = str(first // A_BLOCK)
            words: list[Words] = []
            fine_words: list[Words] = []
            rows: dict[str, list[Any]] = {}
            for place, name in enumerate(names[first : first + A_BLOCK]):
                one = self.drawn[name]
                scale, packed, fine, distance = self._words(one, seconds)
                words.append(packed)
                fine_place = -1
                if fine is not None:
                    fine_place = len(fine_words)
                    fine_words.append(fine)
                row = [
                    one.source,
                    one.title,
                    one.note,
                    one.unit,
                    *scale.to_json(),
                    block_name,
                    place,
                    fine_place,
                    distance,
                ]
                rows[name] = row
            text = block(words)
            if used + len(text) > MOST_BUCKET_BYTES and listed:
                break
            used += len(text)
            listed |= rows
            blocks[block_name] = text
            if fine_words:
                blocks[f"{block_name}-seconds"] = block(fine_words)
        return listed, blocks

    def _words(
        self, one: Drawn, seconds: Mapping[str, Floats]
    ) -> tuple[Scale, Words, Words | None, float]:
        """Return scale, buckets and seconds of a series, and the usual distance of its values in seconds."""
        native = combined([self.native(name) for name in one.members], one.joined)
        extremes = (
            [self._extremes(name) for name in one.members]
            if one.joined != "sum" or len(one.members) == 1
            else []
        )
        low: Floats | None = None
        high: Floats | None = None
        if extremes and all(pair is not None for pair in extremes):
            pairs = [pair for pair in extremes if pair is not None]
            high = combined([pair[1] for pair in pairs], one.joined)
            low = pairs[0][0] if len(pairs) == 1 else None
        band = bands(self.grid.rows(native, self.grid.step), low, high)
        fine = None
        if all(name in seconds for name in one.members):
            fine = combined([seconds[name] for name in one.members], one.joined)
        scale = scale_of(native, band, fine)
        packed = band_words(scale, band, with_extremes=self.grid.bucket > 1)
        if fine is None or self.grid.step == 1:
            distance = usual_distance(native, self.grid.step)
        else:
            distance = usual_distance(fine, 1)
        return scale, packed, None if fine is None else scale.words(fine), distance

    def native(self, name: str) -> Floats:
        """Return a series by `step` seconds; of counts the rate a second."""
        timeline = self.page.timeline
        is_counted = reduction(timeline.columns[name]) is np.sum
        series = per_second(timeline, name) if is_counted else timeline.series[name]
        return self.grid.dense(*series, timeline.step)

    def _extremes(self, name: str) -> tuple[Floats, Floats] | None:
        """Return the lowest and highest second of each bucket, where the digest has them apart."""
        kept = self.page.timeline.extremes.get(name)
        if kept is None:
            return None
        at, count = kept.k // self.grid.bucket, self.grid.buckets
        is_within = (at >= 0) & (at < count)
        low, high = np.full(count, np.nan), np.full(count, np.nan)
        np.fmin.at(low, at[is_within], kept.low[is_within].astype(np.float64))
        np.fmax.at(high, at[is_within], kept.high[is_within].astype(np.float64))
        return low, high

    def _seconds_near(
        self, near: Sequence[str], stretches: Sequence[tuple[int, int]]
    ) -> dict[str, Floats]:
        """Return the seconds of the stretches, one after the other, by series."""
        timeline = self.page.timeline
        names = sorted({name for one in near for name in self.drawn[one].members})
        if not stretches:
            return {}
        if timeline.step == 1:
            every = {name: self.native(name) for name in names}
            return {
                name: np.concatenate([one[a:b] for a, b in stretches])
                for name, one in every.items()
            }
        parts = [
            (first, min(first + MAX_WINDOW_SECONDS, b))
            for a, b in stretches
            for first in range(a, b, MAX_WINDOW_SECONDS)
        ]
        wanted = [(timeline.folder.journal, a, b, tuple(names)) for a, b in parts]
        found = self.page.each(_read_seconds, wanted)
        joined = np.concatenate(found, axis=1).astype(np.float64)
        return dict(zip(names, joined, strict=True))


def combined(parts: Sequence[Floats], joined: Joined) -> Floats:
    """Return one series of several; NaN where none has a value."""
    if len(parts) == 1:
        return parts[0]
    if joined == "highest":
        return np.asarray(np.fmax.reduce(list(parts)), np.float64)
    stacked = np.stack(list(parts))
    return np.where(np.isfinite(stacked).any(axis=0), np.nansum(stacked, axis=0), np.nan)


def _read_seconds(wanted: tuple[Path, int, int, tuple[str, ...]]) -> NDArray[np.float32]:
    """Return seconds [a, b) of series from the journals, (series, seconds), NaN where there is none."""
    journal, a, b, names = wanted
    window = History(journal).window(a, b, of=sorted({source_of(name) for name in names}))
    found = np.full((len(names), b - a), np.nan, np.float32)
    for row, name in zip(found, names, strict=True):
        series = window.series(name)
        row[series.k - a] = series.values
    return found
