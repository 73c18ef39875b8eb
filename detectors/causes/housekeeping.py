"""What brokers do by themselves: they delete old segments, roll new ones, and compact.

Method:  deletions or rolls that begin at the onset, or come there three times as often, and to which latency
         is locked (`locking`); spikes that come again need only be locked to rolls, over all that is seen. A
         compaction is counted when it ends, so it may be reported two minutes late: the device dates it.
Assumes: deletions and rolls are reported within two seconds, and cost latency within two. Rolls in the same
         seconds as deletions are left to these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.causes import background, drive_facts, locking
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    CLEAR,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    ruled_out,
    unmeasured,
)
from detectors.causes.locking import Words, repeated
from detectors.nearby import TimedEvent, when
from soak.core import wording
from soak.core.model import Evidence

NEXT = {
    "retention_cliff": "see how files are deleted: filesystem, discards, size of segments",
    "segment_roll": "see the size of segments, and what is flushed when one is closed",
    "compaction": "see the bookies' compaction settings: rate, thresholds, interval",
}

DELETION = "retention_deletion"
# each has all deletions, as far as it can tell
_DELETIONS = (DELETION, "segment_deletion", "ledger_deletion")
_DELETED = ("vectorized_storage_log_log_segments_removed", "bookie_DELETED_LEDGERS")
_DELETION_WORDS = Words(
    "a deletion", "deletions", "deletions of old segments", "deletion of old segments"
)
_ROLL_WORDS = Words("a roll", "rolls", "rolls of segments", "roll of a segment")
_TOGETHER = 0.5  # of the rolls within a second of a deletion
_MOST_P = 0.01
_LEAST_SPIKES = 4


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypotheses about deletions, rolls and compactions."""
    yield _deleting(facts)
    yield _rolling(facts)
    yield from _compacting(facts)


def _deleting(facts: Facts) -> Hypothesis:
    """Return what says most for deletions: those of one kind, or those of other topics among them."""
    reported = list(_deletions(facts))
    if not reported and not background.are_deletions_known(facts):
        return unmeasured(
            "retention_cliff", "deletions of old segments (probe broker_log, or retention_kafka)"
        )
    found = [one for ks, earlier, events in reported if (one := _begun(ks, earlier, events, facts))]
    if not found:
        text = "Deletions neither began at the onset nor is latency higher when one goes on."
        return ruled_out("retention_cliff", text)
    return max(found, key=lambda one: one.log_odds)


def _deletions(
    facts: Facts,
) -> Iterator[tuple[NDArray[np.int64], int | None, Sequence[TimedEvent]]]:
    """Give the seconds of deletions, their number in the run before, and the events that report them.

    Those of other topics apart, too: regular ones of this run would hide them. How many of these there were
    before is not known, nor of those that are only counted.
    """
    for kind in _DELETIONS:
        events = facts.events(kind)
        others = [one for one in events if not facts.is_ours(one)]
        if 0 < len(others) < len(events):
            yield np.unique(np.array([one.k for one in others], np.int64)), None, others
        if events:
            yield facts.event_ks(kind), facts.nearby.earlier_events.get(kind, 0), events
    counted = facts.counted_ks(*_DELETED)
    if counted.size:
        yield counted, None, ()


def _begun(
    ks: NDArray[np.int64], earlier: int | None, events: Sequence[TimedEvent], facts: Facts
) -> Hypothesis | None:
    about = _about(events[0]) if events else ""
    found = repeated(ks, _DELETION_WORDS, facts, earlier=earlier, about_first=about)
    if found is None:
        return None
    suspect = _topics(one for one in events if one.k >= facts.near[0])
    return Hypothesis("retention_cliff", found.signs, suspect, found.explained)


def _topics(events: Iterable[TimedEvent]) -> str:
    """Return the topics that most of these events are of."""
    counts = Counter(str(one.event.fields.get("topic", "")) for one in events)
    topics = sorted(counts.keys() - {""}, key=lambda topic: (-counts[topic], topic))
    return f"topic {', '.join(topics[:3])}" if topics else ""


def _about(one: TimedEvent) -> str:
    """Return what was deleted, as far as the event tells."""
    fields = one.event.fields
    what = [f"{key} {fields[key]}" for key in ("topic", "partition") if key in fields]
    size = one.event.number("bytes")
    if size > 0.0:
        what.append(f"about {wording.amount(size, 'bytes')}")
    return f" ({', '.join(what)})" if what else ""


# --- rolls


def _rolling(facts: Facts) -> Hypothesis:
    ks = facts.event_ks(*background.ROLLS)
    if ks.size == 0:
        return unmeasured("segment_roll", "rolls of segments (probe broker_log)")
    # What others write rolls their segments: of a step it is their load that costs.
    ks = facts.event_ks(*background.ROLLS, is_ours=facts.change.kind != "spikes")
    if _comes_with_deletions(ks, facts):
        return ruled_out("segment_roll", "Segments roll in the same seconds as others are deleted.")
    if facts.change.kind == "spikes":
        signs, explained = _spikes(ks, facts)
    else:
        earlier = sum(facts.nearby.earlier_events.get(kind, 0) for kind in background.ROLLS)
        found = repeated(ks, _ROLL_WORDS, facts, earlier=earlier)
        signs, explained = ((), 0.0) if found is None else (found.signs, found.explained)
    if not signs:
        text = "Rolls did not begin at the onset, and latency is not locked to them."
        return ruled_out("segment_roll", text)
    period = period_of(ks)
    if period is not None:
        signs = (*signs, Sign(0.0, _periodic(ks, period)))
    return Hypothesis("segment_roll", signs, _topics_of_rolls(facts), explained)


def _topics_of_rolls(facts: Facts) -> str:
    kind = next(kind for kind in background.ROLLS if facts.event_ks(kind).size)
    return _topics(facts.events(kind))


def _comes_with_deletions(ks: NDArray[np.int64], facts: Facts) -> bool:
    since = ks[ks >= facts.onset_k]
    deletions = np.concatenate([facts.event_ks(kind) for kind in background.DELETIONS])
    close = np.isin(since, np.concatenate([deletions - 1, deletions, deletions + 1]))
    return bool(since.size) and float(close.mean()) >= _TOGETHER


def _spikes(ks: NDArray[np.int64], facts: Facts) -> tuple[tuple[Sign, ...], float]:
    start, stop = facts.nearby.soak_start(facts.onset_k), facts.nearby.soak_end(facts.onset_k)
    found = locking.locking_in(ks, facts, start, stop, least_seconds=_LEAST_SPIKES)
    if found is None or found.p_value > _MOST_P:
        return (), 0.0
    text = (
        f"The median {wording.title(facts.change.series)} of seconds with a roll of a segment was "
        f"{wording.amount(found.median_with, 'seconds')}, of the others "
        f"{wording.amount(found.median_without, 'seconds')} (permutation test, p = {found.p_value:.2g})."
    )
    numbers = {"median_with": found.median_with, "median_without": found.median_without}
    explained = locking.explained_ratio(facts.change, found)
    return (Sign(CLEAR + FAIR, Evidence(text, numbers)),), explained


def _periodic(ks: NDArray[np.int64], period: float) -> Evidence:
    return Evidence(
        f"Segments rolled every {wording.span(period)} ({ks.size} seconds held a roll).",
        {"period_seconds": period},
    )


# The period of events: times folded at every candidate length, and how sharply they then agree.
# Method:  Rayleigh's statistic |sum exp(2 pi i k / p)|^2 / n over candidate periods p, bursts counted once;
# the longest period within 10 % of the best wins, as every divisor of a period folds as well.
# Assumes: a period that is the same throughout; two pulse trains interleaved show as one of half the length.

LEAST_EVENTS = 5
_LEAST_PERIOD = 4.0
_SHARP = 0.7  # mean resultant length of the folded times
_NEAR_BEST = 0.9
_STEPS = 2000


def period_of(ks: NDArray[np.int64], burst_seconds: int = 2) -> float | None:
    """Return the seconds between events, bursts counted once; None when they keep no period."""
    starts = ks[np.concatenate([[True], np.diff(ks) > burst_seconds])] if ks.size else ks
    if starts.size < LEAST_EVENTS:
        return None
    length = float(starts[-1] - starts[0])
    periods = 1.0 / np.linspace(1.0 / _LEAST_PERIOD, (LEAST_EVENTS - 1) / (length + 1.0), _STEPS)
    angles = 2.0 * np.pi * (starts - starts[0])[None, :] / periods[:, None]
    sharp = np.abs(np.exp(1j * angles).mean(axis=1))
    if sharp.max() < _SHARP:
        return None
    best = float(periods[sharp >= _NEAR_BEST * sharp.max()].max())
    # refined by the count of whole periods between the first and the last
    return length / max(1.0, round(length / best))


# --- compactions

_MORE = 1.3
_TRAFFIC = (drive_facts.READ, drive_facts.WRITTEN, drive_facts.READS, drive_facts.WRITES)


def _compacting(facts: Facts) -> Iterator[Hypothesis]:
    ks = background.compactions(facts)
    if not ks:
        if background.are_compactions_known(facts) and not background.may_be_compacting(facts):
            yield ruled_out("compaction", "No compaction was reported from the onset on.")
        return
    traffic = [
        one for drive in facts.drives for metric in _TRAFFIC if (one := drive.risen(metric, _MORE))
    ]
    if not traffic and ks[0] > facts.near[1]:
        return
    text = (
        f"The bookies reported a compaction {when(ks[0] - facts.onset_k)}, and none in "
        f"the {facts.onset_k - facts.nearby.k0} s before."
    )
    signs = [Sign(CLEAR, Evidence(text, {"reported_k": ks[0]}))]
    most = max(traffic, key=lambda one: one.ratio, default=None)
    if most is not None:
        strength = FAIR if facts.is_load_steady else SLIGHT
        signs.append(Sign(strength, most.evidence(facts.change)))
    yield Hypothesis("compaction", tuple(signs))


# --- how to confirm them

_BROKER = "on {the broker's host}"
CONFIRM = {
    "retention_cliff": Confirmation(
        _BROKER,
        "grep -h 'Deleting segment files' {log_dir}/server.log* | cut -c2-20 | sort | uniq -c | tail -n 40",
        "seconds from the onset on and none before it, or those of the peaks",
        is_lasting=True,
    ),
    "segment_roll": Confirmation(
        _BROKER,
        "grep -h 'Rolled new log segment' {log_dir}/server.log* | cut -c2-20 | sort | uniq -c | tail -n 40",
        "the seconds of the spikes, and few others",
        is_lasting=True,
    ),
    "compaction": Confirmation(
        "on {the bookie's host}",
        "grep -i compaction {log} | tail",
        "one that began at the onset",
        is_lasting=True,
    ),
}
_BOOKIE = Confirmation(
    "on {the bookie's host}",
    "iostat -dxy 1 60 {device}",
    "a d/s above 0, or more writes, in the seconds of the peaks alone",
)
CONFIRM_ON_PULSAR = {"retention_cliff": _BOOKIE, "segment_roll": _BOOKIE}
_LOGGED = "journalctl --utc -o short-iso -u {unit} | grep '%s' | cut -c-19 | uniq -c | tail -n 40"
CONFIRM_ON_REDPANDA = {
    "retention_cliff": Confirmation(
        f"{_BROKER}, as root",
        _LOGGED % r'Removing "[^"]*\.log"',
        CONFIRM["retention_cliff"].sign,
        is_lasting=True,
    ),
    "segment_roll": Confirmation(
        f"{_BROKER}, as root",
        _LOGGED % "Creating new segment",
        CONFIRM["segment_roll"].sign,
        is_lasting=True,
    ),
}
