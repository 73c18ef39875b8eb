"""Brokers short of CPU, and JVMs that stop to collect garbage.

Method:  the CPU of a broker's host, its steal, the time that tasks wait for CPU, or a broker's busiest core
         steps up at the onset to a level at which work has to wait. Pauses of a JVM long enough to matter (a
         quarter of the step, 5 ms at least) begin at the onset, or come there three times as often, and
         latency is locked to them. Shorter ones matter together where they take much of a second; where only
         the time a second is known, as of a metrics page, that must step at the onset.
         Where the hypervisor takes more of the CPU though no more is done on it, drives, flushes and JVMs
         of that host are slower for that alone.
         CPU that was nearly as short before says little. Request handlers of Kafka that are not idle are busy
         or wait, for a drive maybe: they count where CPU runs short.
         On a CPU that runs short usual pauses last longer, too: what latency is not locked to is sure only
         where it takes more of the time than G1 allows itself.
Assumes: a host of which drive, flushes or a broker's log are watched is a broker's; a log is a broker's.
         Concurrent collectors report threads that wait for memory as `gc_stall`; what a page counts of their
         cycles is work of the CPU. Of a collector that is not known, or where a log of the same host is
         read, the time of a page is not sure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.causes import cpu
from detectors.causes.channel import SAME_RATIO, Shift, risen, spacing_of
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    BARELY,
    CLEAR,
    FAIR,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    unmeasured,
)
from detectors.causes.locking import Words, repeated
from detectors.nearby import between
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
    short = facts.short_of_cpu
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
        text = "The CPU of the brokers' hosts did not run short."
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
    }
)
"""Collectors of HotSpot, by their names in JMX, whose time is that of stopped threads."""
_CONCURRENT = frozenset(
    {
        *("ConcurrentMarkSweep", "G1 Concurrent GC", "Shenandoah Cycles"),
        *("ZGC", "ZGC Cycles", "ZGC Minor Cycles", "ZGC Major Cycles"),
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


@dataclass(frozen=True, slots=True)
class _Pause:
    """A pause that a log reported by itself."""

    k: int
    seconds: float
    log: tuple[str, str]  # host and name: of one JVM


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
    ks = np.array(sorted(longest), np.int64)
    found = repeated(ks, _WORDS, facts)
    if found is not None:
        signs = list(found.signs)
        if found.is_dense and not _are_much(pauses, facts):
            text = "They take no more of the time than usual pauses do on a busy host."
            signs.append(Sign(-FAIR, Evidence(text)))
        signs.append(Sign(0.0, _lengths(ks, longest, facts.onset_k)))
        suspect = _log(longest, pauses)
        yield Hypothesis("gc_pause", tuple(signs), suspect, found.explained, explains=_EFFECTS)
        return
    page = None if ks.size else _stopped(pauses, facts)
    if page is not None:
        yield page
    elif pauses or facts.named(*_SUMS) or any(map(_may_pause, facts.named(_COLLECTIONS))):
        text = "No JVM that is watched began to pause longer, or more often, at the onset."
        yield absent("gc_pause", text, _unwatched(pauses, facts))
    else:
        yield unmeasured(
            "gc_pause", "pauses of the brokers' JVMs (their GC logs: probe broker_log)"
        )


def _unwatched(pauses: list[_Pause], facts: Facts) -> str:
    """Return of how many JVMs no pauses are reported: each broker is one."""
    named = [parse_series(name) for name in facts.named(*_SUMS, _COLLECTIONS) if _may_pause(name)]
    watched = {one.log for one in pauses} | {
        (one.source, one.label("log") or one.label("target")) for one in named
    }
    return facts.unwatched("pauses of the JVM", watched, is_of_each=True)


def _log(longest: dict[int, float], pauses: list[_Pause]) -> str:
    """Return whose long pauses took most, by host and log."""
    total: dict[tuple[str, str], float] = {}
    for one in pauses:
        if one.k in longest:
            total[one.log] = total.get(one.log, 0.0) + one.seconds
    if not total:
        return ""
    source, log = max(total, key=total.__getitem__)
    return f"JVM of {log or 'a broker'}" + (f" on {host_of(source)}" if source else "")


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
    stopped: dict[tuple[str, str], float] = {}
    for one in pauses:
        if first <= one.k < end:
            stopped[one.log] = stopped.get(one.log, 0.0) + one.seconds
    sums = [
        float(between(series, first, end).sum())
        for series in (() if stopped else facts.named(*_SUMS).values())
    ]
    return max([*stopped.values(), *sums], default=0.0) >= _MUCH * (end - first)


def _lengths(ks: NDArray[np.int64], longest: dict[int, float], onset_k: int) -> Evidence:
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
    return Hypothesis("gc_pause", tuple(signs), _host(worst), share)


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
        _BROKER,
        "grep -E 'Pause (Full|Young)' {gc_log} | tail",
        f"a pause of {_OF_STEP:.0%} of the step or more, or any Pause Full",
        f"a pause of {{step_seconds*{1000 * _OF_STEP:g}}}ms or more, or any Pause Full",
        is_lasting=True,
    ),
}
