"""The digest: every so often one message on all findings of a run, also where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from soak.core import wording
from soak.core.model import Finding
from soak.core.ports import ChoosySink, Clock, Message, Sink
from soak.core.units import SECOND_NS
from soak.daemons.alert_attempt import attempt
from soak.daemons.alert_calendar import Calendar
from soak.daemons.alert_digest_owed import (
    Told,
    forget_tried,
    owe,
    owed_digests,
    put_off,
    read_told,
    set_told,
)
from soak.daemons.alert_silence import Silence, read_silences
from soak.daemons.alert_silence_message import named
from soak.store.findings import FindingsStore
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger("soak.daemons.alert")
MOST_FINDINGS = 30
RETRY_NS = 300 * SECOND_NS
_STATES = ("confirmed", "gone", "warning")


def never() -> bool:
    return False


class Digests:
    """Call `poll` each round; what is owed and who has got it lies in `findings.db`: each goes out once.

    A call raises `FindingsError` when that cannot be used; what was sent by then is not sent again.
    """

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
        self._sinks = {name: sink for name, sink in sinks.items() if _wants(sink)}
        self._calendar = calendar
        self._clock = clock
        self._alive = alive
        self._again_ns: dict[str, int] = {}  # sinks that put us off, and until when
        # By sink: what its last try is to leave on disk, and has not yet.
        self._unkept: dict[str, Callable[[FindingsStore], None]] = {}
        self._has_looked = False

    def poll(self, is_stopped: Callable[[], bool] = never) -> None:
        """Send what is due by the calendar, or owed since."""
        self._settle()
        for name in self._sinks:
            told = self._due(name)
            if told.is_owed and not is_stopped() and not self._has_to_wait(name):
                self._try(name, told)

    def farewell(self, is_stopped: Callable[[], bool]) -> None:
        """Do a last round without a wait; what cannot be sent is owed."""
        self._again_ns.clear()
        self.poll(is_stopped)

    def poll_owed(self, is_stopped: Callable[[], bool] = never) -> None:
        """Send what was owed at the end of the run; by then no other becomes due."""
        if not self._folder.findings.exists():
            return
        self._settle()
        for name in self._sinks:
            with FindingsStore(self._folder.findings) as store:
                told = read_told(store, name, self._run.start_wall_ns)
            if told.is_owed and not is_stopped() and not self._has_to_wait(name):
                self._try(name, told)

    def _settle(self) -> None:
        """Write what could not be written before, and give up what is owed to nobody any more."""
        for name, keep in tuple(self._unkept.items()):
            self._keep(name, keep)
        if self._has_looked:
            return
        with FindingsStore(self._folder.findings) as store:
            for name in set(owed_digests(store)) - self._sinks.keys():
                told = read_told(store, name, self._run.start_wall_ns)
                set_told(store, name, told.due_wall_ns)
                LOG.warning("digest_given_up sink=%s", name)
        self._has_looked = True

    def _has_to_wait(self, name: str) -> bool:
        wait_ns = self._again_ns.get(name, 0) - self._clock.wall_ns()
        return 0 < wait_ns <= RETRY_NS  # or it was set before the clock stepped back

    def _due(self, name: str) -> Told:
        """Return what a sink was told, and what it is owed now, which is noted."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            told = read_told(store, name, self._run.start_wall_ns)
            if told.until_wall_ns > now_ns:  # by a clock that ran ahead: no day is to be without
                set_told(store, name, now_ns)
                forget_tried(store, name)
                return Told(now_ns)
            due_ns = self._calendar.digest_due_ns(told.until_wall_ns, now_ns)
            return told if due_ns is None else owe(store, name, told, due_ns)

    def _try(self, name: str, told: Told) -> None:
        with FindingsStore(self._folder.findings) as store:
            findings = store.findings(self._run.id)
            owed = store.owed()
        lacking = [one for one in read_silences(self._folder) if one.is_open]
        self._alive()
        since_ns, due_ns = told.until_wall_ns, told.due_wall_ns
        message = compose(self._run, findings, lacking, owed, since_ns, due_ns)
        message = replace(message, so_far=told.so_far)
        outcome = attempt(lambda: self._sinks[name].send(message))
        LOG.info("digest_tried sink=%s result=%s detail=%r", name, outcome.result, outcome.detail)
        if outcome.result == "retry":
            self._again_ns[name] = self._clock.wall_ns() + RETRY_NS
            so_far = outcome.so_far or told.so_far
            self._keep(name, lambda store: put_off(store, name, told, so_far))
        else:
            self._keep(name, lambda store: set_told(store, name, due_ns))

    def _keep(self, name: str, keep: Callable[[FindingsStore], None]) -> None:
        self._unkept[name] = keep
        with FindingsStore(self._folder.findings) as store:
            keep(store)
        del self._unkept[name]


def _wants(sink: Sink) -> bool:
    return not isinstance(sink, ChoosySink) or sink.wants_digests


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
