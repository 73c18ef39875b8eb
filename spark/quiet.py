"""The quiet seconds of a run's latencies, taken from its journals: what calibration is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detectors import segmentation
from detectors._quiet import LEAST_LEVEL_ROWS, Quiet, quiet
from detectors.calibration import LEAST_ROWS
from detectors.level_shift import Config
from soak.store.history import History
from spark.latencies import PIECE_SECONDS, latencies

EDGE_SECONDS = 5  # after a phase began, as online


def quiet_seconds(
    history: History, soak: Sequence[tuple[int, int]], config: Config, most_seconds: int
) -> list[Quiet]:
    """Return every latency that a finding may be about and that has enough quiet seconds, by name.

    Of a long soak pieces at equal distances are read, `most_seconds` in all. Untrusted seconds and steps of
    the size that would be told are left out.
    """
    steps = segmentation.Config(
        smallest_step_ratio=config.smallest_step_ratio,
        smallest_step_seconds=config.smallest_step_seconds,
        least_rows=LEAST_LEVEL_ROWS,
    )
    found = [
        quiet(series, column.unit, segmentation.detect(series, steps))
        for column, series in latencies(history, _pieces(soak, most_seconds))
    ]
    return [one for one in found if one.values.size >= LEAST_ROWS]


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
