"""A fault while it is active: what it needs, how it is undone, and the onset of its effect."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaException

from soak.core.errors import LabError
from soak.core.plan.plan import Lab
from soak.core.units import SECOND_NS
from soak.lab.drive.drive import Drive
from soak.lab.ports import Active, Node, Target
from soak.lab.relay import Relay
from soak.service import children

FAULT_ERRORS = (OSError, subprocess.SubprocessError, KafkaException)
"""Errors of the machine, its tools or a broker that injecting or undoing a fault may raise."""

NO_RELAY = "the lab has no relay: set `lab.relayed` of the plan"
_JOIN_SECONDS = 25.0  # longer than two requests that may take ten seconds each

ExclusiveSetting = tuple[str, int]
"""A setting that only one fault may change at a time, and the broker it belongs to (0: all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault: its configuration, how to inject it, and what it needs."""

    config: type[Any]
    inject: Callable[[Target, Any], Active]
    missing_from_lab: Callable[[Lab, Any], str] = lambda _lab, _config: ""
    """Return what the lab of a plan lacks for the fault, or ""."""
    missing_on_machine: Callable[[], str] = lambda: ""
    """Return what this machine lacks for the fault, or ""."""
    exclusive_setting: Callable[[Any], ExclusiveSetting | None] = lambda _config: None
    environment: Callable[[Path], dict[str, str]] | None = None
    """Return variables that the run's daemons must be started with; their files go into the folder."""


class NodeConfig(Protocol):
    """The configuration of a fault of one broker."""

    @property
    def node(self) -> int:
        """Return the place of the broker, from 1."""
        ...


def missing_drive(lab: Lab, number: int) -> str:
    """Return why the broker at place `number` has no injected drive; "" if it has one."""
    if lab.drive is not None and number in lab.drive.brokers:
        return ""
    return _no_drive(number)


def missing_drive_of_node(lab: Lab, config: NodeConfig) -> str:
    return missing_drive(lab, config.node)


def _no_drive(number: int) -> str:
    return f"broker {number} has no injected drive: name it in `lab.drive` of the plan"


class ActiveFault:
    """A fault that is undone by a stack of steps; implements `soak.lab.ports.Active`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._steps = contextlib.ExitStack()
        self._last_steps = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._injected_wall_ns: int | None = None
        self._lifted_wall_ns: int | None = None
        self._onset: Callable[[], int | None] = lambda: self._injected_wall_ns

    @property
    def onset_wall_ns(self) -> int | None:
        return self._onset()

    def on_lift(self, step: Callable[..., object], *arguments: object) -> None:
        """Add a step that undoes a part; the last one added runs first, and all run even if one fails."""
        self._steps.callback(step, *arguments)

    def on_close(self, step: Callable[..., object], *arguments: object) -> None:
        """Add a step that undoes a part which keeps its effect after the lifting, until the run is over."""
        self._last_steps.callback(step, *arguments)

    def record(self, **details: object) -> None:
        """Record what was injected; the first record is the onset unless another one is set."""
        at_wall_ns = self._target.clock.wall_ns()
        if self._injected_wall_ns is None:
            self._injected_wall_ns = at_wall_ns
        self._target.record({"at_wall_ns": at_wall_ns, **details})

    def set_onset(self, onset: Callable[[], int | None]) -> None:
        """Take the onset from a function that returns wall clock nanoseconds, or None before it."""
        self._onset = onset

    def set_onset_at_lift(self) -> None:
        """Take the moment at which the lifting begins as the onset."""
        self._onset = lambda: self._lifted_wall_ns

    def lift(self) -> None:
        """Run the steps that were added with `on_lift`.

        Raises:
            LabError: a step failed; the others were run.
        """
        if self._lifted_wall_ns is None:
            self._lifted_wall_ns = self._target.clock.wall_ns()
        with self._lock:  # the interpreter may exit while the fault is being lifted
            steps = self._steps.pop_all()
        _run_steps(steps)

    def close(self) -> None:
        """Run every step; raises as `lift` does."""
        atexit.unregister(self.close)
        with self._lock:
            last_steps = self._last_steps.pop_all()
        last_steps.callback(self.lift)
        _run_steps(last_steps)


def _run_steps(steps: contextlib.ExitStack) -> None:
    try:
        steps.close()
    except FAULT_ERRORS as error:
        raise LabError(f"a fault could not be undone: {error}") from error


@contextlib.contextmanager
def activating(target: Target) -> Iterator[ActiveFault]:
    """Give a fault to activate in the block: it is undone if the block fails, else when lifted or at exit."""
    active = ActiveFault(target)
    try:
        yield active
    except BaseException:
        active.close()
        raise
    atexit.register(active.close)


class ThreadedFault:
    """A fault whose `work` runs on a thread of its own; implements `soak.lab.ports.Active`.

    `work` must return soon after `wait_for_lift` returns True.
    """

    def __init__(self, name: str, target: Target, work: Callable[[ThreadedFault], None]) -> None:
        self._name = name
        self._target = target
        self._work = work
        self._process = _SignalledProcess()
        self._lifted = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.onset_wall_ns: int | None = None

    def start(self) -> None:
        """Start the thread; the fault is lifted when this process exits."""
        atexit.register(self.lift)
        self._thread.start()

    def lift(self) -> None:
        """End the thread and let the process run.

        Raises:
            LabError: the thread did not end, or `work` raised an error, which is raised once.
        """
        atexit.unregister(self.lift)
        self._lifted.set()
        self._thread.join(_JOIN_SECONDS)
        self._process.resume()
        if self._thread.is_alive():
            raise LabError(f"the fault {self._name} did not end within {_JOIN_SECONDS:.0f} s")
        if self._error is not None:
            error, self._error = self._error, None
            raise LabError(f"the fault {self._name} failed: {error}") from error

    def close(self) -> None:
        if not self._lifted.is_set():  # do not wait twice for a thread that does not end
            self.lift()

    def wait_for_lift(self, limit_ns: int) -> bool:
        """Wait until the fault is lifted, at most this long; return whether it was."""
        return self._lifted.wait(max(0, limit_ns) / SECOND_NS)

    def note_onset(self, at_wall_ns: int) -> None:
        """Keep the first of these moments as the onset."""
        if self.onset_wall_ns is None:
            self.onset_wall_ns = at_wall_ns

    def stop_process(self, pid: int, length_ns: int, **details: object) -> int | None:
        """Stop a process for a while and record that with the details.

        Return the wall clock time of the stop, or None if the process has ended.
        """
        clock = self._target.clock
        self._process.follow(pid)
        stopped_ns, at_wall_ns = clock.mono_ns(), clock.wall_ns()
        if not self._process.stop_for(length_ns, self._lifted):
            return None
        stalled_ns = clock.mono_ns() - stopped_ns
        self._target.record({"at_wall_ns": at_wall_ns, "stalled_ns": stalled_ns, **details})
        return at_wall_ns

    def stop_process_every(
        self, period_ns: int, length_ns: int, find_pid: Callable[[], int | None], after_ns: int = 0
    ) -> None:
        """Stop a process once each period until the fault is lifted; the first stop is the onset."""
        clock = self._target.clock
        due_ns = clock.mono_ns() + after_ns
        while not self.wait_for_lift(due_ns - clock.mono_ns()):
            started_ns = clock.mono_ns()
            pid = find_pid()
            at_wall_ns = None if pid is None else self.stop_process(pid, length_ns)
            if at_wall_ns is not None:
                self.note_onset(at_wall_ns)
            due_ns = max(due_ns, started_ns) + period_ns

    def _main(self) -> None:
        try:
            self._work(self)
        except Exception as error:  # noqa: BLE001 - raised again by lift, in the main thread
            self._error = error


class _SignalledProcess:
    """A process held by descriptor, so that a signal never reaches another one with the same number."""

    def __init__(self) -> None:
        self._pid = 0
        self._descriptor = -1

    def follow(self, pid: int) -> None:
        """Take another process, after a restart of the broker."""
        if pid == self._pid:
            return
        self._close()
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(pid)
            self._pid = pid

    def stop_for(self, length_ns: int, lifted: threading.Event) -> bool:
        """Stop it this long, or until the fault is lifted; return False if it has ended."""
        try:
            if not self._send(signal.SIGSTOP):
                return False
            lifted.wait(length_ns / SECOND_NS)
        finally:
            self._send(signal.SIGCONT)
        return True

    def resume(self) -> None:
        """Let it run in any case, and release it."""
        self._send(signal.SIGCONT)
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._pid, self._descriptor = 0, -1

    def _send(self, number: signal.Signals) -> bool:
        if self._descriptor < 0:
            return False
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True


def start_threaded(
    name: str, target: Target, work: Callable[[ThreadedFault], None]
) -> ThreadedFault:
    active = ThreadedFault(name, target, work)
    active.start()
    return active


def node_of(target: Target, number: int) -> Node:
    """Return a broker by its place, from 1.

    Raises:
        LabError: there is none.
    """
    if not 1 <= number <= len(target.broker.nodes):
        raise LabError(f"the lab's cluster has no node {number}; it has {len(target.broker.nodes)}")
    return target.broker.nodes[number - 1]


def drive_of(target: Target, number: int) -> Drive:
    """Return the injected drive of a broker.

    Raises:
        LabError: its data lies on no such drive.
    """
    if number not in target.drives:
        raise LabError(_no_drive(number))
    return target.drives[number]


def relay_of(target: Target) -> Relay:
    """Return the relay between clients and brokers.

    Raises:
        LabError: the lab has none, or it has ended.
    """
    relay = getattr(target.broker, "relay", None)
    if not isinstance(relay, Relay):
        raise LabError(NO_RELAY)
    if not relay.is_running:
        raise LabError("the lab's relay has ended")
    return relay


def restart_if_ended(node: Node) -> None:
    """Start a broker again if it has ended; from the main thread."""
    if not node.is_running:
        node.restart()


def start_worker(
    active: ActiveFault, command: Sequence[str], log_path: Path
) -> subprocess.Popen[bytes]:
    """Start a process that is the fault; it is killed when the fault is lifted. From the main thread."""
    worker = children.spawn(command, log_path=log_path)
    active.on_lift(_end_worker, worker, log_path)
    return worker


def _end_worker(worker: subprocess.Popen[bytes], log_path: Path) -> None:
    """Kill a worker.

    Raises:
        LabError: it had ended by itself, so the fault was not active all the time.
    """
    status = worker.poll()
    if status is None:
        children.kill(worker)
        return
    reason = children.log_tail(log_path, lines=1) or "no output"
    raise LabError(f"a process of the fault had ended by itself with status {status}: {reason}")
