"""The verdict of a run, for machines: what `report/summary.json` says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np

from soak.core import wording
from soak.core.errors import PlanError
from soak.core.model import Change, Finding
from soak.core.plan.phases import Decision
from soak.core.plan.rates import rate_text, rates_between
from soak.core.series import is_client, parse_series, series_name
from soak.core.units import SECOND_NS, format_rate
from soak.store.admission import read_refused
from soak.store.run_folder import rate_table
from spark.batch import offline_analysis
from spark.batch.coverage import Coverage, gap_json, merged_spans
from spark.batch.digest import EXTREMES_SECONDS, distinct
from spark.batch.offline_analysis import Judged
from spark.batch.timeline import Timeline
from spark.report.busy_hosts import busy_hosts, busy_hosts_of

Verdict = Literal["clean", "regressed", "inconclusive"]

EXIT_CODE: dict[Verdict, int] = {"clean": 0, "regressed": 3, "inconclusive": 4}


def verdict(timeline: Timeline, judged: Sequence[Judged], covered: Coverage) -> Verdict:
    """Return the verdict: a loss or a regression that was seen stands, however little was covered.

    Where an objective was missed and the incident does not count, nothing shows that the cluster keeps it.
    """
    if timeline.audit["lost"] or any(is_counted(timeline, one) for one in judged):
        return "regressed"
    return "clean" if covered.is_enough and not missed(judged) else "inconclusive"


def is_counted(timeline: Timeline, one: Judged) -> bool:
    """Return whether an incident makes the run regressed; one that was acknowledged does not.

    An objective that clients without CPU may have missed does not: nothing tells them from a slow cluster.
    """
    is_regression = one.is_against_cluster and one.finding.state != "warning"
    return is_regression and not busy_hosts_of(timeline, one.finding)


def missed(judged: Sequence[Judged]) -> list[Judged]:
    """Return the objectives that were missed; without what was acknowledged."""
    return [
        one
        for one in judged
        if one.finding.kind == "objective"
        and one.finding.state != "warning"
        and one.acknowledged is None
    ]


def summary(
    timeline: Timeline,
    judged: Sequence[Judged],
    covered: Coverage,
    durability: Mapping[str, object],
) -> dict[str, object]:
    """Return the whole of `summary.json`; findings in order of time, warnings left out."""
    reported = sorted(
        (one for one in judged if one.finding.state != "warning"),
        key=lambda one: one.finding.onset_k,
    )
    known = [replace(one, acknowledged=one.acknowledged or "known") for one in judged]
    ranks = {one.finding.key: rank for rank, one in enumerate(worst_first(reported), 1)}
    return {
        "run": timeline.run.id,
        "name": timeline.plan.name,
        "start": wording.iso(timeline.run.start_wall_ns),
        "verdict": verdict(timeline, judged, covered),
        "is_running": timeline.is_running,
        "verdict_without_incidents": verdict(timeline, known, covered),
        "findings": [
            {**_finding(timeline, one), "rank": ranks[one.finding.key]} for one in reported
        ],
        "soak": {**soak_json(timeline), "outages": outages(timeline, reported)},
        "phases": _phases(timeline),
        "audit": audit_json(timeline),
        "coverage": {
            "seconds": covered.seconds,
            "ratio": math.floor(Decimal(repr(float(covered.ratio))) * 10_000)
            / 10_000,  # as the page rounds it
            "gaps": [gap_json(timeline, gap) for gap in covered.gaps],
            "untrusted_seconds": covered.invalid_seconds,
        },
        "refused": [asdict(one) for one in read_refused(timeline.folder.refused)],
        "durability": durability,
    }


def audit_json(timeline: Timeline) -> dict[str, int | str | None]:
    """Return the counts of the audit; `not_audited` says why there is none, where that is so."""
    why = timeline.not_audited
    return {**timeline.audit, **({"not_audited": why} if why else {})}


def soak_json(timeline: Timeline) -> dict[str, object]:
    """Return the figures of the whole soak: rates, availability, latencies in seconds; None: not known.

    Rates are per second of the soak that is on record.
    """
    totals, seconds = timeline.totals, soak_seconds(timeline)
    rates = {
        f"{name.removesuffix('_messages')}_per_second": round(count / seconds, 3)
        if seconds
        else None
        for name, count in totals.messages.items()
        if name in ("sent_messages", "received_messages")
    }
    return {
        "seconds": seconds,
        "planned_seconds": timeline.plan.phases.soak // SECOND_NS,
        "message_bytes": timeline.plan.load.mean_size,
        "planned_per_second": planned_per_second(timeline, timeline.soak_spans),
        **rates,
        **bytes_rates(timeline, rates),
        "messages": dict(totals.messages),
        "availability": totals.availability,
        "latency_seconds": {name: one.seconds() for name, one in sorted(totals.latencies.items())},
        "busy_hosts": busy_hosts(timeline),
    }


def bytes_rates(timeline: Timeline, rates: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return rates of messages as rates of bytes: `sent_bytes_per_second` for `sent_per_second`.

    Sizes are the plan's: a message counts with their mean.
    """
    size = timeline.plan.load.mean_size
    return {
        name.replace("_per_second", "_bytes_per_second"): None
        if rate is None
        else round(rate * size, 1)
        for name, rate in rates.items()
    }


def soak_seconds(timeline: Timeline) -> int:
    """Return how many seconds of the soak any client recorded; without clients, any source."""
    clients = [k for source, k in timeline.seconds.items() if is_client(source)]
    if not timeline.seconds:
        return 0
    recorded = distinct(np.concatenate(clients or list(timeline.seconds.values())))
    return int(np.isin(recorded, timeline.soak_seconds).sum())


def _phases(timeline: Timeline) -> list[dict[str, object]]:
    """Return what was done when, and what a ramp or catch-up came to; see the page "Phases and rates"."""
    phases = timeline.phases
    return [
        {
            "phase": one.phase,
            "part": one.part,
            "from": wording.iso(timeline.wall_ns(one.from_k)),
            "to": wording.iso(timeline.wall_ns(edge)),
            **_planned(timeline, one, edge),
            **(rates := phase_rates(timeline, one.from_k, edge)),
            **bytes_rates(timeline, rates),
            "latency_seconds": {
                name: seconds
                for name in ("publish", "end_to_end")
                if (seconds := timeline.totals.phase_seconds(one.from_k, name)) is not None
            },
            "reason": one.reason,
            "outcome": dict(phases.outcome(one, edge)),
        }
        for one, edge in phases.held(timeline.end_k)
    ]


def _planned(timeline: Timeline, held: Decision, edge_k: int) -> dict[str, str | float | None]:
    """Return the planned rate of a phase as text and as a number; None where nothing is sent."""
    mean = None
    if held.phase not in _SILENT:
        mean = planned_per_second(timeline, [(held.from_k, edge_k)])
    is_known = held.rate is not None or mean is not None
    return {
        "rate": phase_rate(timeline, held, edge_k) if is_known else None,
        "planned_per_second": mean,
    }


def phase_rate(timeline: Timeline, held: Decision, edge_k: int) -> str:
    """Return the rate that a phase until `edge_k` was to have; "" where nothing is sent."""
    if held.rate is not None:
        return format_rate(held.rate)
    return "" if held.phase in _SILENT else planned_rate(timeline, [(held.from_k, edge_k)])


_SILENT = frozenset({"drain", "end"})


def phase_rates(timeline: Timeline, from_k: int, to_k: int) -> dict[str, float | None]:
    """Return the messages that all clients sent and received per second of seconds [from_k, to_k).

    Of the seconds that any client has a record of: one that stopped and caught up later had no higher rate.
    None where nothing is on record; of a long run whole buckets count.
    """
    totals: dict[str, float] = {}
    recorded = np.empty(0, np.int64)
    for metric in ("sent_messages", "received_messages"):
        for source in timeline.seconds:
            series = timeline.series.get(series_name(source, metric))
            if series is None:
                continue
            k, counts = series
            within = (k >= from_k) & (k + timeline.step <= to_k)
            if within.any():
                totals[metric] = totals.get(metric, 0.0) + float(counts[within].sum())
            recorded = distinct(np.concatenate([recorded, k[within]]))
    seconds = recorded.size * timeline.step
    return {
        f"{one}_per_second": round(totals[f"{one}_messages"] / seconds, 3)
        if f"{one}_messages" in totals
        else None
        for one in ("sent", "received")
    }


def planned_rate(timeline: Timeline, spans: Sequence[tuple[int, int]]) -> str:
    """Return which rates these stretches were to have, from the lowest to the highest."""
    load, found = timeline.plan.load, _planned_rates(timeline, spans)
    if found is None:
        return f"the rates of {load.profile.file}, which cannot be read,"
    return rate_text([rate for _, rate in found] or [load.rate])


def planned_per_second(timeline: Timeline, spans: Sequence[tuple[int, int]]) -> float | None:
    """Return the mean rate that these stretches were to have; None: they are empty, or it is not known."""
    found = _planned_rates(timeline, spans)
    seconds = sum(length for length, _ in found or ())
    return (
        round(float(sum(length * rate for length, rate in found or ()) / seconds), 3)
        if seconds
        else None
    )


def _planned_rates(
    timeline: Timeline, spans: Sequence[tuple[int, int]]
) -> list[tuple[int, Fraction]] | None:
    """Return for how many seconds which rates were planned; None: the file of the profile cannot be read."""
    try:
        profile = rate_table(timeline.plan, timeline.folder)
    except PlanError:
        return None
    found = []
    for first_k, end_k in spans:
        rates = list(rates_between(timeline.plan.load, timeline.phases, profile, first_k, end_k))
        edges = [*(k for k, _ in rates[1:]), end_k]
        found += [(edge - k, rate) for (k, rate), edge in zip(rates, edges, strict=True)]
    return found


def affected(one: Judged) -> int:
    """Return how many messages failed, came late or were slower than the limit; 0: not counted."""
    slow = one.size.slow_messages if one.size is not None else 0
    late = max(one.finding.late_messages or 0, slow or 0)
    return (one.finding.failed_messages or 0) + late


def worst_first(found: Sequence[Judged]) -> list[Judged]:
    """Return incidents worst first, those that are held against the cluster before others.

    Outages come first, then by messages that failed, then by the time that all slow messages together waited,
    then by messages; equal ones keep their order.
    """

    def key(one: Judged) -> tuple[bool, bool, int, float, int]:
        failed, is_outage = one.finding.failed_messages or 0, one.finding.kind == "outage"
        return (
            not one.is_against_cluster,
            not is_outage,
            -failed,
            -_waited_seconds(one),
            -affected(one),
        )

    return sorted(found, key=key)


def _waited_seconds(one: Judged) -> float:
    """Return slow messages times the rise of p99: about how long they waited in all; 0: not known."""
    if one.size is None or not one.size.slow_messages:
        return 0.0
    level = one.size.levels.get("p99") or next(iter(one.size.levels.values()))
    rise = level.worst - level.before
    return one.size.slow_messages * rise if rise > 0 else 0.0  # NaN is not above 0


def outages(timeline: Timeline, judged: Sequence[Judged]) -> dict[str, float]:
    """Return the outages of the cluster in the soak, and seconds in which a producer got no acknowledgement.

    As the offline analysis dates them, also those that are a part of another incident; else as the incidents
    do. Those of several producers at one time are one.
    """
    known = [one for one in judged if one.finding.state != "warning"]
    of_cluster = [one.finding for one in known if one.finding.is_about_cluster]
    others = [
        span_of(timeline, one)
        for one in known
        if not one.finding.is_about_cluster and one.finding.kind != "objective"
    ]
    offline = [
        one
        for one in filter(_has_stopped, offline_analysis.outages(timeline))
        if one.state in {"confirmed", "gone"}
        and not any(first <= one.onset_k < last for first, last in others)
    ]
    every: Sequence[Finding | Change] = offline or list(filter(_has_stopped, of_cluster))
    found = sorted(
        (max(one.onset_k, begin), min(one.onset_k + one.after, end))
        for one in every
        for begin, end in timeline.soak_spans
        if one.onset_k < end and one.onset_k + one.after > begin
    )
    merged = merged_spans(found, 1)
    seconds = sum(last - first for first, last in merged)
    return {"count": len(merged), "seconds": float(seconds)}


def _has_stopped(one: Finding | Change) -> bool:
    """True for an outage in which a producer got no acknowledgement from any leader."""
    name = parse_series(one.series)
    is_whole = name.metric == wording.ACKNOWLEDGEMENTS_STOPPED and not name.label("leader")
    return one.kind == "outage" and is_whole and math.isfinite(one.after)


def span_of(timeline: Timeline, one: Judged) -> tuple[int, int]:
    """Return the first second of an incident and the first after it; of an open one the end of the run."""
    end_k, found = timeline.end_k, one.finding
    last = end_k if found.resolved_k is None else min(found.resolved_k, end_k)
    return found.onset_k, max(last, found.onset_k + 1)


def _finding(timeline: Timeline, one: Judged) -> dict[str, object]:
    found = one.finding
    name = parse_series(found.series)
    low, high = found.interval
    begin_k, end_k = span_of(timeline, one)
    return {
        "key": found.key,
        "kind": found.kind,
        "what": wording.what_text(found),
        "metric": name.metric,
        "labels": {"source": name.source, **dict(name.labels)},
        "at": wording.iso(timeline.wall_ns(found.onset_k)),
        "interval_seconds": [low - found.onset_k, high - found.onset_k],
        "seconds": end_k - begin_k,
        "is_over": found.resolved_k is not None,
        "affected_messages": affected(one) or None,
        "before": _finite(found.before),
        "after": _finite(found.after),
        "ratio": _finite(found.ratio),
        "cause": found.cause,
        "confidence": found.confidence,
        "state": found.state,
        "found": one.found,
        "is_about_cluster": found.is_about_cluster,
        "is_counted": is_counted(timeline, replace(one, acknowledged=None)),
        "acknowledged": one.acknowledged,
        "suspect": found.suspect,
        "causes": [
            {"cause": cause.cause, "score": cause.score, "suspect": cause.suspect}
            for cause in found.causes
        ],
        "evidence": [
            {"cause": cause.cause, "text": item.text, "numbers": _numbers(item.numbers)}
            for cause in found.causes
            for item in cause.evidence
        ],
        "against": [
            {"cause": cause.cause, "text": item.text, "numbers": _numbers(item.numbers)}
            for cause in found.causes
            for item in cause.against
        ],
        "also": list(found.changes),
        "messages": _messages(found),
        "size": None if one.size is None else one.size.to_json(),
        "step": _step(timeline, one.step) if one.step else None,
    }


def _messages(found: Finding) -> dict[str, int | None] | None:
    """Return what an outage cost: of the messages due, how many failed and how many came late."""
    if found.due_messages is None:
        return None
    return {
        "failed": found.failed_messages,
        "late": found.late_messages,
        "due": found.due_messages,
    }


def _step(timeline: Timeline, step: Sequence[Change]) -> dict[str, object]:
    """Return an offline step: since when, and what each latency did, clearest first."""
    onset_k, (low, high) = step[0].onset_k, step[0].interval
    return {
        "at": wording.iso(timeline.wall_ns(onset_k)),
        "interval_seconds": [low - onset_k, high - onset_k],
        "moved": [
            {"series": one.series, "before": _finite(one.before), "after": _finite(one.after)}
            for one in step
        ],
    }


def _numbers(numbers: Mapping[str, float | int | str]) -> dict[str, object]:
    return {
        key: _finite(value) if isinstance(value, float) else value for key, value in numbers.items()
    }


def _finite(value: float) -> float | None:
    """Return the value, or None where it is no number: JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None


MOST_POINTS = 240
"""A chart in a mail is a few hundred pixels wide."""


def overview(timeline: Timeline, judged: Sequence[Judged]) -> dict[str, object]:
    """Return the highest p99 of all clients over the whole run, and its incidents, for the chart of a mail.

    `k` is the first second of each stretch of `step_seconds`; a value is None where nothing was measured.
    """
    length = max(1, -(-timeline.end_k // MOST_POINTS))
    if timeline.step > 1:  # the highest second is known by the minute
        length = -(-length // EXTREMES_SECONDS) * EXTREMES_SECONDS
    edges = np.arange(0, timeline.end_k, length)
    lines: dict[str, list[float | None]] = {}
    for family in ("publish", "end_to_end"):
        column = f'{family}_latency_seconds{{quantile="0.99"}}'
        highest = np.full(edges.size, -np.inf)
        for source in timeline.seconds:
            name = series_name(source, column)
            kept = timeline.extremes.get(name)
            k, values = (
                timeline.series.get(name, (_NO_SECONDS, _NO_VALUES))
                if kept is None
                else (kept.k, kept.high)
            )
            is_within = (k >= 0) & (k < timeline.end_k)
            np.fmax.at(highest, k[is_within] // length, values[is_within])
        lines[family] = [_finite(float(value)) for value in highest]
    shown = [one for one in judged if is_counted(timeline, one)]
    return {
        "start_wall_ns": timeline.run.start_wall_ns,
        "step_seconds": length,
        "k": edges.tolist(),
        "p99_seconds": lines,
        "incidents": [list(span_of(timeline, one)) for one in shown],
    }


_NO_SECONDS, _NO_VALUES = np.empty(0, np.int64), np.empty(0)
