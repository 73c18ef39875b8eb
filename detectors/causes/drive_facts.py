"""One drive around an onset: how long its requests take, what it has to do, and how worn it is.

By our probe's names, whoever measured them; a mean time of a request may be made of two rates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from detectors.causes import places
from detectors.causes.channel import USUAL, Shift, spacing_of
from soak.core.model import Series
from soak.core.series import parse_series

if TYPE_CHECKING:
    from detectors.causes.facts import Facts

WRITE_AWAIT = "disk_write_await_seconds"
READ_AWAIT = "disk_read_await_seconds"
FLUSH_AWAIT = "disk_flush_await_seconds"
WRITE_TIME = "node_disk_write_time_seconds"
BUSY = "node_disk_io_time_seconds"
QUEUE = "disk_queue_length"
WEIGHTED = "node_disk_io_time_weighted_seconds"
WAITING = "node_disk_io_now"
WRITTEN, READ = "node_disk_written_bytes", "node_disk_read_bytes"
WRITES, READS = "node_disk_writes_completed", "node_disk_reads_completed"
FLUSHES = "node_disk_flush_requests"
DISCARDS = "node_disk_discards_completed"
PROBED_FLUSH = "fsync_latency_seconds"
_TIMES = (WRITE_TIME, BUSY, QUEUE, WEIGHTED, WAITING)
_OWN_TIMES = (WRITE_AWAIT, READ_AWAIT, WRITE_TIME, BUSY)
_AMOUNTS = (WRITTEN, READ, WRITES, READS, FLUSHES, DISCARDS)
_AWAITS = {
    WRITE_AWAIT: (WRITE_TIME, WRITES),
    READ_AWAIT: ("node_disk_read_time_seconds", READS),
    FLUSH_AWAIT: ("node_disk_flush_requests_time_seconds", FLUSHES),
}
_TURNOVERS = ("disk_device_turnover_ratio", "disk_turnover_ratio")
_MORE = 1.3
_SATURATED = 0.9
_STANDSTILL = 0.1  # of the requests that were completed before
_LEAST_COMPLETED = 1.0  # a second: fewer say nothing when they stop
_MEDIA, _BY_HOST = "smart_media_written_bytes", "smart_written_bytes"
_THROTTLES = (
    ("smart_throttled_seconds", "was throttled by itself for {:.0f} s"),
    ("smart_throttle_events", "throttled itself {:.0f} times"),
    ("smart_throttle_level", "went up to throttle level {:.0f}"),
    ("smart_hot_seconds", "was above its warning temperature for {:.0f} s"),
)
_LEAST_WRITTEN = 50e6  # bytes between two readings: drives count in half megabytes
_USUALLY = 2.0  # times the rate before the onset, that is more than usual
_ALIKE = 0.6  # of the seconds by which a write slowed
_PART = 0.5

_T = TypeVar("_T")

Place = tuple[places.Place, str]
"""A host or page, and the device there."""


@dataclass(frozen=True, slots=True)
class OwnWord:
    """What a drive's own logs say, read every minute or so; None where they do not say it.

    Pairs are before the onset and from then on. `amplification`: bytes written to flash for each byte of the
    host. `slow_requests`: how many more the drive counted than before.
    """

    throttled: str | None = None
    amplification: tuple[float, float] | None = None
    free_blocks: tuple[float, float] | None = None
    slow_requests: float | None = None


@dataclass(frozen=True, slots=True)
class Drive:
    """What one drive's channels did, by metric; those that are not known are missing.

    `interval`: the seconds, both included, in which the step may have begun.
    """

    place: Place
    shifts: Mapping[str, Shift] = field(default_factory=dict)
    flush: Shift | None = None  # of this drive, or of one below it, which goes by another name
    turnovers: float | None = None  # times its capacity that was written by the onset
    own_word: OwnWord = OwnWord()
    interval: tuple[int, int] | None = None
    others: int = 0  # number of the other drives that are watched

    @property
    def at(self) -> places.Place:
        """Return the host that it is in, or the page that tells of it."""
        return self.place[0]

    @property
    def name(self) -> str:
        """Return the device and the host or page that it is of."""
        return f"{self.place[1] or '?'} on {self.at.name}"

    def risen(self, metric: str, least_ratio: float = 1.0) -> Shift | None:
        """Return what rose at the onset."""
        one = self.shifts.get(metric)
        if one is None or one.ratio < least_ratio or self._may_be_chance(one):
            return None
        return one if has_risen(one, self.interval) else None

    def _may_be_chance(self, one: Shift) -> bool:
        """True where so many other drives are looked at that one of them would show as much at any time."""
        return one.usual_ratio * self.others > USUAL

    def most_risen(self, metrics: tuple[str, ...], least_ratio: float) -> Shift | None:
        found = [one for metric in metrics if (one := self.risen(metric, least_ratio))]
        return max(found, key=lambda one: one.ratio, default=None)

    @property
    def more_work(self) -> tuple[Shift, ...]:
        """Return which of the bytes and requests grew, at whatever time after the onset."""
        found = (self.shifts.get(metric) for metric in _AMOUNTS)
        return tuple(one for one in found if one and not one.is_calm and one.ratio >= _MORE)

    @property
    def is_guilty(self) -> bool:
        """True when the device itself slowed, or got more to do."""
        slower = (self.shifts[m] for m in (WRITE_AWAIT, BUSY, WRITE_TIME) if m in self.shifts)
        is_slower = any(
            not one.is_calm and one.delta > 0.0 and one.ratio >= _MORE for one in slower
        )
        return is_slower or bool(self.more_work)

    @property
    def is_known(self) -> bool:
        """True when both what the drive did and how long it took were measured."""
        known = {metric for metric, one in self.shifts.items() if not one.is_sparse}
        return WRITTEN in known and not known.isdisjoint({WRITE_AWAIT, BUSY})

    @property
    def is_always_busy(self) -> bool:
        """True when the drive is busy all the time, as it may have been before."""
        busy = self.shifts.get(BUSY)
        return busy is not None and busy.after >= _SATURATED

    @property
    def is_saturated(self) -> bool:
        """True when the drive has come to be busy all the time."""
        return self.is_always_busy and self.risen(BUSY) is not None

    @property
    def is_standing_still(self) -> bool:
        """True when next to none is completed: fewer in a second than wait, so each takes one or more."""
        waiting, done = self.shifts.get(WAITING), self.shifts.get(WRITES)
        if waiting is None or done is None or not self.is_saturated:
            return False
        has_stopped = done.before >= _LEAST_COMPLETED and done.after <= _STANDSTILL * done.before
        return has_stopped and waiting.has_risen and waiting.after >= max(done.after, 1.0)

    @property
    def is_worn(self) -> bool:
        """True when every block was written at least once, as far as is known."""
        return self.turnovers is not None and self.turnovers >= 1.0

    @property
    def is_slow_throughout(self) -> bool:
        """True when flushes slowed as writes did: what no collection of garbage does.

        On a drive that is always busy a flush waits for the writes before it, half as long on average and
        longer where their times vary: there it must wait three fifths as long.
        """
        slower, flush = self.risen(WRITE_AWAIT), self.flush
        if slower is None or flush is None or flush.is_calm or flush.delta < 0.0:
            return False
        least = _ALIKE if self.is_always_busy else _PART
        is_as_late = flush.rise >= least * slower.rise
        return is_as_late or (not self.is_always_busy and flush.ratio >= slower.ratio)


def has_risen(one: Shift, interval: tuple[int, int] | None) -> bool:
    """True for what rose at the onset; for the time of a drive's own requests anywhere in its interval.

    That time is a part of the latency itself: stalls now and then are dated no better than to seconds.
    """
    if one.has_risen or interval is None or one.metric not in _OWN_TIMES:
        return one.has_risen
    return one.has_risen_within(*interval)


def drives_of(facts: Facts) -> list[Drive]:
    """Return the drives of which anything is known, without those of untouched brokers and of load hosts."""
    found: dict[Place, dict[str, Shift]] = {}
    for one in facts.shifts(*_TIMES, *_AMOUNTS):
        place = place_of(one.series)
        if not facts.is_of_load_host(place[0]):
            found.setdefault(place, {})[one.metric] = one
    for metric in (WRITE_AWAIT, READ_AWAIT):
        for place, series in _awaits(metric, facts).items():
            shift = facts.shift(series) if place in found else None
            if shift is not None:
                found[place][metric] = shift
    touched = {place_of(name) for name in facts.touched(FLUSH_AWAIT, FLUSHES)}
    flushes = {
        place: one for place, one in shifts_by_place(FLUSH_AWAIT, facts).items() if place in touched
    }
    return [
        Drive(
            place,
            known,
            _flush_of(place, flushes),
            _turnovers(place, facts),
            _own_word(place, facts),
            facts.change.interval,
            len(found) - 1,
        )
        for place, known in sorted(found.items())
    ]


def place_of(series: str) -> Place:
    """Return the place of a channel of a drive."""
    return places.place_of(series), parse_series(series).label("device")


def shifts_by_place(metric: str, facts: Facts) -> dict[Place, Shift]:
    """Return what a channel of each drive did, of untouched brokers' drives too; of no load host's."""
    found = _awaits(metric, facts) if metric in _AWAITS else _by_place(metric, facts)
    shifts = (
        (place, facts.shift(series))
        for place, series in found.items()
        if not facts.is_of_load_host(place[0])
    )
    return {place: one for place, one in shifts if one is not None}


def measured(facts: Facts) -> list[str]:
    """Return the channels of how long writes take, or of how busy a drive without writes is.

    Those of untouched brokers' drives too, without those of which too few values are known.
    """
    found = (*shifts_by_place(WRITE_AWAIT, facts).values(), *shifts_by_place(BUSY, facts).values())
    return [one.series for one in found if not one.is_sparse]


def _below(place: Place, found: Mapping[Place, _T]) -> list[_T]:
    """Return what is known of a drive itself; else, of a partition, of the drive that its name begins with.

    Of a volume, which goes by a name of its own, what is known of every drive of its host.
    """
    if place in found:
        return [found[place]]
    there = {device: one for (at, device), one in found.items() if at == place[0]}
    named = [one for device, one in there.items() if device and place[1].startswith(device)]
    return named or [*there.values()]


def _flush_of(place: Place, flushes: Mapping[Place, Shift]) -> Shift | None:
    """Return the flush of a drive; of several below it that which slowed most."""
    return max(_below(place, flushes), key=lambda one: one.rise, default=None)


def _turnovers(place: Place, facts: Facts) -> float | None:
    """Return how often a drive was written over by the onset, of several below it that written most, or None.

    The larger of what the kernel counted and what the probe saw: both begin too late.
    """
    last_k = facts.change.interval[1]
    ratios: dict[Place, float] = {}
    for name, series in facts.named(*_TURNOVERS).items():
        if np.any(series.k <= last_k):
            at, ratio = place_of(name), float(series.values[series.k <= last_k][-1])
            ratios[at] = max(ratio, ratios.get(at, ratio))
    return max(_below(place, ratios), default=None)


# --- what a drive says of itself


def _own_word(place: Place, facts: Facts) -> OwnWord:
    throttled = (
        text.format(grown)
        for metric, text in _THROTTLES
        if (
            grown := max((_grown(one, facts) for one in _logged(metric, place, facts)), default=0.0)
        )
    )
    free = [_around(one, facts) for one in _logged("smart_free_blocks_ratio", place, facts)]
    known = [(float(before[-1]), float(after[-1])) for before, after in free if after.size]
    slow = [_grown(one, facts) for one in _logged("smart_slow_requests", place, facts)]
    return OwnWord(
        next(throttled, None),
        _amplification(place, facts),
        min(known, key=lambda one: one[1], default=None),
        max(slow, default=None),
    )


def _logged(metric: str, place: Place, facts: Facts) -> list[Series]:
    return _below(place, _by_place(metric, facts))


def _by_place(metric: str, facts: Facts) -> dict[Place, Series]:
    return {place_of(name): series for name, series in facts.named(metric).items()}


def _around(series: Series, facts: Facts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values before the onset, and those after it; none where there are none before it."""
    first, last = facts.change.interval
    stop = facts.end_k + spacing_of(series)  # a counter that is read after the end holds the end
    before = series.values[series.k < first]
    after = series.values[(series.k >= last) & (series.k < stop)]
    return before, after if before.size else after[:0]


def _grown(series: Series, facts: Facts) -> float:
    """Return by how much a counter or a level rose from the onset on, 0 where it usually rises as fast."""
    before, after = _around(series, facts)
    if not after.size:
        return 0.0
    grown = float(np.max(after) - before[-1])
    if grown <= 0.0:
        return 0.0
    usual = float(before[-1] - before[0]) / max(before.size - 1, 1)
    return grown if grown > _USUALLY * usual * after.size else 0.0


def _amplification(place: Place, facts: Facts) -> tuple[float, float] | None:
    """Return how much more a drive wrote to its flash than it was sent, before the onset and from then on."""
    media, host = _by_place(_MEDIA, facts), _by_place(_BY_HOST, facts)
    both = {at: (media[at], host[at]) for at in media.keys() & host.keys()}
    found = [_two_ratios(*one, facts) for one in _below(place, both)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one[1] / one[0], default=None)


def _two_ratios(media: Series, host: Series, facts: Facts) -> tuple[float, float] | None:
    k, at, of = np.intersect1d(media.k, host.k, return_indices=True)
    pairs = Series(media.name, k, media.values[at]), Series(host.name, k, host.values[of])
    (flash, flash_after), (sent, sent_after) = (_around(one, facts) for one in pairs)
    if not flash_after.size:
        return None
    earlier, later = sent[-1] - sent[0], sent_after[-1] - sent[-1]
    if min(earlier, later) < _LEAST_WRITTEN:
        return None
    ratios = (flash[-1] - flash[0]) / earlier, (flash_after[-1] - flash[-1]) / later
    return (float(ratios[0]), float(ratios[1])) if min(ratios) > 0.0 else None


def _awaits(metric: str, facts: Facts) -> dict[Place, Series]:
    """Return the mean time of a request by place: as measured, or made of the rates of both."""
    found = _by_place(metric, facts)
    times, counts = (_by_place(one, facts) for one in _AWAITS[metric])
    for place in times.keys() & counts.keys() - found.keys():
        k, at, of = np.intersect1d(times[place].k, counts[place].k, return_indices=True)
        spent, requests = times[place].values[at], counts[place].values[of]
        has = requests > 0.0  # no request, no time: missing, not zero
        name = str(replace(parse_series(times[place].name), metric=metric))
        found[place] = Series(name, k[has], spent[has] / requests[has])
    return found
