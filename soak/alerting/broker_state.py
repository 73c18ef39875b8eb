"""Does a broker that stopped answering answer again? From the short questions that `round_trip` asks it."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.series import parse_series
from soak.core.units import SECOND_NS
from soak.store.journal.history import MAX_WINDOW_SECONDS, History, SourceSeconds, Window
from soak.store.journal.reader import sources

ROUND_TRIP = "broker_round_trip_seconds"
LEAST_SECONDS = 3
"""Without an answer, before a broker counts as silent."""
_RECENT_SECONDS = 5  # a broker that was asked before these may answer again
_IN_TIME_SECONDS = 1.0  # a reading that comes later says nothing about its own second
_PROBE = "round_trip"
_ADDRESS = re.compile(r"\S+:\d+")


def read_broker_state(
    history: History, suspect: str, onset_k: int, end_k: int, start_wall_ns: int
) -> str:
    """Return `10.0.0.4:9092 answers again since 03:12:41Z` of each suspect that was silent since the onset.

    One that still is when the probe asked it last, just before `end_k`, `does not answer yet`. "" where none
    is asked, or none was silent. Of a long incident the last `MAX_WINDOW_SECONDS` count.
    """
    addresses = [one for one in suspect.split(", ") if _ADDRESS.fullmatch(one)]
    if not addresses:
        return ""
    first_k = max(0, onset_k - LEAST_SECONDS, end_k - MAX_WINDOW_SECONDS)
    probes = [one for one in sources(history.journal) if one.startswith("probe")]
    window = history.window(first_k, max(first_k, end_k), of=probes)
    found = []
    for address in addresses:
        asked_k, answered_k = _asked(window, address)
        over_k = _end_of_silence(asked_k, np.isin(asked_k, answered_k))
        if over_k is None:
            continue
        later_k = answered_k[answered_k >= over_k]
        if later_k.size:
            since = wording.moment(start_wall_ns + int(later_k[0]) * SECOND_NS)
            found.append(f"{address} answers again since {since}")
        elif asked_k[-1] >= end_k - _RECENT_SECONDS:
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
    """Return the seconds in which a broker was asked, and those with an answer."""
    asked, answered = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for name in window.columns:
        one = parse_series(name)
        if one.metric == ROUND_TRIP and one.label("target").lower() == address.lower():
            asked.append(_reported(window.sources[one.source]))
            answered.append(window.series(name).k)
    return np.unique(np.concatenate(asked)), np.unique(np.concatenate(answered))


def _reported(seconds: SourceSeconds) -> NDArray[np.int64]:
    """Return the seconds in which the probe reported: an answer of any broker, or in time that none came."""
    has_reported = np.zeros(seconds.k.size, np.bool_)
    for at, one in enumerate(seconds.columns):
        if one.metric == ROUND_TRIP:
            has_reported |= np.isfinite(seconds.values[:, at])
        elif one.metric == "probe_lag_seconds" and one.labels == (("probe", _PROBE),):
            has_reported |= seconds.values[:, at] < _IN_TIME_SECONDS
    return seconds.k[has_reported]
