"""How a run is now and how it was: read from its folder again and again, which is never written to."""

from __future__ import annotations

import math
import pickle
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from soak.app.live.follow import (
    COUNTS,
    HISTORY_SECONDS,
    Bin,
    Latency,
    Ring,
    Second,
    Silence,
    Source,
    Strip,
    is_followed,
    worst_latency,
)
from soak.app.live.snapshot import (
    OVER_STATES,
    REPORT_SECONDS,
    SILENT_SECONDS,
    PhaseSpan,
    ReportHead,
    Snapshot,
    Subscription,
    Totals,
    clock_text,
    length_text,
    outage_text,
    retention_text,
)
from soak.core.clock import Grid, RunClock
from soak.core.errors import FindingsBusyError, FindingsError, RunFolderError
from soak.core.journal_format import DamagedLineError, decode
from soak.core.model import Finding, Record
from soak.core.plan.load import process_index
from soak.core.plan.phases import LOAD_PHASES, Decision, Phases, drain_k, planned_phases
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.runtime.grid import grid_of, has_grid
from soak.service.files import read_json
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import (
    SourceReader,
    last_record,
    lines,
    sources,
)
from soak.store.run_folder import Run, RunFolder, read_run

OUTAGE_SECONDS = 5
"""So long without an acknowledgement, although messages were due, is worth a line."""
AHEAD_SECONDS = 86_400
"""A record from further ahead has no true time; of others this host's clock is behind, and they wait."""
DETECTOR_START_SECONDS = 60
"""So long after the start of a run the detector has begun, unless its host is busy."""
DETECTOR_BEHIND_SECONDS = 30
"""A detector that is further behind than this and one of its triggers does not keep up."""
DETECTOR = "detect-stream"
PORTION_BYTES = 6 * 2**20
"""So much of the older journal is read at one look: about a fifth of a second."""
_DELETION = b'"kind":"retention_deletion"'
_NEVER_FOLDED = frozenset({"folder", "_run", "_plan", "_clock", "_seconds", "_folded"})


class LiveRun:
    """Reads a run folder again and again. It writes nothing, and needs neither the cluster nor Spark."""

    def __init__(self, folder: RunFolder, run: Run, plan: Plan, clock: Clock) -> None:
        self.folder = folder
        self._run = run
        self._plan = plan
        self._clock = clock
        self._seconds: RunClock | None = None
        self._phases = PhaseFile(folder.phases)
        self._sources: dict[str, Source] = {}
        self._newest_k = -1
        self._strip = Strip()
        self._publish = Ring()
        self._end_to_end: defaultdict[int, Ring] = defaultdict(Ring)
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._received: defaultdict[int, float] = defaultdict(float)
        self._unacknowledged = Silence()
        self._unreceived: defaultdict[int, Silence] = defaultdict(Silence)
        self._deletions: tuple[int, int] | None = None  # the first and the last interval with one
        self._findings: tuple[tuple[object, ...], tuple[Finding, ...]] = ((), ())
        self._unread = ""
        self._report: tuple[tuple[int, int] | None, ReportHead | None] = (None, None)
        self._folded = b""

    def fold(self) -> int:
        """Keep what was read compressed until the next look; return how many bytes that takes."""
        if not self._folded:
            names = [name for name in vars(self) if name not in _NEVER_FOLDED]
            read = {name: vars(self).pop(name) for name in names}
            self._folded = zlib.compress(pickle.dumps(read), 1)
        return len(self._folded)

    def _unfold(self) -> None:
        if self._folded:
            read = pickle.loads(zlib.decompress(self._folded))  # noqa: S301  # our own, never left this process
            vars(self).update(read, _folded=b"")

    def look(self, portion_bytes: int = PORTION_BYTES) -> Snapshot:
        """Return how the run is now; the older part of its journals is read up to so many bytes.

        Raises:
            SoakError: a file of the run is damaged, or a newer version wrote it.
        """
        self._unfold()
        with suppress(RunFolderError):  # it is being replaced, or was copied without it
            self._run = read_run(self.folder)
        now_k = self._now_k()
        phases = self._phases.poll()
        # Of a run that is over the clock of this host, which may be another one, says nothing.
        is_over = self._run.state in OVER_STATES
        self._read(self._total(phases) if is_over else now_k, portion_bytes)
        return self._snapshot(now_k, phases)

    def look_at_all(self) -> Snapshot:
        """Return how the run is now, with every record read."""
        while (found := self.look()).read_ratio < 1.0:
            pass
        return found

    # --- Reading.

    def _now_k(self) -> int:
        if self._run.start_wall_ns <= 0:  # it is being prepared: its seconds have no beginning yet
            return -1
        if self._seconds is None:
            start_ns = self._run.start_wall_ns
            # Only a daemon of the run stores where its seconds begin; a reader changes nothing.
            is_stored = has_grid(self.folder, self._run)
            grid = (
                grid_of(self.folder, self._run, self._clock)
                if is_stored
                else Grid.anchored(start_ns, self._clock)
            )
            found = RunClock.on(grid, self._clock)
            if not is_stored and self._run.state not in OVER_STATES:
                return found.interval_index()
            self._seconds = found
        return self._seconds.interval_index()

    def _read(self, until_k: int, portion_bytes: int) -> None:
        journal = self.folder.journal
        for name in sources(journal):
            if name not in self._sources and is_followed(name):
                self._sources[name] = Source(name, journal / name, SourceReader(journal / name))
        added = [one for one in self._sources.values() if one.place is None]
        if added:
            recorded = [found[0].k for one in added if (found := last_record(journal, one.name))]
            from_k = min(until_k, max([*recorded, self._newest_k])) - HISTORY_SECONDS
            for source in added:
                source.start(max(0, from_k))
        for source in self._sources.values():
            self._take(source, source.new_parts(), until_k, is_older=False)
        behind = [one for one in self._sources.values() if one.older]
        for source in behind:
            parts = source.older_parts(portion_bytes // len(behind))
            self._take(source, parts, until_k, is_older=True)

    def _take(
        self,
        source: Source,
        parts: Iterator[tuple[Path, int, int]],
        until_k: int,
        *,
        is_older: bool,
    ) -> None:
        end_k = until_k + SILENT_SECONDS
        is_probe = source.name.startswith("probe")
        for path, begin, end in parts:
            if is_probe:
                for raw in lines(path, begin, end):
                    if _DELETION in raw:
                        self._note_deletion(raw)
                continue
            for second in source.seconds(path, begin, end):
                if not is_older and end_k < second.k <= until_k + AHEAD_SECONDS:
                    source.wait_for(end_k + 1)
                    return
                if 0 <= second.k <= end_k and not source.is_repeated(second, is_older=is_older):
                    self._add(source, second)

    def _note_deletion(self, raw: bytes) -> None:
        with suppress(DamagedLineError):
            line = decode(raw)
            if isinstance(line, Record):
                first, last = self._deletions or (line.k, line.k)
                self._deletions = min(first, line.k), max(last, line.k)

    def _add(self, source: Source, second: Second) -> None:
        k = second.k
        if source.newest is None or k >= source.newest.k:
            source.newest = second
        self._newest_k = max(self._newest_k, k)
        is_new = k > self._newest_k - HISTORY_SECONDS
        for name in COUNTS:
            self._totals[name] += second.count(name)
        if source.name.startswith("produce."):
            acknowledged = second.count("acked_messages")
            self._unacknowledged.add(
                k, acknowledged, is_due=second.is_due, failed=second.count("failed_messages")
            )
            self._strip.note_answer(k, acknowledged, is_due=second.is_due)
            bands = second.bands or Bin().bands
            self._strip.add(k, Bin(bands, 0, second.publish.p99, math.nan))
            if is_new:
                self._publish.add(k, second.publish.p99)
            return
        index = self._subscription_of(source.name)
        received = second.count("received_messages")
        self._received[index] += received
        self._unreceived[index].add(k, received, is_due=second.count("lag_messages") > 0)
        self._strip.add(k, replace(Bin(), end_to_end_p99=second.end_to_end.p99))
        if is_new:
            self._end_to_end[index].add(k, second.end_to_end.p99)

    def _subscription_of(self, source: str) -> int:
        return self._plan.consumers.subscription_of(process_index(source))

    def _read_findings(self) -> tuple[Finding, ...]:
        path = self.folder.findings
        stamp = tuple(_stamp(one) for one in (path, path.with_name(f"{path.name}-wal")))
        if stamp != self._findings[0] and stamp[0] is not None:
            try:
                with FindingsStore(path, is_read_only=True) as store:
                    self._findings = (stamp, tuple(store.findings(self._run.id)))
                self._unread = ""
            except FindingsError as error:  # the last ones stay, and the next look tries again
                is_busy = isinstance(error, FindingsBusyError)
                self._unread = "" if is_busy and self._findings[0] else str(error)
        return self._findings[1]

    def _read_report(self) -> ReportHead | None:
        path = self.folder.summary
        stamp = _stamp(path)
        if stamp != self._report[0]:
            self._report = (stamp, None if stamp is None else _report_head(path, stamp[0]))
        return self._report[1]

    # --- What was found.

    def _snapshot(self, now_k: int, phases: Phases) -> Snapshot:
        plan, run = self._plan, self._run
        total = self._total(phases)
        state = self._state(now_k, phases)
        is_over = state in OVER_STATES or state == "silent"
        k = max(0, min(self._newest_k + 1 if is_over else now_k, total))
        fresh = [
            (one.name, one.newest)
            for one in self._sources.values()
            if one.newest is not None and one.newest.k >= self._newest_k - SILENT_SECONDS
        ]
        produced = [second for name, second in fresh if name.startswith("produce.")]
        report = self._read_report()
        if report is not None and report.is_running and state in OVER_STATES:
            report = None  # the end may have brought what it does not know
        waiting = [one.unread_bytes() for one in self._sources.values()]
        whole = sum(one.older_bytes for one in self._sources.values())
        return Snapshot(
            name=plan.name,
            run_id=run.id,
            state=state,
            start_wall_ns=run.start_wall_ns,
            now_k=now_k,
            k=k,
            total_seconds=total,
            end_k=phases.end_k,
            phase=_phase(state, now_k, phases),
            phases=_spans(phases if phases.names else planned_phases(plan.phases), total),
            sent=_sum(produced, "sent_messages"),
            acknowledged=_sum(produced, "acked_messages"),
            failed=_sum(produced, "failed_messages"),
            publish=worst_latency(one.publish for one in produced),
            publish_history=self._publish.until(self._newest_k),
            subscriptions=tuple(self._subscriptions(fresh)),
            totals=Totals(
                self._totals["sent_messages"],
                self._totals["acked_messages"],
                self._totals["failed_messages"],
            ),
            troubles=tuple(self._troubles(k, state, phases, fresh)),
            retention=retention_text(
                _forecast_window(self.folder.forecast), self._deletions, k, total, is_over=is_over
            ),
            invalid=next((one.reason for one in produced if one.reason), ""),
            detection=self._detection(now_k, state, phases),
            bins=self._strip.in_order(self._settled_k(produced)),
            bin_seconds=self._strip.seconds,
            findings=self._read_findings(),
            unread=self._unread,
            report=report,
            read_ratio=1.0 - sum(waiting) / whole if whole else 1.0,
        )

    def _total(self, phases: Phases) -> int:
        """Return the length of the run in seconds, as far as it is decided or planned."""
        lengths = self._plan.phases
        return phases.end_k or drain_k(phases, lengths) + lengths.drain // SECOND_NS

    def _state(self, now_k: int, phases: Phases) -> str:
        is_ending = phases.end_k is not None and now_k >= phases.end_k
        if self._run.state != "running" or now_k < 0:
            return self._run.state
        limit = REPORT_SECONDS if is_ending else 3 * SILENT_SECONDS
        return "silent" if now_k - max(self._newest_k, 0) > limit else "running"

    def _subscriptions(self, fresh: list[tuple[str, Second]]) -> Iterator[Subscription]:
        by_index: defaultdict[int, list[Second]] = defaultdict(list)
        for name, second in fresh:
            if name.startswith("consume."):
                by_index[self._subscription_of(name)].append(second)
        for index in sorted({*by_index, *self._received}):
            several = by_index[index]
            yield Subscription(
                index,
                _sum(several, "received_messages"),
                _sum(several, "lag_messages"),
                worst_latency(one.end_to_end for one in several),
                self._end_to_end[index].until(self._newest_k),
                self._received[index],
            )

    def _settled_k(self, several: Iterable[Second]) -> int:
        """Return up to where all of them have recorded; the others are not there."""
        return min((one.k for one in several), default=self._newest_k)

    def _troubles(
        self, k: int, state: str, phases: Phases, fresh: list[tuple[str, Second]]
    ) -> Iterator[str]:
        """Give a sentence for each outage of this moment, and for each daemon that says nothing."""
        if state == "silent":
            # What was due in the last second that was recorded says nothing about now.
            yield f"nothing is recorded since {clock_text(k)}: the daemons of the run are not there"
            return
        if state != "running":
            return
        decision = phases.decision_at(k)
        is_load = decision is None or decision.phase in LOAD_PHASES
        settled_k = self._settled_k(one for name, one in fresh if name.startswith("produce."))
        length = self._unacknowledged.length(settled_k)
        if is_load and length >= OUTAGE_SECONDS:
            yield outage_text("acknowledged", length, self._unacknowledged.failed(settled_k))
        if not phases.is_building(k):
            for index, silence in sorted(self._unreceived.items()):
                its = (
                    one
                    for name, one in fresh
                    if name.startswith("consume.") and self._subscription_of(name) == index
                )
                length = silence.length(self._settled_k(its), phases.is_building)
                if length >= OUTAGE_SECONDS:
                    of = f" by subscription {index}" if len(self._received) > 1 else ""
                    yield outage_text(f"received{of}", length, 0.0)
        for source in self._sources.values():
            if source.newest is not None and is_load:
                behind = self._newest_k - source.newest.k
                if behind > SILENT_SECONDS:
                    yield f"no record of {source.name} for {length_text(behind)}"

    def _detection(self, now_k: int, state: str, phases: Phases) -> str:
        """Return a sentence about a detector that is far behind or has not begun; "" where it keeps up."""
        is_elsewhere = bool(self._run.only) and DETECTOR not in self._run.only
        if state != "running" or is_elsewhere:
            return ""
        read_ns = _newest_batch_ns(self.folder.checkpoint)
        until_k = min(now_k, self._total(phases))
        if read_ns is None:
            is_due = until_k > DETECTOR_START_SECONDS
            return "the detector has not started: findings come late" if is_due else ""
        behind = until_k - (read_ns - self._run.start_wall_ns) // SECOND_NS
        limit = DETECTOR_BEHIND_SECONDS + self._plan.detection.trigger // SECOND_NS
        return (
            f"the detector is {length_text(behind)} behind: findings come late"
            if behind > limit
            else ""
        )


def _newest_batch_ns(checkpoint: Path) -> int | None:
    """Return the wall time up to which the detector has read; None before its first batch is done.

    Spark plans a batch in `offsets` with what is there at that time, and notes it in `commits` at its end.
    """
    try:
        done = max(
            int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdigit()
        )
        return (checkpoint / "offsets" / str(done)).stat().st_mtime_ns
    except (OSError, ValueError):  # ValueError: there is none
        return None


def _forecast_window(path: Path) -> tuple[float, float] | None:
    """Return the forecast of the first deletion in seconds of the run; None where there is none."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        early, late = map(float, read_json(path)["first_deletion_seconds"])
        if 0 <= early <= late < math.inf:
            return early, late
    return None


def _report_head(path: Path, made_wall_ns: int) -> ReportHead | None:
    """Return what `summary.json` says first; None where it is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        body = read_json(path)
        found = body.get("soak", {}).get("latency_seconds", {})

        def latency(name: str) -> Latency:
            values = (found.get(name, {}).get(one) for one in ("p50", "p99", "p99.9"))
            return Latency(*(math.nan if one is None else float(one) for one in values))

        return ReportHead(
            str(body["verdict"]),
            str(body.get("headline", "")),
            made_wall_ns,
            latency("publish"),
            latency("end_to_end"),
            bool(body.get("is_running")),
        )
    return None


def _phase(state: str, now_k: int, phases: Phases) -> str:
    if state in OVER_STATES:
        return state
    if state == "silent":
        return "stopped"
    if now_k < 0 or state == "beginning":
        return "starting"
    decision: Decision | None = phases.decision_at(now_k)
    if decision is None:
        return "starting"
    if decision.phase == "end":
        return "ending"
    return f"{decision.phase}: {decision.part}" if decision.part else decision.phase


def _spans(phases: Phases, total: int) -> tuple[PhaseSpan, ...]:
    return tuple(
        PhaseSpan(f"{one.phase}: {one.part}" if one.part else one.phase, one.from_k, to_k)
        for one, to_k in phases.held(total)
        if one.phase != "end"
    )


def _sum(several: list[Second], name: str) -> float:
    """Return the sum of a count over sources; NaN where none measures it."""
    found = [one.counts[name] for one in several if math.isfinite(one.counts.get(name, math.nan))]
    return sum(found) if found else math.nan


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
