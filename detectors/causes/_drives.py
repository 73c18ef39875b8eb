"""The channels of each drive around a step, by our probe's names, whoever measured them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detectors.causes._moves import Move, move, moves
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.model import Change, Evidence, Explanation, Series
from soak.core.series import SeriesId, parse_series, source_of

WRITE_AWAIT = "disk_write_await_seconds"
READ_AWAIT = "disk_read_await_seconds"
WRITE_TIME = "node_disk_write_time_seconds"
BUSY = "node_disk_io_time_seconds"
QUEUE = "disk_queue_length"
WEIGHTED = "node_disk_io_time_weighted_seconds"
WRITTEN, READ = "node_disk_written_bytes", "node_disk_read_bytes"
WRITES, READS = "node_disk_writes_completed", "node_disk_reads_completed"
FLUSHES = "node_disk_flush_requests"
DISCARDS = "node_disk_discards_completed"
_METRICS = (WRITE_TIME, BUSY, QUEUE, WEIGHTED)
_AMOUNTS = (WRITTEN, READ, WRITES, READS, FLUSHES, DISCARDS)
_TIMES = {WRITE_AWAIT: (WRITE_TIME, WRITES), READ_AWAIT: ("node_disk_read_time_seconds", READS)}
TURNOVERS = ("disk_device_turnover_ratio", "disk_turnover_ratio")
_MORE = 1.3
_SATURATED = 0.9
_AS_MUCH = 0.5

Place = tuple[str, str, str]
"""Source, target and device."""


@dataclass(frozen=True, slots=True)
class Drive:
    """What one drive's channels did, by metric; those that are not known are missing."""

    place: Place
    moves: Mapping[str, Move] = field(default_factory=dict)
    flush: Move | None = None  # of this drive, or of one below it, which goes by another name

    def risen(self, metric: str, least_ratio: float = 1.0) -> Move | None:
        one = self.moves.get(metric)
        return one if one is not None and one.has_risen and one.ratio >= least_ratio else None

    def more_io(self) -> tuple[Move, ...]:
        """Return which of the bytes and requests grew, at whatever time after the onset."""
        found = (self.moves.get(metric) for metric in _AMOUNTS)
        return tuple(one for one in found if one and not one.is_calm and one.ratio >= _MORE)

    @property
    def is_known(self) -> bool:
        """True when both what the drive did and how long it took were measured."""
        return WRITTEN in self.moves and (WRITE_AWAIT in self.moves or BUSY in self.moves)

    @property
    def is_slow_throughout(self) -> bool:
        """True when flushes slowed as much as writes, in seconds or as a ratio: no collection does that.

        On one that is always busy a flush waits behind the writes before it: there seconds count alone.
        """
        slower, flush = self.risen(WRITE_AWAIT), self.flush
        if slower is None or flush is None or flush.is_calm or flush.delta < 0.0:
            return False
        is_as_late = flush.after - flush.before >= _AS_MUCH * (slower.after - slower.before)
        return is_as_late or (not self.is_always_busy and flush.ratio >= slower.ratio)

    @property
    def is_always_busy(self) -> bool:
        """True when the drive is busy all the time, as it may have been before."""
        busy = self.moves.get(BUSY)
        return busy is not None and busy.after >= _SATURATED

    @property
    def is_saturated(self) -> bool:
        """True when the drive has come to be busy all the time."""
        return self.is_always_busy and self.risen(BUSY) is not None


def drives(change: Change, nearby: Nearby) -> list[Drive]:
    """Return the drives of which anything is known, without those of brokers that were not touched."""
    found: dict[Place, dict[str, Move]] = {}
    for metric in (*_METRICS, *_AMOUNTS):
        for one in moves(metric, change, nearby):
            found.setdefault(place_of(one.series), {})[metric] = one
    for metric in _TIMES:
        for place, series in _awaits(metric, nearby).items():
            moved = move(series, change, nearby) if place in found else None
            if moved is not None:
                found[place][metric] = moved
    flushes = {
        place_of(one.series): one for one in moves("disk_flush_await_seconds", change, nearby)
    }
    return [
        Drive(place, known, _flush_of(place, flushes)) for place, known in sorted(found.items())
    ]


def _flush_of(place: Place, flushes: Mapping[Place, Move]) -> Move | None:
    """Return a drive's own flush; else, as of a volume, that of its host's drives which slowed most."""
    below = (one for at, one in flushes.items() if at[:2] == place[:2])
    return flushes.get(place) or max(below, key=lambda one: one.after - one.before, default=None)


def surest(
    change: Change,
    nearby: Nearby,
    judged: Callable[[Drive, Change, Nearby], Explanation | None],
) -> Explanation | None:
    """Return the explanation by one of the drives that scores highest; None when none has any."""
    found = [one for drive in drives(change, nearby) if (one := judged(drive, change, nearby))]
    return max(found, key=lambda one: one.score, default=None)


def turnover(place: Place, change: Change, nearby: Nearby) -> float | None:
    """Return how often the drives of this host, as told there, were written over by the onset, or None.

    The larger of what the kernel counted and what the probe saw: both begin too late.
    """
    ratios = [
        float(series.values[series.k <= change.interval[1]][-1])
        for metric in TURNOVERS
        for name, series in nearby.named(metric).items()
        if place_of(name)[:2] == place[:2] and np.any(series.k <= change.interval[1])
    ]
    return max(ratios, default=None)


def is_worn(turns: float | None) -> bool:
    """True when every block was written at least once, as far as is known."""
    return turns is not None and turns >= 1.0


def told_work(written: Move) -> Evidence:
    """Say that a drive got no more to do, by the bytes that were written to it."""
    before, after = (f"{wording.amount(v, 'bytes')}/s" for v in (written.before, written.after))
    return Evidence(
        f"The work on the drive did not grow: {before} were written to it before the step, {after} after it.",
        {"before": written.before, "after": written.after},
    )


def told_wear(turns: float | None) -> Evidence:
    """Say how often a drive was written over."""
    if turns is None:
        return Evidence("How many times its capacity the drive has been written is not known.")
    return Evidence(
        f"By the onset of the step the drive had been written {turns:.2g} times its capacity, "
        "as far as it was measured.",
        {"turnover_ratio": turns},
    )


def place_of(series: str) -> Place:
    labels = dict(parse_series(series).labels)
    return source_of(series), labels.get("target", ""), labels.get("device", "")


def _awaits(metric: str, nearby: Nearby) -> dict[Place, Series]:
    """Return the mean time of a request by place: as measured, or made of the rates of both."""
    found = {place_of(name): series for name, series in nearby.named(metric).items()}
    times, counts = (
        {place_of(name): series for name, series in nearby.named(one).items()}
        for one in _TIMES[metric]
    )
    for place in times.keys() & counts.keys() - found.keys():
        k, at, of = np.intersect1d(times[place].k, counts[place].k, return_indices=True)
        spent, requests = times[place].values[at], counts[place].values[of]
        has = requests > 0.0  # no request, no time: missing, not zero
        source, target, device = place
        labels = (("device", device), *((("target", target),) if target else ()))
        name = str(SeriesId(source, metric, labels))
        found[place] = Series(name, k[has], spent[has] / requests[has])
    return found
