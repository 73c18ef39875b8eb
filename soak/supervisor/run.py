"""The supervisor: starts the daemons of a run as processes, restarts those that die, stops them in order.

No daemon outlives this process: each child has a parent-death signal and a session of its own.
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
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import SoakError
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.retry import Backoff, RestartPolicy, Restarts
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service import children
from soak.service.systemd import START_LIMIT_NS, ChildWatchdog
from soak.store.plan_home import is_service_run
from soak.store.run_folder import RunFolder

LOG = logging.getLogger(__name__)

NEEDED = RestartPolicy(Backoff(SECOND_NS // 2), window_ns=60 * SECOND_NS, max_deaths=5)
"""For daemons without which there is no measurement: a full drive must not end the run at once."""
WATCHING = RestartPolicy(Backoff(4 * SECOND_NS), window_ns=60 * SECOND_NS)
"""For all other daemons: their restarts must not disturb the load."""
GRACE_NS = 20 * SECOND_NS
DETECT_GRACE_NS = 90 * SECOND_NS
"""The detector reads what is written, finishes its search for causes, and stores its last findings."""
ALERT_GRACE_NS = 150 * SECOND_NS
"""A message in progress may take a minute, and so may the last one, which begins within 10 s after it."""
DETECT_LIMIT_NS = 240 * SECOND_NS
MAX_TRIGGER_NS = DETECT_LIMIT_NS - 60 * SECOND_NS
"""At the end the detector runs once more, within DETECT_LIMIT_NS."""
START_LEAD_NS = 4 * SECOND_NS
"""Producers start at least so long before the first message is due, even if consumers are not ready."""
PROGRAM = (sys.executable, "-m", "soak.cli.main")
_EXIT = "exit "
_SAID_LENGTH = 300  # of the last line of its log


class GaveUpError(SoakError):
    """A daemon without which there is no measurement keeps dying."""


@dataclass(frozen=True, slots=True)
class Role:
    """One daemon; `name` names its log and, if it measures, its source."""

    name: str
    arguments: tuple[str, ...]
    niceness: int = 0  # above 0 for daemons that must not disturb the load
    is_measuring: bool = False
    wait_seconds: int = 0  # before the first start, so that measuring daemons start undisturbed
    silence_ns: int = 30 * SECOND_NS  # silent for longer means hanging; its unit has the same limit
    grace_ns: int = GRACE_NS  # after a request to end, until it is killed
    after: str = ""  # prefix of the daemons that must be ready before its first start

    @property
    def is_needed(self) -> bool:
        """Return whether the run fails without this daemon."""
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
        Role(
            "detect-stream",
            ("detect-stream",),
            niceness=10,
            silence_ns=START_LIMIT_NS,
            grace_ns=DETECT_GRACE_NS,
        ),
        Role(
            "alert",
            ("alert",),
            niceness=10,
            wait_seconds=5,
            silence_ns=180 * SECOND_NS,
            grace_ns=ALERT_GRACE_NS,
        ),
    )


def _measuring(name: str) -> Role:
    command, _, index = name.partition(".")  # such as `produce.3`
    return Role(
        name,
        (command, "--index", index) if index else (command,),
        is_measuring=True,
        silence_ns=(60 if name == "probe" else 30) * SECOND_NS,
        after="consume." if name.startswith("produce.") else "",
    )


@dataclass(slots=True)
class _Child:
    role: Role
    process: subprocess.Popen[bytes]
    restarts: Restarts
    is_waiting: bool = False  # for its restart
    is_finished: bool = False
    is_hung: bool = False  # and was killed
    is_session_killed: bool = False  # with all processes that it had started


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
        watchdog: ChildWatchdog | None = None,
        load_from_wall_ns: int = 0,
    ) -> None:
        """With a watchdog, which the caller opens and closes, daemons that hang are killed and restarted.

        With a watchdog, and before the load begins, producers start once consumers are ready.
        """
        self._program = tuple(program)
        self._watchdog = watchdog
        self._is_service = is_service_run(folder)
        self._folder = folder
        self._clock = clock
        self._on_death = on_death
        self._environment = environment
        self._measuring_environment = dict(measuring_environment or {})  # in addition
        self._roles = roles
        self._phase_file = PhaseFile(folder.phases)
        self._children: dict[str, _Child] = {}
        self._started_ns = self._lead_ns = 0
        self._load_boot_ns = 0  # on CLOCK_BOOTTIME, which runs on while the host is suspended
        self._load_from_wall_ns = load_from_wall_ns
        self._is_stopped = False

    def start(self) -> None:
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        self._started_ns = self._clock.mono_ns()
        self._lead_ns = self._load_from_wall_ns - self._clock.wall_ns()
        self._load_boot_ns = self._clock.boot_ns() + self._lead_ns
        self._start_due()

    def pids(self) -> dict[str, int]:
        """Return the running processes by daemon."""
        return {
            name: child.process.pid
            for name, child in self._children.items()
            if not child.is_finished and child.process.poll() is None
        }

    def poll(self) -> bool:
        """Restart daemons that died; return True when all needed daemons have ended on purpose.

        Raises:
            GaveUpError: a needed daemon died too often; end the run.
        """
        if self._watchdog is not None:
            self._kill_hanging(self._watchdog)
        self._start_due()
        for child in self._children.values():
            if child.is_finished:
                continue
            if child.is_waiting:
                if child.restarts.is_due(self._clock.mono_ns()):
                    self._restart(child)
            elif child.process.poll() is not None:
                self._ended(child)
        return all(self._is_over(role) for role in self._roles if role.is_needed)

    def _is_over(self, role: Role) -> bool:
        child = self._children.get(role.name)
        return self._is_stopped if child is None else child.is_finished

    def finish(self) -> None:
        """After the last record: let the detector end by itself, then let the last alerts be sent.

        The load has ended, so the detector gets its normal priority back.
        """
        detector = self._children.get("detect-stream")
        if detector is not None:
            children.restore_priority(detector.process)
        self._wait("detect-stream", DETECT_LIMIT_NS)
        for name in ("detect-stream", "receive", "ship", "alert"):
            self._stop(name)

    def stop(self) -> None:
        """End the run early, in the order in which no messages are lost."""
        self._is_stopped = True
        self._stop_all("produce.")
        # Consumers receive the last messages.
        self._clock.sleep_until(self._clock.mono_ns() + 2 * SECOND_NS)
        for prefix in ("consume.", "probe", "conduct"):
            self._stop_all(prefix)

    def close(self) -> None:
        """Kill all processes that are left."""
        for child in self._children.values():
            _kill_session(child)
            # A process that hangs in the kernel dies later.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(10)

    def _start_due(self) -> None:
        for role in self._roles:
            if role.name not in self._children and self._is_due(role):
                restarts = Restarts(NEEDED if role.is_needed else WATCHING)
                self._children[role.name] = _Child(role, self._spawn(role), restarts)

    def _is_due(self, role: Role) -> bool:
        """Return whether to start a daemon for the first time; after `stop` no load begins."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._started_ns < role.wait_seconds * SECOND_NS:
            return False
        if self._is_stopped and role.is_measuring:
            return False
        if self._watchdog is None or not role.after or self._lead_ns <= 0:
            return True
        pids = self.pids()
        first = [one.name for one in self._roles if one.name.startswith(role.after)]
        absent = [name for name in first if pids.get(name) not in self._watchdog.ready]
        if absent and self._clock.boot_ns() >= self._load_boot_ns - START_LEAD_NS:
            LOG.warning("started_before_others daemon=%s not_ready=%s", role.name, ",".join(absent))
            return True
        return not absent

    def _log(self, name: str) -> Path | None:
        """Return the log file of a daemon; None in a service, whose daemons write to the systemd journal."""
        return None if self._is_service else self._folder.logs / f"{name}.log"

    def _spawn(self, role: Role) -> subprocess.Popen[bytes]:
        command = [*self._program, *role.arguments, "--run-dir", str(self._folder.path)]
        log_path = self._log(role.name)
        process = children.spawn(command, log_path=log_path, env=self._environment_of(role))
        LOG.info("daemon_started daemon=%s pid=%d", role.name, process.pid)
        if role.niceness:
            children.set_niceness(process, role.niceness)
        return process

    def _kill_hanging(self, watchdog: ChildWatchdog) -> None:
        watchdog.receive()
        running = {pid: self._children[name] for name, pid in self.pids().items()}
        limits_ns = {pid: child.role.silence_ns for pid, child in running.items()}
        for pid in watchdog.hanging(limits_ns):
            if not running[pid].is_hung:  # a process that hangs in the kernel dies later
                running[pid].is_hung = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _environment_of(self, role: Role) -> Mapping[str, str]:
        environment = os.environ if self._environment is None else self._environment
        if role.is_measuring:
            environment = {**environment, **self._measuring_environment}
        if self._watchdog is None:
            return environment
        return self._watchdog.environment(environment, role.silence_ns)

    def _ended(self, child: _Child) -> None:
        _kill_session(child)  # no process that it started may live on
        code = child.process.returncode
        is_over = self._phase_file.poll().end_k is not None
        if code == 0 and is_over:
            child.is_finished = True
            return
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"{_EXIT}{code}"
        if child.is_hung:
            how, child.is_hung = "no sign of life, killed", False
        now_ns = self._clock.mono_ns()
        child.restarts.note_death(now_ns)
        self._note_death(child.role.name, how)
        if child.restarts.is_too_many:
            raise GaveUpError(self._gave_up_text(child, how))
        child.is_waiting = True
        if child.restarts.is_due(now_ns):
            self._restart(child)

    def _gave_up_text(self, child: _Child, how: str) -> str:
        name, deaths = child.role.name, len(child.restarts.deaths_ns)
        text, log = f"{name} died {deaths} times in a minute ({how})", self._log(name)
        return text if log is None else f"{text}; its log ends:\n{children.log_tail(log)}"

    def _restart(self, child: _Child) -> None:
        try:
            child.process = self._spawn(child.role)
        except OSError as error:  # its log cannot be opened: the drive is read-only, or full
            LOG.warning("daemon_not_started daemon=%s error=%s", child.role.name, error)
            child.restarts.note_failed_start(self._clock.mono_ns())
        else:
            child.is_waiting = child.is_session_killed = False

    def _note_death(self, name: str, how: str) -> None:
        """Record a death for the report and report it to the caller."""
        line = json.dumps({"daemon": name, "how": how, "at_ns": self._clock.wall_ns()}) + "\n"
        with contextlib.suppress(OSError), (self._folder.path / "restarts.jsonl").open("a") as file:
            file.write(line)
        log = self._log(name)
        said = children.log_tail(log, 1) if log is not None and how.startswith(_EXIT) else ""
        LOG.warning("daemon_died daemon=%s how=%s last_line=%r", name, how, said[:_SAID_LENGTH])
        self._on_death(name, how)

    def _wait(self, name: str, limit_ns: int) -> None:
        """Wait until a daemon has ended by itself; restart it when it dies."""
        deadline_ns = self._clock.mono_ns() + limit_ns
        child = self._children.get(name)
        while child is not None and not child.is_finished and self._clock.mono_ns() < deadline_ns:
            self.poll()
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 10)

    def _stop_all(self, prefix: str) -> None:
        """Stop all daemons of one kind at the same time."""
        names = [name for name in self._children if name.startswith(prefix)]
        for name in names:
            if not self._children[name].is_finished:
                children.ask_to_stop(self._children[name].process)
        for name in names:
            self._stop(name)

    def _stop(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None and not child.is_finished:
            children.stop(child.process, child.role.grace_ns / SECOND_NS)
            _kill_session(child)
            child.is_finished = True


def _kill_session(child: _Child) -> None:
    """Kill the child and all processes in the session that it leads, which may outlive it.

    Once, as soon as the child has ended: later its process number may belong to another session.
    """
    if child.is_session_killed:
        return
    child.is_session_killed = True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)
