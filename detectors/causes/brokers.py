"""Brokers that are down, stand still, or refuse their clients.

Method:  a broker that is down answers neither its page nor short questions, refuses connections, and with it
         acknowledgements are missing, sends fail, copies fall behind and, after the cluster noticed, leaders
         move. Others that answer say nothing of it, and all leaders that stop as one are no single broker.
         One that stands still answers late, or not at all for less than half a minute, while its drive,
         CPU and network are calm. Clients are refused where most that failed did so for lack of a right.
Assumes: a page that alone is silent says more of the page than of the broker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from detectors.causes import background
from detectors.causes.acknowledgements import STOPPED_SECONDS, Silence, missing_text
from detectors.causes.answers import Late
from detectors.causes.facts import LEADER_CHANGE, Facts
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
from detectors.nearby import when
from soak.core import wording
from soak.core.audit import RECEIVE_ERRORS_EVENT, SEND_ERRORS_EVENT
from soak.core.model import Evidence
from soak.core.series import parse_series, source_of

NEXT = {
    "broker_down": "check that the broker is up, and read in its log why it left",
    "broker_pause": "check if the broker was stopped or swapped, or its host migrated",
    "access_denied": "give the user its rights back; see the log of the authorizer",
}

_LONG_SECONDS = 30
_OUTAGE_SECONDS = 10
_ALL_MISSING = 0.9
_FROM_ITS_HOST = "whether its host answers (a page of it in probe prometheus)"
_UNLED_SECONDS = 2  # until a cluster notices at the earliest


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that lies in a broker."""
    yield _down(facts)
    yield from _paused(facts)
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
    cut = seen.in_turn or [one for one in seen.unanswered if _is_gone(one, facts)]
    silent = [*cut, *_pages_gone(facts)]
    if cut and not seen.in_turn and _stood_still(silent, facts) and not seen.all_silent:
        text = "Requests timed out and were answered again later; no connection was refused."
        return ruled_out("broker_down", text)
    signs: list[Sign] = []
    for one in silent[:3]:
        strength = 0.0 if signs else CLEAR if effects else FAIR
        signs.append(Sign(strength, _silent_text(one, facts)))
    if seen.in_turn:
        text = "Each stopped when the one before it answered again, as where somebody restarts them in order."
        signs.append(Sign(CLEAR, Evidence(text)))
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
    is_alone = seen.is_only_one_silent and not _is_noticed(facts)
    if is_alone:
        text = (
            "No connection was refused, and no other broker noticed: the process, its host and the way to it "
            "look alike."
        )
        signs.append(Sign(-DECISIVE, Evidence(text)))
    if not cut and stopped is not None:
        signs += [*_shared_by_all(facts), *(() if silent else _answered_meanwhile(facts))]
    if not silent and stopped is None and not seen.refusing_brokers:
        return _up(facts)
    signs += _failed_folders(facts)
    missing = (_FROM_ITS_HOST,) if is_alone else ()
    return Hypothesis("broker_down", tuple(signs), _suspect(silent, facts), missing=missing)


def _is_noticed(facts: Facts) -> bool:
    """True when the cluster or the broker's own log said that it left."""
    kinds = ("isr_shrink", LEADER_CHANGE, "log_dir_failure")
    return facts.has_begun(*kinds, within=_LONG_SECONDS) or background.is_copying(facts)


def _failed_folders(facts: Facts) -> Iterator[Sign]:
    """Give the data folders that a broker's log calls failed: a broker ends that has no other."""
    first = facts.near[0]
    failed = [one for one in facts.events("log_dir_failure") if first <= one.k < facts.end_k]
    for one in failed[:1]:
        folder = one.event.fields.get("directory", "?")
        text = (
            f"Its log says {when(one.k - facts.onset_k)} that its data folder {folder} failed, and a broker "
            "without another one ends: the drive first."
        )
        yield Sign(0.0, Evidence(text))


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
    cut, together = facts.acknowledgements.cut_clients, facts.answers.stopped_together
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
    seen, acked = facts.answers, facts.acknowledgements
    if seen.refused or not seen.answering:
        return
    led = acked.stopped_leaders or acked.addresses
    own = [seen.answering_of(acked.addresses.get(leader, ())) for leader in led]
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


def _stood_still(silent: list[Silence], facts: Facts) -> bool:
    """True when brokers that timed out answered again, and never refused: a process that ends refuses."""
    seen = facts.answers
    is_over = bool(silent) and all(one.is_over for one in silent)
    return is_over and bool(seen.timed_out) and not seen.refused


def _suspect(silent: list[Silence], facts: Facts) -> str:
    """Return host and port of the brokers that are silent or refuse, else the names of their pages."""
    seen = facts.answers
    brokers = {one.what for one in (*seen.unanswered, *seen.in_turn)}
    names = (
        [*(one.what for one in silent if one.what in brokers), *seen.refusing_brokers]
        or _leaders_that_stopped(facts)
        or [one.what for one in silent]
    )
    return ", ".join(dict.fromkeys(names)) or ", ".join(sorted(_lost_leaders(facts)))


def _leaders_that_stopped(facts: Facts) -> list[str]:
    """Return the leaders that acknowledged nothing while others did, by address where that is known."""
    acked = facts.acknowledgements
    of = {one: sorted(acked.addresses.get(one, ())) for one in acked.stopped_leaders}
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
    found = facts.acknowledgements.unacknowledged
    return found if found is not None and found.seconds >= STOPPED_SECONDS else None


def _effects_of_down(stopped: Silence | None, facts: Facts) -> list[Sign]:
    """Return what clients and the rest of the cluster notice of a broker's end."""
    onset = facts.onset_k
    signs = []
    if stopped is not None:
        text = (
            f"{missing_text(stopped)} for {_length(stopped)}, "
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
    failed = facts.acknowledgements.failed_messages
    if failed > 0.0:
        text = f"Sends failed from the onset on: {wording.amount(failed, 'messages')}."
        signs.append(Sign(FAIR, Evidence(text, {"failed_messages": failed})))
    return signs


def _ks_within(ks: NDArray[np.int64], facts: Facts) -> NDArray[np.int64]:
    first, last = facts.near
    return ks[(ks >= first) & (ks <= last + _LONG_SECONDS)]


def _silent_text(one: Silence, facts: Facts) -> Evidence:
    what = "The metrics page of" if one in facts.answers.silent_pages else "Broker"
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
    signs += _with_their_hosts(hung, facts)
    signs += [Sign(0.0, one.evidence) for one in _effects_of_down(_stopped(facts), facts)]
    return Hypothesis("broker_pause", tuple(signs), _suspect(hung, facts))


def _with_their_hosts(hung: list[Silence], facts: Facts) -> Iterator[Sign]:
    """Give that the hosts of brokers fell silent with them: the hosts stood still, or had no way to us."""
    pages = [page for one in hung for page in facts.answers.silent_beside(one.what)]
    if pages:
        names = ", ".join(dict.fromkeys(one.what for one in pages))
        text = (
            f"The metrics page of {names}, of another process there, gave no answer either: it may be "
            "the host, or the way to it."
        )
        yield Sign(-CLEAR, Evidence(text))


def _answered_late(facts: Facts) -> Iterator[Hypothesis]:
    seen, stopped = facts.answers, facts.acknowledgements.unacknowledged
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
    if facts.acknowledgements.cut_clients:
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
        what, then = missing_text(one), "they came again"
    else:
        what, then = f"The metrics page of {one.what} gave no answer", "it gave some again"
    return Evidence(
        f"{what} for {wording.span(one.seconds)}, beginning {when(one.from_k - facts.onset_k)}, "
        f"and then {then}.",
        {"from_k": one.from_k, "seconds": one.seconds, "missing_ratio": one.missing_ratio},
    )


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
    "access_denied": Confirmation(
        _TOOLS,
        "kafka-acls.sh --bootstrap-server {server}{admin} --list --principal User:{user}",
        "no right to READ or WRITE the topic",
        is_lasting=True,
    ),
}
CONFIRM_ON_PULSAR = {
    "access_denied": Confirmation(
        _TOOLS,
        "pulsar-admin namespaces permissions {namespace}",
        "neither produce nor consume for the user",
    ),
}
