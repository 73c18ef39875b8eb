"""What brokers do by themselves or for other clients, and the way to them: compactions, backlogs, packets.

Facts that several hypotheses weigh; each is a function of `Facts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.stats import poisson

from detectors.causes import channel
from detectors.causes.answers import ROUND_TRIPS
from detectors.causes.channel import USUAL, VALUES, Shift, risen, spacing_of
from detectors.causes.facts import BACKLOGS, COPIES, LEADER_COUNTERS, Facts
from soak.core import wording
from soak.core.model import Series
from soak.core.series import parse_series

DELETIONS = ("retention_deletion", "segment_deletion", "ledger_deletion", "segment_unlinked")
LEDGER_ROLLS = ("ledger_created", "ledger_roll")
ROLLS = ("segment_created", "segment_roll", *LEDGER_ROLLS)
_COMPACTIONS = (
    "bookie_MAJOR_COMPACTIONS",
    "bookie_MINOR_COMPACTIONS",
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
    "retention_compacted_bytes",
)
_BOOKIE = ("bookie_", "pulsar_", "bookkeeper_")
_LATER_SECONDS = 120  # until a compaction is reported: it is counted when it ends


def is_copying(facts: Facts) -> bool:
    """True when copies fell behind at the onset, so that brokers copy from each other."""
    return risen(facts.shifts(*COPIES)) is not None


def are_leaders_known(facts: Facts) -> bool:
    """True when leaders that moved would have been reported."""
    return bool(facts.named(*LEADER_COUNTERS, "broker_log_events"))


def are_deletions_known(facts: Facts) -> bool:
    """True when deletions would have been reported one by one."""
    return any(one.startswith(("retention_", "broker_log_events")) for one in facts.metrics)


# --- partitions that are added

PARTITIONS = (
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "kafka_controller_kafkacontroller_globaltopiccount",
    "kafka_server_replicamanager_partitioncount",
    "redpanda_cluster_partitions",
    "redpanda_cluster_topics",
    "pulsar_topics_count",
)


def are_partitions_added(facts: Facts) -> bool:
    """True where partitions, or copies of them, were added at the onset, however few."""
    return any(
        one.is_at_onset and one.delta >= one.clear and one.rise >= 1.0 and one.before > 0.0
        for one in facts.shifts(*PARTITIONS)
    )


# --- compactions


def are_compactions_known(facts: Facts) -> bool:
    """True when bookies report what they compact."""
    return bool(facts.named(*_COMPACTIONS))


def compactions(facts: Facts) -> tuple[int, ...]:
    """Return the seconds from the onset on in which a compaction was reported, if none was before it."""
    ks = _compactions_reported(facts)
    if np.any(ks < facts.near[0]):
        return ()
    return tuple(int(k) for k in _since_onset(ks, facts))


def may_be_compacting(facts: Facts) -> bool:
    """True when a compaction was reported from the onset on, or may still be, or no source reports any."""
    if _since_onset(_compactions_reported(facts), facts).size:
        return True
    reporting = list(facts.named(*_COMPACTIONS))
    if not reporting:
        has_bookies = any(metric.startswith(_BOOKIE) for metric in facts.metrics)
        return has_bookies or bool(facts.event_ks("ledger_created", "ledger_roll").size)
    lags = (facts.nearby.lag_seconds.get(name, 0.0) for name in reporting)
    return facts.nearby.k1 <= facts.near[1] + max(_LATER_SECONDS, *lags)


def _since_onset(ks: NDArray[np.int64], facts: Facts) -> NDArray[np.int64]:
    first, last = facts.near
    return ks[(ks >= first) & (ks <= last + _LATER_SECONDS)]


def _compactions_reported(facts: Facts) -> NDArray[np.int64]:
    """Return the seconds in which bookies reported a compaction, ascending, each once."""
    reclaimed = [
        one.k
        for one in facts.events("space_reclaimed")
        if one.event.fields.get("by") == "compaction"
    ]
    counted = facts.counted_ks(*_COMPACTIONS)
    return np.unique(np.concatenate([counted, np.array(reclaimed, np.int64)]))


# --- the way between clients and brokers

PACKETS = re.compile(
    r"retrans|network_(errors|drops)|network_(receive|transmit)_(errs|drop)|tcp_?timeouts",
    re.IGNORECASE,
)
LONE_DELAY = "broker_lone_delay_seconds"
LEAST_WAY_SHARE = 0.2  # of the step
_OF_ONE_BROKER = 0.8  # of the late answers, for it to be that broker's way


_RESENT_SECONDS = 0.15
"""Three quarters of what TCP on Linux waits at least before it sends a packet again (TCP_RTO_MIN, 200 ms)."""
_FEWEST_RESENT = 3
_BY_CHANCE = 1e-3
_MORE_OFTEN = 4.0  # than in the minute before


@dataclass(frozen=True, slots=True)
class Resent:
    """Seconds in which one connection's answer came so late that a packet was probably sent again.

    `seconds` of `of` from second `from_k` on, the first that may be of the new level, `seconds_before` of
    `of_before`, and the median delay in seconds.
    """

    from_k: int
    seconds: int
    of: int
    seconds_before: int
    of_before: int
    delay: float
    suspect: str


def resent(facts: Facts) -> Resent | None:
    """Return what says that packets were lost from the onset on, or None.

    A few seconds of many hardly move a median, so they are counted: there must be more of them than their
    rate before gives by chance, once in a thousand times.
    """
    first = facts.near[0]
    end = min(facts.end_k, facts.change.interval[1] + VALUES)
    late: dict[int, float] = {}
    by_broker: dict[str, int] = {}
    known: set[int] = set()
    for name, series in facts.touched(LONE_DELAY).items():
        known.update(series.k.tolist())
        is_late = series.values >= _RESENT_SECONDS
        for k, seconds in zip(
            series.k[is_late].tolist(), series.values[is_late].tolist(), strict=True
        ):
            late[k] = max(seconds, late.get(k, 0.0))
            if first <= k < end:
                broker = parse_series(name).label("target")
                by_broker[broker] = by_broker.get(broker, 0) + 1
    asked = np.array(sorted(known), np.int64)
    ks = np.array(sorted(late), np.int64)
    now, of = _count(ks, first, end), _count(asked, first, end)
    begin = facts.nearby.soak_start(facts.onset_k)
    before, of_before = _count(ks, begin, first), _count(asked, begin, first)
    just_before = _count(ks, first - VALUES, first) / max(1, _count(asked, first - VALUES, first))
    if now < _FEWEST_RESENT or now / of < _MORE_OFTEN * just_before:
        return None
    if poisson.sf(now - 1, of * (before + 1) / (of_before + 1)) > _BY_CHANCE:
        return None
    delay = float(np.median([late[k] for k in ks.tolist() if first <= k < end]))
    most = max(by_broker, key=by_broker.__getitem__)
    is_of_one = by_broker[most] > _OF_ONE_BROKER * sum(by_broker.values())
    return Resent(first, now, of, before, of_before, delay, most if is_of_one else "")


def _count(ks: NDArray[np.int64], begin: int, end: int) -> int:
    return int(np.count_nonzero((ks >= begin) & (ks < end)))


def is_way_calm(facts: Facts) -> bool:
    """True when a channel of the network was measured, answers came at the onset, and none rose.

    What a broker that stands still adds to its answers, when it goes on, is small compared with the step.
    """
    if resent(facts) is not None:
        return False
    ways = [*facts.shifts(*ROUND_TRIPS), *facts.shifts(LONE_DELAY)]
    packets = facts.shifts_like(PACKETS)
    felt = [*packets, *(one for one in ways if one.added(facts.change) >= LEAST_WAY_SHARE)]
    is_calm = not felt or channel.are_calm(felt)
    return bool(ways or packets) and is_calm and not facts.answers.unanswered


# --- what other clients write, and which brokers' pages say so

LEAST_OF_OURS = 0.1
"""Of what we send: what our own load varies by, and a cluster that carries that hardly feels."""
_LEAST_MESSAGES = 10.0  # a second: fewer load no broker, however little we send
Page = tuple[str, str, str]
"""A metrics page: its source, target and instance."""


def more_written(facts: Facts) -> Shift | None:
    """Return what others write where that grew, at whatever time, by what may be a load."""
    one = facts.other_writes
    if one is None or not facts.sent or not facts.has_grown([one]):
        return None
    return one if one.rise >= max(_LEAST_MESSAGES, LEAST_OF_OURS * sent_before(facts)) else None


def sent_before(facts: Facts) -> float:
    """Return the messages a second that this run sent before the onset."""
    return sum(one.before for one in facts.sent)


def page_of(series: str) -> Page:
    """Return which page a channel is of."""
    one = parse_series(series)
    return one.source, one.label("target"), one.label("instance")


def unread_pages(
    what: str, pages: Collection[Page], facts: Facts, lost: Collection[Page] = ()
) -> str:
    """Return of which brokers `what` is not known, "" where these pages are of all that the cluster has.

    Leaders of this run's partitions are some of the brokers: only the cluster says how many there are.
    `lost`: pages that end or begin at the onset.
    """
    left = max(len(lost), facts.least_brokers - len(pages))
    if left > 0:
        return f"{what} of {wording.counted(left, 'broker')} more"
    return "" if facts.cluster_size else f"how many brokers there are, and {what} of each"


# --- a backlog that begins to drain at the onset: its peak lies there, and it falls from then on
# Method:  the peak of a backlog is dated; of all its changes from there four fifths must be falls, by a
# third at least, and be worth five seconds of the load or, where that is not known, fall for as long.
# Falls of half its size and more that began before say how often an onset meets one by chance.
# Assumes: a backlog known in every value; one reported late is looked for as late as its channel lags.

_LEAST_VALUES = 3
_FALLING = 0.8
_PARTS = 10
FALLEN = 1.0 / 3.0
_LEAST_SECONDS = 5.0
_FULL = 0.95  # of the peak: still the full level
_MOST_FULL = 0.25  # of the fall
_EMPTY = 0.02  # of the peak: what follows is no drain any more
_AS_LARGE = 0.5  # of the fall: one before that costs about as much
_MOST_DRAINS = 8  # the largest are compared with what was before


@dataclass(frozen=True, slots=True)
class Drain:
    """A backlog at its peak and at the end of what was seen, and the second in which it began to fall.

    `earlier`: how many backlogs of its metric fell like that in the `earlier_seconds` before the onset.
    `usual_ratio`: of these seconds, that would have had such a fall at their onset.
    """

    series: str
    peak: float
    end: float
    from_k: int
    seconds: int
    earlier: int = 0
    earlier_seconds: int = 0
    usual_ratio: float = 0.0

    @property
    def is_usual(self) -> bool:
        return self.usual_ratio > USUAL


def draining(facts: Facts) -> Drain | None:
    """Return the largest backlog that began to drain at the onset, an unusual one first, or None."""
    found = [one for name in facts.named(*BACKLOGS) if (one := _drain(name, facts))]
    largest = sorted(found, key=lambda one: -one.peak)[:_MOST_DRAINS]
    judged = (_judged(one, facts) for one in largest)
    first = next(judged, None)
    if first is None or not first.is_usual:
        return first
    return next((one for one in judged if not one.is_usual), first)


def _judged(one: Drain, facts: Facts) -> Drain:
    """Return a drain with how usual it is."""
    spacing = spacing_of(facts.nearby.series[one.series])
    lag = facts.nearby.lag_seconds.get(one.series, 0.0)
    first, last = channel.near(facts.change, lag, spacing)
    least = _AS_LARGE * (one.peak - one.end)
    earlier, seconds, ratio = _earlier(one.series, least, (first - spacing, last), facts)
    return replace(one, earlier=earlier, earlier_seconds=seconds, usual_ratio=ratio)


def _drain(name: str, facts: Facts) -> Drain | None:
    series = facts.nearby.series[name]
    spacing = spacing_of(series)
    lag = facts.nearby.lag_seconds.get(name, 0.0)
    first, last = channel.near(facts.change, lag, spacing)
    start = facts.change.interval[0] - VALUES * spacing
    stop = min(facts.nearby.k1, facts.end_k + VALUES * spacing)
    low, high = np.searchsorted(series.k, [start, stop])
    k, values = series.k[low:high], series.values[low:high]
    if values.size <= _LEAST_VALUES:
        return None
    peak = float(values.max())
    if peak <= 0.0:  # old results of the benchmark hold negative ones
        return None
    for at, from_k in _begins(k, values):
        falling = _falling(values[at:], peak)
        if not falling.size or not first - spacing <= from_k <= last:
            continue
        seconds = int(k[at + falling.size - 1]) - from_k
        rate = _rate(name, facts)
        if (peak / rate if rate > 0.0 else seconds) >= _LEAST_SECONDS:
            return Drain(name, peak, float(falling[-1]), from_k, seconds)
    return None


def _earlier(
    name: str, least: float, window: tuple[int, int], facts: Facts
) -> tuple[int, int, float]:
    """Return how many backlogs of a metric fell by so much before, in how many seconds, and how usual it is.

    `window`: the seconds, both included, in which a fall is at the onset.
    """
    start, stop = facts.nearby.soak_start(facts.onset_k), window[0]
    backlogs = facts.named(parse_series(name).metric).values()
    begun = np.array([k for one in backlogs for k in _begun(one, start, stop, least)], np.int64)
    until_next = np.diff(np.append(np.unique(begun), stop))
    seconds = max(1, stop - start)
    covered = int(np.minimum(until_next, window[1] - window[0] + 1).sum())
    return begun.size, seconds, covered / seconds


def _begun(series: Series, start: int, stop: int, least: float) -> list[int]:
    """Return the seconds in which a backlog began to fall by so much, each before it grew as much again."""
    low, end = np.searchsorted(series.k, [start, stop])
    begun: list[int] = []
    high, high_k, bottom = -inf, start, inf  # no bottom while it does not fall
    for k, value in zip(series.k[low:end].tolist(), series.values[low:end].tolist(), strict=True):
        if bottom < inf:
            bottom = min(bottom, value)
            if value >= bottom + least:
                high, high_k, bottom = value, k, inf
        elif value >= high:
            high, high_k = value, k
        elif value <= high - least:
            begun.append(high_k)
            bottom = value
    return begun


def _begins(k: NDArray[np.int64], values: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Give where the fall may begin, and its second: at the peak, or at the end of a plateau.

    A plateau's largest value lies anywhere, so the line of the fall is drawn back to its level.
    """
    peak = float(values.max())
    at = values.size - 1 - int(np.argmax(values[::-1]))  # the last of several equal ones
    yield at, int(k[at])
    end = int(np.flatnonzero(values >= _FULL * peak)[-1])
    falling = _falling(values[end:], peak)
    if falling.size:
        rate = (falling[0] - falling[-1]) / float(k[end + falling.size - 1] - k[end])
        full = values[: end + 1]
        level = float(np.median(full[full >= _FULL * peak]))
        yield end, round(float(k[end]) - max(0.0, level - falling[0]) / rate)


def _falling(values: NDArray[np.float64], peak: float) -> NDArray[np.float64]:
    """Return the fall that the values begin with, until nothing is left; empty when it is none."""
    emptied = np.flatnonzero(values <= _EMPTY * peak)
    falling = values[: int(emptied[0]) + 1] if emptied.size else values
    if falling.size < _LEAST_VALUES or falling[-1] > (1.0 - FALLEN) * peak:
        return falling[:0]
    apart = max(1, falling.size // _PARTS)  # or noise would hide a slow drain
    falls = falling[:-apart] - falling[apart:]
    is_steady = falls[falls > 0.0].sum() >= _FALLING * np.abs(falls).sum()
    full = int(np.flatnonzero(falling >= _FULL * falling[0])[-1])
    is_begun = full <= _MOST_FULL * (falling.size - 1)  # a plateau lasts longer
    return falling if is_steady and is_begun else falling[:0]


def _rate(name: str, facts: Facts) -> float:
    """Return the messages sent a second by all producers; 0 where it is not known, or the unit is another."""
    if not parse_series(name).metric.endswith("_messages"):
        return 0.0
    sent = facts.named("sent_messages").values()
    return sum(float(np.median(one.values)) for one in sent if one.k.size)
