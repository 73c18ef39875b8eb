"""Ourselves: the load generator was late, away or out of CPU, or a clock was set; it is not the cluster.

Method:  latency counts from the intended time of sending, so schedule lag is part of it: its rise is
         compared with the step, but for seconds in which a full queue held the sending back. So is how long a
         producer could note no acknowledgement, and a consumer take no message. All these are a part of the
         latency, so they may have risen anywhere in the interval of its onset. Besides them, the share of
         seconds that a daemon marked as invalid, the time that a thread of it waited for a processor, the
         CPU that a hypervisor took from its host, and what those of our daemons took of it that only watch.
         A clock explains a step of end-to-end latency between hosts that is as large as it was set by.
Assumes: our own records of the minute before and after the onset. A producer's latency is its own: what
         another process did is no part of it; end to end every producer may be. What is set is reported by a
         daemon or a probe of that host; of a source that is not known either direction counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.causes.channel import Shift, are_calm, spacing_of
from detectors.causes.cpu import STOLEN, USED, WAITING
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    BARELY,
    CLEAR,
    DECISIVE,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    ruled_out,
    strength_of_share,
)
from detectors.nearby import TimedEvent, between, when
from soak.core import wording
from soak.core.model import Change, Evidence, Series
from soak.core.series import host_of, parse_series, source_of

NEXT = {
    "client": "see what else runs on the load generator's host, not the cluster",
    "clock": "find out which host's clock was set: chronyc tracking, timedatectl",
}

_SECONDS = 30  # before and after the onset
_LEAST = 5
_INVALID_RATIO = 0.5
_PRODUCER, _END_TO_END = "produce.", "end_to_end_latency_seconds"
_PUBLISH = "publish_latency_seconds"
_LAG = "schedule_lag_seconds"
_HELD = "held_back_messages"
_CPU = "process_cpu_ratio"
_AWAY = {
    _PUBLISH: ("callback_delay_seconds", "The producer {} was late to serve its own client"),
    _END_TO_END: (
        "consumer_pause_seconds",
        "The consumer {} was late to serve its own client",
    ),
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that our own daemons have to do with the step."""

    sign: Sign
    share: float = 1.0
    is_provisional: bool = False


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give what our own daemons and clocks have to do with the step."""
    parts = (_late, _invalid, _waiting, _stolen, _watched)
    found = [found for part in parts if (found := part(facts))]
    found.sort(key=lambda one: (one.is_provisional, -one.sign.strength))
    if found:
        first, *others = found
        signs = (first.sign, *(Sign(0.0, one.sign.evidence) for one in others))
        hosts = ", ".join(sorted(_hosts(facts)))
        yield Hypothesis("client", signs, hosts, first.share, is_provisional=first.is_provisional)
    elif facts.named(_LAG):
        yield ruled_out("client", "Our own daemons sent on time and had CPU.")
    yield from _clock(facts)


# --- delays that are a part of the latency


def _late(facts: Facts) -> _Part | None:
    """Return the share of the step that is the delay of the worst of our daemons."""
    found = [one for name, text in _delays(facts) if (one := _delayed(name, text, facts))]
    return max(found, key=lambda one: one.sign.strength, default=None)


def _delays(facts: Facts) -> Iterator[tuple[str, str]]:
    """Give the series that are a part of this latency, and what each says of its daemon."""
    column = parse_series(facts.change.series)
    quantile = column.label("quantile") or "0.99"
    wanted = quantile if quantile in {"0.5", "0.99"} else "0.99"
    for name in facts.named(_LAG):
        is_wanted = parse_series(name).label("quantile") == wanted
        if is_wanted and _is_part(source_of(name), facts.change):
            yield name, "The producer {} sent later than scheduled"
    if wanted == "0.5":
        return  # a pause a second is no part of the median
    metric, text = _AWAY.get(column.metric, ("", ""))
    for name in facts.named(metric):
        if source_of(name) == source_of(facts.change.series):
            yield name, text


def _is_part(source: str, change: Change) -> bool:
    """True for the daemon whose latency this is; end to end also for every producer."""
    is_on_the_way = (
        source.startswith(_PRODUCER) and parse_series(change.series).metric == _END_TO_END
    )
    return source == source_of(change.series) or is_on_the_way


def _delayed(name: str, text: str, facts: Facts) -> _Part | None:
    own = _own(facts.nearby.series[name], facts)
    around, shift = _around(own, facts), facts.shift(own)
    if around is None or shift is None or not shift.has_risen_with(facts.change):
        return None
    was, became = (float(np.median(part)) for part in around)
    change = facts.change
    share = max(0.0, min(1.0, (became - was) / (change.after - change.before)))
    if share == 0.0:
        return None
    evidence = Evidence(
        f"{text.format(source_of(name))} from the onset on: its {wording.title(name)} "
        f"went from {wording.amount(was, 'seconds')} to {wording.amount(became, 'seconds')}, "
        f"{share:.0%} of the step.",
        {"before": was, "after": became, "explained_ratio": share},
    )
    return _Part(Sign(strength_of_share(share), evidence))


def _around(series: Series, facts: Facts) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the values of the half minute before the onset and after it; None when too few are known."""
    low, high = facts.change.interval
    before = between(series, low - _SECONDS, low)
    after = between(series, high, min(high + _SECONDS, facts.nearby.soak_end(facts.onset_k)))
    return (before, after) if min(before.size, after.size) >= _LEAST else None


def _own(series: Series, facts: Facts) -> Series:
    """Return a channel without the seconds in which the cluster took no more: there it is not ours."""
    for name, held in facts.named(_HELD).items():
        if source_of(name) == source_of(series.name):
            is_ours = ~np.isin(series.k, held.k[held.values > 0])
            return Series(series.name, series.k[is_ours], series.values[is_ours])
    return series


def _invalid(facts: Facts) -> _Part | None:
    low, high = facts.change.interval
    for source, ks in facts.nearby.invalid_k.items():
        if not _is_part(source, facts.change):
            continue
        before = int(np.count_nonzero((ks >= low - _SECONDS) & (ks < low)))
        stop = min(high + _SECONDS, facts.nearby.soak_end(facts.onset_k))
        after = int(np.count_nonzero((ks >= high) & (ks < stop)))
        seconds = stop - high
        if seconds >= _LEAST and after / seconds >= _INVALID_RATIO > 2.0 * before / _SECONDS:
            text = (
                f"{source} reported its own measurement as invalid in {after} of the {seconds} s "
                f"after the onset, and in {before} of the {_SECONDS} s before."
            )
            numbers = {"untrusted_after": after, "untrusted_before": before, "seconds": seconds}
            return _Part(Sign(CLEAR + FAIR, Evidence(text, numbers)))
    return None


# --- CPU of our own


def _waiting(facts: Facts) -> _Part | None:
    """Return which of the daemons whose latency this is came to wait for a processor most of the time."""
    spinning = {  # a client that is answered nothing may keep a processor busy itself
        source_of(one.series) for one in facts.shifts(_CPU) if one.has_risen_with(facts.change)
    }
    found = []
    for name, series in facts.named(WAITING.metric).items():
        source = source_of(name)
        if _is_part(source, facts.change) and source not in spinning:
            one = facts.shift(_own(series, facts))
            if one is not None and one.has_risen and WAITING.is_exceeded(one):
                found.append(one)
    worst = max(found, key=lambda one: one.after, default=None)
    if worst is None:
        return None
    return _Part(Sign(_waiting_strength(worst, facts), worst.evidence(facts.change)), worst.after)


def _waiting_strength(waiting: Shift, facts: Facts) -> float:
    """Return less where a broker has the same host, and least where that host's CPU is used up."""
    host = host_of(source_of(waiting.series))
    if host not in facts.broker_hosts:
        return DECISIVE + FAIR
    used = [
        one.after for one in facts.shifts(USED.metric) if host_of(source_of(one.series)) == host
    ]
    has_more = bool(used) and max(used) < USED.after
    return CLEAR + SLIGHT if has_more else BARELY


def _stolen(facts: Facts) -> _Part | None:
    """Return what a hypervisor took from the host of a daemon whose latency this is: broker's hosts apart."""
    hosts = _hosts(facts)
    found = [
        one
        for one in facts.shifts(STOLEN.metric)
        if host_of(source_of(one.series)) in hosts
        and one.has_risen_with(facts.change)
        and STOLEN.is_exceeded(one)
        and not facts.is_of_broker(one.series)
    ]
    worst = max(found, key=lambda one: one.rise, default=None)
    if worst is None:
        return None
    return _Part(Sign(CLEAR, worst.evidence(facts.change)), worst.rise)


def _hosts(facts: Facts) -> set[str]:
    """Return the hosts of the daemons whose latency this is."""
    sources = map(source_of, facts.nearby.series)
    return {host_of(source) for source in sources if _is_part(source, facts.change)}


# --- A daemon of ours that only watches and takes a core for a while, as one that is started again does.
# Method:  the CPU seconds of such a daemon in the half minute from a second on in which it began to take
#          more, in the interval of the onset or next to it. Where its host was measured and it was not,
#          it was away. Latency must be worse than half-way in a quarter of the seconds in which it was busy,
#          and in at most half as many of the first calm ones after: until those are known it is provisional.
# Assumes: a step, or a tail that grew: what comes again and again, or slowly, has another reason. Of the
#          daemons only those count that are no clients of the cluster, as what such a one takes follows what
#          the cluster does, and that start a JVM or draw.

_WATCHING = frozenset({"alert", "detect-stream", "report"})
_KINDS = frozenset({"step", "tail"})
_BESIDE = 5  # seconds about the interval of the onset: one for a process to be seen, one for its first value
_LEAST_CPU = 0.25  # of the host's processors, all those seconds
_CALM_ROWS = 3  # after a busy one
_BAD_RATIO = 0.25  # of the busy seconds, at least


def _watched(facts: Facts) -> _Part | None:
    """Return what the busiest of them began to take of the host of a daemon whose latency this is."""
    if facts.change.kind not in _KINDS:
        return None
    known = {source_of(name): one.k for name, one in facts.named("host_cpu_count").items()}
    hosts, found = _hosts(facts), []
    for name, cores in facts.named("host_daemon_cpu_cores").items():
        source, daemon = source_of(name), parse_series(name).label("daemon")
        if source in facts.processors and host_of(source) in hosts and daemon in _WATCHING:
            one = _burst(_whole(cores, known[source]), facts.processors[source], facts)
            found += [one] if one is not None else []
    worst = max(found, key=lambda one: one[0], default=None)
    return None if worst is None else worst[1]


def _whole(cores: Series, k: NDArray[np.int64]) -> Series:
    """Return the cores in each second in which the host was measured, 0 where the daemon was away."""
    values = np.zeros(k.size)
    values[np.isin(k, cores.k)] = cores.values[np.isin(cores.k, k)]
    return Series(cores.name, k, values)


def _burst(cores: Series, count: float, facts: Facts) -> tuple[float, _Part] | None:
    """Return the CPU seconds that it took beyond what it took before, with what that says."""
    change = facts.change
    first, last = change.interval[0] - _BESIDE, change.interval[1] + _BESIDE
    before = between(cores, first - _SECONDS, first)
    if before.size < _LEAST:
        return None
    was, end = float(np.median(before)), facts.nearby.soak_end(change.onset_k)
    is_busy = cores.values >= was + _LEAST_CPU * count
    begins = is_busy & ~np.append(True, is_busy[:-1]) & (cores.k >= first) & (cores.k <= last)
    parts = {int(k): between(cores, int(k), min(int(k) + _SECONDS, end)) for k in cores.k[begins]}
    spacing = spacing_of(cores)
    extra = {k: spacing * float((part - was).sum()) for k, part in parts.items()}
    start = max(extra, key=extra.__getitem__, default=-1)
    if start < 0 or extra[start] < _LEAST_CPU * count * _SECONDS:
        return None
    since = (cores.k >= start) & (cores.k < end)
    is_known = _is_ours(cores.k[since], is_busy[since], facts)
    if is_known is False:
        return None
    daemon, off = parse_series(cores.name).label("daemon"), start - change.onset_k
    became = float(parts[start].mean())
    evidence = Evidence(
        f"{daemon} of soakd itself took {wording.amount(became, 'cores')} of the {count:g} processors "
        f"of {host_of(source_of(cores.name))} in {parts[start].size * spacing} s from "
        f"{abs(off)} s {'before' if off < 0 else 'after'} the onset on, and "
        f"{wording.amount(was, 'cores')} in the {_SECONDS} s before what may be the onset.",
        {"daemon": daemon, "before": was, "after": became, "cpu_seconds": extra[start]},
    )
    return extra[start], _Part(Sign(BARELY, evidence), is_provisional=is_known is None)


def _is_ours(k: NDArray[np.int64], is_busy: NDArray[np.bool_], facts: Facts) -> bool | None:
    """Return whether latency was bad because a daemon was busy; None while that is not known."""
    own = facts.latency
    if own is None:
        return False
    last_busy = np.maximum.accumulate(np.where(is_busy, np.arange(k.size), 0))
    is_calm = np.arange(k.size) - last_busy >= _CALM_ROWS
    bad, bad_after = (
        own.values[np.isin(own.k, part)] > _half_way(facts.change)
        for part in (k[is_busy], k[is_calm][:_SECONDS])
    )
    if bad.size < _LEAST or bad.mean() < _BAD_RATIO:
        return False
    if bad_after.size < _LEAST:
        return None
    return bool(bad.mean() >= 2.0 * bad_after.mean())


def _half_way(change: Change) -> float:
    """Return what lies between both levels, as latencies are judged: on log10 where both are above 0."""
    low, high = change.before, change.after
    return float(np.sqrt(low * high)) if min(low, high) > 0.0 else (low + high) / 2.0


# --- a clock

CLOCK_STEP = "clock_step"
_LEAST_RATIO, _MOST_RATIO = 0.5, 2.0


def _clock(facts: Facts) -> Iterator[Hypothesis]:
    """Give the clock step at the onset that is as large as the step of latency."""
    change = facts.change
    column = parse_series(change.series)
    if column.metric != _END_TO_END:
        return
    first, last = facts.near
    here, senders = host_of(source_of(change.series)), _senders(facts)
    if senders == {here}:
        yield ruled_out("clock", "Sent and received on one host: both ends read one clock.")
        return
    steps = [
        one
        for one in facts.events(CLOCK_STEP)
        if first <= one.k <= last and _raises(one, here, senders)
    ]
    if not steps:
        return
    largest = max(steps, key=_size)
    part = _size(largest) / (change.after - change.before)
    if not _LEAST_RATIO <= part <= _MOST_RATIO:
        return
    published = facts.shifts(_PUBLISH, quantile=column.label("quantile") or "0.99")
    signs = [Sign(CLEAR, _stepped(largest, change))]
    if published and not are_calm(published):
        yield ruled_out("clock", "Publishing, which one clock measures, became slower as well.")
        return
    if published:
        text = "Publishing, which one clock measures, stayed as fast as it was."
        signs.append(Sign(DECISIVE - CLEAR + FAIR, Evidence(text)))
    suspect = host_of(largest.source) if largest.source else ""
    yield Hypothesis("clock", tuple(signs), suspect, min(part, 1.0 / part))


def _senders(facts: Facts) -> set[str]:
    """Return the hosts of the producers."""
    sources = map(source_of, facts.nearby.series)
    return {host_of(source) for source in sources if source.startswith(_PRODUCER)}


def _raises(step: TimedEvent, here: str, senders: AbstractSet[str]) -> bool:
    """True for a clock set forward where is received, or back where is sent, or at an unknown place."""
    host, forward = host_of(step.source), _forward(step)
    is_ours = forward > 0.0 if host == here else forward < 0.0 and host in senders
    return is_ours or not step.source


def _forward(step: TimedEvent) -> float:
    """Return the seconds that a clock was set forward by, below 0 where it was set back."""
    return step.event.number("seconds")


def _size(step: TimedEvent) -> float:
    return abs(_forward(step))


def _stepped(step: TimedEvent, change: Change) -> Evidence:
    return Evidence(
        f"A clock was set by {wording.amount(_size(step), 'seconds')} {when(step.k - change.onset_k)} of the "
        f"step, which is {wording.amount(change.after - change.before, 'seconds')}: end-to-end latency "
        f"between hosts is a difference of their clocks.",
        {"clock_step_seconds": _forward(step)},
    )


# --- how to confirm them

CONFIRM = {
    "client": Confirmation(
        "on {the load host}",
        "vmstat 1 5",
        f"an st of {100 * STOLEN.after:.0f} or more, or an r above the number of processors",
    ),
    "clock": Confirmation(
        "on both hosts",
        "TZ=UTC journalctl -u chrony -u chronyd --since -1h | grep stepped",
        f"a step of {_LEAST_RATIO:g} to {_MOST_RATIO:g} times that of latency, at the onset",
        f"a step of {{step_seconds*{_LEAST_RATIO:g}}} to {{step_seconds*{_MOST_RATIO:g}}} seconds, "
        "at the onset",
        is_lasting=True,
    ),
}
