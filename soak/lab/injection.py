"""A drill's fault in its run: not yet, at work, lifted. From the main thread, which may start brokers."""

from __future__ import annotations

from soak.core import plugins
from soak.core.errors import LabError
from soak.lab.drill import Drill
from soak.lab.ports import Active, Target


class Injection:
    """Call `poll` about once a second, and `lift` when the run is over, whatever happened."""

    def __init__(self, drill: Drill, target: Target, start_wall_ns: int) -> None:
        self._drill = drill
        self._target = target
        self._start_wall_ns = start_wall_ns
        self._active: Active | None = None
        self.lifted_wall_ns: int | None = None
        self.failure = ""

    @property
    def onset_wall_ns(self) -> int | None:
        """Return when the fault was first felt; None as long as it was not."""
        return None if self._active is None else self._active.onset_wall_ns

    def poll(self) -> None:
        """Inject or lift what is due.

        Raises:
            LabError: the lab lacks what the fault needs.
        """
        if self.lifted_wall_ns is not None:
            return
        begin_ns, length_ns = self._drill.begin_ns, self._drill.length_ns
        now_ns = self._target.clock.wall_ns() - self._start_wall_ns
        if self._active is None:
            if not begin_ns or now_ns >= begin_ns:
                fault = plugins.load("soak.lab.faults", self._drill.fault_kind)
                self._active = fault.inject(self._target, self._drill.fault)
        elif length_ns and now_ns >= begin_ns + length_ns:
            self.lift()

    def lift(self) -> None:
        """Undo it; may be called twice. What could not be undone is told by `failure` and ends no run."""
        if self.lifted_wall_ns is not None:
            return
        self.lifted_wall_ns = self._target.clock.wall_ns()
        if self._active is None:
            return
        try:
            self._active.lift()
        except LabError as error:
            self.failure = str(error)
        self._target.record({"at_wall_ns": self.lifted_wall_ns, "lifted": not self.failure})
