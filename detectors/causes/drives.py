"""The brokers' drives: garbage collection, limits, slowness.

Method:  per drive, the time of a request against what the drive was given to do. Slower with no more to do
         is the drive's own doing: garbage collection where flushes slow less than writes or every block was
         written once, a limit where bytes or requests stay at one value and the others queue, else a drive
         that is slow throughout.
Assumes: drives that are watched are the brokers'. A peer with the same work that stays fast speaks for the
         drive; one that slows as much speaks against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detectors.causes import channel, drive_facts, drive_rates, places
from detectors.causes.channel import Shift
from detectors.causes.drive_facts import Drive
from detectors.causes.facts import MORE, Facts
from detectors.causes.hypothesis import (
    CLEAR,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    ruled_out,
    unmeasured,
)
from detectors.causes.locking import Coupling, coupling
from soak.core import wording
from soak.core.model import Evidence
from soak.core.series import parse_series

NEXT = {
    "drive_gc": "trim the drive (fstrim), and leave more of it unused",
    "drive_throttled": "see the drive's temperature, and the limits of its cloud or cgroup",
    "slow_drive": "see the drive's health and limits: smartctl, a cloud's throttling",
}

_SLOWER = 1.5
_MOSTLY = 0.5  # of the step
_FELL = 1.5
_MORE_CLOSELY = 0.2  # of a rank correlation
_LEAST_SHARE = 0.2
_AS_MUCH = 0.5  # of the ratio, on logarithms, by which the suspect slowed
_MOST_NAMES = 3
_OWN_LIMITS = "limits of the brokers' own cgroups (io.max)"
"""A host's drive and flushes are calm while one blocks the broker alone."""


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that lies in a drive."""
    for cause, judged, beyond in (
        ("drive_gc", _collecting, ""),
        ("drive_throttled", _throttled, _OWN_LIMITS),
        ("slow_drive", _slow, ""),
    ):
        found = [one for drive in facts.drives if (one := judged(drive, facts))]
        if found:
            yield max(found, key=lambda one: one.log_odds)
        elif not any(drive_facts.WRITE_AWAIT in drive.shifts for drive in facts.drives):
            yield unmeasured(cause, "time of a write on the brokers' drives (probe disk_io)")
        elif all(map(_is_calm, facts.drives)):
            names = ", ".join(drive.name for drive in facts.drives)
            text = f"Writes did not become slower on any drive ({names})."
            channels = drive_facts.measured(facts)
            missing = (facts.unwatched_drives("time of a write", channels), beyond)
            yield absent(cause, text, ", ".join(filter(None, missing)))


def _is_calm(drive: Drive) -> bool:
    """True for writes that did not slow down; where there were none, for a drive that is not busy."""
    write = drive.shifts.get(drive_facts.WRITE_AWAIT)
    if write is None:
        return not drive.is_always_busy
    return write.is_calm or write.delta < 0.0


# --- slower with no more to do


def _same_work(drive: Drive) -> Shift | None:
    """Return the bytes written to a drive where nothing that it had to do grew; None else.

    That many more bytes are more work even where their noise hides it.
    """
    written = drive.shifts.get(drive_facts.WRITTEN)
    if written is None or drive.more_work or written.ratio >= MORE:
        return None
    return written


def _stalls(drive: Drive, facts: Facts) -> Sign | None:
    """Return that latency follows the writes of this drive second by second, and no other drive's as much.

    A drive that stalls now and then, and is fast in between, hardly steps.
    """
    write = drive.shifts.get(drive_facts.WRITE_AWAIT)
    if write is None or write.ratio < _SLOWER or write.delta <= 0.0:
        return None
    own = _followed(write, facts)
    if own is None or not own.is_following or own.explained < _MOSTLY:
        return None
    others = (
        one.shifts.get(drive_facts.WRITE_AWAIT) for one in facts.drives if one.place != drive.place
    )
    rhos = [found.rho for one in others if one and (found := _followed(one, facts))]
    if any(own.rho - rho < _MORE_CLOSELY for rho in rhos):
        return None
    compared = f", {max(rhos):.2f} with the other drives at most" if rhos else ""
    text = (
        f"Latency follows the writes of {drive.name} second by second (rank correlation {own.rho:.2f} over "
        f"{own.seconds} s{compared}), which makes {own.explained:.0%} of the step."
    )
    return Sign(CLEAR, Evidence(text, {"rho": own.rho}))


def _followed(one: Shift, facts: Facts) -> Coupling | None:
    series = facts.nearby.series.get(one.series)
    return None if series is None else coupling(series, facts)


def _collecting(drive: Drive, facts: Facts) -> Hypothesis | None:
    slower = drive.risen(drive_facts.WRITE_AWAIT, _SLOWER)
    busier = drive.risen(drive_facts.WRITE_TIME, _SLOWER) or drive.risen(drive_facts.BUSY)
    written = _same_work(drive)
    if written is None:
        return None
    if slower is not None and busier is not None:
        share = 1.0 if drive.is_saturated else slower.share(facts.change)
        signs = [
            Sign(CLEAR, slower.evidence(facts.change)),
            Sign(0.0, busier.evidence(facts.change)),
            *_probed_signs(drive, facts),
        ]
    elif stalls := _stalls(drive, facts):
        slower, share = drive.shifts[drive_facts.WRITE_AWAIT], 1.0
        signs = [stalls]
    else:
        return None
    if share < _LEAST_SHARE:
        return None
    signs.append(Sign(0.0, _work_text(written)))
    each, uneven = drive_rates.same_time_each(drive, facts), drive_rates.uneven(drive, facts)
    if each is not None:
        signs.append(Sign(-CLEAR, each))
    if uneven is not None:
        signs.append(Sign(0.0, uneven))
    if drive.is_worn:
        signs.append(Sign(FAIR, _wear_text(drive)))
        if facts.is_load_steady:
            signs.append(Sign(SLIGHT, _steady_text(facts)))
    else:
        signs.append(Sign(0.0, _wear_text(drive)))
        if drive.is_slow_throughout and drive.flush is not None and uneven is None:
            signs.append(Sign(-FAIR, drive.flush.evidence(facts.change)))
        else:
            like = (
                "A drive that fails, or one that a cloud throttles, looks the same from its host."
            )
            signs.append(Sign(0.0, Evidence(like)))
    signs += [
        *_collection_signs(drive),
        *_peer_signs(slower, drive, facts),
        *_load_signs(drive, facts),
    ]
    return _of_drive("drive_gc", signs, drive, share)


_MORE_FLASH = 1.3  # times as many bytes written to flash for each of the host
_COLLECTS_NOTHING = 1.1
_FEWER_BLOCKS = 0.5


def _collection_signs(drive: Drive) -> list[Sign]:
    """Return what the drive itself says of its collection of garbage."""
    own, signs = drive.own_word, list[Sign]()
    if own.amplification is not None:
        before, after = own.amplification
        text = Evidence(
            f"{drive.name} wrote {before:.2f} bytes to its flash for each byte it was sent before the onset, "
            f"{after:.2f} from then on.",
            {"amplification_before": before, "amplification": after},
        )
        is_more, is_none = after >= _MORE_FLASH * before, after < _COLLECTS_NOTHING
        signs.append(Sign(CLEAR if is_more else -CLEAR if is_none else 0.0, text))
    if own.free_blocks is not None:
        before, after = own.free_blocks
        text = Evidence(f"Of the blocks of {drive.name}, {before:.0%} were free, then {after:.0%}.")
        signs.append(Sign(FAIR if after < _FEWER_BLOCKS * before else 0.0, text))
    if own.throttled is not None:
        signs.append(Sign(-FAIR, _throttle_text(drive)))
    return [*signs, *_slow_request_signs(drive)]


def _throttle_text(drive: Drive) -> Evidence:
    return Evidence(f"{drive.name} {drive.own_word.throttled}, by its own log.")


def _slow_request_signs(drive: Drive) -> list[Sign]:
    """Return that the drive itself counted slow requests, so nothing above it made them slow."""
    if not drive.own_word.slow_requests:
        return []
    text = f"{drive.name} itself counted {drive.own_word.slow_requests:.0f} slow requests more."
    return [Sign(SLIGHT, Evidence(text))]


def _slow(drive: Drive, facts: Facts) -> Hypothesis | None:
    write, flush, written = (
        drive.risen(drive_facts.WRITE_AWAIT, _SLOWER),
        drive.flush,
        _same_work(drive),
    )
    if write is None and drive.is_standing_still:  # too few requests to say how long one takes
        busy = drive.shifts[drive_facts.BUSY]
        signs = [Sign(CLEAR, busy.evidence(facts.change))]
        signs += _peer_signs(busy, drive, facts)
        return _of_drive("slow_drive", signs, drive, 1.0)
    if write is None or written is None:
        return None
    if flush is None:
        what = "kernel 5.5 or newer; a drive that caches no writes is sent none"
        return unmeasured("slow_drive", f"flushes of {drive.name} ({what})")
    each, uneven = drive_rates.same_time_each(drive, facts), drive_rates.uneven(drive, facts)
    if not drive.is_slow_throughout and each is None:
        return ruled_out(
            "slow_drive",
            f"Flushes of {drive.name} did not slow down as its writes did: "
            f"{_from_to(flush)} compared with {_from_to(write)}.",
        )
    share = 1.0 if drive.is_saturated else max(one.share(facts.change) for one in (write, flush))
    if share < _LEAST_SHARE:
        return None
    signs = [
        Sign(CLEAR, write.evidence(facts.change)),
        Sign(0.0, flush.evidence(facts.change)),
        Sign(0.0, _work_text(written)),
        *([] if each is None else [Sign(SLIGHT, each)]),
        *([] if uneven is None else [Sign(-FAIR, uneven)]),
        Sign(-CLEAR if drive.is_worn and each is None else 0.0, _wear_text(drive)),
        *_slow_request_signs(drive),
        *_probed_signs(drive, facts),
        *_peer_signs(write, drive, facts),
        *_load_signs(drive, facts),
    ]
    return _of_drive("slow_drive", signs, drive, share)


_OF_A_BROKER_THAT_WAITS = frozenset(
    {"broker_down", "broker_pause", "leader_move", "under_replicated"}
)


def _of_drive(cause: str, signs: Sequence[Sign], drive: Drive, share: float) -> Hypothesis:
    """Return a hypothesis about a drive; for one that stands still its broker waits, and others take over."""
    if not drive.is_standing_still:
        return Hypothesis(cause, tuple(signs), drive.name, share)
    every = (*signs, Sign(FAIR, _standstill_text(drive)))
    return Hypothesis(cause, every, drive.name, share, explains=_OF_A_BROKER_THAT_WAITS)


def _standstill_text(drive: Drive) -> Evidence:
    waiting, done = drive.shifts[drive_facts.WAITING], drive.shifts[drive_facts.WRITES]
    return Evidence(
        f"{drive.name} came to a standstill: it completed {done.before:,.0f} writes/s before the onset, then "
        f"{done.after:.2g}, while {waiting.after:.0f} requests waited.",
        {"completed_before": done.before, "completed": done.after, "waiting": waiting.after},
    )


def _throttled(drive: Drive, facts: Facts) -> Hypothesis | None:
    """Return what says that a drive is held at a limit: its own word, or bytes and requests at one value."""
    slower = drive.risen(drive_facts.WRITE_AWAIT, _SLOWER)
    if slower is None:
        return None
    plateau = drive_rates.plateau(drive, facts)
    logged = drive.own_word.throttled
    if logged is None and plateau is None:
        return None
    share = 1.0 if drive.is_saturated else slower.share(facts.change)
    if share < _LEAST_SHARE:
        return None
    signs = [Sign(FAIR, slower.evidence(facts.change))]
    if logged is not None:
        signs.append(Sign(CLEAR, _throttle_text(drive)))
    if plateau is not None:
        each = drive_rates.same_time_each(drive, facts)
        signs.append(Sign(CLEAR if each is None else FAIR, plateau))
        signs += [] if each is None else [Sign(0.0, each)]
    return _of_drive("drive_throttled", signs, drive, share)


def _probed_signs(drive: Drive, facts: Facts) -> list[Sign]:
    """Return that flushes through the filesystem stayed: each waits for a write, as those of a broker do.

    Of a folder below a mount point of this drive it speaks clearly. Where it is not known which folders are,
    it does so slightly if as many of them are flushed as the host has drives.
    """
    probed = [
        one
        for one in facts.shifts(drive_facts.PROBED_FLUSH)
        if facts.are_on_one_host(places.place_of(one.series), drive.at)
    ]
    text = "Flushes of our own through the filesystem, each of which waits for a write, stayed as fast."
    mounted = _devices_by_mount_point(drive, facts)
    devices = {one.series: _below(one.label("directory"), mounted) for one in probed}
    if any(drive.place[1] in found for found in mounted.values()):
        own = [one for one in probed if drive.place[1] in devices[one.series]]
        return [Sign(-CLEAR, Evidence(text))] if channel.are_calm(own) else []
    unknown = [one for one in probed if not devices[one.series]]
    folders = {one.label("directory") for one in unknown if not one.is_sparse}
    drives = [one for one in facts.drives if facts.are_on_one_host(one.at, drive.at)]
    if len(folders) < len(drives) or not channel.are_calm(unknown):
        return []
    return [Sign(-SLIGHT, Evidence(text))]


def _devices_by_mount_point(drive: Drive, facts: Facts) -> dict[str, set[str]]:
    """Return the devices on the host of a drive by where they are mounted, as far as that is known.

    Without the root: each folder is below it, and other mount points than those of watched folders may be
    between.
    """
    found: dict[str, set[str]] = {}
    for name in facts.named("disk_mount_info"):
        one = parse_series(name)
        point = one.label("mountpoint")
        if point != "/" and facts.are_on_one_host(places.place_of(name), drive.at):
            found.setdefault(point, set()).add(one.label("device"))
    return found


def _below(folder: str, devices: Mapping[str, set[str]]) -> set[str]:
    """Return the devices of the innermost mount point that a folder is below; none if it is below none."""
    points = [point for point in devices if f"{folder}/".startswith(f"{point}/")]
    return devices[max(points, key=len)] if points else set()


def _peer_signs(slower: Shift, drive: Drive, facts: Facts) -> list[Sign]:
    """Return what drives of other hosts say: as slow speaks against this one, as fast for it.

    They slow at the onset as this one does: anywhere in its interval. What most of them did counts: of many
    drives one or another slows down by chance.
    """
    peers = [
        one
        for (at, device), one in drive_facts.shifts_by_place(slower.metric, facts).items()
        if device and not facts.are_on_one_host(at, drive.at)
    ]
    as_slow = [
        one
        for one in peers
        if drive_facts.has_risen(one, drive.interval)
        and np.log(one.ratio) >= _AS_MUCH * np.log(slower.ratio)
    ]
    calm = [one for one in peers if one.is_calm]
    if as_slow and _are_most(as_slow, peers):
        text = "Drives of other hosts slowed down as much at the same time"
        return [Sign(-FAIR, _of_others(text, as_slow, peers))]
    if calm and _are_most(calm, peers):
        return [Sign(SLIGHT, _of_others("The same channel of other hosts stayed", calm, peers))]
    return []


def _are_most(some: Sequence[Shift], every: Sequence[Shift]) -> bool:
    """True for half of them or more, so that the median one is among them."""
    return 2 * len(some) >= len(every)


def _of_others(text: str, some: Sequence[Shift], every: Sequence[Shift]) -> Evidence:
    part = "" if len(some) == len(every) else f" ({len(some)} of {len(every)} drives)"
    names = ", ".join(wording.title_with_source(one.series) for one in some[:_MOST_NAMES])
    more = f" and {len(some) - _MOST_NAMES} more" if len(some) > _MOST_NAMES else ""
    return Evidence(f"{text}{part}: {names}{more}.")


def _load_signs(drive: Drive, facts: Facts) -> list[Sign]:
    """Return that other drives got more to do: then the load grew, and this one is slow for that too.

    All others together, much more, and as much as counts next to what is written to this one: of many drives
    some write more at any time, and some less.
    """
    own = drive.shifts[drive_facts.WRITTEN]
    others = [
        one.shifts[drive_facts.WRITTEN]
        for one in facts.drives
        if one.place != drive.place and drive_facts.WRITTEN in one.shifts
    ]
    before, after = sum(one.before for one in others), sum(one.after for one in others)
    if (
        after < drive_rates.MORE_LOAD * before
        or after - before < (MORE - 1.0) * own.before
        or after <= 0.0
    ):
        return []
    most = max(others, key=lambda one: one.delta)
    rise = f"{wording.title_with_source(most.series)} went from {_from_to(most)}"
    if len(others) == 1:
        text = f"Another drive got more to do at the same time: {rise}."
    else:
        total = " to ".join(f"{wording.amount(one, 'bytes')}/s" for one in (before, after))
        who = f"The {len(others)} other drives together"
        text = f"{who} got more to do at the same time: {total}, and {rise}."
    return [Sign(-CLEAR, Evidence(text, {"series": most.series, "ratio": most.ratio}))]


def _from_to(one: Shift) -> str:
    return (
        f"{wording.amount_of(one.series, one.before)} to {wording.amount_of(one.series, one.after)}"
    )


def _work_text(written: Shift) -> Evidence:
    before, after = (f"{wording.amount(v, 'bytes')}/s" for v in (written.before, written.after))
    course = "fell" if written.after < written.before / _FELL else "did not grow"
    return Evidence(
        f"The work on the drive {course}: {before} were written to it before the step, {after} after it.",
        {"series": written.series, "before": written.before, "after": written.after},
    )


def _wear_text(drive: Drive) -> Evidence:
    if drive.turnovers is None:
        return Evidence("How many times its capacity the drive has been written is not known.")
    counts = (
        "which makes a collection of garbage likelier"
        if drive.is_worn
        else "which does not count: it may have been full before"
    )
    return Evidence(
        f"By the onset the drive had been written {drive.turnovers:.2g} times its capacity, as far as is "
        f"known, {counts}.",
        {"turnover_ratio": drive.turnovers},
    )


def _steady_text(facts: Facts) -> Evidence:
    total = sum(one.after for one in facts.sent)
    return Evidence(f"What we send stayed the same, {wording.amount(total, 'messages')}/s.")


# --- how to confirm them

_BROKER = "on {the broker's host}"
_AWAIT = (
    f"w_await above {{{drive_facts.WRITE_AWAIT}*{1000 * _SLOWER:g}}} ms "
    f"(it was {{{drive_facts.WRITE_AWAIT}*1000}} ms)"
)
_KIB = 1 / 1024  # which iostat calls a kB
_PLATEAU = f"wkB/s or w/s at one value within {drive_rates.STEADY:.0%} every second"
CONFIRM = {
    "drive_gc": Confirmation(
        _BROKER,
        "iostat -dxy 1 5 {device}",
        f"w_await at least {_SLOWER:g} times what it was, wkB/s unchanged or lower",
        f"{_AWAIT}, wkB/s no higher than {{{drive_facts.WRITTEN}*{_KIB}}}, as before",
    ),
    "drive_throttled": Confirmation(
        _BROKER,
        "iostat -dxy 1 10 {device}",
        f"{_PLATEAU}, w_await higher than before",
        f"{_PLATEAU}, {_AWAIT}",
    ),
    "slow_drive": Confirmation(
        _BROKER,
        "smartctl -a /dev/{device}",
        "media errors above 0, or a spare below its threshold",
        is_lasting=True,
    ),
}
