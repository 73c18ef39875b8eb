"""The way between client and broker, or between brokers: packets are late, lost or sent again.

Method:  a channel of the network itself steps up at the onset: round trips, by a fifth of the step, or by
         a twentieth where nothing else rose, for a message waits for several; answers on one connection
         later than others to the same question at the same instant; packets sent again, dropped or damaged.
         What only counts packets needs ten times as many of them. Else packets and single late answers need
         latency to follow them second by second, or the brokers' drives and CPU to be measured and calm;
         single late answers never count where CPU rose, unless they are as late as a packet that is sent
         again, in more seconds than before: these are counted, for they may be a few of a minute. Pages
         that answer late count where the brokers' own time for a request is known and stayed. A client that
         alone gets no acknowledgement, from leaders that give some to others, lost its way. Consumers that
         find no way to a broker, or no address of it, say so in their errors. A question waits in the queue
         of a slow broker, too: round trips rest on themselves where drives and CPU are calm or packets are
         lost, else on their part of the step; with a slow drive, or where the host that asks has no CPU left,
         they are weak.
Assumes: nothing is concluded from the rest being innocent alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from detectors import affected_brokers
from detectors.causes import background
from detectors.causes.acknowledgements import Silence
from detectors.causes.answers import ROUND_TRIPS
from detectors.causes.channel import Shift, are_calm, risen
from detectors.causes.facts import MORE, Facts
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
    strength_of_share,
    unmeasured,
)
from detectors.causes.locking import coupling
from detectors.nearby import when
from soak.core import wording
from soak.core.model import Evidence
from soak.core.series import host_of, source_of

NEXT = {"network": "find the bad link, host or path: drops in ip -s link, losses in mtr"}

_PAGES = "scrape_duration_seconds"
_AT_BROKER = (
    "vectorized_kafka_latency_produce_latency_seconds",
    "redpanda_kafka_request_latency_seconds",
    "kafka_network_requestmetrics_totaltime_seconds",
    "pulsar_broker_publish_latency_seconds",
)
_MORE = 1.5
_TOGETHER_SECONDS = 2
_ONE_OF_MANY = 0.05
"""Of the step: a message waits for its own trip, for those of its copies and of the requests before it."""
_LEAST_PACKETS = 1.0
_MANY_MORE, _MANY_PACKETS = 10.0, 5.0  # a second: no calm of anything else is asked for


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give which channel of the network changed with the step, or that it was cut."""
    if facts.answers.all_silent:
        yield _cut(facts)
        return
    if facts.answers.unreachable:
        yield _without_a_way(facts)
        return
    cut = [one for one in facts.acknowledgements.cut_clients if not facts.answers.has_way(one)]
    if cut:
        yield _cut_off(cut, facts)
        return
    yield from _measured(facts)


def _measured(facts: Facts) -> Iterator[Hypothesis]:
    """Give what round trips, late answers, packets and pages say."""
    trips = facts.shifts(*ROUND_TRIPS)
    counted = facts.shifts_like(background.PACKETS)
    is_innocent = facts.is_drive_innocent and facts.is_cpu_innocent
    trip = _felt(
        risen(trips, _MORE), facts, _ONE_OF_MANY if is_innocent else background.LEAST_WAY_SHARE
    )
    packets = risen((one for one in counted if one.after >= _LEAST_PACKETS), _MORE)
    lone = _felt(risen(facts.shifts(background.LONE_DELAY), _MORE), facts)
    if trip is not None:
        yield _late_trips(trip, lone, packets, facts)
        return
    again = background.resent(facts)
    if again is not None:
        yield _resent(again, facts)
        return
    if facts.is_cpu_guilty:  # a host that waits for a processor answers late too
        lone = None
    for late in (packets, lone):
        if late is not None and (found := _by_packets(late, facts, is_innocent=is_innocent)):
            yield found
            return
    page = _late_page(facts) if is_innocent else None
    if page is not None:
        yield _hypothesis([page], facts)
    elif not trips and not counted:
        yield _not_asked(facts)
    elif lone is None and are_calm([*trips, *counted]):
        yield _calm(facts, has_trips=bool(trips))


def _calm(facts: Facts, *, has_trips: bool) -> Hypothesis:
    """Return that packets stayed as they were: a host counts what it sends itself, and not the other way."""
    if has_trips:
        return ruled_out("network", "Round trips and packets sent again stayed as they were.")
    text = "Packets sent again stayed as they were."
    if facts.answers.unanswered:
        return Hypothesis("network", (Sign(-FAIR, Evidence(text)),))
    return absent("network", text, "round trips to the brokers (probe round_trip)")


def _cut(facts: Facts) -> Hypothesis:
    """Return what all brokers that fall silent at once say: the way to them is what they share."""
    silent = facts.answers.all_silent
    names = ", ".join(one.what for one in silent)
    since = when(min(one.from_k for one in silent) - facts.onset_k)
    who = (
        "All brokers"
        if facts.brokers <= {one.what for one in silent}
        else "All brokers that are asked"
    )
    text = (
        f"{who} stopped answering in one second, {since}, and no connection was refused: {names}."
    )
    signs = [Sign(CLEAR + SLIGHT, Evidence(text))]
    ends = {one.from_k + one.seconds for one in silent}
    if all(one.is_over for one in silent) and max(ends) - min(ends) <= _TOGETHER_SECONDS:
        signs.append(Sign(FAIR, Evidence("All of them answered again in one second, too.")))
    return Hypothesis("network", tuple(signs))


def _cut_off(cut: list[Silence], facts: Facts) -> Hypothesis:
    """Return what clients say that alone got no acknowledgement: their way, or their host, is their own."""
    names = ", ".join(one.what for one in cut)
    longest = max(cut, key=lambda one: one.seconds)
    text = (
        f"No leader acknowledged anything to {names} for {wording.span(longest.seconds)}, beginning "
        f"{when(longest.from_k - facts.onset_k)}, while each did so to other clients."
    )
    hosts = ", ".join(sorted({host_of(one.what) for one in cut}))
    return Hypothesis("network", (Sign(CLEAR, Evidence(text)),), hosts)


def _not_asked(facts: Facts) -> Hypothesis:
    """Return what is known where only clients are watched, and what to measure."""
    together = facts.answers.stopped_together
    missing = "round trips to the brokers (probe round_trip), packets sent again (probe prometheus)"
    if together is None:
        return unmeasured("network", missing)
    text = (
        f"{together.what.capitalize()} stopped acknowledging in one second, "
        f"{when(together.from_k - facts.onset_k)}, for {wording.span(together.seconds)}. They share the "
        "way to them, the host of the client and the cluster."
    )
    return Hypothesis("network", (Sign(FAIR, Evidence(text)),), missing=(missing,))


def _without_a_way(facts: Facts) -> Hypothesis:
    """Return what consumers say whose host has no way to a broker, or no address of it."""
    found = facts.answers.unreachable
    names = ", ".join(sorted(filter(None, found)))
    since = when(min(found.values()) - facts.onset_k)
    text = f"Consumers found no way to {names or 'a broker'}, or no address of it, first {since}."
    return Hypothesis("network", (Sign(CLEAR, Evidence(text)),), names)


def _felt(
    one: Shift | None, facts: Facts, least_share: float = background.LEAST_WAY_SHARE
) -> Shift | None:
    """Return a delay that is a part of the step; None where it is too small."""
    if one is None or one.added(facts.change) < least_share:
        return None
    return one


def _late_trips(trip: Shift, lone: Shift | None, packets: Shift | None, facts: Facts) -> Hypothesis:
    """Return what late answers to short questions say, which wait in the queue of a slow broker as well.

    They rest on themselves where drives and CPU are calm or packets are lost; else by their part of the step,
    for what keeps a broker's queue long takes its own time of every message.
    """
    part = _part_text(trip, facts)
    is_calm = facts.is_drive_innocent and facts.is_cpu_innocent
    if is_calm or packets is not None or background.resent(facts) is not None:
        return _hypothesis([trip, lone, packets], facts, Sign(FAIR, part))
    strength = min(CLEAR + FAIR, strength_of_share(trip.added(facts.change)))
    if _is_slow_there(trip, facts):
        strength = FAIR
        part = Evidence(
            f"{part.text} A question waits as well for a slow drive or for CPU, there or where it is asked."
        )
    signs = (Sign(strength, trip.evidence(facts.change)), Sign(0.0, part))
    suspect = trip.label("target") or host_of(source_of(trip.series))
    return Hypothesis("network", signs, suspect, trip.share(facts.change))


def _is_slow_there(trip: Shift, facts: Facts) -> bool:
    """True when a drive, flushes or CPU that may be of the broker that was asked slowed at the onset.

    Or where the CPU of the host that asked ran short, by which all its questions are late.
    """
    if facts.is_short_where_asked(trip.series):
        return True
    drives = [one for drive in facts.drives if drive.is_guilty for one in drive.shifts.values()]
    return any(
        one.has_risen
        and one.ratio >= MORE
        and affected_brokers.may_be_of(one.series, trip.label("target"), facts.nearby)
        for one in (*facts.short_of_cpu, *facts.flushes, *drives)
    )


def _part_text(trip: Shift, facts: Facts) -> Evidence:
    return Evidence(f"That is {min(1.0, trip.added(facts.change)):.0%} of the step by itself.")


def _resent(again: background.Resent, facts: Facts) -> Hypothesis:
    text = (
        f"One of several connections to {again.suspect or 'one broker or another'} was answered "
        f"{wording.amount(again.delay, 'seconds')} later than the others, as when a lost packet is sent "
        f"again: in {again.seconds} of {again.of} seconds from {when(again.from_k - facts.onset_k)} on, and "
        f"in {again.seconds_before} of {again.of_before} before."
    )
    numbers = {
        "late_seconds": again.seconds,
        "asked_seconds": again.of,
        "delay_seconds": again.delay,
    }
    step = facts.change.after - facts.change.before
    share = min(1.0, again.delay / step) if step > 0.0 else 1.0
    strength = CLEAR if facts.is_cpu_guilty else DECISIVE
    return Hypothesis("network", (Sign(strength, Evidence(text, numbers)),), again.suspect, share)


def _by_packets(packets: Shift, facts: Facts, *, is_innocent: bool) -> Hypothesis | None:
    """Return what packets, or single late answers, say; None when something else may have made them late."""
    followed = coupling(facts.nearby.series[packets.series], facts)
    if followed is not None and followed.is_following:
        text = (
            f"Latency follows it second by second (rank correlation {followed.rho:.2f} over "
            f"{followed.seconds} s), which makes {followed.explained:.0%} of the step."
        )
        return _hypothesis([packets], facts, Sign(FAIR, Evidence(text, {"rho": followed.rho})))
    are_many = packets.ratio >= _MANY_MORE and packets.after >= _MANY_PACKETS
    return _hypothesis([packets], facts) if are_many or is_innocent else None


def _late_page(facts: Facts) -> Shift | None:
    """Return the page of a broker that answers late although the brokers' own time for a request stayed."""
    pages = (one for one in facts.shifts(_PAGES) if facts.answers.may_be_of_broker(one.series))
    page = _felt(risen(pages, _MORE), facts)
    return page if page is not None and are_calm(facts.shifts(*_AT_BROKER)) else None


def _hypothesis(found: list[Shift | None], facts: Facts, *more: Sign) -> Hypothesis:
    known = [one for one in found if one is not None]
    share = max(one.share(facts.change) for one in known)
    strengths = [CLEAR, *[SLIGHT] * (len(known) - 1)]
    signs = [Sign(s, one.evidence(facts.change)) for s, one in zip(strengths, known, strict=True)]
    suspect = known[0].label("target") or host_of(source_of(known[0].series))
    return Hypothesis("network", (*signs, *more), suspect, share)


CONFIRM = {
    "network": Confirmation(
        "on {both hosts}",
        "for i in 1 2 3 4 5 6; do date +%T; ss -tinH '( dport = :{port} or sport = :{port} )' | "
        "grep -o 'retrans:[0-9]*/[0-9]*'; sleep 5; done",
        "times with retrans:M/N below them, of which an N grows from time to time",
    )
}
