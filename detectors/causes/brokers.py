"""Brokers that are down, stand still, catch up, lead something else, or have metadata to work through.

Method:  a broker that is down answers neither its page nor short questions, refuses connections, and with it
         acknowledgements are missing, sends fail, copies fall behind and, after the cluster noticed, leaders
         move. Others that answer say nothing of it, and all leaders that stop as one are no single broker.
         One that stands still answers late, or not at all for less than half a minute, while its drive,
         CPU and network are calm. Elections count as moves of leaders only where the partition is of this run
         and had a leader before; first elections, and those of other topics, are metadata to work through.
         Counters have the elections of all topics: where partitions are added, they say nothing of moves.
         A broker that comes back was silent before, and copies of it that were behind catch up.
Assumes: a page that alone is silent says more of the page than of the broker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.causes import answers, background
from detectors.causes.answers import ROUND_TRIPS, STOPPED_SECONDS, Late, Silence
from detectors.causes.channel import Shift
from detectors.causes.facts import COPIES, LEADER_COUNTERS, Facts
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
from detectors.nearby import TimedEvent, between, when
from soak.core import wording
from soak.core.audit import RECEIVE_ERRORS_EVENT, SEND_ERRORS_EVENT
from soak.core.model import Evidence
from soak.core.series import parse_series, source_of

NEXT = {
    "broker_down": "check that the broker is up, and read in its log why it left",
    "broker_pause": "check if the broker was stopped or swapped, or its host migrated",
    "under_replicated": "see which replicas catch up, and throttle their replication",
    "leader_move": "read in the controller's log why leaders moved, and move them back",
    "access_denied": "give the user its rights back; see the log of the authorizer",
    "metadata_storm": "find who created or moved topics or partitions of others",
}

LEADER_CHANGE = "leader_change"
_LONG_SECONDS = 30
_OUTAGE_SECONDS = 10
_ALL_MISSING = 0.9
_UNLED_SECONDS = 2  # until a cluster notices at the earliest


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that lies in a broker or the cluster's metadata."""
    yield _down(facts)
    yield from _paused(facts)
    yield _catching_up(facts)
    moves = _own_moves(facts)
    yield _moved(moves, facts)
    yield _storm(facts)
    yield from _denied(facts)


# --- refused

_DENIED = re.compile(r"authori[sz]|authenticat|denied|not allowed|forbidden", re.IGNORECASE)
_MOST = 0.5


def _denied(facts: Facts) -> Iterator[Hypothesis]:
    """Give the refusal of the clients where most that failed did so for lack of a right."""
    sides = (
        (SEND_ERRORS_EVENT, "messages", "messages that failed"),
        (RECEIVE_ERRORS_EVENT, "errors", "errors of consumers"),
    )
    texts = [text for side in sides if (text := _refusals(*side, facts)) is not None]
    if texts:
        signs = [Sign(0.0 if at else CLEAR + DECISIVE, text) for at, text in enumerate(texts)]
        yield Hypothesis("access_denied", tuple(signs))


def _refusals(kind: str, counted: str, what: str, facts: Facts) -> Evidence | None:
    """Return how many of the failures in these events were refusals; None where most were not."""
    first = facts.near[0]
    failed: Counter[str] = Counter()
    for one in facts.events(kind):
        count = one.event.fields.get(counted)
        if first <= one.k < facts.end_k and isinstance(count, int | float):
            failed[str(one.event.fields.get("reason"))] += round(count)
    denied = Counter({why: count for why, count in failed.items() if _DENIED.search(why)})
    if not denied or denied.total() < _MOST * failed.total():
        return None
    reason = denied.most_common(1)[0][0]
    return Evidence(
        f"Of {failed.total():,} {what} from the onset on, {denied.total():,} were refused: {reason}.",
        {"failed": failed.total(), "refused": denied.total()},
    )


# --- down


def _down(facts: Facts) -> Hypothesis:
    seen = facts.answers
    stopped = _stopped(facts)
    effects = _effects_of_down(stopped, facts)
    cut = [one for one in seen.unanswered if _is_gone(one, facts)]
    silent = [*cut, *_pages_gone(facts)]
    if cut and _stood_still(silent, facts) and not seen.all_silent:
        text = "Requests timed out and were answered again later; no connection was refused."
        return ruled_out("broker_down", text)
    signs: list[Sign] = []
    for one in silent[:3]:
        strength = 0.0 if signs else CLEAR if effects else FAIR
        signs.append(Sign(strength, _silent_text(one, facts)))
    if _took_turns(cut):
        text = "Each stopped when the one before it answered again, as where somebody restarts them in order."
        signs.append(Sign(0.0, Evidence(text)))
    if seen.refused and (silent or stopped is not None or seen.refusing_brokers):
        who = ", ".join(sorted(filter(None, seen.refused))) or "a broker"
        since = when(min(seen.refused.values()) - facts.onset_k)
        text = f"Connections to {who} were refused, first {since} of the step: no process listened there."
        signs.append(Sign(FAIR, Evidence(text)))
    elif silent and seen.timed_out:
        text = "Requests timed out and connections were not refused: the process may stand still."
        signs.append(Sign(-FAIR, Evidence(text)))
    signs += effects
    if seen.all_silent:
        text = "All brokers fell silent in one second, so it is what they share: the way to them first."
        signs.append(Sign(-CLEAR, Evidence(text)))
    if not cut and stopped is not None:
        signs += [*_shared_by_all(facts), *(() if silent else _answered_meanwhile(facts))]
    if not silent and stopped is None and not seen.refusing_brokers:
        return _up(facts)
    return Hypothesis("broker_down", tuple(signs), _suspect(silent, facts))


def _up(facts: Facts) -> Hypothesis:
    """Return that acknowledgements came, and who answered besides: no broker is down that was asked."""
    seen = facts.answers
    if not seen.answering and not facts.named("up"):
        return unmeasured("broker_down", "answers of the brokers (probes round_trip, prometheus)")
    is_each_known = facts.outage is None or (
        bool(facts.brokers) and facts.brokers <= seen.answering
    )
    left = "" if is_each_known else "answers of each broker (probe round_trip)"
    text = "Brokers answered soakd's probes throughout, and acknowledgements came."
    if seen.unanswered or seen.silent_pages:
        text = f"No broker was silent to soakd's probes for {_LONG_SECONDS} s, and acknowledgements came."
    return absent("broker_down", text, left)


def _pages_gone(facts: Facts) -> list[Silence]:
    """Return the silent pages; none where several share a way with the leaders, which all stopped as one."""
    pages = [one for one in facts.answers.silent_pages if _is_gone(one, facts)]
    return pages if facts.answers.stopped_together is None or len(pages) < 2 else []  # noqa: PLR2004  # several


def _shared_by_all(facts: Facts) -> Iterator[Sign]:
    """Give that all leaders stopped as one, or only to one of several clients: no single broker does that."""
    cut, together = facts.answers.cut_clients, facts.answers.stopped_together
    if cut:
        names = ", ".join(one.what for one in cut)
        text = (
            f"Only {names} got no acknowledgement: other clients got theirs from the same leaders."
        )
        yield Sign(-CLEAR, Evidence(text))
    elif together is not None:
        text = (
            f"{together.what.capitalize()} stopped acknowledging in one second, for "
            f"{wording.span(together.seconds)}: it is what they share, and no single broker."
        )
        yield Sign(-CLEAR, Evidence(text))


def _answered_meanwhile(facts: Facts) -> Iterator[Sign]:
    """Give that the brokers answered short questions which lead what was not acknowledged.

    That others did says nothing. Where no leader is known, one that is not asked may be meant.
    """
    seen = facts.answers
    if seen.refused or not seen.answering:
        return
    led = seen.stopped_leaders or seen.addresses
    own = [seen.answering_of(seen.addresses.get(leader, ())) for leader in led]
    if own and all(own):
        names = ", ".join(sorted(frozenset[str]().union(*own)))
        text = f"The leaders of what was not acknowledged answered soakd's round trips throughout ({names})."
        yield Sign(-DECISIVE, Evidence(text))
    elif not own:
        names = ", ".join(sorted(seen.answering))
        text = f"All brokers of the probe round_trip answered throughout ({names})."
        yield Sign(-FAIR, Evidence(text))


def _is_gone(one: Silence, facts: Facts) -> bool:
    """True for a silence that is long, or in an outage, or where connections were refused."""
    is_long = one.seconds >= _LONG_SECONDS
    return is_long or facts.outage is not None or bool(facts.answers.refused)


def _took_turns(silent: list[Silence]) -> bool:
    """True for several silences of which each began when the one before it was over."""
    ordered = sorted(silent, key=lambda one: one.from_k)
    return len(ordered) > 1 and all(
        before.is_over and before.from_k + before.seconds <= after.from_k
        for before, after in pairwise(ordered)
    )


def _stood_still(silent: list[Silence], facts: Facts) -> bool:
    """True when brokers that timed out answered again, and never refused: a process that ends refuses."""
    seen = facts.answers
    is_over = bool(silent) and all(one.is_over for one in silent)
    return is_over and bool(seen.timed_out) and not seen.refused


def _suspect(silent: list[Silence], facts: Facts) -> str:
    """Return host and port of the brokers that are silent or refuse, else the names of their pages."""
    seen = facts.answers
    brokers = {one.what for one in seen.unanswered}
    names = (
        [*(one.what for one in silent if one.what in brokers), *seen.refusing_brokers]
        or _leaders_that_stopped(facts)
        or [one.what for one in silent]
    )
    return ", ".join(dict.fromkeys(names)) or ", ".join(sorted(_lost_leaders(facts)))


def _leaders_that_stopped(facts: Facts) -> list[str]:
    """Return the leaders that acknowledged nothing while others did, by address where that is known."""
    seen = facts.answers
    of = {one: sorted(seen.addresses.get(one, ())) for one in seen.stopped_leaders}
    return [name for one, names in of.items() for name in names or [f"leader {one}"]]


def _lost_leaders(facts: Facts) -> set[str]:
    """Return the addresses of leaders that no client names any more after the onset."""
    first = facts.near[0]
    found: set[str] = set()
    kept: set[str] = set()
    for name, series in facts.named("leader_info").items():
        address = parse_series(name).label("address")
        if series.k.size and series.k[0] < first:
            (found if series.k[-1] < facts.near[1] + _LONG_SECONDS // 2 else kept).add(address)
    return found - kept


def _stopped(facts: Facts) -> Silence | None:
    """Return the lack of acknowledgements around the onset; None where it was short."""
    found = facts.answers.unacknowledged
    return found if found is not None and found.seconds >= STOPPED_SECONDS else None


def _effects_of_down(stopped: Silence | None, facts: Facts) -> list[Sign]:
    """Return what clients and the rest of the cluster notice of a broker's end."""
    onset = facts.onset_k
    signs = []
    if stopped is not None:
        text = (
            f"{answers.missing_text(stopped)} for {_length(stopped)}, "
            f"beginning {when(stopped.from_k - onset)}."
        )
        is_outage = stopped.seconds >= _OUTAGE_SECONDS and stopped.missing_ratio > _ALL_MISSING
        strength = FAIR + SLIGHT * is_outage
        signs.append(
            Sign(strength, Evidence(text, {"from_k": stopped.from_k, "seconds": stopped.seconds}))
        )
    if facts.has_begun("isr_shrink", within=_LONG_SECONDS) or background.is_copying(facts):
        signs.append(Sign(FAIR, Evidence("At the onset copies fell behind.")))
    led = _ks_within(facts.event_ks(LEADER_CHANGE), facts)
    if led.size and facts.has_begun(LEADER_CHANGE, within=_LONG_SECONDS):
        text = f"Leaders moved {when(int(led[0]) - onset)}"
        is_unled = stopped is not None and led[0] - stopped.from_k >= _UNLED_SECONDS
        if is_unled:
            text += ", after acknowledgements had been missing for a while"
        signs.append(Sign(FAIR * 2 if is_unled else FAIR, Evidence(f"{text}.")))
    failed = facts.answers.failed_messages
    if failed > 0.0:
        text = f"Sends failed from the onset on: {wording.amount(failed, 'messages')}."
        signs.append(Sign(FAIR, Evidence(text, {"failed_messages": failed})))
    return signs


def _ks_within(ks: NDArray[np.int64], facts: Facts) -> NDArray[np.int64]:
    first, last = facts.near
    return ks[(ks >= first) & (ks <= last + _LONG_SECONDS)]


def _silent_text(one: Silence, facts: Facts) -> Evidence:
    what = "Broker" if ":" in one.what else "The metrics page of"
    text = (
        f"{what} {one.what} stopped answering {when(one.from_k - facts.onset_k)}, "
        f"for {_length(one)}."
    )
    return Evidence(text, {"from_k": one.from_k, "seconds": one.seconds})


def _length(one: Silence) -> str:
    """Return how long it lasted, in words that hold when it is over as well."""
    return f"{'' if one.is_over else 'at least '}{wording.span(one.seconds)}"


# --- standing still

_EVEN = 0.7


def _paused(facts: Facts) -> Iterator[Hypothesis]:
    silent = [*facts.answers.unanswered, *facts.answers.silent_pages]
    hung = [one for one in silent if one.seconds >= STOPPED_SECONDS]
    if facts.answers.all_silent:
        yield ruled_out(
            "broker_pause", "All brokers fell silent in one second, and not one of them."
        )
    elif facts.answers.unanswered and _stood_still(hung, facts):  # a page alone may be what is slow
        yield _hung(hung, facts)
    else:
        yield from _answered_late(facts)


def _hung(hung: list[Silence], facts: Facts) -> Hypothesis:
    text = "Requests timed out meanwhile, and no connection was refused: the process was there."
    signs = [Sign(CLEAR, _silent_text(hung[0], facts)), Sign(FAIR, Evidence(text))]
    signs += [Sign(0.0, one.evidence) for one in _effects_of_down(_stopped(facts), facts)]
    return Hypothesis("broker_pause", tuple(signs), _suspect(hung, facts))


def _answered_late(facts: Facts) -> Iterator[Hypothesis]:
    seen, stopped = facts.answers, facts.answers.unacknowledged
    pages = [one for one in seen.silent_pages if _is_short(one)]
    is_watched = background.are_leaders_known(facts)
    if seen.late is None and not pages and (stopped is None or not is_watched):
        return
    if stopped is not None and not _is_short(stopped):
        return
    unknown = [
        what
        for what, is_known in (
            ("flushes", bool(facts.flushes)),
            ("CPU", bool(facts.shifts("host_cpu_ratio")) or facts.is_cpu_innocent),
        )
        if not is_known
    ]
    if unknown:
        yield unmeasured("broker_pause", *unknown)
        return
    is_calm = (
        facts.is_flush_innocent
        and facts.is_drive_innocent
        and facts.is_cpu_innocent
        and background.is_way_calm(facts)
    )
    if not is_calm:
        return
    if not _is_uneven(facts):
        yield ruled_out("broker_pause", "The median waits as long as the tail: every message does.")
        return
    other = _other_reason(facts)
    if other:
        yield ruled_out("broker_pause", other)
        return
    signs = [] if seen.late is None else [Sign(CLEAR, _late_text(seen.late, facts))]
    if seen.late_broker:
        text = "Others that were asked at the same instants answered as soon as before."
        signs.append(Sign(FAIR, Evidence(text)))
    for one in [*pages, *([stopped] if stopped is not None else [])]:
        signs.append(Sign(0.0 if signs else CLEAR, _standstill_text(one, facts)))
    known = any(drive.is_known for drive in facts.drives)
    innocent = Evidence(
        f"{'Device, flushes' if known else 'Flushes'}, CPU and network were measured, and none of them "
        "rose with the step."
    )
    suspect = pages[0].what if pages else seen.late_broker
    share = 1.0 if len(signs) > 1 else 0.0
    yield Hypothesis("broker_pause", (*signs, Sign(0.0, innocent)), suspect, share)


def _other_reason(facts: Facts) -> str:
    """Return what explains by itself why a broker did not answer; "" where nothing does."""
    if facts.answers.refused:
        return "Connections were refused: the process was gone, and did not stand still."
    if facts.answers.cut_clients:
        return "Other clients got their acknowledgements from the same leaders."
    if facts.has_begun(LEADER_CHANGE, *background.DELETIONS):
        return "Leaders moved, or deletions began, at the onset."
    return ""


def _is_short(one: Silence) -> bool:
    return one.is_over and one.seconds < _LONG_SECONDS


def _is_uneven(facts: Facts) -> bool:
    """True when the median waits less than the tail: a longer way would delay every message alike."""
    metric = parse_series(facts.change.series).metric
    rises = {
        quantile: max((one.rise for one in facts.shifts(metric, quantile=quantile)), default=None)
        for quantile in ("0.5", "0.99")
    }
    middle, tail = rises["0.5"], rises["0.99"]
    return middle is None or tail is None or middle <= _EVEN * tail


def _late_text(late: Late, facts: Facts) -> Evidence:
    return Evidence(
        f"A broker answered a request late that needs no drive: {wording.title(late.series)} of "
        f"{source_of(late.series)} was {wording.amount(late.late, 'seconds')} in {late.ratio:.0%} of the "
        f"seconds, first {when(late.from_k - facts.onset_k)}, and at most "
        f"{wording.amount(late.usual, 'seconds')} before.",
        {"late_seconds": late.late, "usual_seconds": late.usual, "late_ratio": late.ratio},
    )


def _standstill_text(one: Silence, facts: Facts) -> Evidence:
    if one.what.startswith("acknowledgements"):
        what, then = answers.missing_text(one), "they came again"
    else:
        what, then = f"The metrics page of {one.what} gave no answer", "it gave some again"
    return Evidence(
        f"{what} for {wording.span(one.seconds)}, beginning {when(one.from_k - facts.onset_k)}, "
        f"and then {then}.",
        {"from_k": one.from_k, "seconds": one.seconds, "missing_ratio": one.missing_ratio},
    )


# --- catching up

_BACK_SECONDS = 60


def _catching_up(facts: Facts) -> Hypothesis:
    """Return what says that a broker copies what it missed from its peers."""
    if not facts.named(*COPIES):
        return unmeasured(
            "under_replicated", "partitions with copies that are behind (probe prometheus)"
        )
    rise, behind, suspect = _most_behind(facts)
    if rise < 1.0:
        is_lasting = behind >= 1.0
        text = (
            "The copies that are behind were so all along." if is_lasting else "No copy was behind."
        )
        return ruled_out("under_replicated", text)
    who = f"broker {suspect}" if suspect else "one broker"
    text = f"Copies of up to {behind:g} partitions of {who} were behind."
    signs = [Sign(FAIR, Evidence(text, {"partitions": behind}))]
    back = _back(suspect, facts)
    if back is not None:
        suspect, k = back
        text = f"Broker {suspect} answers again, {when(k - facts.onset_k)}."
        signs.append(Sign(CLEAR, Evidence(text, {"from_k": k})))
    more = [one for drive in facts.drives for one in drive.more_work]
    if more:
        signs.append(Sign(SLIGHT, more[0].evidence(facts.change)))
    return Hypothesis("under_replicated", tuple(signs), suspect)


def _most_behind(facts: Facts) -> tuple[float, float, str]:
    """Return how much the partitions of one broker with copies behind rose, and how many there were, at most.

    From a minute before the onset on, above the fewest of all seconds: what is behind all along is not caught
    up. With the broker whose copies they are, where the channel names it: a page is the leader's.
    """
    start = facts.near[0] - _BACK_SECONDS
    found = [(0.0, 0.0, "")]
    for name, one in facts.named(*COPIES).items():
        part = between(one, start, facts.end_k)
        if part.size:
            most, fewest = float(part.max()), float(one.values.min())
            found.append((most - fewest, most, parse_series(name).label("follower")))
    return max(found, key=lambda one: (one[0] >= 1.0 and one[2] != "", *one))


def _back(follower: str, facts: Facts) -> tuple[str, int] | None:
    """Return who began to answer again within the minute before the onset, or with it, and when.

    Without those that are known to be another broker than the one whose copies are behind.
    """
    seen = facts.answers
    brokers = {
        target: seen.returned[target]
        for name in facts.named(*ROUND_TRIPS)
        if (target := parse_series(name).label("target")) in seen.returned
        and _may_be_of(name, follower, facts)
    }
    pages = {
        answers.page_name(name): k
        for name, k in seen.returned_pages.items()
        if _may_be_of(name, follower, facts)
    }
    return max((brokers or pages).items(), key=lambda one: one[1], default=None)


def _may_be_of(name: str, follower: str, facts: Facts) -> bool:
    return not follower or affected_brokers.may_be_of(name, follower, facts.nearby)


# --- leaders and metadata

_BEFORE_SECONDS = 300
_MOST_EXPECTED = 0.1  # of such seconds as near to any instant
_STORM = 20  # partitions elected within seconds, beyond those of the run
_STORM_RATIO = 10.0  # of the usual rate


def _is_first(event: TimedEvent) -> bool:
    """True for the first election of a partition: it had no leader before, so none moved."""
    return event.event.fields.get("epoch") == 0


def _own_moves(facts: Facts) -> list[TimedEvent]:
    """Return the leaders of this run's topics that moved."""
    return [one for one in facts.events(LEADER_CHANGE) if facts.is_ours(one) and not _is_first(one)]


def _moved(moves: list[TimedEvent], facts: Facts) -> Hypothesis:
    counted = facts.counted_ks(*LEADER_COUNTERS)
    is_growing = counted.size > 0 and _are_partitions_added(facts)
    if is_growing:  # the counters have the first elections of others as well
        counted = counted[:0]
    ks = np.unique(np.concatenate([np.array([one.k for one in moves], np.int64), counted]))
    first, last = facts.near
    here = ks[(ks >= first) & (ks <= last)]
    if here.size == 0:
        is_logged = bool(facts.named("broker_log_events") or facts.events(LEADER_CHANGE))
        if not is_logged and (is_growing or not facts.named(*LEADER_COUNTERS)):
            return unmeasured("leader_move", "elections of leaders (probe broker_log)")
        others = sum(1 for one in facts.events(LEADER_CHANGE) if first <= one.k <= last)
        foreign = f"; {others} elections of other topics or of new partitions" if others else ""
        return ruled_out(
            "leader_move", f"No leader of this run's topics moved at the onset{foreign}."
        )
    start = max(facts.nearby.k0, first - _BEFORE_SECONDS)
    before = int(np.count_nonzero((ks >= start) & (ks < first)))
    expected = before * (last + 1 - first) / max(1, first - start)
    after = int(np.count_nonzero((ks > last) & (ks < facts.end_k)))
    text = (
        f"Leaders changed in {wording.counted(int(here.size), 'second')} around the onset, first "
        f"{when(int(here[0]) - facts.onset_k)}{_example(int(here[0]), moves)}; in {before} of the "
        f"{first - start} s before, and in {after} since."
    )
    numbers = {"first_k": int(here[0]), "seconds_near": int(here.size), "seconds_before": before}
    strength = FAIR if expected > _MOST_EXPECTED else CLEAR + FAIR
    topics = sorted({str(one.event.fields.get("topic", "")) for one in moves} - {""})
    return Hypothesis(
        "leader_move", (Sign(strength, Evidence(text, numbers)),), ", ".join(topics[:3])
    )


def _example(k: int, moves: list[TimedEvent]) -> str:
    """Return an example, where a broker's log gave one."""
    fields = next((one.event.fields for one in moves if one.k == k), {})
    names = [f"{key} {fields[key]}" for key in ("topic", "partition", "bundle") if key in fields]
    return f" ({', '.join(names)})" if names else ""


def _storm(facts: Facts) -> Hypothesis:
    """Return the elections of other topics, and of new partitions, that began at the onset.

    Where leaders of the run moved then too, those of other topics are a part of that move.
    """
    first, last = facts.near
    is_move = any(first <= one.k <= last + _LONG_SECONDS for one in _own_moves(facts))
    other = [
        one
        for one in facts.events(LEADER_CHANGE)
        if _is_first(one) or not (is_move or facts.is_ours(one))
    ]
    grown = _partitions_grown(facts)
    if not other and grown is None:
        if not background.are_leaders_known(facts):
            return unmeasured(
                "metadata_storm",
                "elections of leaders (probe broker_log), partitions of the cluster (probe prometheus)",
            )
        return ruled_out(
            "metadata_storm", "No leader of another topic or new partition was elected."
        )
    soon = [one for one in other if first <= one.k <= last + _LONG_SECONDS]
    elected = {_partition(one) for one in soon}
    before = [one for one in other if one.k < first]
    seconds = max(1, first - facts.nearby.k0)
    usual = len(before) / seconds * (last + _LONG_SECONDS - first)
    is_storm = len(elected) >= _STORM and len(soon) >= _STORM_RATIO * usual
    starts_here = any(one.k <= last for one in soon)
    signs, suspect = [], ""
    if is_storm and starts_here:
        topics = Counter(topic for topic, _ in elected)
        suspect = f"topic {topics.most_common(1)[0][0]}" if topics else ""
        text = (
            f"{len(elected)} partitions of other topics, or new ones, got a leader within seconds, the first "
            f"{when(soon[0].k - facts.onset_k)}, most of them of {suspect}. In the {seconds} s before, "
            f"{len(before)} did."
        )
        signs.append(Sign(DECISIVE, Evidence(text, {"partitions": len(elected)})))
    if grown is not None:
        signs.append(Sign(CLEAR, grown.evidence(facts.change)))
    if not signs:
        text = f"Only {len(elected)} partitions of other topics were elected at the onset."
        return ruled_out("metadata_storm", text)
    return Hypothesis("metadata_storm", tuple(signs), suspect)


_PARTITIONS = (
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "kafka_controller_kafkacontroller_globaltopiccount",
    "kafka_server_replicamanager_partitioncount",
    "redpanda_cluster_partitions",
    "redpanda_cluster_topics",
    "pulsar_topics_count",
)


def _are_partitions_added(facts: Facts) -> bool:
    """True where partitions were added at the onset, however few."""
    return any(
        one.is_at_onset and one.delta >= one.clear and one.rise >= 1.0 and one.before > 0.0
        for one in facts.shifts(*_PARTITIONS)
    )


def _partitions_grown(facts: Facts) -> Shift | None:
    """Return where partitions were added; a broker that has just started loads what it had."""
    found = [
        one
        for one in facts.shifts(*_PARTITIONS)
        if one.has_risen and one.rise >= _STORM and one.before > 0.0
    ]
    return max(found, key=lambda one: one.rise, default=None)


def _partition(one: TimedEvent) -> tuple[str, str]:
    fields = one.event.fields
    return str(fields.get("topic", "")), str(fields.get("partition", fields.get("bundle", "")))


# --- how to confirm them

_BROKER, _TOOLS = "on {the broker's host}", "from {a host with the cluster's tools}"
_ASK_ALL = "{ask_every_broker}"
_NO_ANSWER = "a refused connection, or no answer within 3 s"
NEXT_OF_OUTAGE = {
    "unknown": "see which brokers answer, then the log and the drive of the others",
}
CONFIRM_OF_OUTAGE = {
    "unknown": Confirmation(
        _TOOLS,
        f"{_ASK_ALL}; kafka-topics.sh --bootstrap-server {{server}}{{admin}} --describe "
        "--unavailable-partitions",
        f"the brokers with {_NO_ANSWER}, and the partitions without a leader",
    ),
}
CONFIRM_OF_OUTAGE_ON_PULSAR = {
    "unknown": Confirmation("from {the load host}", _ASK_ALL, f"the addresses with {_NO_ANSWER}")
}
CONFIRM = {
    "broker_down": Confirmation(
        "from {another host}",
        "nc -zv -w 3 {host} {port}",
        _NO_ANSWER,
    ),
    "broker_pause": Confirmation(
        _BROKER, "ps -o stat= -p {pid}", "a T, which is a stopped process, while it gives no answer"
    ),
    "under_replicated": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe --under-replicated-partitions",
        "1 partition or more, and fewer from call to call",
    ),
    "leader_move": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe --topic {run_topic}",
        "1 partition or more whose Leader is not the first of its Replicas",
        is_lasting=True,
    ),
    "access_denied": Confirmation(
        _TOOLS,
        "kafka-acls.sh --bootstrap-server {server}{admin} --list --principal User:{user}",
        "no right to READ or WRITE the topic",
        is_lasting=True,
    ),
    "metadata_storm": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe | grep -c Leader:",
        f"{_STORM} partitions or more above an earlier count",
        f"{_STORM} partitions or more above the {{{_PARTITIONS[0]}}} before the onset",
    ),
}
CONFIRM_ON_PULSAR = {
    "under_replicated": Confirmation(
        _TOOLS,
        "bookkeeper shell listunderreplicated",
        "1 ledger or more, and fewer from call to call",
    ),
    "leader_move": Confirmation(
        _TOOLS,
        "pulsar-admin topics partitioned-lookup {run_topic}",
        "1 partition or more at another broker than before",
    ),
    "access_denied": Confirmation(
        _TOOLS,
        "pulsar-admin namespaces permissions {namespace}",
        "neither produce nor consume for the user",
    ),
    "metadata_storm": Confirmation(
        _TOOLS,
        "pulsar-admin topics list {namespace} | wc -l",
        f"{_STORM} topics or more above an earlier count",
    ),
}
