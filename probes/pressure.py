"""Pressure stall information: the share of each second in which tasks waited for CPU, IO or memory.

Source:   the totals of /proc/pressure/{cpu,io,memory,irq} (Documentation/accounting/psi.rst).
Overhead: up to four reads of /proc a second; the kernel keeps these totals anyway.
Caveats:  Of the whole machine, not of the broker; of the container where lxcfs shows it so. Absent before
          Linux 4.20, if compiled out, without `psi=1` where the kernel's default is off, or where a sandbox
          hides it. irq exists since 6.1. cpu has no `stalled`: it is undefined for a whole machine, and the
          kernel writes 0.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from pydantic.dataclasses import dataclass

from probes.common.counters import Deltas
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

_METRICS = {
    ("cpu", "some"): "node_pressure_cpu_waiting_seconds",
    ("io", "some"): "node_pressure_io_waiting_seconds",
    ("io", "full"): "node_pressure_io_stalled_seconds",
    ("memory", "some"): "node_pressure_memory_waiting_seconds",
    ("memory", "full"): "node_pressure_memory_stalled_seconds",
    ("irq", "full"): "node_pressure_irq_stalled_seconds",
}
_RESOURCES = tuple(dict.fromkeys(resource for resource, _ in _METRICS))
_MICROSECONDS = 1e6
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP}  # the last: disabled at boot
_HIDDEN = {errno.EACCES, errno.EPERM}  # by a sandbox, for as long as this process lives
_LINE = re.compile(
    r"(?P<kind>some|full) avg10=\d+\.\d\d avg60=\d+\.\d\d avg300=\d+\.\d\d total=(?P<total>\d+)\n",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    pass


def build(config: Config, clock: Clock) -> Pressure:
    return Pressure(config, clock)


class Pressure:
    def __init__(self, config: Config, clock: Clock, *, proc: Path = Path("/proc")) -> None:
        self._config = config
        self._clock = clock
        self._folder = proc / "pressure"
        self._deltas: Deltas[str] = Deltas()

    def read(self) -> Reading:
        """Return the share of the time since the last reading that tasks waited; nothing at the first."""
        begin_ns = self._clock.mono_ns()
        totals = self._totals()
        if not totals:
            raise NotAvailableError(
                f"no pressure information in {self._folder}: the kernel has none, or needs psi=1 at boot, or "
                "it is hidden from this process"
            )
        at_ns = self._clock.mono_ns()
        grown = self._deltas.take(totals, at_ns)
        rates = ((metric, grown.per_second(metric, _MICROSECONDS)) for metric in totals)
        samples = tuple(
            (Column(metric, (), "ratio"), rate) for metric, rate in rates if rate is not None
        )
        return Reading(samples, (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        """Do nothing: the probe holds no resource."""

    def _totals(self) -> dict[str, int]:
        found = {}
        for resource in _RESOURCES:
            for kind, total in self._resource(resource).items():
                metric = _METRICS.get((resource, kind))
                if metric is not None:
                    found[metric] = total
        return found

    def _resource(self, resource: str) -> dict[str, int]:
        path = self._folder / resource
        try:
            text = path.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            if error.errno in _ABSENT | _HIDDEN:
                return {}
            raise ProbeError(f"cannot read {path}: {error.strerror}") from error
        return parse(text)


def parse(text: str) -> dict[str, int]:
    """Return the totals in us by kind (`some`, `full`).

    Raises:
        ProbeError: the text is not in the kernel's format.
    """
    lines = [_LINE.fullmatch(line) for line in text.splitlines(keepends=True)]
    found = {line["kind"]: int(line["total"]) for line in lines if line is not None}
    if not lines or len(found) != len(lines):
        raise ProbeError(f"cannot read this pressure information: {text!r}")
    return found
