"""Why it stepped: every cause is asked, those above the bar are named, else it is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from detectors import affected_brokers, cause_scores
from detectors.incidents import Incident
from detectors.kinds.spikes import words_of
from detectors.nearby import Nearby
from soak.core import plugins, wording
from soak.core.audit import SEND_FAILED_EVENT
from soak.core.model import Change, Evidence, Explanation, Finding
from soak.core.series import parse_series, series_name

BAR = cause_scores.SO_FAR
PACKAGE = "detectors.causes"
UNKNOWN = "unknown"
NO_CAUSE = (Explanation(UNKNOWN, 0.0, ()),)
_MOST_NAMES = 12
_END_TO_END = 'end_to_end_latency_seconds{quantile="0.99"}'


def attribute(
    found: Change | Incident, nearby: Nearby, *, is_last: bool = False
) -> list[Explanation]:
    """Return the causes that pass the bar, best first; `unknown` alone when there is none.

    The last word has none that waits for seconds to come. A step down is `unknown`: causes say what makes
    latency worse. So is a drift, which has no instant that a cause could share. Of spikes the period is said
    too.
    """
    change = _as_latency(found.headline if isinstance(found, Incident) else found)
    touched = replace(nearby, events=affected_brokers.events_of_touched(change, nearby))
    causes = _asked(change, touched, is_last=is_last)
    if isinstance(found, Incident) and found.headline.kind == "outage":
        concerned = _concerned(found, nearby)
        first, *others = causes
        return [replace(first, evidence=(*first.evidence, *concerned)), *others]
    if change.kind != "spikes" or change.period_seconds is None:
        return causes
    first, *others = causes
    return [replace(first, evidence=(*first.evidence, _comb(change))), *others]


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


def is_so_far(causes: Sequence[Explanation]) -> bool:
    """True where there is no word yet, or one that the seconds to come may take back."""
    return not causes or causes[0].score == cause_scores.SO_FAR


def _asked(change: Change, nearby: Nearby, *, is_last: bool) -> list[Explanation]:
    told = [
        plugins.load(PACKAGE, name).explain(change, nearby)
        for name in plugins.names(PACKAGE)
        if name != UNKNOWN and change.direction == "up" and change.kind != "drift"
    ]
    passing = [one for one in told if one and _passes(one.score, is_last=is_last)]
    if passing:
        return sorted(passing, key=lambda explanation: (-explanation.score, explanation.cause))
    return [plugins.load(PACKAGE, UNKNOWN).explain(change, nearby)]


def _passes(score: float, *, is_last: bool) -> bool:
    return score > BAR or (score == BAR and not is_last)


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


def _comb(change: Change) -> Evidence:
    top = wording.amount(change.after, parse_series(change.series).unit)
    return Evidence(
        f"{wording.title(change.series)} spikes {words_of(change)}, to {top}.",
        {
            "period_seconds": change.period_seconds or 0.0,
            "burst_seconds": change.burst_seconds or 0.0,
        },
    )
