"""The supervisor: starts the daemons of a run as processes, restarts them when they die, and stops them in order.

None outlives this process: each child has a parent-death signal and a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soak.core.errors import SoakError
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service import children
from soak.service.systemd import ChildWatchdog
from soak.store.plan_home import is_service_run
from soak.store.run_folder import RunFolder

LOG = logging.getLogger("soak.supervisor.run")

RESTART_LIMIT = 5
MAX_PAUSE_NS = 60 * SECOND_NS
RESTART_WINDOW_NS = 60 * SECOND_NS
GRACE_NS = 20 * SECOND_NS
DETECT_LIMIT_NS = 240 * SECOND_NS
MAX_TRIGGER_NS = DETECT_LIMIT_NS - 60 * SECOND_NS
"""The detector looks at what came in last once more in the end, and its watchdog waits no longer."""
START_LIMIT_NS = 600 * SECOND_NS
"""A consumer may have days of a journal to read before it is ready."""
START_LEAD_NS = 4 * SECOND_NS
"""A producer that is started so long before the first message is there for it, whoever else is or is not."""
PROGRAM = (sys.executable, "-m", "soak.cli.main")


class GaveUpError(SoakError):
    """A daemon without which there is no measurement keeps dying."""


@dataclass(frozen=True, slots=True)
class Role:
    """One daemon: `name` is its log's and, for those that measure, its source's first part."""

    name: str
    arguments: tuple[str, ...]
    niceness: int = 0  # above 0 for what must not disturb the load it measures
    is_measuring: bool = False
    wait_seconds: int = 0  # before its first start, so that those that measure start undisturbed
    silence_ns: int = 30 * SECOND_NS  # silent for longer it hangs: its unit says the same
    after: str = ""  # those whose names begin so are to be ready before its first start

    @property
    def is_needed(self) -> bool:
        """True where there is no run without it; the others watch."""
        return self.is_measuring or self.name == "conduct"


def roles_of(plan: Plan) -> tuple[Role, ...]:
    """Return the daemons of a plan in the order in which they start: consumers before producers."""
    return (
        Role("conduct", ("conduct",)),
        *(_measuring(name) for name in plan.measuring),
        *(
            Role(name, (name,), niceness=10, wait_seconds=5, silence_ns=60 * SECOND_NS)
            for name in plan.over_hosts
        ),
        Role("detect-stream", ("detect-stream",), niceness=10, silence_ns=180 * SECOND_NS),
        Role("alert", ("alert",), niceness=10, wait_seconds=5, silence_ns=180 * SECOND_NS),
    )


def _measuring(name: str) -> Role:
    return Role(
        name,
        _arguments(name),
        is_measuring=True,
        silence_ns=(60 if name == "probe" else 30) * SECOND_NS,
        after="consume." if name.startswith("produce.") else "",
    )


def _arguments(name: str) -> tuple[str, ...]:
    """Return the command of a daemon by its name, such as `produce.3`."""
    command, _, index = name.partition(".")
    return (command, "--index", index) if index else (command,)


@dataclass(slots=True)
class _Child:
    role: Role
    process: subprocess.Popen[bytes]
    is_finished: bool = False
    is_hung: bool = False  # and was killed for it
    is_session_killed: bool = False  # what it had started too
    deaths_ns: list[int] = field(default_factory=list)
    again_ns: int | None = None  # when it is to be started again


class Supervisor:
    """Call `start`, then `poll` about once a second until it returns True, or `stop`; then `close`."""

    def __init__(
        self,
        folder: RunFolder,
        clock: Clock,
        *,
        roles: Sequence[Role],
        on_death: Callable[[str, str], None],
        environment: Mapping[str, str] | None = None,
        measuring_environment: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
        watch: ChildWatchdog | None = None,
        load_from_wall_ns: int = 0,
    ) -> None:
        """With a watch, which is the caller's to open and close, who hangs is killed and started again.

        With one, and a load that is yet to begin, those who send are started once those who read are ready.
        """
        self._program = tuple(program)
        self._watch = watch
        self._is_of_service = is_service_run(folder)
        self._folder = folder
        self._clock = clock
        self._on_death = on_death
        self._environment = environment
        self._measuring_environment = dict(measuring_environment or {})  # beside that
        self._roles = roles
        self._phase_file = PhaseFile(folder.phases)
        self._children: dict[str, _Child] = {}
        self._started_ns = self._lead_ns = 0
        self._load_boot_ns = 0  # on CLOCK_BOOTTIME: a suspend brings the load nearer
        self._load_from_wall_ns = load_from_wall_ns
        self._is_stopped = False

    def start(self) -> None:
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        self._started_ns = self._clock.mono_ns()
        self._lead_ns = self._load_from_wall_ns - self._clock.wall_ns()
        self._load_boot_ns = self._clock.boot_ns() + self._lead_ns
        self._start_due()

    def pids(self) -> dict[str, int]:
        """Return the processes that are there now, by daemon."""
        return {
            name: child.process.pid
            for name, child in self._children.items()
            if not child.is_finished and child.process.poll() is None
        }

    def poll(self) -> bool:
        """Restart what has died; return True when all measuring daemons have ended on purpose.

        Raises:
            GaveUpError: a daemon that the measurement needs died too often; end the run.
        """
        if self._watch is not None:
            self._kill_hanging(self._watch)
        self._start_due()
        for child in self._children.values():
            if child.is_finished:
                continue
            if child.again_ns is not None:
                if self._clock.mono_ns() >= child.again_ns:
                    self._start_again(child)
            elif child.process.poll() is not None:
                self._ended(child)
        return all(self._is_over(role) for role in self._roles if role.is_needed)

    def _is_over(self, role: Role) -> bool:
        child = self._children.get(role.name)
        return self._is_stopped if child is None else child.is_finished

    def finish(self) -> None:
        """After the last record: let the detector end by itself, then let the last mails out.

        There is no load left that it could disturb, so it need not stand back any more.
        """
        detector = self._children.get("detect-stream")
        if detector is not None:
            children.restore_priority(detector.process)
        self._wait("detect-stream", DETECT_LIMIT_NS)
        for name in ("detect-stream", "receive", "ship", "alert"):
            self._stop(name, GRACE_NS)

    def stop(self) -> None:
        """End the run early, in the order in which nothing is lost."""
        self._is_stopped = True
        self._stop_all("produce.", GRACE_NS)
        self._clock.sleep_until(self._clock.mono_ns() + 2 * SECOND_NS)  # what is out is received
        for prefix in ("consume.", "probe", "conduct"):
            self._stop_all(prefix, GRACE_NS)

    def close(self) -> None:
        """Kill whatever is left: on every way out."""
        for child in self._children.values():
            _kill_session(child)
            # One that hangs in the kernel dies when it can.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(10)

    def _start_due(self) -> None:
        for role in self._roles:
            if role.name not in self._children and self._is_due(role):
                self._children[role.name] = _Child(role, self._spawn(role))

    def _is_due(self, role: Role) -> bool:
        """Say whether a daemon may be started for the first time; after `stop` no load is begun."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._started_ns < role.wait_seconds * SECOND_NS:
            return False
        if self._is_stopped and role.is_measuring:
            return False
        if self._watch is None or not role.after or self._lead_ns <= 0:
            return True
        pids = self.pids()
        first = [one.name for one in self._roles if one.name.startswith(role.after)]
        absent = [name for name in first if pids.get(name) not in self._watch.ready]
        if absent and self._clock.boot_ns() >= self._load_boot_ns - START_LEAD_NS:
            LOG.warning("started_before_others daemon=%s not_ready=%s", role.name, ",".join(absent))
            return True
        return not absent

    def _log(self, name: str) -> Path | None:
        """Return the file into which a daemon writes; a service's writes where we do, into the journal."""
        return None if self._is_of_service else self._folder.logs / f"{name}.log"

    def _spawn(self, role: Role) -> subprocess.Popen[bytes]:
        command = [*self._program, *role.arguments, "--run-dir", str(self._folder.path)]
        log_path = self._log(role.name)
        process = children.spawn(command, log_path=log_path, env=self._environment_of(role))
        LOG.info("daemon_started daemon=%s pid=%d", role.name, process.pid)
        if role.niceness:
            children.set_niceness(process, role.niceness)
        return process

    def _kill_hanging(self, watch: ChildWatchdog) -> None:
        watch.take()
        there = {pid: self._children[name] for name, pid in self.pids().items()}
        limits_ns = {pid: child.role.silence_ns for pid, child in there.items()}
        for pid in watch.hanging(limits_ns):
            if not there[pid].is_hung:  # one that hangs in the kernel dies when it can
                there[pid].is_hung = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _environment_of(self, role: Role) -> Mapping[str, str]:
        ours = os.environ if self._environment is None else self._environment
        if role.is_measuring:
            ours = {**ours, **self._measuring_environment}
        return ours if self._watch is None else self._watch.environment(ours, role.silence_ns)

    def _ended(self, child: _Child) -> None:
        _kill_session(child)  # what it started must not live on without it
        code = child.process.returncode
        is_over = self._phase_file.poll().end_k is not None
        if code == 0 and is_over:
            child.is_finished = True
            return
        now_ns = self._clock.mono_ns()
        child.deaths_ns = [at for at in child.deaths_ns if now_ns - at < RESTART_WINDOW_NS]
        child.deaths_ns.append(now_ns)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        if child.is_hung:
            how, child.is_hung = "no sign of life, killed", False
        self._note_death(child.role.name, how)
        if len(child.deaths_ns) > RESTART_LIMIT and child.role.is_needed:
            log = self._log(child.role.name)
            message = f"{child.role.name} died {RESTART_LIMIT + 1} times in a minute ({how})"
            raise GaveUpError(
                message if log is None else f"{message}; its log ends:\n{children.log_tail(log)}"
            )
        # The first time at once, then ever later: what watches must not take the load down with it,
        # and what the load needs must outlast a drive that takes nothing for a moment.
        deaths = len(child.deaths_ns)
        if deaths == 1:
            self._start_again(child)
        else:
            first_ns = SECOND_NS // 8 if child.role.is_needed else SECOND_NS
            child.again_ns = now_ns + min(first_ns << deaths, MAX_PAUSE_NS)

    def _start_again(self, child: _Child) -> None:
        child.again_ns = None
        try:
            child.process, child.is_session_killed = self._spawn(child.role), False
        except OSError as error:  # its log cannot be opened: the drive is read-only, or full
            LOG.warning("cannot_start daemon=%s error=%s", child.role.name, error)
            child.again_ns = self._clock.mono_ns() + SECOND_NS

    def _note_death(self, name: str, how: str) -> None:
        """Keep it for the report and tell the terminal."""
        line = json.dumps({"daemon": name, "how": how, "at_ns": self._clock.wall_ns()}) + "\n"
        with contextlib.suppress(OSError), (self._folder.path / "restarts.jsonl").open("a") as file:
            file.write(line)
        LOG.warning("daemon_died daemon=%s how=%s", name, how)
        self._on_death(name, how)

    def _wait(self, name: str, limit_ns: int) -> None:
        """Wait until a daemon has ended by itself, restarting it when it dies."""
        deadline_ns = self._clock.mono_ns() + limit_ns
        child = self._children.get(name)
        while child is not None and not child.is_finished and self._clock.mono_ns() < deadline_ns:
            self.poll()
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 10)

    def _stop_all(self, prefix: str, grace_ns: int) -> None:
        """End daemons of one kind, all told before any is waited for."""
        those = [name for name in self._children if name.startswith(prefix)]
        for name in those:
            if not self._children[name].is_finished:
                children.ask_to_stop(self._children[name].process)
        for name in those:
            self._stop(name, grace_ns)

    def _stop(self, name: str, grace_ns: int) -> None:
        child = self._children.get(name)
        if child is not None and not child.is_finished:
            children.stop(child.process, grace_ns / SECOND_NS)
            _kill_session(child)
            child.is_finished = True


def _kill_session(child: _Child) -> None:
    """Kill the child and everything in the session that it leads, which outlives its leader.

    Once, as soon as it has ended: when nothing is left of the session its number may be another's.
    """
    if child.is_session_killed:
        return
    child.is_session_killed = True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
