"""What a mail shows of the journals: the headline's quantiles and the deletions around the onset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.errors import JournalError
from soak.core.model import Column, Finding
from soak.store.history import History

DELETION_EVENT = "retention_deletion"
_QUANTILES = ("0.5", "0.99", "0.999")
_LEAD_SECONDS = 120
_LONGEST_SECONDS = 900
_SLOW = frozenset({"drift", "spikes"})


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

    def level(self, first_k: int, last_k: int) -> float:
        """Return the headline's median between two seconds; NaN when nothing was measured there."""
        values = self.headline_values[(self.k >= first_k) & (self.k <= last_k)]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if values.size else float("nan")


def bounds(finding: Finding, is_gone: bool) -> tuple[int, int]:  # noqa: FBT001  # what is told
    """Return the seconds to show: the onset with what came before, or the return to normal."""
    if is_gone and finding.gone_k is not None:
        end = finding.gone_k + _LEAD_SECONDS
        return max(finding.onset_k - _LEAD_SECONDS, end - _LONGEST_SECONDS), end
    if finding.kind in _SLOW:  # it began long before it could be seen
        end = finding.raised_k + _LEAD_SECONDS
        return max(finding.onset_k - _LEAD_SECONDS, end - _LONGEST_SECONDS), end
    return finding.onset_k - _LEAD_SECONDS, finding.onset_k + 2 * _LEAD_SECONDS


def read_window(journal: Path, series: str, first_k: int, last_k: int) -> Window | None:
    """Return what the journals hold of a series between two seconds; None when that is nothing."""
    name = wording.split(series)
    if not (journal / name.source).is_dir():
        raise JournalError(f"no journal of {name.source} in {journal}")
    found = History(journal).window(first_k, last_k + 1)
    seconds = found.sources.get(name.source)
    if seconds is None:
        return None
    family = {
        dict(column.labels).get("quantile", ""): at
        for at, column in enumerate(seconds.columns)
        if _is_of_family(column, name)
    }
    is_measured = np.isfinite(seconds.values[:, list(family.values())]).any(axis=1)
    if not is_measured.any():
        return None
    shown = [*_QUANTILES, name.quantile] if name.quantile in _QUANTILES else [name.quantile]
    nothing = np.full(int(is_measured.sum()), np.nan)
    values = {
        quantile: seconds.values[is_measured, family[quantile]] if quantile in family else nothing
        for quantile in dict.fromkeys(shown)
    }
    deletions = sorted({k for k, _, event in found.events if event.kind == DELETION_EVENT})
    return Window(seconds.k[is_measured], values, name.quantile, tuple(deletions))


def _is_of_family(column: Column, name: wording.Name) -> bool:
    same = [pair for pair in column.labels if pair[0] != "quantile"]
    wanted = [pair for pair in name.labels if pair[0] != "quantile"]
    return column.metric == name.metric and same == wanted
