"""The latencies of a run that a finding may be about, second by second from its journals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from detectors.channels import is_headline
from soak.core.model import Column, Series
from soak.store.history import History, Window

PIECE_SECONDS = 900
"""Read at once: a window holds all columns of all sources."""


def latencies(history: History, spans: Sequence[tuple[int, int]]) -> list[tuple[Column, Series]]:
    """Return the trusted seconds within spans (first, first after), ascending, of each latency, by name.

    A latency of nothing is no latency.
    """
    columns: dict[str, Column] = {}
    parts: dict[str, list[Series]] = defaultdict(list)
    for piece in _pieces(spans):
        window = history.window(*piece)
        for name, column in window.columns.items():
            if is_headline(column):
                columns[name] = column
                parts[name].append(_trusted(name, window))
    return [(columns[name], _joined(name, parts[name])) for name in sorted(columns)]


def _pieces(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in spans:
        for begin in range(first, last, PIECE_SECONDS):
            yield begin, min(begin + PIECE_SECONDS, last)


def _trusted(name: str, window: Window) -> Series:
    series, seconds = window.series(name), window.sources[name.partition("|")[0]]
    keep = np.isin(series.k, seconds.k[seconds.trusted]) & (series.values > 0.0)
    return Series(name, series.k[keep], series.values[keep])


def _joined(name: str, parts: Sequence[Series]) -> Series:
    k = np.concatenate([part.k for part in parts])
    return Series(name, k, np.concatenate([part.values for part in parts]))
