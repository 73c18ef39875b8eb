"""The filesystem above the brokers' drives: flushes that wait there, and space that runs out.

Method:  flushes slow down while the device below them does not, or while it slows too little to explain it:
         they wait above it, for a limit, a journal or a lock. A drive is full where free space was down to
         little at the onset and was more before, or where an error says so then, for the first
         time by its source.
Assumes: drives that are watched are the brokers'. Deletions slow flushes by more than the device below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from detectors import affected_brokers
from detectors.causes import background, channel, drive_facts, places
from detectors.causes.channel import Shift, risen
from detectors.causes.drive_facts import Drive
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    BARELY,
    CLEAR,
    FAIR,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    ruled_out,
    unmeasured,
)
from detectors.nearby import TimedEvent, between, when
from soak.core import wording
from soak.core.model import Evidence, Series
from soak.core.series import host_of, parse_series, source_of

NEXT = {
    "slow_fsync": "see limits on IO (cgroups) and the filesystem above the drive",
    "disk_full": "make room on the broker's drive: grow it, or remove other files",
}


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of flushes that slowed above a device, and of a drive without space."""
    yield from _flushes_above(facts)
    yield from _full(facts)


# --- flushes that wait above a device

_SLOWER = 1.5
_JOURNALS = (
    "bookie_journal_JOURNAL_SYNC_floor_seconds",
    "bookie_journal_JOURNAL_SYNC_seconds",
)
_QUANTILES = ("0.5", "0.99", "")
_LEAST_FLUSH_SHARE = 0.25
_OF_FLUSH = 0.5
_REQUESTS = 4  # that a flush may wait for in turn: data, journal, its commit, the cache
_TRIFLE = 0.1
_OF_DELETIONS = 2  # power of the ratio by which the device slowed, at least that of the flushes
_BY_DELETIONS = 3.0  # deletions alone slow flushes about twice


def _flushes_above(facts: Facts) -> Iterator[Hypothesis]:
    """Give the flush that slowed on a device that did not: for a limit, a journal, a lock."""
    flushes = facts.shifts(drive_facts.PROBED_FLUSH, *_JOURNALS)
    flush = risen((one for one in flushes if one.label("quantile") in _QUANTILES), _SLOWER)
    if not flushes:
        yield unmeasured("slow_fsync", "flushes (probe fsync)")
        return
    if flush is None:
        if channel.are_calm(flushes) and facts.is_flush_innocent:
            text = "Flushes were measured and did not become slower."
            missing = facts.unwatched_drives("flushes", facts.flush_channels)
            yield absent("slow_fsync", text, missing)
        return
    if flush.share(facts.change) < _LEAST_FLUSH_SHARE:
        return
    if _is_only_late(flush, facts):
        return  # the probe's thread, not the drive
    at = places.place_of(flush.series)
    known = [
        drive for drive in facts.drives if drive.is_known and facts.are_on_one_host(drive.at, at)
    ]
    if not known:
        what = f"the device below the flushes of {at.name} (probe disk_io on its host)"
        yield unmeasured("slow_fsync", what)
        return
    slower = [drive for drive in known if drive.is_guilty]
    is_deleting = facts.has_begun(*background.DELETIONS)
    guilty = [drive for drive in slower if is_deleting or not _is_trifle(drive, flush)]
    share = flush.share(facts.change)
    base = Sign(CLEAR, flush.evidence(facts.change))
    if not guilty:
        device = _trifling(slower) if slower else _innocent(known)
        signs = [base, Sign(FAIR, device)]
        short = facts.short_of_cpu
        if any(facts.are_on_one_host(places.place_of(one.series), at) for one in short):
            text = "The CPU of its host ran short; a flush waits for that too."
            signs = [replace(base, strength=BARELY), Sign(0.0, device), Sign(0.0, Evidence(text))]
        yield Hypothesis("slow_fsync", tuple(signs), at.name, share)
    elif is_deleting and all(_is_deletions(drive, flush) for drive in guilty):
        yield Hypothesis("slow_fsync", (base, Sign(0.0, _excused(guilty))), at.name, share)


def _is_only_late(flush: Shift, facts: Facts) -> bool:
    """True when a probe's flushes only began late, and not because each waited for the one before it.

    Where most looks find a flush under way for longer than the time between two, it makes the next one late.
    """
    lag = risen(_of_probe("fsync_schedule_lag_seconds", flush, facts))
    if lag is None or lag.rise < _OF_FLUSH * flush.rise:
        return False
    return not any(one.after > 0.0 for one in _of_probe("fsync_hanging_seconds", flush, facts))


def _of_probe(metric: str, flush: Shift, facts: Facts) -> list[Shift]:
    """Return what else the probe of a flush says of its folder; nothing where a page tells of the flush."""
    found = facts.shifts(metric, directory=flush.label("directory"))
    return [one for one in found if source_of(one.series) == source_of(flush.series)]


def _is_trifle(drive: Drive, flush: Shift) -> bool:
    """True when the work of a device did not grow and it slowed too little to explain the slower flushes."""
    write = drive.shifts.get(drive_facts.WRITE_AWAIT)
    if write is None or drive.more_work or drive.is_saturated:
        return False
    both = [write] if drive.flush is None else [write, drive.flush]
    return _REQUESTS * max(one.rise for one in both) < _TRIFLE * flush.rise


def _is_deletions(drive: Drive, flush: Shift) -> bool:
    """True when the only new work of a device is discards, and it slowed far less than the flushes."""
    is_discarding = all(one.metric == drive_facts.DISCARDS for one in drive.more_work)
    write = drive.shifts.get(drive_facts.WRITE_AWAIT)
    if write is None or drive.is_saturated:
        return False
    return is_discarding and flush.ratio >= max(_BY_DELETIONS, write.ratio**_OF_DELETIONS)


def _innocent(known: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The device below did not slow down and its work did not grow ({_names(known)}): "
        "the flushes wait above it."
    )


def _trifling(slower: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The work of the device below did not grow, and it slowed by too little to explain the step "
        f"({_names(slower)}): the flushes wait above it."
    )


def _excused(guilty: Sequence[Drive]) -> Evidence:
    return Evidence(
        f"The device below slowed by far less, and its only new work is deletions "
        f"({_names(guilty)}): the flushes wait above it."
    )


def _names(drives: Sequence[Drive]) -> str:
    return ", ".join(drive.name for drive in drives)


# --- no space left

_FREE = re.compile(r"(filesystem|disk|volume)\w*_(avail|free)_bytes$")
_TOTAL = "redpanda_storage_disk_total_bytes"
_LEAST_RATIO = 0.02
_LEAST_BYTES = 256 * 2**20
_SHRANK = 0.5
_REPORTED = re.compile(r"no space left|less space is free|disk full|out of space", re.IGNORECASE)
_VALUES = 3  # that are the onset's: a drive that fills later made no step
_EARLIER_SECONDS = 60  # space runs out before latency feels it
_MOST_REPORTS = 3
_PROBE = "probe@"
_ENDS = frozenset({"broker_down"})


def _full(facts: Facts) -> Iterator[Hypothesis]:
    """Give the drives that had no space left at the onset."""
    free = [s for m in facts.metrics if _FREE.search(m) for s in facts.touched(m).values()]
    reports = _no_space_reported(facts)
    first, last = facts.near
    reported = [one for one in reports if first - _EARLIER_SECONDS <= one.k <= last]
    short = [(one.name, text) for one in free if (text := _short(one, facts))]
    if reported or short:
        signs = [
            Sign(0.0 if at else CLEAR + FAIR, _report_text(one, facts))
            for at, one in enumerate(reported[:_MOST_REPORTS])
        ]
        signs += [Sign(CLEAR + FAIR, text) for _, text in short[:1]]
        suspect = _mount(short[0][0]) if short else _hosts(reported)
        full = [*(name for name, _ in short), *(f"{one.source}|" for one in reported)]
        explains = _ENDS if _may_end(full, facts) else frozenset[str]()
        yield Hypothesis("disk_full", tuple(signs), suspect, explains=explains)
    elif free and not reports:
        yield ruled_out("disk_full", "There was free space on the drives that were watched.")
    elif not reports:
        yield unmeasured("disk_full", "free space of the brokers' drives (probe fsync)")


def _may_end(full: Sequence[str], facts: Facts) -> bool:
    """True unless the brokers that do not answer are known to have their data on other drives than these.

    A broker ends when the drive of its only log folder takes no more.
    """
    silent = [one.what for one in (*facts.answers.unanswered, *facts.answers.silent_pages)]
    return not silent or any(
        affected_brokers.may_be_of(series, broker, facts.nearby)
        for series in full
        for broker in silent
    )


def _mount(series: str) -> str:
    name = parse_series(series)
    place = name.label("mountpoint") or name.label("device") or name.label("directory")
    return f"{place or 'drive'} on {places.place_of(series).name}"


def _no_space_reported(facts: Facts) -> list[TimedEvent]:
    """Return the first report of each source that there is no space: its next ones tell nothing new."""
    found: dict[str, TimedEvent] = {}
    for one in facts.nearby.events:
        if _REPORTED.search(str(one.event.fields.get("reason", ""))):
            found.setdefault(one.source, one)
    return list(found.values())


def _report_text(one: TimedEvent, facts: Facts) -> Evidence:
    by = f" by {one.source}" if one.source else ""
    text = (
        f"First reported{by} {when(one.k - facts.onset_k)}: {one.event.fields.get('reason', '')}."
    )
    return Evidence(text, {"k": one.k})


def _hosts(reported: Sequence[TimedEvent]) -> str:
    """Return the hosts whose probes reported: they read drives and logs of their own host."""
    sources = (one.source for one in reported)
    hosts = (host_of(source) for source in sources if source.startswith(_PROBE))
    return ", ".join(dict.fromkeys(hosts))


def _short(series: Series, facts: Facts) -> Evidence | None:
    """Return the free space at the onset when it is too little and was more before."""
    nearby = facts.nearby
    first, last = channel.near(facts.change, nearby.lag_seconds.get(series.name, 0.0))
    stop = min(last + _VALUES * channel.spacing_of(series), facts.end_k)
    before = between(series, nearby.k0, first - _EARLIER_SECONDS)
    after = between(series, last, stop)
    if min(before.size, after.size) == 0:
        return None
    was, became = float(np.max(before)), float(np.median(after))
    if became >= _least(series, facts) or became >= _SHRANK * was:
        return None
    return Evidence(
        f"{wording.title(series.name)} of {source_of(series.name)} was down to "
        f"{wording.amount(became, 'bytes')} at the onset; before it was up to "
        f"{wording.amount(was, 'bytes')}.",
        {"free_bytes": became, "free_before_bytes": was},
    )


def _least(series: Series, facts: Facts) -> float:
    at = places.place_of(series.name)
    sizes = [
        float(np.median(one.values))
        for name, one in facts.named(_TOTAL).items()
        if places.place_of(name) == at and one.values.size
    ]
    return _LEAST_RATIO * max(sizes) if sizes else float(_LEAST_BYTES)


# --- how to confirm them

_BROKER = "on {the broker's host}"
CONFIRM = {
    "slow_fsync": Confirmation(
        _BROKER,
        "cat /sys/fs/cgroup$(systemctl show -p ControlGroup --value {unit})/io.max",
        "1 line or more, each of them a limit on IO",
        is_lasting=True,
    ),
    "disk_full": Confirmation(
        _BROKER,
        "df -h {data_dir}",
        f"Avail below {wording.amount(_LEAST_BYTES, 'bytes')}, or below {_LEAST_RATIO:.0%} on a Redpanda",
    ),
}
