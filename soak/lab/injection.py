"""A drill's fault in its run: not yet, at work, lifted; and what is given from before the load to its end.

From the main thread, which may start brokers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from soak.core import plugins
from soak.core.errors import LabError
from soak.lab.drill import Drill
from soak.lab.ports import Active, Target
from soak.lab.trouble import TROUBLE


class Injection:
    """Call `poll` about once a second, and `close` when the run is over, whatever happened."""

    def __init__(self, drill: Drill, target: Target, start_wall_ns: int) -> None:
        self._drill = drill
        self._target = target
        self._start_wall_ns = start_wall_ns
        self._active: Active | None = None
        self._given: list[Active] = []
        self.lifted_wall_ns: int | None = None
        self.failure = ""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when the fault was first felt; None as long as it was not."""
        return None if self._active is None else self._active.onset_wall_ns

    def poll(self) -> None:
        """Inject or lift what is due.

        Raises:
            LabError: the lab lacks what the fault needs, or the machine refused it.
        """
        if self.lifted_wall_ns is not None:
            return
        for kind, config in self._drill.given[len(self._given) :]:
            self._given.append(self._injected(kind, config))
        begin_ns, length_ns = self._drill.begin_ns, self._drill.length_ns
        now_ns = self._target.clock.wall_ns() - self._start_wall_ns
        if self._active is None:
            if not begin_ns or now_ns >= begin_ns:
                self._active = self._injected(self._drill.fault_kind, self._drill.fault)
        elif length_ns and now_ns >= begin_ns + length_ns:
            self.lift()

    def lift(self) -> None:
        """Undo it; may be called twice. What could not be undone is told by `failure` and ends no run."""
        if self.lifted_wall_ns is not None:
            return
        self.lifted_wall_ns = self._target.clock.wall_ns()
        if self._active is None:
            return
        self._undo(self._active.lift)
        self._target.record({"at_wall_ns": self.lifted_wall_ns, "lifted": not self.failure})

    def close(self) -> None:
        """Undo the fault, what outlasts it and all that was given; may be called twice."""
        with contextlib.ExitStack() as steps:  # one that fails keeps none back
            for given in self._given:
                steps.callback(self._undo, given.close)
            if self._active is not None:
                steps.callback(self._undo, self._active.close)
            steps.callback(self.lift)

    def _injected(self, kind: str, config: Any) -> Active:  # noqa: ANN401  # a fault's own
        fault = plugins.load("soak.lab.faults", kind)
        try:
            active: Active = fault.inject(self._target, config)
        except TROUBLE as error:
            raise LabError(f"the fault {kind} could not be put in: {error}") from error
        return active

    def _undo(self, step: Callable[[], None]) -> None:
        try:
            step()
        except LabError as error:
            self.failure = self.failure or str(error)
            at_wall_ns = self._target.clock.wall_ns()
            self._target.record({"at_wall_ns": at_wall_ns, "not_undone": str(error)})
