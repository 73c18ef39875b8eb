"""A fault that is a change of something: what undoes it is noted before it is done."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator

from soak.core.errors import LabError
from soak.lab.drive import Drive
from soak.lab.faults._lacking import NO_RELAY, no_drive
from soak.lab.ports import Node, Target
from soak.lab.relay import Relay
from soak.lab.trouble import TROUBLE


class Undoing:
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
def undoing(target: Target) -> Iterator[Undoing]:
    """Begin a fault in the block: what went wrong there is undone, else it is lifted or ends with us."""
    active = Undoing(target)
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
