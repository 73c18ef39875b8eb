"""Brokers short of CPU, and JVMs that stop to collect garbage.

Method:  the CPU of a broker's host, its steal, the time that tasks wait for CPU, or a broker's busiest core
         steps up at the onset to a level at which work has to wait. Pauses of a JVM long enough to matter (a
         quarter of the step, 5 ms at least) begin at the onset, or come there three times as often, and
         latency is locked to them. Shorter ones matter together where they take much of a second; where only
         the time a second is known, as of a metrics page, that must step at the onset. A pause is dated by
         its begin; one alone counts where it fills half of the slow seconds, or of those without
         acknowledgements.
         Where the hypervisor takes more of the CPU though no more is done on it, drives, flushes and JVMs
         of that host are slower for that alone.
         CPU that was nearly as short before says little. Request handlers of Kafka that are not idle are busy
         or wait, for a drive maybe: they count where CPU runs short.
         On a CPU that runs short usual pauses last longer, too: what latency is not locked to is sure only
         where it takes more of the time than G1 allows itself.
Assumes: a host of which drive, flushes or a broker's log are watched is a broker's; a log is a broker's.
         A JVM logs a pause when it is over.
         Concurrent collectors report threads that wait for memory as `gc_stall`; what a page counts of their
         cycles is work of the CPU. Of a collector that is not known, or where a log of the same host is
         read, the time of a page is not sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.causes import cpu
from detectors.causes.acknowledgements import STOPPED_SECONDS, Silence
from detectors.causes.channel import SAME_RATIO, Shift, risen, spacing_of
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    BARELY,
    CLEAR,
    DECISIVE,
    FAIR,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    unmeasured,
)
from detectors.causes.locking import LAGS, Words, begun, repeated
from detectors.nearby import between, when
from soak.core import wording
from soak.core.model import Evidence
from soak.core.series import host_of, parse_series, source_of

NEXT = {
    "broker_cpu": "see what else runs on the broker's host: top, and steal in vmstat",
    "gc_pause": "see the broker's GC log: heap, collector, what allocates",
}

_IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
_MOST_IDLE = 0.3
_SLOWED = frozenset({"slow_drive", "slow_fsync", "gc_pause"})
"""What needs a processor of its host to go on takes longer where that is withheld."""


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypotheses about CPU and the JVM."""
    yield _cpu(facts)
    yield from _pausing(facts)


def _cpu(facts: Facts) -> Hypothesis:
    idle = [one for one in facts.shifts(_IDLE) if one.has_fallen and one.after < _MOST_IDLE]
    short = _worst_host_first(facts.short_of_cpu)
    if not short:
        return _not_short(idle, facts)
    found = [*short, *idle]
    is_one_host = len({_host(one) for one in found}) == 1
    taken = [one for one in short if is_one_host and _is_taken(one, facts)]
    has_two = len({one.metric for one in found}) > 1
    was_short = cpu.was_short(found)
    strengths = [FAIR if was_short else CLEAR, FAIR if has_two else 0.0, *[0.0] * len(found)]
    signs = [Sign(s, one.evidence(facts.change)) for s, one in zip(strengths, found, strict=False)]
    working = (one for one in facts.shifts(_COLLECTIONS) if one.label("gc") in _CONCURRENT)
    collector = risen(working, _ROSE)
    if collector is not None:
        signs.append(Sign(0.0, collector.evidence(facts.change)))
    if was_short:
        signs.append(Sign(0.0, Evidence("It had been short before the step, too.")))
    if taken:
        text = (
            f"{_host(taken[0])} did no more work than before: its hypervisor withheld CPU, for other "
            "virtual machines or by a limit of this one."
        )
        signs.append(Sign(FAIR, Evidence(text)))
    share = max(min(1.0, abs(one.rise)) for one in found)
    return Hypothesis(
        "broker_cpu",
        tuple(signs),
        _host(found[0]),
        share,
        explains=_SLOWED if taken else frozenset(),
        explains_on=_host(taken[0]) if taken else "",
    )


def _worst_host_first(short: Sequence[Shift]) -> list[Shift]:
    """Return what says that CPU ran short, first of the host where it rose most."""
    worst = max(short, key=lambda one: one.rise, default=None)
    return sorted(short, key=lambda one: worst is not None and _host(one) != _host(worst))


def _is_taken(one: Shift, facts: Facts) -> bool:
    """True for steal of a host on which no more was done than before."""
    used_metric = cpu.USED_OF_STOLEN.get(one.metric)
    if used_metric is None:
        return False
    stolen = parse_series(one.series)
    for used in facts.shifts(used_metric):
        name = parse_series(used.series)
        if (name.source, name.labels) == (stolen.source, stolen.labels):
            return used.after - one.after <= SAME_RATIO * (used.before - one.before)
    return False


def _not_short(idle: list[Shift], facts: Facts) -> Hypothesis:
    """Return what is known where no CPU ran short: handlers that are not idle may wait for a drive."""
    if facts.cpu_hosts:
        text = "The CPU of the brokers' hosts did not run short at the onset."
        missing = (facts.unwatched("CPU", facts.cpu_hosts), _own_limits(facts))
        return absent("broker_cpu", text, ", ".join(filter(None, missing)))
    signs = tuple(Sign(FAIR, one.evidence(facts.change)) for one in idle[:1])
    suspect = _host(idle[0]) if idle else ""
    return Hypothesis(
        "broker_cpu", signs, suspect, missing=("CPU of the brokers' hosts (probe host)",)
    )


def _own_limits(facts: Facts) -> str:
    """Return what is to be measured of a broker that its cgroup holds back while its host has CPU left.

    Throttled tasks wait for CPU, as pressure counts it.
    """
    is_known = facts.known_channels(cpu.PRESSURE.metric)
    return "" if is_known else "limits of the brokers' own cgroups (cpu.max; probe pressure)"


def _host(one: Shift) -> str:
    return one.label("target") or host_of(source_of(one.series))


# --- garbage

_KINDS = ("gc_pause", "gc_stall")
_WORDS = Words("a long pause", "pauses", "long pauses of the JVM", "long pause of the JVM")
_SUMS = ("jvm_gc_pause_seconds", "jvm_gc_stall_seconds")  # of a log, by second
_COLLECTIONS = "jvm_gc_collection_seconds"  # of a page
_STOPPING = frozenset(
    {
        *("Copy", "MarkSweepCompact", "PS Scavenge", "PS MarkSweep", "ParNew"),
        *("G1 Young Generation", "G1 Old Generation", "Shenandoah Pauses"),
        *("ZGC Pauses", "ZGC Minor Pauses", "ZGC Major Pauses"),
        *("GPGC New Pauses", "GPGC Old Pauses"),  # Azul Prime
    }
)
"""Collectors of OpenJDK and its kin, by their names in JMX, whose time is that of stopped threads."""
_CONCURRENT = frozenset(
    {
        *("ConcurrentMarkSweep", "G1 Concurrent GC", "Shenandoah Cycles"),
        *("ZGC", "ZGC Cycles", "ZGC Minor Cycles", "ZGC Major Cycles"),
        *("GPGC New", "GPGC Old", "GPGC New Cycles", "GPGC Old Cycles"),
    }
)
"""Those whose time is work while the threads of the broker run: CPU, and no pause."""
_OF_STEP = 0.25
_LEAST_SECONDS = 0.005
_ALL = 0.5  # of the time between two looks at a page: more is hardly reported of any pause
_LEAST_SHARE = 0.03  # of a second, stopped
_MUCH = 1.0 / 13.0  # of the time: beyond it G1 asks for a larger heap (-XX:GCTimeRatio=12)
_ROSE = 2.0
_EFFECTS = frozenset({"broker_pause"})  # its broker answers nothing meanwhile
_EFFECTS_OF_STANDSTILL = _EFFECTS | {"broker_down", "leader_move", "under_replicated", "network"}
_STILL_SECONDS = 1.0  # of a pause: the least that empties a second
_COVERED = 0.5  # of the seconds without acknowledgements, or of high latency

_Log = tuple[str, str]
"""The source that reads the log of one JVM, and its name."""


@dataclass(frozen=True, slots=True)
class _Pause:
    """A pause that a log reported by itself, when it was over."""

    k: int
    seconds: float
    log: _Log

    @property
    def begin_k(self) -> int:
        return _begin(self.k, self.seconds)


def _pausing(facts: Facts) -> Iterator[Hypothesis]:
    pauses = [
        _Pause(
            one.k,
            one.event.number("pause_seconds"),
            (one.source, str(one.event.fields.get("log", ""))),
        )
        for one in facts.events(*_KINDS)
    ]
    longest = _long_pauses(pauses, facts)
    found = [
        *_recurring(longest, pauses, facts),
        *_standing_still(pauses, facts),
        *_taking_time(facts),
    ]
    page = None if longest else _stopped(pauses, facts)
    if found:
        effects = frozenset[str]().union(*(one.explains for one in found))
        yield replace(max(found, key=lambda one: one.log_odds), explains=effects)
    elif page is not None:
        yield page
    elif pauses or facts.named(*_SUMS) or any(map(_may_pause, facts.named(_COLLECTIONS))):
        text = "No JVM that is watched began to pause longer, or more often, at the onset."
        missing = (_unwatched(pauses, facts), _unwritten(facts), _not_told_apart(pauses, facts))
        yield absent("gc_pause", text, ", ".join(filter(None, missing)))
    else:
        yield unmeasured(
            "gc_pause", "pauses of the brokers' JVMs (their GC logs: probe broker_log)"
        )


def _recurring(
    longest: Mapping[int, float], pauses: list[_Pause], facts: Facts
) -> Iterator[Hypothesis]:
    """Give long pauses that began at the onset, or that latency is locked to.

    By the seconds that they took. An acknowledgement that waited is counted when it comes, so also by their
    ends alone.
    """
    ends = np.array(sorted(longest), np.int64)
    held = _held(longest.items())
    for ks in [held] if held.size == ends.size else [held, ends]:
        found = repeated(ks, _WORDS, facts)
        if found is None:
            continue
        signs = list(found.signs)
        if found.is_dense and not _are_much(pauses, facts):
            text = "They take no more of the time than usual pauses do on a busy host."
            signs.append(Sign(-FAIR, Evidence(text)))
        signs.append(Sign(0.0, _lengths(ends, longest, facts.onset_k)))
        suspect = _most_stopped(longest, pauses)
        yield Hypothesis("gc_pause", tuple(signs), suspect, found.explained, explains=_EFFECTS)


def _standing_still(pauses: Iterable[_Pause], facts: Facts) -> Iterator[Hypothesis]:
    """Give each JVM that stood still in most of the seconds without acknowledgements, or of high latency."""
    by_log: dict[_Log, list[_Pause]] = {}
    for one in pauses:
        if one.seconds >= _STILL_SECONDS:
            by_log.setdefault(one.log, []).append(one)
    silence = facts.acknowledgements.unacknowledged
    is_stopped = silence is not None and silence.seconds >= STOPPED_SECONDS
    is_process_there = is_stopped and not facts.answers.refused
    slow = facts.end_k - facts.onset_k
    for log, own in by_log.items():
        still = _still(own, facts, silence) if _may_be_silent(f"{log[0]}|", facts) else None
        if still is None:
            continue
        seconds, text = still
        held = _held((one.k, one.seconds) for one in own)
        ends = np.unique(np.array([one.k for one in own], np.int64))
        start = begun(held, _WORDS, facts) or begun(ends, _WORDS, facts)
        yield Hypothesis(
            "gc_pause",
            (Sign(DECISIVE if is_stopped else CLEAR, text), *start),
            _jvm(log),
            seconds / max(seconds, slow),
            explains=_EFFECTS_OF_STANDSTILL if is_process_there else _EFFECTS,
        )


def _taking_time(facts: Facts) -> Iterator[Hypothesis]:
    """Give the JVM that stood still for much of the time from the onset on, and for far less of it before.

    However long its pauses: many short ones, and those of other JVMs, hide in the number of long ones.
    """
    more = [one for one in facts.shifts(*_SUMS) if one.after >= _MUCH]
    rose = risen(more, _ROSE)
    if rose is not None:
        log = (source_of(rose.series), rose.label("log"))
        sign = Sign(DECISIVE, rose.evidence(facts.change))
        yield Hypothesis(
            "gc_pause", (sign,), _jvm(log), rose.share(facts.change), explains=_EFFECTS
        )


def _still(
    pauses: Sequence[_Pause], facts: Facts, silence: Silence | None
) -> tuple[int, Evidence] | None:
    """Return in how many seconds one JVM stood still, with a sentence; None where these are not most.

    Of those without acknowledgements; where none was missing, of the slow ones, if it did not do so before.
    """
    first, stop = facts.onset_k, facts.end_k
    if silence is not None:
        first, stop = silence.from_k, silence.from_k + silence.seconds
    held = _held((one.k, one.seconds) for one in pauses)
    lag = max(LAGS, key=lambda seconds: _count(held - seconds, first, stop))
    seconds = _count(held - lag, first, stop)
    before = 0 if silence is not None else _count(held - lag, 2 * first - stop, first)
    if seconds == 0 or seconds < max(_COVERED * (stop - first), 2 * before):
        return None
    then = [one for one in pauses if first <= one.k - lag and one.begin_k - lag < stop]
    longest, begin = max(one.seconds for one in then), min(one.begin_k for one in then)
    what = "of high latency" if silence is None else "in which acknowledgements were missing"
    text = (
        f"The JVM stood still in {seconds} of the {stop - first} s {what}, for up to "
        f"{wording.amount(longest, 'seconds')}, first {when(begin - facts.onset_k)}."
    )
    return seconds, Evidence(text, {"pause_max_seconds": longest, "seconds_held": seconds})


def _may_be_silent(series: str, facts: Facts) -> bool:
    """True unless the brokers that do not answer are known to be others than the one of a channel."""
    seen = facts.answers
    silent = [*(one.what for one in seen.unanswered), *facts.acknowledgements.stopped_leaders]
    return not seen.all_silent and (
        not silent or any(affected_brokers.may_be_of(series, one, facts.nearby) for one in silent)
    )


def _begin(k: int, seconds: float) -> int:
    """Return the second in which a pause began that was over in second `k`."""
    return k - int(min(k, seconds))


def _held(pauses: Iterable[tuple[int, float]]) -> NDArray[np.int64]:
    """Return the seconds that hold a part of a pause, ascending, each once; a pause is its end and length."""
    ks = (np.arange(_begin(k, seconds), k + 1, dtype=np.int64) for k, seconds in pauses)
    return np.unique(np.concatenate([np.empty(0, np.int64), *ks]))


def _count(ks: NDArray[np.int64], first: int, stop: int) -> int:
    return int(np.count_nonzero((ks >= first) & (ks < stop)))


def _unwritten(facts: Facts) -> str:
    """Return what no log tells yet where acknowledgements are still missing, "" where they came again."""
    silence = facts.acknowledgements.unacknowledged
    if silence is None or silence.is_over:
        return ""
    return "the end of a pause that may still go on (a JVM logs a pause when it is over)"


def _not_told_apart(pauses: list[_Pause], facts: Facts) -> str:
    """Return what would tell one pause from many where a page alone counts more than ever at the onset."""
    if pauses or facts.named(*_SUMS):
        return ""
    first, last = facts.near
    for name, series in facts.named(_COLLECTIONS).items():
        spacing = spacing_of(series)
        lag = round(facts.nearby.lag_seconds.get(name, 0.0))
        before = between(series, facts.nearby.k0, first).max(initial=0.0)
        then = between(series, first, last + spacing + lag + 1).max(initial=0.0)
        is_long = spacing * then >= max(_STILL_SECONDS, _least(facts, spacing))
        if is_long and then > before and _may_pause(name):
            return "each pause of the JVM by itself (its GC log: probe broker_log)"
    return ""


def _unwatched(pauses: list[_Pause], facts: Facts) -> str:
    """Return of how many JVMs no pauses are reported: each broker is one."""
    named = [parse_series(name) for name in facts.named(*_SUMS, _COLLECTIONS) if _may_pause(name)]
    watched = {one.log for one in pauses} | {
        (one.source, one.label("log") or one.label("target")) for one in named
    }
    return facts.unwatched("pauses of the JVM", watched, is_of_each=True)


def _most_stopped(longest: Mapping[int, float], pauses: list[_Pause]) -> str:
    """Return whose long pauses took most, by host and log."""
    total: dict[_Log, float] = {}
    for one in pauses:
        if one.k in longest:
            total[one.log] = total.get(one.log, 0.0) + one.seconds
    return _jvm(max(total, key=total.__getitem__)) if total else ""


def _jvm(log: _Log) -> str:
    source, name = log
    return f"JVM of {name or 'a broker'}" + (f" on {host_of(source)}" if source else "")


def _long_pauses(pauses: list[_Pause], facts: Facts) -> dict[int, float]:
    """Return second to the longest pause in it, or their sum, of those long enough to matter."""
    least = max(_LEAST_SECONDS, _OF_STEP * (facts.change.after - facts.change.before))
    found: dict[int, float] = {}
    for one in pauses:
        if one.seconds >= least:
            found[one.k] = max(one.seconds, found.get(one.k, 0.0))
    if found:
        return found
    for name, series in facts.named(*_SUMS).items():
        # then each pause is known, and that it is too short
        is_known = any(one.log[0] in ("", source_of(name)) for one in pauses)
        is_long = series.values >= (max(least, _MUCH) if is_known else least)
        for k, seconds in zip(series.k[is_long], series.values[is_long], strict=True):
            found[int(k)] = max(float(seconds), found.get(int(k), 0.0))
    return found


def _are_much(pauses: list[_Pause], facts: Facts) -> bool:
    """True when the pauses of one JVM took so much of the time since the onset as usual ones never do."""
    first, end = facts.onset_k, facts.end_k
    stopped: dict[_Log, float] = {}
    for one in pauses:
        if first <= one.k and one.begin_k < end:
            stopped[one.log] = stopped.get(one.log, 0.0) + one.seconds
    sums = [
        float(between(series, first, end).sum())
        for series in (() if stopped else facts.named(*_SUMS).values())
    ]
    return max([*stopped.values(), *sums], default=0.0) >= _MUCH * (end - first)


def _lengths(ks: NDArray[np.int64], longest: Mapping[int, float], onset_k: int) -> Evidence:
    since = [longest[int(k)] for k in ks if k >= onset_k] or list(longest.values())
    middle, longest_one = float(np.median(since)), max(since)
    return Evidence(
        f"The JVM's long pauses took {wording.amount(middle, 'seconds')} in the median and "
        f"{wording.amount(longest_one, 'seconds')} at most.",
        {"pause_median_seconds": middle, "pause_max_seconds": longest_one},
    )


def _stopped(pauses: list[_Pause], facts: Facts) -> Hypothesis | None:
    """Return what the time in collections a second says by itself."""
    found = [
        one
        for one in facts.shifts(_COLLECTIONS)
        if _may_pause(one.series) and one.after >= _LEAST_SHARE and _are_long(one, facts)
    ]
    worst = risen(found, _ROSE)
    if worst is None:
        return None
    is_named = worst.label("gc") in _STOPPING
    is_much = worst.after >= _MUCH and worst.rise >= _least(facts)
    is_sure = is_named and is_much and not _has_log(worst, pauses)
    signs = [Sign(CLEAR if is_sure else BARELY, worst.evidence(facts.change))]
    if is_sure:
        text = f"That is more of the time than a collector allows itself ({_MUCH:.0%})."
        signs.append(Sign(FAIR, Evidence(text)))
    share = worst.after / _LEAST_SHARE / 10.0
    effects = _EFFECTS if is_sure and _may_be_silent(worst.series, facts) else frozenset[str]()
    return Hypothesis("gc_pause", tuple(signs), _host(worst), share, explains=effects)


def _may_pause(series: str) -> bool:
    """True for the time of a collector that stops threads, or of which that is not known."""
    return parse_series(series).label("gc") not in _CONCURRENT


def _are_long(rise: Shift, facts: Facts) -> bool:
    """True when one pause between two looks at a page may be long enough to matter.

    A page that is read each 15 s reports a pause of 1.5 s as 0.1 s in each second, and so many short ones.
    """
    spacing = spacing_of(facts.nearby.series[rise.series])
    return rise.rise * spacing >= _least(facts, spacing)


def _least(facts: Facts, seconds: int = 1) -> float:
    """Return how long collections must take of so many seconds to be a part of the step."""
    return min(_OF_STEP * (facts.change.after - facts.change.before), _ALL * seconds)


def _has_log(rise: Shift, pauses: list[_Pause]) -> bool:
    """True when pauses are reported one by one where a page is read, or on the host that it is of."""
    here = host_of(source_of(rise.series))
    target = parse_series(rise.series).label("target")
    logs = {host_of(one.log[0]) for one in pauses}
    return any(host in ("", here) or affected_brokers.is_on(target, host) for host in logs)


# --- how to confirm them

_BROKER = "on {the broker's host}"
CONFIRM = {
    "broker_cpu": Confirmation(
        _BROKER,
        "vmstat 1 5",
        f"an id of {100 * (1 - cpu.USED.after):.0f} or less, "
        f"or an st of {100 * cpu.STOLEN.after:.0f} or more",
    ),
    "gc_pause": Confirmation(
        f"{_BROKER}, in the folder of its GC log",
        r"grep -E 'Pause (Full|Young)|\[(Full )?GC [(p]' {gc_log} | tail",
        f"a pause of {_OF_STEP:.0%} of the step or more, or any Pause Full or Full GC",
        f"a pause of {{step_seconds*{1000 * _OF_STEP:g}}}ms ({{step_seconds*{_OF_STEP:g}}} secs) or more, "
        "or any Pause Full or Full GC",
        is_lasting=True,
    ),
}
