"""The other series that changed with a finding, with their levels: what a reader needs most comes first."""

from __future__ import annotations

from collections.abc import Sequence

from soak.alerting.document import Pairs
from soak.alerting.places import Places
from soak.core import wording
from soak.core.model import Change, Finding, Kind
from soak.core.series import SeriesId, parse_series

_OWN_PROCESSES = ("process_", "host_daemon_", "callback_delay", "consumer_pause")
"""Metrics of soakd's own daemons: mostly effects, so brokers and drives are named before them."""
_OWN_POLLS = "_poll_age_seconds"
"""How late soakd itself read a page or a log: nothing that a reader of a mail can use."""
_LEAST_CORES = 0.1  # of a daemon of soakd: less is noise
_SAME_ONSET_SECONDS = 60


def changed_series(
    finding: Finding,
    changes: Sequence[Change],
    places: Places,
    *,
    max_series: int,
    max_evidence: int,
) -> Pairs:
    """Return other series that changed, without those of the first `max_evidence` sentences of evidence.

    Messages that came through or failed are first, then brokers and drives, then latencies, then soakd's own
    processes.
    """
    own = parse_series(finding.series)
    evidence = finding.causes[0].evidence[:max_evidence] if finding.causes else ()
    named = {str(one.numbers.get("series", "")) for one in evidence}
    found = []
    for series in finding.changes:
        name = parse_series(series)
        if (name.source, name.metric) == (own.source, own.metric) or series in named:
            continue
        change = _change_of(series, finding, changes)
        if not _is_noise(name, change):
            found.append((_rank(name), series, change))
    found.sort(key=lambda one: one[0])
    rows = [
        (
            places.named(wording.title_with_other_source(series, finding.series)),
            _levels(series, change),
        )
        for _, series, change in found[:max_series]
    ]
    return Pairs("also changed", rows, len(found) - len(rows))


def _rank(name: SeriesId) -> int:
    if name.metric.startswith(_OWN_PROCESSES):
        return 3
    if name.source.startswith("probe"):
        return 1
    return 0 if name.unit == "messages" else 2


def _is_noise(name: SeriesId, change: Change | None) -> bool:
    if name.metric.endswith(_OWN_POLLS):
        return True
    is_own = name.metric.startswith(_OWN_PROCESSES) and name.unit == "cores"
    return is_own and change is not None and max(change.before, change.after) < _LEAST_CORES


def _change_of(series: str, finding: Finding, changes: Sequence[Change]) -> Change | None:
    """Return the change of a series nearest to the onset of a finding, None where none is near."""
    known = [
        change
        for change in changes
        if change.series == series and abs(change.onset_k - finding.onset_k) <= _SAME_ONSET_SECONDS
    ]
    return min(known, key=lambda one: abs(one.onset_k - finding.onset_k), default=None)


def _levels(series: str, change: Change | None) -> str:
    if change is None:
        return ""
    kind: Kind = "outage" if change.kind == "outage" else "step"
    return wording.level_text(series, kind, change.before, change.after)
