"""What lies behind and below the lines of the page: gaps, invalid seconds, limits, events, the heat map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark.batch.coverage import merged_spans, runs
from spark.batch.outcomes import shares_shown
from spark.report.packing import Grid, Words, block
from spark.report.page import Page, shown_name

Ints = NDArray[np.int64]

FAMILIES = {"publish": "Publish", "end_to_end": "End to end"}
MOST_EVENTS = 40_000  # of a row
EVENT_ROWS = {
    "deletions": ("deletion", "unlink", "reclaimed", "log_start_moved"),
    "leader changes": ("leader", "isr_"),
    "GC pauses": ("gc_pause", "gc_stall"),
    "errors": ("fail", "error", "clock_step", "suspend", "rate_not_held", "skipped"),
}
"""Rows of events, and parts of the names of their kinds."""
_PEAKS = "other peaks"
_KIND_OF_PEAK = "peak in no incident"


def gaps(page: Page, grid: Grid) -> list[list[Any]]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for gap in page.covered.gaps:
        if gap.to_k > gap.from_k:
            found[gap.source, gap.why].append((gap.from_k, gap.to_k))
    return [
        [a, b, source, shown_name(why, 120)]
        for (source, why), spans in found.items()
        for a, b in merged_spans(sorted(spans), grid.seconds / 1000)
    ]


def invalid(page: Page, grid: Grid) -> list[list[Any]]:
    found: list[list[Any]] = []
    for source, reasons in page.timeline.invalid.items():
        spans = [(a, b + 1) for a, b in runs(np.array(sorted(reasons), dtype=np.int64))]
        found += [[a, b, source] for a, b in merged_spans(spans, grid.seconds / 1000)]
    return found


def limits(page: Page) -> dict[str, float]:
    """Return the limit of each latency that an objective of the plan has."""
    found: dict[str, float] = {}
    for one in page.standings:
        family = FAMILIES.get(one.objective.latency.replace("-", "_"))
        if family is not None:
            found.setdefault(family, one.objective.limit_seconds)
    return found


def events(page: Page, grid: Grid) -> tuple[dict[str, dict[str, Any]], str]:
    """Return of each row how many seconds have an event, and the names of its kinds; and their block.

    The block has of each row the hours, then the seconds in them, then the kinds as places in the names.
    """
    rows: dict[str, dict[str, Any]] = {}
    words: list[Words] = []
    for name, seconds in _rows(page):
        parted = list(seconds.values())
        which = np.repeat(np.arange(len(parted)), [one.size for one in parted])
        k, first = np.unique(np.concatenate(parted), return_index=True)
        which, is_within = which[first], (k >= 0) & (k < grid.seconds)
        k, which = k[is_within], which[is_within]
        if k.size > MOST_EVENTS:
            k, first = np.unique(k // grid.bucket * grid.bucket, return_index=True)
            k, which = k[:MOST_EVENTS], which[first][:MOST_EVENTS]
        rows[name] = {"count": int(k.size), "kinds": list(seconds)}
        words += [part.astype(np.uint16) for part in (k // 3600, k % 3600, which)]
    return rows, block(words)


def _rows(page: Page) -> Iterator[tuple[str, dict[str, Ints]]]:
    """Give each row that has an event, and its seconds by kind."""
    peaks = [np.arange(one.from_k, one.to_k) for one in page.peaks.found]
    if peaks:
        yield _PEAKS, {_KIND_OF_PEAK: np.concatenate(peaks)}
    for name in EVENT_ROWS:
        kinds = seconds_of_row(page, name)
        if kinds:
            yield name, {shown_name(kind.replace("_", " "), 60): k for kind, k in kinds.items()}


def seconds_of_row(page: Page, name: str) -> dict[str, Ints]:
    """Return the seconds with events of one of `EVENT_ROWS`, by kind."""
    every, parts = page.timeline.event_seconds, EVENT_ROWS[name]
    return {kind: k for kind, k in every.items() if any(part in kind for part in parts)}


def heat(page: Page, grid: Grid) -> tuple[dict[str, Any] | None, str]:
    """Return the bands of the heat map, and its block: shares from 0 (none) to 100 (all), logarithmic."""
    found = shares_shown(page.timeline, grid.bucket)
    if found is None:
        return None, ""
    family, thresholds, share = found
    level = np.rint(np.clip(25 * (np.log10(np.maximum(share, 1e-9)) + 4), 0, 100))
    body = {
        "kind": FAMILIES[family],
        "bands": len(share),
        "low": thresholds[0],
        "high": thresholds[-1],
        "perDecade": 8,
    }
    return body, block([level.astype(np.uint16).ravel()])
