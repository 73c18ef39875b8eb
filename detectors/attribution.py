"""Why it stepped: facts once an incident, every hypothesis asked about them, and the arbiter's judgement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from detectors.causes import arbiter, places
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import Confirmation, Hypothesis, Sign
from detectors.incidents import TOGETHER_SECONDS, Incident
from detectors.kinds.spikes import words_of
from detectors.nearby import Nearby
from soak.core import wording
from soak.core.audit import SEND_FAILED_EVENT
from soak.core.model import Change, Evidence, Explanation, Finding
from soak.core.plan import plugins
from soak.core.series import parse_series, series_name

BAR = arbiter.BAR
UNKNOWN = arbiter.UNKNOWN
NO_CAUSE = (Explanation(UNKNOWN, 0.0, ()),)
_PACKAGE = "detectors.causes"
_MOST_NAMES = 12
JUDGED_SECONDS = 300
"""After the onset the causes are judged for the last time."""
_LEAST_BEFORE_SECONDS = 60
_OWN_CONSUMER = re.compile(r"consume\.\d+@.+")
_END_TO_END = 'end_to_end_latency_seconds{quantile="0.99"}'
_OF, _BEFORE_WORST = "of", "seconds_before_worst"
"""Numbers of evidence whose times do not count from the worst change."""


def attribute(
    found: Change | Incident,
    nearby: Nearby,
    *,
    is_last: bool = False,
    named: Sequence[Explanation] = (),
) -> list[Explanation]:
    """Return the causes that pass the bar, best first; `unknown` alone when there is none.

    The last judgement has none that waits for seconds to come. `named` is the judgement before: what it names
    stays until evidence against it. An incident that began before its worst change is judged at both onsets:
    what is named at the opening passes as well. A step down is `unknown`: causes say what makes latency
    worse. So is a drift, which has no instant that a cause could share. Of spikes the period is reported too.
    A broker is suspected by its address also where a page of it is known by another name.
    """
    headline = found.headline if isinstance(found, Incident) else found
    if isinstance(found, Incident) and headline.kind == "outage":
        headline = _since_first_outage(headline, found.changes)
    change = _as_latency(headline)
    outage = headline if headline.kind == "outage" else None
    facts = Facts(change, nearby, outage)
    asked = _hypotheses(facts) if change.direction == "up" and change.kind != "drift" else []
    if asked and isinstance(found, Incident) and _began_before(found.opening, facts):
        opening = found.opening
        opened = Facts(_as_latency(opening), nearby, opening if opening.kind == "outage" else None)
        at_opening = _hypotheses(opened)
        asked += [
            _of_opening(one, change.onset_k - opening.onset_k)
            for one in at_opening
            if one.probability > BAR and not one.is_provisional
        ]
    weighed = arbiter.weigh(asked, facts, is_last=is_last, named=named)
    suspects = places.Suspects(nearby)
    first, *others = (_by_address(one, suspects) for one in weighed)
    if isinstance(found, Incident) and outage is not None:
        first = replace(first, evidence=(*first.evidence, *_concerned(found, nearby)))
    elif change.kind == "spikes" and change.period_seconds is not None:
        first = replace(first, evidence=(*first.evidence, _periodic(change)))
    return [first, *others]


def is_so_far(causes: Sequence[Explanation]) -> bool:
    """True where there is no judgement yet, or one that the seconds to come may take back."""
    return not causes or causes[0].score == BAR


@cache
def causes() -> dict[str, str]:
    """Return every cause there is, sorted, with what an operator should do first."""
    found = {UNKNOWN: arbiter.NEXT_UNKNOWN, **_table("NEXT")}
    return dict(sorted(found.items()))


@cache
def confirmations(broker_kind: str) -> dict[str, Confirmation]:
    """Return the command that confirms each cause on a kind of cluster; `unknown` has none."""
    found = _table("CONFIRM") | _table(f"CONFIRM_ON_{broker_kind.upper()}")
    return dict(sorted(found.items()))


def next_step(found: Finding) -> str:
    """Return what an operator should do first; "" for a cause that only another version knows."""
    own: dict[str, str] = _table(f"NEXT{_special(found)}")
    return (causes() | own).get(found.cause, "")


def confirmation(found: Finding, broker_kind: str) -> Confirmation | None:
    """Return the command that confirms a finding's cause; None where there is none."""
    special = f"CONFIRM{_special(found)}"
    own: dict[str, Confirmation] = _table(special) | _table(f"{special}_ON_{broker_kind.upper()}")
    return (confirmations(broker_kind) | own).get(found.cause)


def _special(found: Finding) -> str:
    """Return the end of the names of tables for such a finding, "" where it is as any other."""
    if _OWN_CONSUMER.fullmatch(found.suspect):
        return "_OF_OWN_CONSUMER"
    return "_OF_OUTAGE" if found.kind == "outage" else ""


def _table(name: str) -> dict[str, Any]:
    """Return the tables of this name of all modules, by cause."""
    found: dict[str, Any] = {}
    for module in plugins.names(_PACKAGE):
        found |= getattr(plugins.load(_PACKAGE, module), name, {})
    return found


def _hypotheses(facts: Facts) -> list[Hypothesis]:
    modules = (plugins.load(_PACKAGE, name) for name in plugins.names(_PACKAGE))
    return [
        hypothesis
        for module in modules
        if hasattr(module, "examine")
        for hypothesis in module.examine(facts)
    ]


def _of_opening(one: Hypothesis, seconds: int) -> Hypothesis:
    """Return a hypothesis that says what its times count from: that many seconds before the worst change."""
    return replace(one, signs=(*one.signs, Sign(0.0, _counted_from("the opening", seconds))))


def carried_over(causes: Iterable[Explanation], seconds: int) -> list[Explanation]:
    """Return causes that were found for what was the worst change before: the worst one came so much later.

    What their times count from is among their evidence, brought up to date where it was there before.
    """
    return [replace(one, evidence=_carried(one.evidence, seconds)) for one in causes]


def _carried(evidence: Iterable[Evidence], seconds: int) -> tuple[Evidence, ...]:
    what, before, kept = "another change", 0, list[Evidence]()
    for one in evidence:
        known = one.numbers.get(_BEFORE_WORST)
        if isinstance(known, int | float):
            what, before = str(one.numbers.get(_OF, what)), round(known)
        else:
            kept.append(one)
    counted = [_counted_from(what, before + seconds)] if before + seconds else []
    return *kept, *counted


def _counted_from(what: str, seconds: int) -> Evidence:
    """Return what the times of evidence count from: so many seconds before the worst change, or after it."""
    side = "before" if seconds >= 0 else "after"
    text = f"This is of {what}, {wording.span(abs(seconds))} {side} the worst change."
    return Evidence(text, {_OF: what, _BEFORE_WORST: seconds})


def _by_address(one: Explanation, suspects: places.Suspects) -> Explanation:
    """Return an explanation that suspects brokers by their addresses, each once."""
    names = map(suspects.address, one.suspect.split(", "))
    return replace(one, suspect=", ".join(dict.fromkeys(names)))


def _began_before(opening: Change, facts: Facts) -> bool:
    """True where an incident began before what is judged, and enough before that is on record."""
    is_rise = opening.direction == "up" and opening.kind in {"step", "outage"}
    is_known = opening.onset_k >= facts.nearby.k0 + _LEAST_BEFORE_SECONDS
    return is_rise and is_known and opening.onset_k < facts.near[0]


def _since_first_outage(headline: Change, changes: Iterable[Change]) -> Change:
    """Return an outage with the onset of the first of those that it goes on from.

    What stops all leaders for a moment, and then one of them for long, began with the first.
    """
    first = headline
    for one in sorted(changes, key=lambda change: -change.onset_k):
        is_over = one.resolved_k is not None and first.onset_k - one.resolved_k > TOGETHER_SECONDS
        if one.kind == "outage" and one.onset_k < first.onset_k and not is_over:
            first = one
    return replace(headline, onset_k=first.onset_k, interval=first.interval)


def _as_latency(change: Change) -> Change:
    """Return an outage as the series of the journals that shows it best: the wait of the oldest message."""
    if change.kind != "outage":
        return change
    source = parse_series(change.series).source
    is_delivery = parse_series(change.series).metric == wording.DELIVERY_STOPPED
    name = _END_TO_END if is_delivery else wording.WAITING
    return replace(change, series=series_name(source, name), kind="step")


def attribute_breach(breach: Change, findings: Iterable[Finding]) -> list[Explanation]:
    """Return why an objective was missed: the causes of the incident that lasted longest before.

    Empty while that incident has none yet; `unknown` alone when there was no incident.
    """
    lasted = [
        (min(breach.raised_k, one.resolved_k or breach.raised_k) - one.onset_k, one)
        for one in findings
        if one.kind != "objective" and one.state != "warning"
    ]
    seconds, longest = max(lasted, key=lambda pair: pair[0], default=(0, None))
    if longest is None or seconds <= 0:
        return [*NO_CAUSE]
    if not longest.causes:
        return []
    before = Evidence(
        f"Before the budget was spent, this lasted {wording.span(seconds)}: "
        f"{wording.what_text(longest)}.",
        {"seconds": seconds},
    )
    first, *others = longest.causes
    return [replace(first, evidence=(before, *first.evidence)), *others]


def _concerned(found: Incident, nearby: Nearby) -> list[Evidence]:
    """Return which clients, leaders and partitions an outage is about, as far as that is recorded.

    A partition is known by the messages to it that failed.
    """
    outages = [parse_series(one.series) for one in found.changes if one.kind == "outage"]
    begin_k = min(one.onset_k for one in found.changes if one.kind == "outage")
    clients = sorted({name.source for name in outages})
    leaders = sorted({name.label("leader") for name in outages} - {""})
    partitions = sorted(
        {
            int(str(one.event.fields["lane"]).rpartition(".")[2])
            for one in nearby.events
            if one.event.kind == SEND_FAILED_EVENT and one.k >= begin_k
        }
    )
    return [
        Evidence(
            f"{title} concerned: {_listed(names)}.", {f"{title.lower()}_concerned": len(names)}
        )
        for title, names in (
            ("Clients", clients),
            ("Leaders", leaders),
            ("Partitions", list(map(str, partitions))),
        )
        if names
    ]


def _listed(names: Sequence[str]) -> str:
    """Return the names, without those beyond the first few."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _periodic(change: Change) -> Evidence:
    top = wording.amount(change.after, parse_series(change.series).unit)
    return Evidence(
        f"{wording.title(change.series)} spikes {words_of(change)}, to {top}.",
        {
            "period_seconds": change.period_seconds or 0.0,
            "burst_seconds": change.burst_seconds or 0.0,
        },
    )
