"""What must be known and calm before a cause that no channel shows directly may be named."""

from __future__ import annotations

import numpy as np

from detectors.causes import _drives
from detectors.causes._moves import Move, end_of, moves, near
from detectors.nearby import Nearby
from soak.core.model import Change
from soak.core.series import parse_series, source_of

_GUILTY = 1.3
_HUNG = 1.0  # seconds
_DRIVE = (_drives.WRITE_AWAIT, _drives.BUSY, _drives.WRITE_TIME)
_FLUSHES = ("fsync_latency_seconds", "bookie_journal_JOURNAL_SYNC_floor_seconds")
_HOST_CPU = "host_cpu_ratio"
_CPU = (_HOST_CPU, "vectorized_reactor_utilization_ratio", "node_cpu_seconds")
_MOST_OURS = 0.5  # of what a host's CPU rose by


def is_drive_innocent(change: Change, nearby: Nearby) -> bool:
    """True when a drive or its flushes were measured, and none slowed or got more to do."""
    known = [drive for drive in _drives.drives(change, nearby) if drive.is_known]
    flushes = [one for metric in _FLUSHES for one in moves(metric, change, nearby)]
    if not known and not flushes:
        return False
    return not any(map(_is_guilty, flushes)) and not any(map(is_guilty, known))


def is_flush_innocent(change: Change, nearby: Nearby) -> bool:
    """True when flushes were measured and none slowed or hung: what is above a device shows in them."""
    flushes = [one for metric in _FLUSHES for one in moves(metric, change, nearby)]
    first = near(change)[0]
    is_hanging = any(
        np.any(series.values[(series.k >= first) & (series.k < end_of(change, nearby))] >= _HUNG)
        for series in nearby.named("fsync_hanging_seconds").values()
    )
    return bool(flushes) and not is_hanging and not any(map(_is_guilty, flushes))


def is_guilty(drive: _drives.Drive) -> bool:
    """True when a device itself slowed, or got more to do."""
    slower = (drive.moves[metric] for metric in _DRIVE if metric in drive.moves)
    return bool(drive.more_io()) or any(map(_is_guilty, slower))


def is_cpu_innocent(change: Change, nearby: Nearby) -> bool:
    """True when CPU was measured and did not rise, but for what our own daemons took."""
    found = [one for metric in _CPU for one in moves(metric, change, nearby)]
    return bool(found) and not is_cpu_guilty(change, nearby)


def is_cpu_guilty(change: Change, nearby: Nearby) -> bool:
    """True when CPU rose, and not by what our own daemons took."""
    ours = busy_with_us(change, nearby)
    return any(
        _is_guilty(one)
        for metric in _CPU
        for one in moves(metric, change, nearby)
        if not (parse_series(one.series).metric == _HOST_CPU and source_of(one.series) in ours)
    )


def busy_with_us(change: Change, nearby: Nearby) -> set[str]:
    """Return the hosts, by what watches them, whose CPU rose mostly with that of soakd's own daemons.

    A client that is answered nothing may spin.
    """
    counts = processors(nearby)
    cores: dict[str, float] = {}
    for one in moves("host_daemon_cpu_cores", change, nearby):
        source = source_of(one.series)
        cores[source] = cores.get(source, 0.0) + one.after - one.before
    return {
        source
        for one in moves(_HOST_CPU, change, nearby)
        if (source := source_of(one.series)) in counts
        and cores.get(source, 0.0) > _MOST_OURS * (one.after - one.before) * counts[source] > 0.0
    }


def processors(nearby: Nearby) -> dict[str, float]:
    """Return how many processors each host has, by what watches it, where that is known."""
    counts = {
        source_of(name): float(np.median(series.values))
        for name, series in nearby.named("host_cpu_count").items()
    }
    return {source: count for source, count in counts.items() if count > 0.0}


def _is_guilty(one: Move) -> bool:
    return not one.is_calm and one.delta > 0.0 and one.ratio >= _GUILTY
