"""Messages that list all findings of a run, also when there are none: the digest, and that at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from soak.alerting.calendar import Calendar
from soak.alerting.document import (
    Chart,
    Document,
    Facts,
    Numbers,
    Paragraphs,
    Points,
    Tone,
    as_html,
    as_text,
)
from soak.alerting.heartbeat import Notice
from soak.alerting.heartbeat_message import daemon_names
from soak.alerting.load_state import lost_text
from soak.alerting.places import NOWHERE, Places
from soak.core import wording
from soak.core.model import Finding
from soak.core.ports import Clock, DigestOptionalSink, Message, Sink
from soak.core.units import SECOND_NS
from soak.store.findings.port import FindingsPlace
from soak.store.run_folder import Run

MAX_FINDINGS = 30
RESOLVE_AFTER_NS = 300 * SECOND_NS
"""An alert that carries a digest resolves itself after this time."""
_STATES = ("confirmed", "gone", "warning")
_TONES: Mapping[str, Tone] = {"clean": "good", "regressed": "bad"}


def wants_digests(sink: Sink) -> bool:
    return not isinstance(sink, DigestOptionalSink) or sink.wants_digests


class DigestSchedule:
    """Queues a digest for each sink that wants one whenever the calendar says that it is due."""

    def __init__(
        self,
        findings: FindingsPlace,
        run: Run,
        sinks: Mapping[str, Sink],
        calendar: Calendar,
        clock: Clock,
    ) -> None:
        self._findings = findings
        self._run = run
        self._sinks = [name for name, sink in sinks.items() if wants_digests(sink)]
        self._calendar = calendar
        self._clock = clock

    def poll(self) -> None:
        """Queue what is due; raises `FindingsError` when the file cannot be used."""
        if not self._calendar.has_digests:
            return
        now_ns = self._clock.wall_ns()
        for name in self._sinks:
            with self._findings.open() as store:
                last_ns = store.last_digest_ns(name) or self._run.start_wall_ns
                if (
                    last_ns > now_ns
                ):  # the clock ran ahead when it was sent: no day goes without a digest
                    store.forget_digests_after(name, now_ns)
                    last_ns = store.last_digest_ns(name) or self._run.start_wall_ns
                due_ns = self._calendar.digest_due_ns(last_ns, now_ns)
                if due_ns is not None:
                    store.queue_digest(name, due_ns)


def compose_digest(
    run: Run,
    findings: Sequence[Finding],
    missing: Sequence[Notice],
    unsent: int,
    since_wall_ns: int,
    due_wall_ns: int,
) -> Message:
    """Return the digest of an instant; `since_wall_ns` is the instant of the one before."""
    shown = [one for one in findings if one.is_about_cluster and one.state != "warning"]
    shown.sort(key=lambda one: (_STATES.index(one.state), -one.onset_k))
    open_count = sum(one.state == "confirmed" for one in shown)
    new_count = sum(_wall_ns(run, one.raised_k) > since_wall_ns for one in shown)
    age = wording.span((due_wall_ns - run.start_wall_ns) // SECOND_NS)
    counts = f"{open_count} open, {new_count} new since {_stamp(since_wall_ns)}"
    facts = [
        ("run", f"{run.id} of plan {run.name}, started {age} ago"),
        ("incidents", f"{len(shown)} in total: {counts}"),
        *(("missing", f"{daemon_names(one)} since {_stamp(one.since_wall_ns)}") for one in missing),
    ]
    if unsent:
        facts.append(("unsent", f"{wording.counted(unsent, 'message')} waiting to be sent"))
    document = Document(
        f"{open_count} open" if open_count else "Digest",
        "bad" if open_count else "neutral",
        f"{wording.counted(open_count, 'open incident')}, {new_count} new",
        [Facts(facts), _listed([_finding_line(run, one) for one in shown])],
    )
    return Message(
        key=f"{run.id}.digest.{due_wall_ns // SECOND_NS}",
        subject=wording.printable(
            f"[soakd] digest: {open_count} open, {new_count} new - {run.name}"
        ),
        text=as_text(document),
        html=as_html(document),
        at_wall_ns=due_wall_ns,
        labels={"finding": "digest", "plan": run.name, "run": run.id, "severity": "none"},
        begin_wall_ns=due_wall_ns,
        end_wall_ns=due_wall_ns + RESOLVE_AFTER_NS,
    )


def compose_end(
    run: Run,
    summary: Mapping[str, Any],
    report: str,
    chart_png: bytes | None,
    queued_wall_ns: int,
    places: Places = NOWHERE,
) -> Message:
    """Return the message about the end of a run: the head of its report.

    `summary` is the needed part of its `summary.json`.
    """
    shown = [one for one in summary["findings"] if one["is_about_cluster"]]
    later = sum(one["found"] == "offline" for one in shown)
    verdict, audit = summary["verdict"], summary["audit"]
    covered = summary["coverage"]
    found = wording.counted(len(shown), "incident") if shown else "no incident"
    note = f", {later} of them only in the offline analysis of the whole run" if later else ""
    facts = [
        ("run", f"{run.id} of plan {run.name}"),
        ("verdict", verdict),
        ("incidents", f"{len(shown)}{note}"),
        *_rates(summary.get("soak", {})),
        ("lost", lost_text(audit)),
        *(("objective", _objective_text(one)) for one in summary.get("objectives", ())),
        (
            "covered",
            f"{wording.share_down(covered['ratio'], 2)} of {wording.span(covered['seconds'])}",
        ),
        ("report", report),
    ]
    document = Document(
        verdict.capitalize(),
        _TONES.get(verdict, "neutral"),
        f"Run ended, {found}",
        [
            Paragraphs([places.named(f"The run has ended. {summary['headline']}")]),
            _numbers(summary.get("soak", {})),
            Facts(facts, copied=("report",)),
            Chart((), chart_png is not None, "p99 latency over the whole run, incidents shaded"),
            _listed([places.named(_summary_line(one)) for one in shown]),
        ],
    )
    return Message(
        key=f"{run.id}.end",
        subject=wording.printable(f"[soakd] run ended: {verdict}, {found} - {run.name}"),
        text=as_text(document),
        html=as_html(document),
        chart_png=chart_png,
        at_wall_ns=queued_wall_ns,
        labels={"finding": "end", "plan": run.name, "run": run.id, "severity": "none"},
        begin_wall_ns=queued_wall_ns,
        end_wall_ns=queued_wall_ns + RESOLVE_AFTER_NS,
    )


_FAMILIES = {"publish": "publish", "end_to_end": "end to end"}
_QUANTILES = ("p50", "p99", "p99.9", "max")


def _numbers(soak: Mapping[str, Any]) -> Numbers:
    """Return the latencies of the soak as a table."""
    latencies = soak.get("latency_seconds", {})
    rows = [
        (name, *(_amount(latencies[family].get(quantile)) for quantile in _QUANTILES))
        for family, name in _FAMILIES.items()
        if family in latencies
    ]
    note = f"Latency of the soak, {wording.span(soak['seconds'])}." if rows else ""
    return Numbers(_QUANTILES, rows, note)


def _amount(seconds: float | None) -> str:
    return "-" if seconds is None else wording.amount(seconds, "seconds")


def _rates(soak: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was sent and received a second, and how much of it was acknowledged."""
    rates = [
        f"{wording.amount(soak[key], '')}/s {verb}"
        for key, verb in (("sent_per_second", "sent"), ("received_per_second", "received"))
        if soak.get(key) is not None
    ]
    available = soak.get("availability")
    if available is not None:
        share = "100%" if available == 1.0 else wording.share_down(available, 3)
        rates.append(f"{share} acknowledged")
    return [("rate", ", ".join(rates))] if rates else []


def _listed(lines: Sequence[str]) -> Points:
    more = len(lines) - MAX_FINDINGS
    heading = "incidents" if lines else "no incidents"
    return Points(heading, lines[:MAX_FINDINGS], left_out=more)


def _summary_line(finding: Mapping[str, Any]) -> str:
    state = "open at the end" if finding["state"] == "confirmed" else "resolved"
    seen = ", only in the offline analysis" if finding["found"] == "offline" else ""
    cause, suspect = wording.cause_text(finding["cause"]), finding.get("suspect")
    where = f" ({suspect})" if suspect else ""
    known = "cause unknown" if cause == "unknown" else f"{cause}{where}"
    at = finding["at"].replace("T", " ")
    return f"{at}, {known}, {state}{seen}: {finding['what']}"


def _objective_text(one: Mapping[str, Any]) -> str:
    left = wording.budget_left_text(one["budget_left"], one["unit"])
    return f"{one['state']}, budget {left}: {one['objective']}"


def _finding_line(run: Run, finding: Finding) -> str:
    onset = _stamp(_wall_ns(run, finding.onset_k))
    state = f"open since {onset}" if finding.state == "confirmed" else f"resolved, began {onset}"
    change = wording.what_text(finding)
    return f"{state}, cause {wording.cause_text(finding.cause)}: {change}"


def _stamp(wall_ns: int) -> str:
    return f"{wording.day(wall_ns)} {wording.moment(wall_ns)}"


def _wall_ns(run: Run, k: int) -> int:
    return run.start_wall_ns + k * SECOND_NS
