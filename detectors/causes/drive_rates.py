"""How steady the requests and bytes of a drive are from the onset on: what its time goes by.

Method:  a drive held at a limit completes bytes or requests at one value. One that is busy all the time and
         completes as many requests a second however many bytes they have takes the same time for each; one
         whose requests vary as their bytes does not.
Assumes: completions are counted once a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detectors.causes import channel, drive_facts
from detectors.causes.channel import Shift, risen
from detectors.causes.drive_facts import Drive
from detectors.causes.facts import Facts
from detectors.nearby import between
from soak.core import wording
from soak.core.model import Evidence

STEADY = 0.05  # robust relative deviation of what stays at a limit
_OF_NORMAL = 1.4826  # standard deviations of normal noise in a median distance
_LIMITED = (drive_facts.WRITTEN, drive_facts.WRITES)
_LEAST_VALUES = 15
MORE_LOAD = 1.5
_HALF_AS_LATE = 0.5  # as its writes: so late is a flush behind them, whatever they wait for
_MOST_OF_COUNTING = 0.2  # of the requests: where counting makes more, nothing is known to be steady
_MANY = 5.0  # requests a second: one every few seconds leaves seconds without any, at whatever pace
_UNEVEN = 0.5  # of the requests of a second: a drive that collects garbage stalls, one that jitters does not
_MORE_VARIED = 2.0  # bytes than requests, where each request takes its time whatever its size


def same_time_each(drive: Drive, facts: Facts) -> Evidence | None:
    """Return what says that a busy drive takes the same time for each request, large or small, or a flush.

    Its requests stay at one number a second while their bytes vary. Garbage is collected for bytes; a limit
    on requests need not concern flushes.
    """
    slower, flush = drive.risen(drive_facts.WRITE_AWAIT), drive.flush
    spreads = _spreads(drive, facts, _LEAST_VALUES)
    if slower is None or flush is None or spreads is None:
        return None
    if flush.rise < _HALF_AS_LATE * slower.rise or not spreads.are_requests_steady:
        return None
    if spreads.of_bytes < _MORE_VARIED * spreads.of_requests:
        return None
    text = (
        f"{drive.name} took the same time for each request: it completed {spreads.requests:,.0f} writes "
        f"a second (within {spreads.of_requests:.1%}) however many bytes they had (they varied by "
        f"{spreads.of_bytes:.1%}), and flushes were as late."
    )
    return Evidence(text, spreads.numbers)


def uneven(drive: Drive, facts: Facts) -> Evidence | None:
    """Return what says that a busy drive did not take the same time for each request, as a slow one does.

    Its requests vary as their bytes do. A flush waits for what was written before it there: how long it takes
    says nothing.
    """
    spreads = _spreads(drive, facts, channel.LEAST_VALUES)
    if spreads is None or not _UNEVEN <= spreads.of_requests < np.inf:
        return None
    if spreads.of_bytes >= _MORE_VARIED * spreads.of_requests:
        return None
    text = (
        f"{drive.name}, busy all the time, did not take the same time for each request: the writes that it "
        f"completed in a second varied by {spreads.of_requests:.0%}, their bytes by {spreads.of_bytes:.0%}."
    )
    return Evidence(text, spreads.numbers)


@dataclass(frozen=True, slots=True)
class _Spreads:
    """By how much writes completed a second, and their bytes, varied on a busy drive from the onset on."""

    requests: float  # a second
    waiting: float  # at a time
    of_requests: float
    of_bytes: float

    @property
    def are_requests_steady(self) -> bool:
        """True within what counting makes of a constant rate: those that wait may complete together."""
        at_once = _OF_NORMAL * max(self.waiting, 1.0) / max(self.requests, 1.0)
        return self.of_requests <= max(STEADY, min(at_once, _MOST_OF_COUNTING))

    @property
    def numbers(self) -> dict[str, float | int | str]:
        return {
            "requests_spread_ratio": self.of_requests,
            "bytes_spread_ratio": self.of_bytes,
        }


def _spreads(drive: Drive, facts: Facts, least: int) -> _Spreads | None:
    """Return by how much a drive's work varied; None unless it is busy all the time, or of too few values."""
    requests, written = (
        drive.shifts.get(metric) for metric in (drive_facts.WRITES, drive_facts.WRITTEN)
    )
    if requests is None or written is None or not drive.is_always_busy:
        return None
    of_requests, of_bytes = (_spread_after(one, facts, least) for one in (requests, written))
    if of_requests is None or of_bytes is None:
        return None
    waiting = drive.shifts.get(drive_facts.WAITING)
    return _Spreads(requests.after, waiting.after if waiting else 1.0, of_requests, of_bytes)


def _spread_after(shift: Shift, facts: Facts, least: int) -> float | None:
    """Return by how much a channel varied from the onset on; None where too little of it is known."""
    series = facts.nearby.series.get(shift.series)
    after = None if series is None else between(series, facts.near[1], facts.end_k)
    return None if after is None or after.size < least else _deviation(after)


def plateau(drive: Drive, facts: Facts) -> Evidence | None:
    """Return what says that bytes or requests are cut at one value while the clients fall behind.

    A drive that keeps up is as steady as its load, so it must have been less steady before, and be given more
    than it takes: acknowledgements are missing, the queue of a client is full, or goes on filling. Where it
    only became longer, the drive keeps up, by fewer flushes, and may as well collect garbage. One that takes
    far more than before is not throttled: it is as fast as it can, and others gave it the work.
    """
    found = (_plateau(metric, drive, facts) for metric in _LIMITED)
    return next(filter(None, found), None)


def _plateau(metric: str, drive: Drive, facts: Facts) -> Evidence | None:
    shift = drive.shifts.get(metric)
    if shift is None or not _falls_behind(facts) or shift.ratio >= MORE_LOAD:
        return None
    series = facts.nearby.series.get(shift.series)
    if series is None:
        return None
    start = channel.start_of(facts.change, facts.nearby)
    before = between(series, start, facts.near[0])
    after = between(series, facts.near[1], facts.end_k)
    if min(before.size, after.size) < _LEAST_VALUES:
        return None
    spread, was = _deviation(after), _deviation(before)
    if spread > STEADY or spread > was / 2.0:
        return None
    amount = wording.amount_of(shift.series, float(np.median(after)))
    return Evidence(
        f"{wording.title_with_source(shift.series)} stayed at {amount} from the onset on "
        f"(within {spread:.1%}; before it varied by {was:.1%}), while more was due.",
        {"series": shift.series, "spread_ratio": spread, "spread_before_ratio": was},
    )


def _deviation(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the robust relative deviation; the usual one of many where half of the values are 0."""
    middle, mean = float(np.median(values)), float(np.mean(values))
    if middle > 0.0:
        return _OF_NORMAL * float(np.median(np.abs(values - middle))) / middle
    return float(np.std(values)) / mean if mean >= _MANY else np.inf


def _falls_behind(facts: Facts) -> bool:
    missing = facts.acknowledgements.unacknowledged
    if missing is not None and missing.seconds >= _LEAST_VALUES:
        return True
    is_held = risen(facts.shifts("held_back_messages")) is not None
    return is_held or any(
        _goes_on_growing(one, facts) for one in facts.shifts("in_flight_messages")
    )


def _goes_on_growing(shift: Shift, facts: Facts) -> bool:
    """True for a channel that rose at the onset, and then to far more in the rest of the time."""
    series = facts.nearby.series.get(shift.series)
    if series is None or not shift.has_risen:
        return False
    after = between(series, facts.near[1], facts.end_k)
    middle = after.size // 2
    return middle > 0 and bool(np.median(after[middle:]) >= MORE_LOAD * np.median(after[:middle]))
