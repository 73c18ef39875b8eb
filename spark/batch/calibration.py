"""The quiet seconds of a run's latencies, taken from its journals: what calibration is made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from detectors.calibration import LEAST_ROWS, Quiet, quiet
from detectors.client_seconds import is_headline
from detectors.level_shift import Config
from detectors.offline.steps import Config as Steps
from detectors.offline.steps import detect
from soak.core.model import Column, Series
from soak.core.ports import Each, each_here
from soak.core.series import source_of
from soak.store.journal.history import History, Window

# --- The latencies of a run that a finding may be about, second by second from its journals.

PIECE_SECONDS = 900
"""Read at once: a window holds all columns of all sources."""
_SHARE = 2  # pieces read by one call: it looks for them in every file


def latencies(
    journal: Path, spans: Sequence[tuple[int, int]], each: Each = each_here
) -> list[tuple[Column, Series]]:
    """Return the valid seconds within spans (first, first after), ascending, of each latency, by name.

    A latency of nothing is no latency.
    """
    columns: dict[str, Column] = {}
    parts: dict[str, list[Series]] = defaultdict(list)
    pieces = list(_pieces_latencies(spans))
    shares = [(journal, pieces[at : at + _SHARE]) for at in range(0, len(pieces), _SHARE)]
    for found in each(_latencies_in, shares):
        for column, series in found:
            columns[series.name] = column
            parts[series.name].append(series)
    return [(columns[name], _joined(name, parts[name])) for name in sorted(columns)]


def _latencies_in(
    share: tuple[Path, Sequence[tuple[int, int]]],
) -> list[tuple[Column, Series]]:
    """Return the latencies of some pieces of a journal, a series for each piece that has it."""
    journal, pieces = share
    history, found = History(journal), []
    for first, last in pieces:
        window = history.window(first, last)
        found += [
            (column, _valid(name, window))
            for name, column in window.columns.items()
            if is_headline(column)
        ]
    return found


def _pieces_latencies(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in spans:
        for begin in range(first, last, PIECE_SECONDS):
            yield begin, min(begin + PIECE_SECONDS, last)


def _valid(name: str, window: Window) -> Series:
    series, seconds = window.series(name), window.sources[source_of(name)]
    keep = np.isin(series.k, seconds.k[seconds.valid]) & (series.values > 0.0)
    return Series(name, series.k[keep], series.values[keep])


def _joined(name: str, parts: Sequence[Series]) -> Series:
    k = np.concatenate([part.k for part in parts])
    return Series(name, k, np.concatenate([part.values for part in parts]))


EDGE_SECONDS = 5  # after a phase began, as online


def quiet_seconds(
    journal: Path,
    soak: Sequence[tuple[int, int]],
    config: Config,
    most_seconds: int,
    each: Each = each_here,
) -> list[Quiet]:
    """Return every latency that a finding may be about and that has enough quiet seconds, by name.

    Of a long soak pieces at equal distances are read, `most_seconds` in all. Invalid seconds and steps of
    the size that would be reported are left out.
    """
    steps = Steps(
        smallest_step_ratio=config.smallest_step_ratio,
        smallest_step_seconds=config.smallest_step_seconds,
    )
    known = latencies(journal, _pieces(soak, most_seconds), each)
    found = each(_quiet, [(series, column.unit, steps) for column, series in known])
    return [one for one in found if one.values.size >= LEAST_ROWS]


def _quiet(wanted: tuple[Series, str, Steps]) -> Quiet:
    series, unit, steps = wanted
    return quiet(series, unit, detect(series, steps))


def _pieces(soak: Sequence[tuple[int, int]], most_seconds: int) -> list[tuple[int, int]]:
    pieces = [
        (begin, min(begin + PIECE_SECONDS, last))
        for first, last in soak
        for begin in range(first + EDGE_SECONDS, last, PIECE_SECONDS)
    ]
    kept = max(1, most_seconds // PIECE_SECONDS)
    if len(pieces) <= kept:
        return pieces
    return [pieces[at] for at in np.linspace(0, len(pieces) - 1, kept).round().astype(int)]
