"""Heartbeats: find daemons of the run that have stopped recording, and note when they are back.

A journal that grows is the heartbeat of a daemon, a committed batch that of the detector; of the conductor
it is only known that a decision is overdue. Silent time fills a measure and active time drains it, so that a
daemon that crashes at every start is found as well as one that never starts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from soak.core import json_text
from soak.core.clock import SuspendLog
from soak.core.errors import FindingsError, RunFolderError
from soak.core.plan.phases import LOAD_PHASES, latest_end_k
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.runtime.grid import grid_of, host_name
from soak.service.systemd import START_LIMIT_NS
from soak.store.findings.port import FindingsPlace
from soak.store.findings.rows import NotificationKind
from soak.store.findings.topic import findings_place
from soak.store.journal.reader import has_ended, segments, sources
from soak.store.plan_home import is_service_run
from soak.store.run_folder import Run, RunFolder

LOG = logging.getLogger("soak.alerting")
MISSING_AFTER_NS = 300 * SECOND_NS
"""A daemon is missing once it was silent for this much longer than active, and back the other way round."""
HEARTBEAT_PERIOD_NS = 5 * SECOND_NS
CONDUCT, DETECT = "conduct", "detect-stream"
_GRACE_NS = 3 * SECOND_NS  # a daemon writes a record a second, with some jitter
_REMOTE_GRACE_NS = 60 * SECOND_NS  # records of other hosts arrive over a topic
_BATCH_GRACE_NS = 300 * SECOND_NS  # a batch of the detector may have much to read

Activity = object
"""Anything that compares unequal to its last value once the daemon has done something."""


@dataclass(slots=True)
class Heartbeat:
    """How long one daemon has been silent, on the monotonic clock."""

    activity: Activity
    changed_ns: int  # when the activity was seen to change, or was first seen
    grace_ns: int  # it is not silent before this has passed without a change
    is_reported: bool  # it is missing, and the sinks were notified
    limit_ns: int = MISSING_AFTER_NS  # how long a daemon that was active may be silent
    start_limit_ns: int = START_LIMIT_NS  # and one that starts
    silent_ns: int = 0
    silent_since_ns: int = 0
    silent_until_ns: int = 0
    was_active: bool = False

    def update(self, activity: Activity, now_ns: int, step_ns: int) -> None:
        """Take in the current activity; `step_ns` is the time that counts since the last update."""
        if activity != self.activity:
            if not self.was_active and not self.is_reported:  # it has started
                self.silent_ns = 0
            self.activity, self.changed_ns, self.was_active = activity, now_ns, True
        if not self.is_silent(now_ns):
            self.silent_ns = max(0, min(self.silent_ns, self._current_limit_ns) - step_ns)
            return
        if not self.silent_ns:
            self.silent_since_ns = self.changed_ns
        self.silent_ns = min(self.silent_ns + step_ns, self._current_limit_ns)
        self.silent_until_ns = now_ns

    def is_silent(self, now_ns: int) -> bool:
        return now_ns - self.changed_ns > self.grace_ns

    @property
    def is_missing(self) -> bool:
        return self.silent_ns >= self._current_limit_ns

    @property
    def is_missing_with_others(self) -> bool:
        """True when it was silent for as long as others that are missing, though its own limit is longer."""
        return self.was_active and self.silent_ns >= MISSING_AFTER_NS

    @property
    def _current_limit_ns(self) -> int:
        if self.is_reported:
            return MISSING_AFTER_NS
        return self.limit_ns if self.was_active else self.start_limit_ns


@dataclass(frozen=True, slots=True)
class Notice:
    """Daemons of a run are missing; or, with `why`, the run was aborted. Stored as JSON with these keys."""

    key: str
    daemons: tuple[str, ...]  # sources, such as `consume.0@host`, or a daemon without a journal
    since_wall_ns: int
    until_wall_ns: int | None = None  # when all of the daemons were back
    why: str = ""
    host: str = ""  # the host that reports it
    logs: str = ""  # the folder of that host's logs; "" when systemd's journal has them

    @property
    def is_remote(self) -> bool:
        """True when all daemons are on other hosts, whose records arrive over a topic."""
        return bool(self.daemons) and all(is_remote(name, self.host) for name in self.daemons)

    @property
    def is_open(self) -> bool:
        """True while daemons are missing."""
        return self.until_wall_ns is None and not self.why

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Notice:
        """Return the notice of a text by `to_text`; raises `FindingsError` when that is damaged."""
        try:
            body = json_text.loads(text)
            return cls(**{**body, "daemons": tuple(body["daemons"])})
        except (ValueError, TypeError, KeyError) as error:
            raise FindingsError(f"a notice of the findings is damaged: {error}") from error


@dataclass(slots=True)
class HeartbeatMonitor:
    """Queues a notification when daemons are missing, and another when they are back."""

    folder: RunFolder
    plan: Plan
    run: Run
    sinks: Sequence[str]
    clock: Clock
    findings: FindingsPlace
    _heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    _open: list[Notice] | None = None  # None until they were read
    _since_ns: dict[str, int] = field(default_factory=dict)  # by key, on the monotonic clock
    _polled_ns: int | None = None
    _phase_file: PhaseFile = field(init=False)
    _suspends: SuspendLog = field(init=False)

    def __post_init__(self) -> None:
        self._phase_file = PhaseFile(self.folder.phases)
        self._suspends = SuspendLog(self.clock)

    def poll(self) -> None:
        """Check all daemons that should be at work now.

        Raises:
            FindingsError: a notice cannot be stored. All limits start again: the daemons share our drive.
            RunFolderError: the decisions of the conductor or the journals cannot be read.
        """
        self._suspends.update()
        now_ns = self.clock.mono_ns()
        elapsed_ns = 0 if self._polled_ns is None else now_ns - self._polled_ns
        if not self.sinks or (self._polled_ns is not None and elapsed_ns < HEARTBEAT_PERIOD_NS):
            return
        self._polled_ns = now_ns
        try:
            # bounded, because this process may have been stopped together with all others
            self._update(now_ns, min(elapsed_ns, 2 * HEARTBEAT_PERIOD_NS))
            self._report_missing(now_ns)
            self._report_returned(now_ns)
        except FindingsError:
            self._heartbeats.clear()
            raise
        except (
            OSError
        ) as error:  # a failing drive, or too many open files: this says nothing about the daemons
            self._heartbeats.clear()
            raise RunFolderError(f"cannot read {self.folder.journal}: {error}") from error

    def _activities(self, now_ns: int) -> dict[str, Activity]:
        """Return the activity of each daemon that should be at work.

        Without a service manager only daemons that have recorded count: others may be on other hosts.
        """
        k = grid_of(self.folder, self.run, self.clock).interval_index_at(now_ns)
        phases = self._phase_file.poll()
        if k < 0 or phases.end_k is not None:
            return {}
        found: dict[str, Activity] = {}
        is_service = is_service_run(self.folder)
        is_overdue = not phases.at(k) or k > latest_end_k(
            phases, self.plan.phases, self.plan.load.backlog
        )
        if is_service:
            found[CONDUCT] = "overdue" if is_overdue else now_ns
        if is_overdue:
            return found
        own = (f"{name}@{host_name()}" for name in (self.plan.measuring if is_service else ()))
        for name in (*sources(self.folder.journal), *own):
            if phases.at(k) in LOAD_PHASES or not name.startswith("produce."):
                found[name] = _newest_segment(self.folder.journal / name)
        if is_service or self.folder.checkpoint.is_dir():
            found[DETECT] = _last_commit_ns(self.folder.checkpoint)
        return found

    def _update(self, now_ns: int, step_ns: int) -> None:
        activities = self._activities(now_ns)
        self._heartbeats = {
            name: one for name, one in self._heartbeats.items() if name in activities
        }
        is_any_recording = False
        for name, activity in activities.items():
            if name not in self._heartbeats:
                self._heartbeats[name] = self._new_heartbeat(name, activity, now_ns)
            heartbeat = self._heartbeats[name]
            # the detector has work only while a daemon records
            counted_ns = step_ns if is_any_recording or name != DETECT else 0
            heartbeat.update(activity, now_ns, counted_ns)
            if self._is_excused(name, heartbeat, now_ns):
                heartbeat.silent_ns = 0
            is_any_recording |= name != CONDUCT and not heartbeat.is_silent(now_ns)

    def _new_heartbeat(self, name: str, activity: Activity, now_ns: int) -> Heartbeat:
        grace_ns = _REMOTE_GRACE_NS if is_remote(name, host_name()) else _GRACE_NS
        if name == DETECT:
            grace_ns = max(_BATCH_GRACE_NS, 3 * self.plan.detection.trigger)
        # The detector's ten minutes are the same for a batch and a start: its grace is a part of them.
        start_limit_ns = START_LIMIT_NS - (grace_ns if name == DETECT else 0)
        is_reported = any(name in one.daemons for one in self._open_notices())
        return Heartbeat(
            activity,
            now_ns,
            grace_ns,
            is_reported=is_reported,
            # a consumer that restarts late in a run has a long journal to read
            limit_ns=START_LIMIT_NS if name.startswith("consume.") else MISSING_AFTER_NS,
            start_limit_ns=max(MISSING_AFTER_NS, start_limit_ns),
            was_active=name == CONDUCT,  # it needs no time to start
            silent_ns=MISSING_AFTER_NS if is_reported else 0,
            silent_until_ns=now_ns,
        )

    def _is_excused(self, name: str, heartbeat: Heartbeat, now_ns: int) -> bool:
        """True for a daemon that ended on purpose, as in a pause, and for one that may not exist on its host.

        A daemon of this host that ended is restarted within the start limit unless the run ends.
        """
        if heartbeat.is_reported or name in {CONDUCT, DETECT}:
            return False
        if not heartbeat.was_active:
            return is_remote(name, host_name())
        is_late = now_ns - heartbeat.changed_ns > START_LIMIT_NS
        is_awaited = is_late and not is_remote(name, host_name())
        return heartbeat.silent_ns > 0 and not is_awaited and has_ended(self.folder.journal / name)

    def _report_missing(self, now_ns: int) -> None:
        """Queue one notification for all daemons that are missing since the last one."""
        unreported = {name: one for name, one in self._heartbeats.items() if not one.is_reported}
        if not any(one.is_missing for one in unreported.values()):
            return
        missing = {
            name: one
            for name, one in unreported.items()
            if one.is_missing or one.is_missing_with_others
        }
        silent_since_ns = min(one.silent_since_ns for one in missing.values())
        since_ns = self._wall_ns(silent_since_ns, now_ns)
        key = f"{self.run.id}-{next(iter(missing))}-{since_ns // SECOND_NS}"
        host, logs = host_name(), _log_folder(self.folder)
        self._save(Notice(key, tuple(missing), since_ns, host=host, logs=logs))
        self._since_ns[key] = silent_since_ns

    def _report_returned(self, now_ns: int) -> None:
        """Queue a notification for each notice of which all daemons are back."""
        for notice in self._open_notices():
            found = [self._heartbeats.get(name) for name in notice.daemons]
            ends = [one.silent_until_ns for one in found if one is not None and not one.silent_ns]
            if len(ends) < len(found):
                continue
            until_ns = self._wall_ns(max(ends), now_ns)
            if notice.key in self._since_ns:  # the wall clock may have been set meanwhile
                since_ns = self._since_ns.pop(notice.key)
                until_ns = notice.since_wall_ns + self._suspends.between(since_ns, max(ends))
            self._save(replace(notice, until_wall_ns=until_ns))

    def _wall_ns(self, mono_ns: int, now_ns: int) -> int:
        return self.clock.wall_ns() - self._suspends.between(mono_ns, now_ns)

    def _save(self, notice: Notice) -> None:
        is_returned = notice.until_wall_ns is not None
        kind: NotificationKind = "returned" if is_returned else "missing"
        with self.findings.open() as store:
            store.save_notice(notice.key, notice.to_text(), kind, self.sinks, self.clock.wall_ns())
        LOG.warning("heartbeat_%s daemons=%s", kind, ",".join(notice.daemons))
        others = [one for one in self._open_notices() if one.key != notice.key]
        self._open = others if is_returned else [*others, notice]
        for name in notice.daemons:
            self._heartbeats[name].is_reported = not is_returned

    def _open_notices(self) -> list[Notice]:
        if self._open is None:
            self._open = [one for one in read_notices(self.findings) if one.is_open]
        return self._open


def is_remote(name: str, host: str) -> bool:
    """True for a source of another host."""
    return "@" in name and not name.endswith(f"@{host}")


def _log_folder(folder: RunFolder) -> str:
    """Return the folder of the logs while the run goes on; "" when systemd's journal has them."""
    return "" if is_service_run(folder) else str(folder.logs)


def _newest_segment(source: Path) -> Activity:
    """Return name and size of the file that a source writes; None when it has none."""
    with suppress(OSError, IndexError):
        path = segments(source)[-1]
        return path.name, path.stat().st_size
    return None


def _last_commit_ns(checkpoint: Path) -> Activity:
    """Return when the detector last committed a batch; None before the first."""
    with suppress(OSError):
        return (checkpoint / "commits").stat().st_mtime_ns
    return None


def queue_run_aborted(folder: RunFolder, plan: Plan, run: Run, clock: Clock, why: str) -> None:
    """Queue a notification that the run was aborted; the alert daemon of the run sends it.

    Raises:
        FindingsError: it cannot be stored.
    """
    now_ns = clock.wall_ns()
    key = f"{run.id}-given-up-{now_ns // SECOND_NS}"
    notice = Notice(key, (), now_ns, why=why, host=run.host, logs=str(folder.logs))
    findings = findings_place(folder, plan, run.id, clock)
    try:
        with findings.open() as store:
            store.save_notice(key, notice.to_text(), "aborted", tuple(plan.sinks), now_ns)
    finally:
        findings.close()


def read_notices(findings: FindingsPlace) -> list[Notice]:
    """Return all notices of a run in the order of their keys."""
    if not findings.exists():
        return []
    with findings.open() as store:
        return [Notice.of_text(text) for text in store.notices()]
