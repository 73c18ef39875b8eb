"""Does a broker that stopped answering answer again? From the short questions that `round_trip` asks it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.store.journal.history import History, Window

ROUND_TRIP = "broker_round_trip_seconds"
LEAST_SECONDS = 3
"""Without an answer, before a broker counts as silent."""


def read_broker_state(
    history: History, suspect: str, onset_k: int, end_k: int, start_wall_ns: int
) -> str:
    """Return `10.0.0.4:9092 answers again since 03:12:41Z` of each suspect that was silent since the onset.

    One that still is `does not answer yet`. "" where none is asked, or none was silent.
    """
    window = history.window(max(0, onset_k - LEAST_SECONDS), max(0, end_k))
    found = []
    for address in suspect.split(", "):
        asked_k, answered_k = _asked(window, address)
        over_k = _end_of_silence(asked_k, np.isin(asked_k, answered_k))
        if over_k is None:
            continue
        later_k = answered_k[answered_k >= over_k]
        if later_k.size:
            since = wording.moment(start_wall_ns + int(later_k[0]) * SECOND_NS)
            found.append(f"{address} answers again since {since}")
        else:
            found.append(f"{address} does not answer yet")
    return ", ".join(found)


def _end_of_silence(k: NDArray[np.int64], is_answered: NDArray[np.bool_]) -> int | None:
    """Return the second after the last long run without an answer; None where there was none."""
    padded = np.concatenate([[True], is_answered, [True]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(padded))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ends = [stop for first, stop in runs if stop - first >= LEAST_SECONDS]
    return int(k[ends[-1] - 1]) + 1 if ends else None


def _asked(window: Window, address: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the seconds that are recorded by whatever asks a broker, and those with an answer."""
    recorded, answered = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name in window.columns:
        one = parse_series(name)
        if one.metric == ROUND_TRIP and one.label("target").lower() == address.lower():
            recorded.append(window.sources[one.source].k)
            answered.append(window.series(name).k)
    return np.unique(np.concatenate(recorded)), np.unique(np.concatenate(answered))
