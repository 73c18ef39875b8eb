"""The digest: a periodic message that lists all findings of a run, also when there are none."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from soak.alerting.calendar import Calendar
from soak.alerting.delivery import try_send
from soak.alerting.heartbeat import Notice, read_notices
from soak.alerting.heartbeat_message import daemon_names
from soak.core import wording
from soak.core.errors import FindingsError
from soak.core.model import Finding
from soak.core.ports import Clock, DigestOptionalSink, Message, Sink
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import Run, RunFolder

_PREFIX, _TRIED = "digest.", ".tried"


@dataclass(frozen=True, slots=True)
class DigestState:
    """What a sink has been told up to, and of the digest that it is owed beyond that, who has got it."""

    until_wall_ns: int
    due_wall_ns: int = 0
    so_far: str = ""

    @property
    def is_owed(self) -> bool:
        return self.due_wall_ns > self.until_wall_ns


def read_digest_state(store: FindingsStore, sink: str, start_wall_ns: int) -> DigestState:
    """Return what a sink was told since the run's start.

    Raises:
        FindingsError: it is damaged.
    """
    try:
        until_ns = int(store.checkpoint(_PREFIX + sink) or start_wall_ns)
        tried = json.loads(store.checkpoint(_PREFIX + sink + _TRIED) or "{}")
        return DigestState(until_ns, int(tried.get("due_wall_ns", 0)), str(tried.get("so_far", "")))
    except (ValueError, TypeError, AttributeError) as error:
        raise FindingsError(f"what is noted of digests to {sink} is damaged: {error}") from error


def set_pending(
    store: FindingsStore, sink: str, told: DigestState, due_wall_ns: int
) -> DigestState:
    """Note which digest is owed, before it is tried; one that takes the place of another is new to all."""
    if told.due_wall_ns == due_wall_ns:
        return told
    told = replace(told, due_wall_ns=due_wall_ns, so_far="")
    _store_pending(store, sink, told)
    return told


def set_retry(store: FindingsStore, sink: str, told: DigestState, so_far: str) -> None:
    """Note who has got a digest that was not delivered to all."""
    if so_far != told.so_far:
        _store_pending(store, sink, replace(told, so_far=so_far))


def set_sent_until(store: FindingsStore, sink: str, until_wall_ns: int) -> None:
    """Note that a sink has been told, or is not to be, up to an instant."""
    store.set_checkpoint(_PREFIX + sink, str(until_wall_ns))


def clear_pending(store: FindingsStore, sink: str) -> None:
    """Owe nothing: what was due by a clock that ran ahead is not due yet."""
    store.set_checkpoint(_PREFIX + sink + _TRIED, "{}")


def pending_digests(store: FindingsStore) -> list[str]:
    """Return the sinks that are owed a digest."""
    names = [name.removeprefix(_PREFIX) for name in store.checkpoints(_PREFIX)]
    sinks = [name.removesuffix(_TRIED) for name in names if name.endswith(_TRIED)]
    return [sink for sink in sinks if read_digest_state(store, sink, 0).is_owed]


def _store_pending(store: FindingsStore, sink: str, told: DigestState) -> None:
    kept = asdict(told)
    del kept["until_wall_ns"]
    store.set_checkpoint(_PREFIX + sink + _TRIED, json.dumps(kept))


# --- The digest: every so often one message on all findings of a run, also where there is none.

LOG = logging.getLogger("soak.alerting.daemon")
MAX_FINDINGS = 30
DIGEST_RETRY_NS = 300 * SECOND_NS
_STATES = ("confirmed", "gone", "warning")


def not_stopped() -> bool:
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
        self._sinks = {name: sink for name, sink in sinks.items() if _wants_digests(sink)}
        self._calendar = calendar
        self._clock = clock
        self._alive = alive
        self._again_ns: dict[str, int] = {}  # sinks that put us off, and until when
        # By sink: what its last try is to leave on disk, and has not yet.
        self._unkept: dict[str, Callable[[FindingsStore], None]] = {}
        self._has_looked = False

    def poll(self, is_stopped: Callable[[], bool] = not_stopped) -> None:
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

    def poll_owed(self, is_stopped: Callable[[], bool] = not_stopped) -> None:
        """Send what was owed at the end of the run; by then no other becomes due."""
        if not self._folder.findings.exists():
            return
        self._settle()
        for name in self._sinks:
            with FindingsStore(self._folder.findings) as store:
                told = read_digest_state(store, name, self._run.start_wall_ns)
            if told.is_owed and not is_stopped() and not self._has_to_wait(name):
                self._try(name, told)

    def _settle(self) -> None:
        """Write what could not be written before, and give up what is owed to nobody any more."""
        for name, keep in tuple(self._unkept.items()):
            self._keep(name, keep)
        if self._has_looked:
            return
        with FindingsStore(self._folder.findings) as store:
            for name in set(pending_digests(store)) - self._sinks.keys():
                told = read_digest_state(store, name, self._run.start_wall_ns)
                set_sent_until(store, name, told.due_wall_ns)
                LOG.warning("digest_given_up sink=%s", name)
        self._has_looked = True

    def _has_to_wait(self, name: str) -> bool:
        wait_ns = self._again_ns.get(name, 0) - self._clock.wall_ns()
        return 0 < wait_ns <= DIGEST_RETRY_NS  # or it was set before the clock stepped back

    def _due(self, name: str) -> DigestState:
        """Return what a sink was told, and what it is owed now, which is noted."""
        now_ns = self._clock.wall_ns()
        with FindingsStore(self._folder.findings) as store:
            told = read_digest_state(store, name, self._run.start_wall_ns)
            if told.until_wall_ns > now_ns:  # by a clock that ran ahead: no day is to be without
                set_sent_until(store, name, now_ns)
                clear_pending(store, name)
                return DigestState(now_ns)
            due_ns = self._calendar.digest_due_ns(told.until_wall_ns, now_ns)
            return told if due_ns is None else set_pending(store, name, told, due_ns)

    def _try(self, name: str, told: DigestState) -> None:
        with FindingsStore(self._folder.findings) as store:
            findings = store.findings(self._run.id)
            owed = store.owed()
        lacking = [one for one in read_notices(self._folder) if one.is_open]
        self._alive()
        since_ns, due_ns = told.until_wall_ns, told.due_wall_ns
        message = compose_digest(self._run, findings, lacking, owed, since_ns, due_ns)
        message = replace(message, so_far=told.so_far)
        outcome = try_send(lambda: self._sinks[name].send(message))
        LOG.info("digest_tried sink=%s result=%s detail=%r", name, outcome.result, outcome.detail)
        if outcome.result == "retry":
            self._again_ns[name] = self._clock.wall_ns() + DIGEST_RETRY_NS
            so_far = outcome.so_far or told.so_far
            self._keep(name, lambda store: set_retry(store, name, told, so_far))
        else:
            self._keep(name, lambda store: set_sent_until(store, name, due_ns))

    def _keep(self, name: str, keep: Callable[[FindingsStore], None]) -> None:
        self._unkept[name] = keep
        with FindingsStore(self._folder.findings) as store:
            keep(store)
        del self._unkept[name]


def _wants_digests(sink: Sink) -> bool:
    return not isinstance(sink, DigestOptionalSink) or sink.wants_digests


def compose_digest(  # what it tells of, and between which instants
    run: Run,
    findings: Sequence[Finding],
    lacking: Sequence[Notice],
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
        *(f"lacking   {daemon_names(one)} since {_stamp(one.since_wall_ns)}" for one in lacking),
        *([f"unsent    {wording.counted(owed, 'message')} to be tried again"] if owed else []),
        "",
        *(
            line
            for one in sorted(told, key=_order)[:MAX_FINDINGS]
            for line in _finding_lines(run, one)
        ),
        *([f"  and {len(told) - MAX_FINDINGS} more"] if len(told) > MAX_FINDINGS else []),
    ]
    return Message(
        key=f"{run.id}.digest.{due_wall_ns // SECOND_NS}",
        subject=f"[soakd] {run.name}: digest: {len(lasting)} lasting, {len(new)} new",
        text="\n".join(map(wording.printable, lines)).rstrip() + "\n",
        at_wall_ns=due_wall_ns,
        labels={"finding": "digest", "plan": run.name, "run": run.id, "severity": "none"},
        begin_wall_ns=due_wall_ns,
        end_wall_ns=due_wall_ns + DIGEST_RETRY_NS,
    )


def _finding_lines(run: Run, finding: Finding) -> list[str]:
    """Return when it began and why, and below what it is: together too long for a line."""
    state = "lasts since" if finding.state == "confirmed" else "gone, began"
    began = _stamp(run.start_wall_ns + finding.onset_k * SECOND_NS)
    what = f"{wording.title(finding.series)} {wording.change_text(finding)}"
    return [f"  {state} {began}, cause {finding.cause}", f"      {what}"]


def _stamp(wall_ns: int) -> str:
    return f"{wording.day(wall_ns)} {wording.moment(wall_ns)}"


def _order(finding: Finding) -> tuple[int, int]:
    return _STATES.index(finding.state), -finding.onset_k


def _raised_ns(run: Run, finding: Finding) -> int:
    return run.start_wall_ns + finding.raised_k * SECOND_NS
