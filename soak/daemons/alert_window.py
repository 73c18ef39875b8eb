"""What a mail shows of the journals: the headline's quantiles and the deletions around the onset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.errors import JournalError
from soak.core.model import Column, Finding, Record
from soak.store.journal import segments
from soak.store.journal_reader import SourceReader, complete_size, sources

DELETION_EVENT = "retention_deletion"
_QUANTILES = ("0.5", "0.99", "0.999")
_LEAD_SECONDS = 120
_LONGEST_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of the seconds that were measured, `k` ascending; NaN where a value is missing."""

    k: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]  # quantile ("" when the series is none) to shape (n,)
    headline: str  # the quantile that stepped
    deletions_k: tuple[int, ...]

    @property
    def headline_values(self) -> NDArray[np.float64]:
        return self.values[self.headline]

    def level(self, from_k: int) -> float:
        """Return the headline's median from a second on; NaN when nothing was measured there."""
        values = self.headline_values[self.k >= from_k]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if values.size else float("nan")


def bounds(finding: Finding, is_gone: bool) -> tuple[int, int]:  # noqa: FBT001  # what is told
    """Return the seconds to show: the onset with what came before, or the return to normal."""
    if is_gone and finding.gone_k is not None:
        end = finding.gone_k + _LEAD_SECONDS
        return max(finding.onset_k - _LEAD_SECONDS, end - _LONGEST_SECONDS), end
    return finding.onset_k - _LEAD_SECONDS, finding.onset_k + 2 * _LEAD_SECONDS


def read_window(journal: Path, series: str, first_k: int, last_k: int) -> Window | None:
    """Return what the journals hold of a series between two seconds; None when that is nothing."""
    name = wording.split(series)
    rows: dict[int, dict[str, float]] = {}
    for record, columns in _records(journal, name.source, first_k, last_k):
        found = {
            dict(column.labels).get("quantile", ""): value
            for column, value in zip(columns, record.values, strict=True)
            if _is_of_family(column, name)
        }
        if found:
            rows[record.k] = found
    if not rows:
        return None
    k = np.array(sorted(rows), dtype=np.int64)
    shown = [*_QUANTILES, name.quantile] if name.quantile in _QUANTILES else [name.quantile]
    values = {
        quantile: np.array([rows[at].get(quantile, np.nan) for at in k.tolist()])
        for quantile in dict.fromkeys(shown)
    }
    return Window(k, values, name.quantile, _deletions(journal, first_k, last_k))


def _is_of_family(column: Column, name: wording.Name) -> bool:
    same = [pair for pair in column.labels if pair[0] != "quantile"]
    wanted = [pair for pair in name.labels if pair[0] != "quantile"]
    return column.metric == name.metric and same == wanted


def _deletions(journal: Path, first_k: int, last_k: int) -> tuple[int, ...]:
    found = {
        record.k
        for source in sources(journal)
        if source.startswith("probe")
        for record, _ in _records(journal, source, first_k, last_k)
        if any(event.kind == DELETION_EVENT for event in record.events)
    }
    return tuple(sorted(found))


def _records(
    journal: Path, source: str, first_k: int, last_k: int
) -> Iterator[tuple[Record, tuple[Column, ...]]]:
    """Give the records of these seconds, from the newest files back: a run may be days long."""
    folder = journal / source
    if not folder.is_dir():
        raise JournalError(f"no journal of {source} in {journal}")
    reader = SourceReader(folder)
    wanted = []
    for path in reversed(segments(folder)):
        wanted.append(path)
        first = next(reader.read(path, 0, complete_size(path)), None)
        if first is not None and first[0].k <= first_k:
            break
    for path in reversed(wanted):
        for record, columns in reader.read(path, 0, complete_size(path)):
            if first_k <= record.k <= last_k:
                yield record, columns
