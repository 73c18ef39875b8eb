"""Heartbeats: notice when a daemon of the run stops recording, and when it is back."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from soak.core.clock import SuspendLog
from soak.core.errors import FindingsError, RunFolderError
from soak.core.phases import LOAD_PHASES, latest_end_k
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile, grid_of, host_name
from soak.service.systemd import START_LIMIT_NS
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import has_ended, sources
from soak.store.journal.writer import segments
from soak.store.plan_home import is_service_run
from soak.store.run_folder import Run, RunFolder

MISSING_AFTER_NS = 300 * SECOND_NS
"""Silent for so much longer than it was heard, a daemon is missed; heard for as long, it is back."""

Sign = object
"""What is another one when a daemon has done something since."""


@dataclass(slots=True)
class Heartbeat:
    """How long one daemon was silent, on the monotonic clock."""

    sign: Sign
    changed_ns: int  # when its sign was seen to change, or first looked at
    grace_ns: int
    is_told: bool  # it is missed, and people are told
    limit_ns: int = MISSING_AFTER_NS  # how long one that was heard may be silent
    silent_ns: int = 0
    since_ns: int = 0  # when the silence began
    until_ns: int = 0  # and when it was last silent
    is_heard: bool = False

    def look(self, sign: Sign, now_ns: int, step_ns: int) -> None:
        """Take in a sign; `step_ns` is the time that counts since the one before."""
        if sign != self.sign:
            if self._is_starting:
                self.silent_ns = 0
            self.sign, self.changed_ns, self.is_heard = sign, now_ns, True
        if not self.is_quiet(now_ns):
            self.silent_ns = max(0, min(self.silent_ns, self._limit_ns) - step_ns)
            return
        if not self.silent_ns:
            self.since_ns = self.changed_ns
        self.silent_ns = min(self.silent_ns + step_ns, self._limit_ns)
        self.until_ns = now_ns

    def is_quiet(self, now_ns: int) -> bool:
        return now_ns - self.changed_ns > self.grace_ns

    @property
    def is_missed(self) -> bool:
        return self.silent_ns >= self._limit_ns

    @property
    def is_missed_with_others(self) -> bool:
        """True when it was silent for as long as others that are missed, though it may take longer."""
        return self.is_heard and self.silent_ns >= MISSING_AFTER_NS

    @property
    def _is_starting(self) -> bool:
        return not self.is_heard and not self.is_told

    @property
    def _limit_ns(self) -> int:
        if self.is_told:
            return MISSING_AFTER_NS
        return self.limit_ns if self.is_heard else START_LIMIT_NS


# --- Daemons that record nothing while their run goes on: who restarts them tells nobody.
# A daemon's sign of life is that its journal grows, the detector's that it commits what it has taken in;
# of the
# conductor it is only known that a decision is overdue.

LOG = logging.getLogger("soak.alerting.daemon")
HEARTBEAT_PERIOD_NS = 5 * SECOND_NS
CONDUCT, DETECT = "conduct", "detect-stream"
_GRACE_NS = 3 * SECOND_NS  # a record a second, and some jitter
_REMOTE_GRACE_NS = 60 * SECOND_NS  # of other hosts, whose records a topic brings
_BATCH_GRACE_NS = 300 * SECOND_NS  # of one that has much to read


@dataclass(frozen=True, slots=True)
class Notice:
    """That daemons of a run were missed from an instant on; `until_wall_ns` once all of them are back.

    With `why` it is the run itself that was given up.
    """

    key: str
    daemons: tuple[str, ...]  # sources, such as `consume.0@host`, or the name of one that is none
    since_wall_ns: int
    until_wall_ns: int | None = None
    why: str = ""
    host: str = ""  # where they were missed
    logs: str = ""  # the folder of that host's logs; "" where systemd's journal has them

    @property
    def is_afar(self) -> bool:
        """True when all of them are sources of other hosts, whose records a topic brings."""
        return bool(self.daemons) and all(is_remote(name, self.host) for name in self.daemons)

    @property
    def is_open(self) -> bool:
        """True while daemons are missed."""
        return self.until_wall_ns is None and not self.why

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Notice:
        """Return what `to_text` gave; raises `FindingsError` when that is damaged."""
        try:
            body = json.loads(text)
            return cls(**{**body, "daemons": tuple(body["daemons"])})
        except (ValueError, TypeError, KeyError) as error:
            raise FindingsError(f"a notice is damaged: {error}") from error


@dataclass(slots=True)
class HeartbeatMonitor:
    """Call `poll` each round: who is missed, or back, is owed to the sinks from then on."""

    folder: RunFolder
    plan: Plan
    run: Run
    sinks: Sequence[str]
    clock: Clock
    _pulses: dict[str, Heartbeat] = field(default_factory=dict)
    _open: list[Notice] | None = None  # None until they were read
    _since_ns: dict[str, int] = field(default_factory=dict)  # by key, on the monotonic clock
    _looked_ns: int | None = None
    _phase_file: PhaseFile = field(init=False)
    _sleeps: SuspendLog = field(init=False)

    def __post_init__(self) -> None:
        self._phase_file = PhaseFile(self.folder.phases)
        self._sleeps = SuspendLog(self.clock)

    def poll(self) -> None:
        """Look at all that should be at work now.

        Raises:
            FindingsError: what is to be told cannot be kept. All are given time anew: their drive is ours.
            RunFolderError: what the conductor decided cannot be read, or nobody can look at the journals.
        """
        self._sleeps.look()
        now_ns = self.clock.mono_ns()
        elapsed_ns = 0 if self._looked_ns is None else now_ns - self._looked_ns
        if not self.sinks or (self._looked_ns is not None and elapsed_ns < HEARTBEAT_PERIOD_NS):
            return
        self._looked_ns = now_ns
        try:
            # what counts is bounded: this process may have been stopped, and all others with it
            self._look(now_ns, min(elapsed_ns, 2 * HEARTBEAT_PERIOD_NS))
            self._tell(now_ns)
        except FindingsError:
            self._pulses.clear()
            raise
        except OSError as error:  # a drive that fails, or too many open files: not to be judged by
            self._pulses.clear()
            raise RunFolderError(f"cannot look at {self.folder.journal}: {error}") from error

    def _signs(self, now_ns: int) -> dict[str, Sign]:
        """Return of each daemon that should be at work what has changed when it has done something since.

        Of a run by hand these are those that have been here: more of it may be on other hosts.
        """
        k = grid_of(self.folder, self.run, self.clock).k_at(now_ns)
        phases = self._phase_file.poll()
        if k < 0 or phases.end_k is not None:
            return {}
        found: dict[str, Sign] = {}
        is_whole = is_service_run(self.folder)
        is_overdue = not phases.at(k) or k > latest_end_k(
            phases, self.plan.phases, self.plan.load.backlog
        )
        if is_whole:
            found[CONDUCT] = "overdue" if is_overdue else now_ns
        if is_overdue:
            return found
        own = (f"{name}@{host_name()}" for name in (self.plan.measuring if is_whole else ()))
        for name in (*sources(self.folder.journal), *own):
            if phases.at(k) in LOAD_PHASES or not name.startswith("produce."):
                found[name] = _newest_segment(self.folder.journal / name)
        if is_whole or self.folder.checkpoint.is_dir():
            found[DETECT] = _last_commit_ns(self.folder.checkpoint)
        return found

    def _look(self, now_ns: int, step_ns: int) -> None:
        signs = self._signs(now_ns)
        self._pulses = {name: one for name, one in self._pulses.items() if name in signs}
        is_flowing = False
        for name, sign in signs.items():
            if name not in self._pulses:
                self._pulses[name] = self._begun(name, sign, now_ns)
            pulse = self._pulses[name]
            # the detector has work only where somebody records
            pulse.look(sign, now_ns, step_ns if is_flowing or name != DETECT else 0)
            if self._is_excused(name, pulse, now_ns):
                pulse.silent_ns = 0
            is_flowing = is_flowing or not (name == CONDUCT or pulse.is_quiet(now_ns))

    def _begun(self, name: str, sign: Sign, now_ns: int) -> Heartbeat:
        grace_ns = _REMOTE_GRACE_NS if is_remote(name, host_name()) else _GRACE_NS
        if name == DETECT:
            grace_ns = max(_BATCH_GRACE_NS, 3 * self.plan.detection.trigger)
        is_told = any(name in one.daemons for one in self._opened())
        return Heartbeat(
            sign,
            now_ns,
            grace_ns,
            is_told=is_told,
            # one that starts again late in a run has a long journal to read
            limit_ns=START_LIMIT_NS if name.startswith("consume.") else MISSING_AFTER_NS,
            is_heard=name == CONDUCT,  # it needs no time to start
            silent_ns=MISSING_AFTER_NS if is_told else 0,
            until_ns=now_ns,
        )

    def _is_excused(self, name: str, pulse: Heartbeat, now_ns: int) -> bool:
        """True for one that ended on purpose, as in a pause, and for another host's that may not be there.

        One of this host that is not to come back ends with the run; what else ends is started again.
        """
        if pulse.is_told or name in {CONDUCT, DETECT}:
            return False
        if not pulse.is_heard:
            return is_remote(name, host_name())
        is_awaited = not is_remote(name, host_name()) and now_ns - pulse.changed_ns > START_LIMIT_NS
        return pulse.silent_ns > 0 and not is_awaited and has_ended(self.folder.journal / name)

    def _tell(self, now_ns: int) -> None:
        """Keep and queue who is missed now, all of them in one message, and who is back."""

        def wall(mono_ns: int) -> int:
            return self.clock.wall_ns() - self._sleeps.between(mono_ns, now_ns)

        untold = {name: one for name, one in self._pulses.items() if not one.is_told}
        if any(one.is_missed for one in untold.values()):
            missed = {
                name: one
                for name, one in untold.items()
                if one.is_missed or one.is_missed_with_others
            }
            began_ns = min(one.since_ns for one in missed.values())
            since_ns = wall(began_ns)
            key = f"{self.run.id}-{next(iter(missed))}-{since_ns // SECOND_NS}"
            host, logs = host_name(), _log_folder(self.folder)
            self._save(Notice(key, tuple(missed), since_ns, host=host, logs=logs))
            self._since_ns[key] = began_ns
        for silence in self._opened():
            those = [self._pulses.get(name) for name in silence.daemons]
            back = [one.until_ns for one in those if one is not None and not one.silent_ns]
            if len(back) == len(those):
                until_ns = wall(max(back))
                if silence.key in self._since_ns:  # the wall clock may have been set since
                    lasted_ns = self._sleeps.between(self._since_ns.pop(silence.key), max(back))
                    until_ns = silence.since_wall_ns + lasted_ns
                self._save(replace(silence, until_wall_ns=until_ns))

    def _save(self, silence: Notice) -> None:
        is_over = silence.until_wall_ns is not None
        with FindingsStore(self.folder.findings) as store:
            store.save_notice(
                silence.key, silence.to_text(), self.sinks, self.clock.wall_ns(), is_over=is_over
            )
        LOG.warning("daemons_missed daemons=%s is_over=%s", ",".join(silence.daemons), is_over)
        others = [one for one in self._opened() if one.key != silence.key]
        self._open = others if is_over else [*others, silence]
        for name in silence.daemons:
            self._pulses[name].is_told = not is_over

    def _opened(self) -> list[Notice]:
        if self._open is None:
            self._open = [one for one in read_notices(self.folder) if one.is_open]
        return self._open


def is_remote(name: str, host: str) -> bool:
    """True for a source of another host."""
    return "@" in name and not name.endswith(f"@{host}")


def _log_folder(folder: RunFolder) -> str:
    """Return where logs are while the run goes on: when it is told, the next one may be the current."""
    return "" if is_service_run(folder) else str(folder.logs)


def _newest_segment(source: Path) -> Sign:
    """Return name and size of the file that a source writes; None where it has none."""
    with suppress(OSError, IndexError):
        path = segments(source)[-1]
        return path.name, path.stat().st_size
    return None


def _last_commit_ns(checkpoint: Path) -> Sign:
    """Return when the detector's stream has last noted a batch as done; None before the first."""
    with suppress(OSError):
        return (checkpoint / "commits").stat().st_mtime_ns
    return None


def queue_run_aborted(folder: RunFolder, plan: Plan, run: Run, clock: Clock, why: str) -> None:
    """Have people told, by the run's alert daemon, that the run was given up.

    Raises:
        FindingsError: it cannot be kept.
    """
    now_ns = clock.wall_ns()
    key = f"{run.id}-given-up-{now_ns // SECOND_NS}"
    given_up = Notice(key, (), now_ns, why=why, host=run.host, logs=str(folder.logs))
    with FindingsStore(folder.findings) as store:
        store.save_notice(
            given_up.key, given_up.to_text(), tuple(plan.sinks), now_ns, is_over=False
        )


def read_notices(folder: RunFolder) -> list[Notice]:
    """Return all that were told of a run, or are to be, in the order of their keys."""
    if not folder.findings.exists():
        return []
    with FindingsStore(folder.findings) as store:
        return [Notice.of_text(text) for text in store.notices()]
