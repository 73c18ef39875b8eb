"""A fault while it is active: how it is undone, what it needs of a lab, and the errors it may fail with."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException

from soak.core.errors import LabError
from soak.core.plan.plan import Lab
from soak.lab.drive.drive import Drive
from soak.lab.ports import Node, Target
from soak.lab.relay import Relay
from soak.service import children

TROUBLE = (OSError, subprocess.SubprocessError, KafkaException)


# --- What a lab that a plan describes lacks for a fault, in the words that are said of one that runs.

NO_RELAY = "the lab has no relay: set `lab.relayed` of the plan"


def no_drive(number: int) -> str:
    return f"broker {number} has no injected drive: name it in `lab.drive` of the plan"


def lacking_drive(lab: Lab, number: int) -> str:
    """Return why a broker, by its place from 1, has no injected drive; "" where it has one."""
    return "" if lab.drive is not None and number in lab.drive.brokers else no_drive(number)


class OfNode(Protocol):
    """The Config of a fault that is done to one broker."""

    @property
    def node(self) -> int:
        """Return its place, from 1."""
        ...


def lacking_own_drive(lab: Lab, config: OfNode) -> str:
    """Return the same of a fault's broker: the `lacks` of what is done to a drive."""
    return lacking_drive(lab, config.node)


def lacking_relay(lab: Lab, _config: object) -> str:
    """Return why there is no network to do harm to, or "": the `lacks` of what is done to one."""
    return "" if lab.relayed else NO_RELAY


# --- What a fault sets for itself alone, so that no other beside it may: the `sole` of such faults.


def relay_exclusion(_config: object) -> tuple[str, int]:
    """Return what every fault of a network sets: one relay does one thing."""
    return "what the relay does", 0


def drive_answers_exclusion(config: OfNode) -> tuple[str, int]:
    """Return that, and whose drive it is, of faults by which it answers late, in error or not at all."""
    return "how the drive answers", config.node


def write_limit_exclusion(_config: object) -> tuple[str, int]:
    """Return what a limit on writes sets: one process has one group for all that it holds back."""
    return "a limit on writes", 0


def drive_pages_exclusion(config: OfNode) -> tuple[str, int]:
    """Return the same of faults that let a drive live on a pool of erased pages."""
    return "the drive's erased pages", config.node


# --- A fault that is a change of something: what undoes it is noted before it is done.


class ActiveFault:
    """A fault at work; implements `soak.lab.ports.Active`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._steps = contextlib.ExitStack()
        self._last_steps = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._done_wall_ns: int | None = None
        self._lifted_wall_ns: int | None = None
        self._felt: Callable[[], int | None] = lambda: self._done_wall_ns

    @property
    def onset_wall_ns(self) -> int | None:
        return self._felt()

    def on_lift(self, step: Callable[..., object], *arguments: object) -> None:
        """Note what undoes a step; the last step is undone first, and one that fails keeps none back."""
        self._steps.callback(step, *arguments)

    def on_close(self, step: Callable[..., object], *arguments: object) -> None:
        """Note what undoes a step that is still to be felt after the lifting, until the run is over."""
        self._last_steps.callback(step, *arguments)

    def did(self, **what: object) -> None:
        """Record what was done; the first such moment is the onset, unless that is told otherwise."""
        at_wall_ns = self._target.clock.wall_ns()
        if self._done_wall_ns is None:
            self._done_wall_ns = at_wall_ns
        self._target.record({"at_wall_ns": at_wall_ns, **what})

    def is_felt_from(self, when: Callable[[], int | None]) -> None:
        """Name who knows when it was first felt: wall clock, None until then."""
        self._felt = when

    def is_felt_when_lifted(self) -> None:
        """Take the beginning of the lifting for the onset."""
        self._felt = lambda: self._lifted_wall_ns

    def lift(self) -> None:
        """Undo what is not noted for the end of the run.

        Raises:
            LabError: a step could not be undone; the others were.
        """
        if self._lifted_wall_ns is None:
            self._lifted_wall_ns = self._target.clock.wall_ns()
        with self._lock:  # the interpreter's end may come while it is being lifted
            steps = self._steps.pop_all()
        _undo(steps)

    def close(self) -> None:
        """Undo it all; raises as `lift` does."""
        atexit.unregister(self.close)
        with self._lock:
            last_steps = self._last_steps.pop_all()
        last_steps.callback(self.lift)
        _undo(last_steps)


def _undo(steps: contextlib.ExitStack) -> None:
    try:
        steps.close()
    except TROUBLE as error:
        raise LabError(f"a fault could not be undone: {error}") from error


@contextlib.contextmanager
def activating(target: Target) -> Iterator[ActiveFault]:
    """Begin a fault in the block: what went wrong there is undone, else it is lifted or ends with us."""
    active = ActiveFault(target)
    try:
        yield active
    except BaseException:
        active.close()
        raise
    atexit.register(active.close)


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
        raise LabError(no_drive(number))
    return target.drives[number]


def relay_of(target: Target) -> Relay:
    """Return the network between clients and brokers.

    Raises:
        LabError: there is none of the lab's own, or it has ended.
    """
    relay = getattr(target.broker, "relay", None)
    if not isinstance(relay, Relay):
        raise LabError(NO_RELAY)
    if not relay.is_running:
        raise LabError("the lab's relay has ended")
    return relay


def revive(node: Node) -> None:
    """Start a broker again if it has ended; from the main thread."""
    if not node.is_running:
        node.restart()


# --- Processes that are a fault by what they do: one that ended by itself did nothing, which is told.


def spawned(active: ActiveFault, command: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start one, which is killed when the fault is lifted; from the main thread."""
    worker = children.spawn(command, log_path=log_path)
    active.on_lift(_end, worker, log_path)
    return worker


def _end(worker: subprocess.Popen[bytes], log_path: Path) -> None:
    """Kill one.

    Raises:
        LabError: it had ended already, so the fault was not what it was to be.
    """
    status = worker.poll()
    if status is None:
        children.kill(worker)
        return
    said = children.log_tail(log_path, lines=1) or "it said nothing"
    raise LabError(f"a process of the fault had ended by itself with status {status}: {said}")
