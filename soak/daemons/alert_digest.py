"""The digest: every so often one message on all findings of a run, also where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from soak.core import wording
from soak.core.model import Finding
from soak.core.ports import Clock, Message, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_attempt import attempt
from soak.daemons.alert_calendar import Calendar
from soak.daemons.alert_silence import Silence, read_silences
from soak.daemons.alert_silence_message import named
from soak.store.findings import FindingsStore
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger("soak.daemons.alert")
MOST_FINDINGS = 30
RETRY_NS = 300 * SECOND_NS
_STATES = ("confirmed", "gone", "warning")


class Digests:
    """Call `poll` each round; what was delivered is kept in `findings.db`, so each goes out once."""

    def __init__(  # what it reads, whom it tells, and when
        self,
        folder: RunFolder,
        run: Run,
        sinks: Mapping[str, Sink],
        calendar: Calendar,
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._run = run
        self._sinks = sinks
        self._calendar = calendar
        self._clock = clock
        self._alive = alive
        self._again_ns: dict[str, int] = {}  # sinks that put us off, and until when
        self._so_far: dict[str, tuple[str, str]] = {}  # by sink: which digest, and who has got it
        self._unmarked: dict[str, int] = {}  # by sink: told up to this instant, and not on disk yet

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used; what was sent by then is not sent again."""
        for name, told_ns in tuple(self._unmarked.items()):
            self._mark(name, told_ns)
        for name, sink in self._sinks.items():
            now_ns = self._clock.wall_ns()
            wait_ns = self._again_ns.get(name, 0) - now_ns
            if not 0 < wait_ns <= RETRY_NS:  # or it was set before the clock stepped back
                self._try(name, sink, now_ns)

    def _try(self, name: str, sink: Sink, now_ns: int) -> None:
        with FindingsStore(self._folder.findings) as store:
            told_ns = int(store.checkpoint(_checkpoint(name)) or self._run.start_wall_ns)
            if told_ns > now_ns:  # told by a clock that ran ahead: no day is to be without
                store.set_checkpoint(_checkpoint(name), str(now_ns))
                return
            due_ns = self._calendar.digest_due_ns(told_ns, now_ns)
            if due_ns is None:
                return
            findings = store.findings(self._run.id)
            owed = store.owed()
        lacking = [one for one in read_silences(self._folder) if one.is_open]
        self._alive()
        message = compose(self._run, findings, lacking, owed, told_ns, due_ns)
        key, so_far = self._so_far.get(name, ("", ""))
        message = replace(message, so_far=so_far if key == message.key else "")
        outcome = attempt(lambda: sink.send(message))
        LOG.info("digest_tried sink=%s result=%s detail=%r", name, outcome.result, outcome.detail)
        if outcome.result == "retry":
            self._again_ns[name] = now_ns + RETRY_NS
            self._so_far[name] = (message.key, outcome.so_far or message.so_far)
            return
        self._unmarked[name] = due_ns
        self._mark(name, due_ns)

    def _mark(self, name: str, told_ns: int) -> None:
        with FindingsStore(self._folder.findings) as store:
            store.set_checkpoint(_checkpoint(name), str(told_ns))
        del self._unmarked[name]


def _checkpoint(sink: str) -> str:
    return f"digest.{sink}"


def compose(  # what it tells of, and between which instants
    run: Run,
    findings: Sequence[Finding],
    lacking: Sequence[Silence],
    owed: int,
    since_wall_ns: int,
    due_wall_ns: int,
) -> Message:
    """Return the digest of an instant: the same whenever it is tried again."""
    told = [one for one in findings if one.is_about_cluster and one.state != "warning"]
    lasting = [one for one in told if one.state == "confirmed"]
    new = [one for one in told if _raised_ns(run, one) > since_wall_ns]
    second = (due_wall_ns - run.start_wall_ns) // SECOND_NS
    counts = f"{len(lasting)} lasting, {len(new)} new since {_stamp(since_wall_ns)}"
    lines = [
        f"run       {run.id} of the plan {run.name}, after {wording.span(second)}",
        f"findings  {len(told)} in all: {counts}",
        *(f"lacking   {named(one)} since {_stamp(one.since_wall_ns)}" for one in lacking),
        *([f"unsent    {wording.counted(owed, 'message')} to be tried again"] if owed else []),
        "",
        *(line for one in sorted(told, key=_order)[:MOST_FINDINGS] for line in _lines(run, one)),
        *([f"  and {len(told) - MOST_FINDINGS} more"] if len(told) > MOST_FINDINGS else []),
    ]
    return Message(
        key=f"{run.id}.digest.{due_wall_ns // SECOND_NS}",
        subject=f"[soakd] {run.name}: digest: {len(lasting)} lasting, {len(new)} new",
        text="\n".join(map(wording.printable, lines)).rstrip() + "\n",
        at_wall_ns=due_wall_ns,
        labels={"finding": "digest", "plan": run.name, "run": run.id, "severity": "none"},
        begin_wall_ns=due_wall_ns,
        end_wall_ns=due_wall_ns + RETRY_NS,
    )


def _lines(run: Run, finding: Finding) -> list[str]:
    """Return when it began and why, and below what it is: together too long for a line."""
    state = "lasts since" if finding.state == "confirmed" else "gone, began"
    began = _stamp(run.start_wall_ns + finding.onset_k * SECOND_NS)
    what = f"{wording.title(finding.series)} {wording.moved(finding)}"
    return [f"  {state} {began}, cause {finding.cause}", f"      {what}"]


def _stamp(wall_ns: int) -> str:
    return f"{wording.day(wall_ns)} {wording.moment(wall_ns)}"


def _order(finding: Finding) -> tuple[int, int]:
    return _STATES.index(finding.state), -finding.onset_k


def _raised_ns(run: Run, finding: Finding) -> int:
    return run.start_wall_ns + finding.raised_k * SECOND_NS
