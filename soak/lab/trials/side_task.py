"""Inject and lift the troubles of a trial during its run, in a log that no detector can read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from soak.core.errors import LabError
from soak.core.plan.text import Document, validated
from soak.core.units import SECOND_NS
from soak.lab.drills.injection import FaultLog
from soak.lab.faults import find_fault
from soak.lab.faults.active import FAULT_ERRORS, Fault
from soak.lab.ports import Active, Target
from soak.lab.trials.schedule import Trouble
from soak.store.run_folder import RunFolder

_NO_FILE = Document("", None, {})


@dataclasses.dataclass(frozen=True, slots=True)
class Injected:
    """A trouble as it was: when its effect began and when it was lifted, by the wall clock.

    `failure` says why it was not injected, or not undone; "" for one that went as planned.
    """

    trouble: Trouble
    onset_wall_ns: int | None
    lifted_wall_ns: int | None
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def injected_of(body: Mapping[str, Any]) -> Injected:
    """Return what `to_json` described."""
    trouble = {**body["trouble"], "causes": tuple(body["trouble"]["causes"])}
    return Injected(**{**body, "trouble": Trouble(**trouble)})


def configured(name: str, config: Mapping[str, Any]) -> tuple[Fault, Any]:
    """Return a fault of the lab by its name, and its configuration from that of a schedule."""
    fault = find_fault(name)
    return fault, validated(fault.config, dict(config), _NO_FILE, ())


class TrialTask:
    """The troubles of a schedule, one after the other; implements `foreground.SideTask`.

    Call `poll` about once a second, from the main thread, because brokers may be started.
    """

    def __init__(
        self, troubles: Sequence[Trouble], target: Target, start_wall_ns: int, log: FaultLog
    ) -> None:
        self._waiting = list(troubles)
        self._target = target
        self._start_wall_ns = start_wall_ns
        self._log = log
        self._current: tuple[Trouble, Active] | None = None

    def poll(self) -> None:
        """Inject or lift what is due; a trouble that cannot be injected is noted, and the run goes on."""
        second = (self._target.clock.wall_ns() - self._start_wall_ns) / SECOND_NS
        if self._current is not None:
            if second >= self._current[0].end_seconds:
                self.undo()
        elif self._waiting and second >= self._waiting[0].begin_seconds:
            self._inject(self._waiting.pop(0))

    def undo(self) -> None:
        """Lift the current trouble, if there is one."""
        if self._current is None:
            return
        trouble, active = self._current
        self._current = None
        lifted_wall_ns, failure = self._target.clock.wall_ns(), ""
        for step in (active.lift, active.close):
            try:
                step()
            except LabError as error:
                failure = failure or str(error)
        self._note(Injected(trouble, active.onset_wall_ns, lifted_wall_ns, failure))

    def end(self, folder: RunFolder) -> None:
        self.undo()
        self._log.publish(folder.faults)

    def _inject(self, trouble: Trouble) -> None:
        fault, config = configured(trouble.fault, trouble.config)
        try:
            self._current = trouble, fault.inject(self._target, config)
        except (LabError, *FAULT_ERRORS) as error:
            self._note(Injected(trouble, None, None, f"not injected: {error}"))

    def _note(self, injected: Injected) -> None:
        self._log.record(injected.to_json())


def read_injected(path: Path) -> list[Injected]:
    """Return the troubles of a finished trial from its fault log, in order of time.

    Raises:
        LabError: there is no such file, or a line of it cannot be read.
    """
    try:
        bodies = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [injected_of(body) for body in bodies if "trouble" in body]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path}: cannot read the troubles of a trial: {error}") from error
