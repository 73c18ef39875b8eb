"""The probe daemon: reads every probe of the plan at the end of each second and records what they give."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.core import plugins
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.daemons.context import RESTART_CODE, Context, open_context

LOG = logging.getLogger("soak.daemons.probe")
SAY_AGAIN_NS = 60 * SECOND_NS  # an absent probe is asked, and a failing one told of, this often
SLICE_NS = SECOND_NS // 5  # a stop is seen this soon
FAILED_CODE = 1
MAX_COLUMNS = 5000  # a probe whose labels never end must not fill the memory

Samples = list[tuple[Column, float]]


def run(run_dir: Path, stop: threading.Event, clock: Clock) -> int:
    """Record until the phases or `stop` end it; return the exit code.

    A probe may leave a thread that hangs in the kernel: the caller ends the process by `os._exit`.
    """
    context = open_context(run_dir, "probe", clock)
    panel = Panel(build(context.plan.probes, clock), clock)
    try:
        _record(context, panel, stop, clock)
    except Exception:  # the caller's `os._exit` must be reached, or a hung thread keeps us alive
        LOG.exception("probe_daemon_failed")
        code = FAILED_CODE
    else:
        code = RESTART_CODE if context.recorder.is_suspended else 0
    context.writer.close(is_end=code == 0)
    panel.close()
    return code


def build(configs: Mapping[str, Any], clock: Clock) -> dict[str, Probe]:
    """Return the probes of a plan by name."""
    return {
        name: plugins.load("probes", name).build(config, clock) for name, config in configs.items()
    }


def _record(context: Context, panel: Panel, stop: threading.Event, clock: Clock) -> None:
    grid, recorder = context.grid, context.recorder
    k = max(0, grid.k_at(clock.mono_ns()))
    while context.phase_file.poll().at(k) != "end" and not recorder.is_suspended:
        due_ns = grid.start_of(k + 1)
        if not _reached(due_ns, stop, clock):
            return
        samples, events = panel.read(due_ns)
        recorder.append(k, samples, events=events)
        k = max(k + 1, grid.k_at(clock.mono_ns()))  # seconds that we were too late for are a gap


def _reached(instant_ns: int, stop: threading.Event, clock: Clock) -> bool:
    """Sleep until the instant; False when told to stop before."""
    while not stop.is_set():
        now_ns = clock.mono_ns()
        if now_ns >= instant_ns:
            return True
        clock.sleep_until(min(instant_ns, now_ns + SLICE_NS))
    return False


@dataclass(slots=True)
class _Trouble:
    """What was last said of a probe that gave nothing."""

    reason: str = ""
    said_ns: int = 0
    failures: int = 0  # since then
    ask_ns: int = 0  # not before this


@dataclass(slots=True)
class _Round:
    """What one second gives."""

    values: dict[Column, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


class Panel:
    """All probes together: one row a second, whose columns only ever grow at the end."""

    def __init__(
        self, probes: Mapping[str, Probe], clock: Clock, max_columns: int = MAX_COLUMNS
    ) -> None:
        self._probes = probes
        self._clock = clock
        self._max_columns = max_columns
        self._columns: dict[Column, None] = {}
        self._troubles = {name: _Trouble() for name in probes}
        self._is_full = False

    def read(self, due_ns: int) -> tuple[Samples, list[Event]]:
        """Return every column seen so far, NaN where a probe gave nothing, and the events."""
        found = _Round()
        late = (self._clock.mono_ns() - due_ns) / SECOND_NS
        found.values[Column("probe_lag_seconds", (), "seconds")] = late
        for name, probe in self._probes.items():
            if self._clock.mono_ns() >= self._troubles[name].ask_ns:
                self._read_one(name, probe, found)
        self._extend(found)
        samples = [(column, found.values.get(column, math.nan)) for column in self._columns]
        return samples, found.events

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()

    def _read_one(self, name: str, probe: Probe, found: _Round) -> None:
        begin_ns = self._clock.mono_ns()
        success, duration = _own_columns(name)
        try:
            reading = probe.read()
        except NotAvailableError as error:
            self._troubles[name].ask_ns = begin_ns + SAY_AGAIN_NS
            self._say_absent(name, str(error), found)
            return
        except ProbeError as error:
            found.values[success] = 0.0
            found.values[duration] = (self._clock.mono_ns() - begin_ns) / SECOND_NS
            self._say_failed(name, str(error), found)
            return
        self._take(reading, found)
        if reading.samples:  # one that still looks for its source has neither succeeded nor failed
            found.values[success] = 1.0
            found.values[duration] = reading.cost_seconds

    @staticmethod
    def _take(reading: Reading, found: _Round) -> None:
        found.values.update(reading.samples)
        found.events.extend(reading.events)

    def _say_absent(self, name: str, reason: str, found: _Round) -> None:
        trouble = self._troubles[name]
        if reason == trouble.reason:
            return
        trouble.reason = reason
        LOG.warning("probe_not_available probe=%s reason=%r", name, reason)
        found.events.append(self._event("probe_not_available", {"probe": name, "reason": reason}))

    def _say_failed(self, name: str, reason: str, found: _Round) -> None:
        trouble = self._troubles[name]
        trouble.failures += 1
        now_ns = self._clock.mono_ns()
        if reason == trouble.reason and now_ns - trouble.said_ns < SAY_AGAIN_NS:
            return
        LOG.warning("probe_failed probe=%s reason=%r failures=%d", name, reason, trouble.failures)
        fields: dict[str, str | int] = {
            "probe": name,
            "reason": reason,
            "failures": trouble.failures,
        }
        found.events.append(self._event("probe_failed", fields))
        trouble.reason, trouble.said_ns, trouble.failures = reason, now_ns, 0

    def _event(self, kind: str, fields: Mapping[str, str | int]) -> Event:
        at_ns = self._clock.wall_ns()
        return Event(kind, at_ns, at_ns - SECOND_NS, dict(fields))

    def _extend(self, found: _Round) -> None:
        for column in found.values:
            if len(self._columns) < self._max_columns:
                self._columns.setdefault(column)
            elif column not in self._columns and not self._is_full:
                self._is_full = True
                LOG.error(
                    "probe_columns_full limit=%d first_left_out=%s", self._max_columns, column.name
                )
                fields: dict[str, str | int] = {"limit": self._max_columns, "column": column.name}
                found.events.append(self._event("probe_columns_full", fields))


def _own_columns(name: str) -> tuple[Column, Column]:
    labels = (("probe", name),)
    return (
        Column("probe_success", labels, "ratio"),
        Column("probe_duration_seconds", labels, "seconds"),
    )
