"""More to do: a backlog that is read, or other users of a drive; or less allowed, by a quota.

Method:  a backlog that begins to drain at the onset, and seldom did before; or old data that others read, by
         what brokers give out and a backlog or drives together (`traffic`). A drive that gets more to do,
         which neither brokers nor clients account for. A throttle time in the answers of brokers.
Assumes: brokers report what they take in and give out for all clients, each broker its own part. A broker
         that compacts or deletes keeps less within a minute of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from detectors.causes import background, channel, drive_facts, places, traffic
from detectors.causes.background import Drain
from detectors.causes.channel import Shift, are_calm, risen
from detectors.causes.drive_facts import Drive
from detectors.causes.facts import (
    BACKLOGS,
    BROKER_BACKLOGS,
    CLUSTER_BACKLOGS,
    LEADER_CHANGE,
    Facts,
)
from detectors.causes.hypothesis import (
    CLEAR,
    DECISIVE,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    ruled_out,
    unmeasured,
)
from detectors.nearby import between, when
from soak.core import wording
from soak.core.model import Evidence, Series
from soak.core.series import parse_series, series_name, source_of

NEXT = {
    "catch_up_read": "find the consumers that read old data; limit them with a quota",
    "noisy_neighbour": "see which other process or tenant writes to that drive: iotop",
    "quota_throttle": "see the quotas of users and clients: kafka-configs.sh --describe",
}

NEXT_OF_OWN_CONSUMER = {
    "catch_up_read": "find out why it received nothing before the onset; what it missed drains by itself",
}

_READ_MORE = 1.1
_STANDS_AROUND_SECONDS = 10  # the peak of a backlog, and the first message after it
_LEAST_STANDING_SECONDS = 5
_GROUPS = ("group_id", "consumergroup", "redpanda_group")
"""Labels that name a consumer group."""
_MOVED = 0.5  # of what one broker's part of a backlog fell by


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that is more work, or less allowance."""
    yield _catch_up(facts)
    yield from _read_by_others(facts)
    yield _quota(facts)
    busy = [one for drive in facts.drives if (one := _neighbour(drive, facts))]
    if busy:
        yield max(busy, key=lambda one: one.log_odds)


def _catch_up(facts: Facts) -> Hypothesis:
    drain = background.draining(facts)
    if drain is None or _has_moved(drain, facts):
        if not facts.named(*BACKLOGS):
            return unmeasured("catch_up_read", "backlogs of all consumer groups (probe prometheus)")
        missing = _unread_backlogs(facts)
        which = "known backlog" if missing else "backlog"
        return absent("catch_up_read", f"No {which} began to drain at the onset.", missing)
    received = risen(facts.shifts("received_messages", "consume_rate"), _READ_MORE)
    read = risen(d.shifts[drive_facts.READ] for d in facts.drives if drive_facts.READ in d.shifts)
    reads = [one for one in (received, read) if one is not None]
    signs = [Sign(_strength(drain), _drained(drain, facts.onset_k))]
    stood = _stood_before(drain, facts)
    signs += [] if stood is None else [Sign(0.0, stood)]
    signs += [Sign(SLIGHT, one.evidence(facts.change)) for one in reads]
    fallen = 1.0 - drain.end / drain.peak
    return Hypothesis("catch_up_read", tuple(signs), _reader(drain), fallen)


def _has_moved(drain: Drain, facts: Facts) -> bool:
    """True where other brokers' parts of a backlog grew by much of what fell: a topic takes its own along."""
    metric, group = parse_series(drain.series).metric, _group(drain.series)
    if metric not in BROKER_BACKLOGS:
        return False
    first, end = drain.from_k - channel.LEAD, drain.from_k + drain.seconds + 1
    parts = (
        between(series, first, end)
        for name, series in facts.named(metric).items()
        if name != drain.series and _group(name) == group
    )
    grown = sum(float(part[-1] - part[0]) for part in parts if part.size)
    return grown >= _MOVED * (drain.peak - drain.end)


def _read_by_others(facts: Facts) -> Iterator[Hypothesis]:
    """Give that other clients read old data: brokers give out more, and a backlog or the drives say what."""
    old = traffic.old_data(traffic.known(facts), facts)
    if old is None:
        return
    flow, backlog = old.flow, old.backlog
    text = f"The {flow.whose} had more {flow.text} in all, while what we send and receive stayed."
    total = Evidence(text, {"before": flow.before, "after": flow.after})
    signs = [Sign(FAIR if flow.missing else CLEAR, total)]
    if backlog is not None:
        signs.append(Sign(FAIR, _drained(backlog, facts.onset_k)))
    if old.reads:
        most = max(old.reads, key=lambda one: one.rise)
        signs.append(Sign(FAIR, most.evidence(facts.change)))
    suspect = "" if backlog is None else _reader(backlog)
    missing = (flow.missing,) if flow.missing else ()
    yield Hypothesis("catch_up_read", tuple(signs), suspect, missing=missing)


def _unread_backlogs(facts: Facts) -> str:
    """Return whose backlogs are not known across the onset, "" where those of all consumer groups are."""
    if facts.known_channels(*CLUSTER_BACKLOGS):
        return ""
    pages = {background.page_of(name) for name in facts.known_channels(*BROKER_BACKLOGS)}
    if pages:
        return background.unread_pages("backlogs", pages, facts)
    is_awaited = bool(facts.named(*CLUSTER_BACKLOGS, *BROKER_BACKLOGS))
    how = ", in more of the seconds since the onset" if is_awaited else " (probe prometheus)"
    return f"backlogs of other consumer groups{how}"


def _strength(drain: Drain) -> float:
    """Return the odds of a drain at the onset: as rare as it is there by chance."""
    return min(DECISIVE, -log(drain.usual_ratio)) if drain.usual_ratio > 0.0 else DECISIVE


def _reader(drain: Drain) -> str:
    """Return whose backlog it is: a consumer group, or what reports it where no group is named."""
    one = parse_series(drain.series)
    group = _group(drain.series)
    return f"group {group}" if group else one.source


def _group(backlog: str) -> str:
    """Return the consumer group of a backlog, "" where none is named."""
    one = parse_series(backlog)
    return next(filter(None, map(one.label, _GROUPS)), "")


def _drained(drain: Drain, onset_k: int) -> Evidence:
    unit = parse_series(drain.series).unit or "messages"
    return Evidence(
        f"A backlog began to drain {when(drain.from_k - onset_k)}: "
        f"{wording.title(drain.series)} of {source_of(drain.series)} fell from "
        f"{wording.amount(drain.peak, unit)} to {wording.amount(drain.end, unit)} "
        f"in {wording.span(drain.seconds)}{_empty_soon(drain)}.{_often(drain)}",
        {"peak": drain.peak, "end": drain.end, "from_k": drain.from_k, "seconds": drain.seconds},
    )


def _empty_soon(drain: Drain) -> str:
    """Return when a backlog is read at the pace of its fall, "" where it is read already."""
    left_seconds = drain.end * drain.seconds / (drain.peak - drain.end)
    return f"; at this pace it is empty {wording.span(left_seconds)} later" if drain.end > 0 else ""


def _often(drain: Drain) -> str:
    """Return how often backlogs fell as much before, "" where none did."""
    if not drain.earlier:
        return ""
    times = wording.counted(drain.earlier, "time")
    return f" Backlogs fell like that {times} in the {wording.span(drain.earlier_seconds)} before."


def _stood_before(drain: Drain, facts: Facts) -> Evidence | None:
    """Return that the reader of a backlog received nothing before it began to read; None where it did."""
    reader = source_of(drain.series)
    series = facts.named("received_messages").get(series_name(reader, "received_messages"))
    if series is None:
        return None
    ks = series.k[series.values > 0.0]
    since = int(np.searchsorted(ks, drain.from_k + _STANDS_AROUND_SECONDS, "right"))
    gaps = [
        (int(end) - int(last) - 1, int(last) + 1)
        for last, end in pairwise(ks[:since].tolist())
        if end >= drain.from_k - _STANDS_AROUND_SECONDS
    ]
    seconds, from_k = max(gaps, default=(0, 0))
    if seconds < _LEAST_STANDING_SECONDS:
        return None
    text = (
        f"{reader} received nothing for {wording.span(seconds)}, "
        f"from {when(from_k - facts.onset_k)} on: that made the backlog."
    )
    return Evidence(text, {"from_k": from_k, "seconds": seconds})


# --- quotas

_THROTTLE = "throttle_seconds"
"""The wait that brokers asked a client for in their answers, as our own clients report it."""


def _quota(facts: Facts) -> Hypothesis:
    """Return what says that brokers hold clients back: a throttle time in their answers."""
    events = facts.events("throttled", "quota_throttle")
    if not facts.named(_THROTTLE) and not events:
        return unmeasured("quota_throttle", "throttle time in the answers of brokers")
    rose = risen(facts.shifts(_THROTTLE))
    begun = facts.has_begun("throttled", "quota_throttle")
    if rose is None and not begun:
        return ruled_out("quota_throttle", "No broker began to throttle at the onset.")
    signs, suspect = [], ""
    if rose is not None:
        signs.append(Sign(DECISIVE, rose.evidence(facts.change)))
    if begun:
        first = next(one for one in events if one.k >= facts.near[0])
        suspect = str(first.event.fields.get("broker", suspect))
        text = f"Brokers began to throttle this client {when(first.k - facts.onset_k)}."
        signs.append(Sign(DECISIVE, Evidence(text, {"first_k": first.k})))
    if facts.is_drive_innocent and facts.is_cpu_innocent and are_calm(facts.taken_in):
        signs.append(Sign(SLIGHT, Evidence("The brokers' drives and CPU are calm meanwhile.")))
    return Hypothesis("quota_throttle", tuple(signs), suspect)


# --- other users of a drive

_MORE_WORK = 1.5
_LEAST_BUSY_SHARE = 0.1
_LARGER_MESSAGES = 10.0
"""What others write more may be so many times larger than the messages before."""
_GIVEN_OUT = 0.5  # of the bytes that a drive reads more
_FREEING_SECONDS = 60
"""Kafka's default of file.delete.delay.ms, from a deletion to the work that it makes on the drive.

A compaction has replaced its first segments by then, too.
"""
_KEPT = (
    "kafka_log_log_size_bytes",
    "kafka_log_log_numlogsegments",
    "vectorized_storage_log_partition_size_bytes",
    "vectorized_storage_log_log_segments_active",
    "pulsar_storage_size_bytes",
)
"""What brokers keep, by their pages: it shrinks only where they delete or compact."""
_FREE = ("node_filesystem_avail_bytes", "redpanda_storage_disk_free_bytes")
_DELETIONS = (*background.DELETIONS, "segment_unlink")
_MOST_P = 0.001  # that so many seconds of an onset hold an event by chance
_WRITES = (drive_facts.WRITTEN, drive_facts.WRITES, drive_facts.FLUSHES)
_READS = (drive_facts.READ, drive_facts.READS)
_WAITS = (
    drive_facts.WRITE_AWAIT,
    drive_facts.READ_AWAIT,
    drive_facts.BUSY,
    drive_facts.QUEUE,
    drive_facts.WEIGHTED,
)


def _neighbour(drive: Drive, facts: Facts) -> Hypothesis | None:
    """Return a drive that got more to do, which neither brokers nor clients account for."""
    reads = drive.most_risen(_READS, _MORE_WORK)
    more = drive.most_risen(_WRITES, _MORE_WORK) or reads
    slower = [one for metric in _WAITS if (one := drive.risen(metric, _MORE_WORK))]
    share = max((one.share(facts.change) for one in slower), default=0.0)
    if more is None or share < _LEAST_BUSY_SHARE:
        return None
    ours = _own_work(facts, more, drive)
    if ours:
        return ruled_out(
            "noisy_neighbour", f"The brokers may have made the work themselves: {ours}."
        )
    unknown = _unknown_work(facts, is_reading=reads is not None)
    if unknown:
        return unmeasured("noisy_neighbour", *unknown)
    worst = max(slower, key=lambda one: one.ratio)
    signs = [
        Sign(CLEAR, more.evidence(facts.change)),
        Sign(0.0, worst.evidence(facts.change)),
        Sign(FAIR if facts.taken_in else 0.0, _stayed_text(facts)),
    ]
    return Hypothesis("noisy_neighbour", tuple(signs), drive.name, share)


def _own_work(facts: Facts, more: Shift, drive: Drive) -> str:
    """Return what the brokers may have done themselves; "" if nothing."""
    drain = background.draining(facts)
    work = [*facts.sent, *facts.taken_in, *facts.given_out]
    is_more = facts.has_grown(work) or _may_be_given_out(drive, facts)
    is_moving = _has_begun(facts, LEADER_CHANGE, "isr_shrink") or background.is_copying(facts)
    reasons = (
        (is_more, "more was sent, taken in or given out"),
        (_may_have_written(facts, more), "others wrote more"),
        (drain is not None and not drain.is_usual, "a backlog began to drain"),
        (_has_begun(facts, *_DELETIONS), "deletions began"),
        (_is_freeing(drive, facts), "old data was deleted or compacted"),
        (is_moving, "leaders or copies moved"),
        (background.are_partitions_added(facts), "partitions were added"),
        (background.may_be_compacting(facts), "a compaction may be running"),
    )
    return ", ".join(text for holds, text in reasons if holds)


def _has_begun(facts: Facts, *kinds: str) -> bool:
    """True where events of these kinds began at the onset, or hold more seconds there than ever by chance.

    So do those of other topics alone: regular ones of this run would hide them.
    """
    if facts.has_begun(*kinds):
        return True
    first, stop = facts.near[0], facts.near[1] + 1
    share = (stop - first) / max(1, stop - facts.nearby.k0)
    events = [one for one in facts.events(*kinds) if one.k < stop]
    for found in (events, [one for one in events if not facts.is_ours(one)]):
        ks = {one.k for one in found}
        here = sum(k >= first for k in ks)
        # binomial: so many and more of all seconds in this share of the time
        if here and (here == len(ks) or bdtrc(here - 1, len(ks), share) <= _MOST_P):
            return True
    return False


def _is_freeing(drive: Drive, facts: Facts) -> bool:
    """True where brokers keep less, or the drive's host has more space, by more than ever before."""
    kept = facts.named(*_KEPT).values()
    used = (
        replace(series, values=-series.values)
        for name, series in facts.named(*_FREE).items()
        if facts.are_on_one_host(places.place_of(name), drive.at)
    )
    return any(_has_shrunk(one, _FREEING_SECONDS, facts) for one in kept) or any(
        _has_shrunk(one, 0, facts) for one in used
    )


def _has_shrunk(series: Series, seconds: int, facts: Facts) -> bool:
    """True where a level fell at the onset, or within so many seconds of it, by more than ever before."""
    lag = facts.nearby.lag_seconds.get(series.name, 0.0)
    first, last = channel.near(facts.change, lag, channel.spacing_of(series))
    before = between(series, facts.nearby.k0, first - seconds)
    then = between(series, first - seconds, last + seconds + 1)
    least = max(channel.floor_of(series.name), _MORE_WORK * _fall(before))
    return before.size >= channel.LEAST_VALUES and _fall(then) > least


def _fall(values: NDArray[np.float64]) -> float:
    """Return by how much a level fell at most, from any value to a later one."""
    return float((np.maximum.accumulate(values) - values).max(initial=0.0))


def _may_be_given_out(drive: Drive, facts: Facts) -> bool:
    """True when a good part of what a drive reads more may be what the brokers give out more.

    Most of what they give out is in memory: where old data is read as well, it grows by a small ratio.
    """
    read = drive.risen(drive_facts.READ)
    given = sum(
        one.rise
        for one in facts.given_out
        if one.delta >= one.clear and "bytes" in parse_series(one.series).metric
    )
    return read is not None and given >= _GIVEN_OUT * read.rise


def _unknown_work(facts: Facts, *, is_reading: bool) -> list[str]:
    """Return what is not measured of the brokers' own work: without it no other client can be blamed.

    What others send reaches a drive by any broker, for that one writes a copy of what another leads.
    """
    others = facts.other_writes
    pages = {background.page_of(one.series) for one in facts.taken_in if not one.is_sparse}
    are_read = bool(pages) and len(pages) >= facts.least_brokers
    is_written_known = are_read or (others is not None and not others.is_sparse)
    is_kept_known = facts.nearby.k1 > facts.near[1] + _FREEING_SECONDS
    is_kept_awaited = bool(facts.named(*_KEPT)) and not is_kept_known
    reasons = (
        (not (facts.sent or facts.taken_in), "what we send"),
        (not is_written_known, "what each broker takes in, or what other clients write"),
        (
            facts.is_intake_awaited,
            "bytes that the brokers take in, in more of the seconds since the onset",
        ),
        (is_reading and not facts.given_out, "what the brokers give out"),
        (
            is_reading and is_kept_awaited,
            "what the brokers keep, until a minute after the onset: a compaction makes it less",
        ),
    )
    return [text for holds, text in reasons if holds]


def _may_have_written(facts: Facts, more: Shift) -> bool:
    """True when what others write more may be what a drive got more to do."""
    others = background.more_written(facts)
    if others is None:
        return False
    before = background.sent_before(facts) + others.before
    return more.ratio <= _LARGER_MESSAGES * (before + others.rise) / max(before, 1.0)


def _backlogs(facts: Facts) -> bool:
    return bool(facts.named(*BACKLOGS))


def _stayed_text(facts: Facts) -> Evidence:
    """Say what speaks against the brokers' own work, and what was not watched that might speak for it."""
    others = facts.other_writes
    flows = {
        "what we send": facts.sent,
        "what other clients write": [others] if others and not facts.has_grown([others]) else [],
        "what the brokers take in": facts.taken_in,
    }
    known = {
        ("backlogs", "no backlog drained"): _backlogs(facts),
        ("leaders", "no move of leaders began"): background.are_leaders_known(facts),
        ("deletions", "no deletion began"): background.are_deletions_known(facts),
    }
    calm = [text for (_, text), is_known in known.items() if is_known]
    if background.are_compactions_known(facts):
        calm.append("no compaction began")
    stayed = wording.listed([what for what, found in flows.items() if found])
    unknown = [what for (what, _), is_known in known.items() if not is_known]
    rest = f" {wording.listed(unknown).capitalize()} were not watched." if unknown else ""
    return Evidence(
        "The brokers' own work does not explain it: "
        f"{wording.listed([f'{stayed} stayed the same across the step', *calm])}.{rest}"
    )


# --- how to confirm them

_TOOLS = "from {a host with the cluster's tools}"
_QUOTAS = "kafka-configs.sh --bootstrap-server {server}{admin} --describe"
_DRAINED = f"that falls from call to call, by {background.FALLEN:.0%} or more in all"
CONFIRM = {
    "catch_up_read": Confirmation(
        _TOOLS,
        "kafka-consumer-groups.sh --bootstrap-server {server}{admin} --describe --all-groups",
        f"a LAG {_DRAINED}",
    ),
    "noisy_neighbour": Confirmation(
        "on {the broker's host}, as root",
        "iotop -oPa",
        f"another process with {_MORE_WORK - 1:.0%} of the broker's bytes or more",
    ),
    "quota_throttle": Confirmation(
        _TOOLS,
        f"for t in users clients; do {_QUOTAS} --entity-type $t; done; "
        f"{_QUOTAS} --entity-type users --entity-type clients",
        "a producer_byte_rate or consumer_byte_rate below the plan's bytes a second for each broker",
        is_lasting=True,
    ),
}
CONFIRM_OF_OWN_CONSUMER = {
    "catch_up_read": Confirmation(
        "on {the load host}",
        "{soak} watch {run_dir}",
        "a lag that falls to 0, and more received than sent until then",
    ),
}
CONFIRM_ON_PULSAR = {
    "catch_up_read": Confirmation(
        _TOOLS, "pulsar-admin topics partitioned-stats {topic}", f"a msgBacklog {_DRAINED}"
    ),
    "quota_throttle": Confirmation(
        _TOOLS,
        "pulsar-admin namespaces get-publish-rate {namespace}",
        "a limit below the plan's rate",
    ),
}
