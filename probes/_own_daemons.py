"""What soakd's own daemons use on this machine, each with all processes that it started.

A daemon is known by its command line; what it started shares its session, such as the detector's JVM.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import psutil

from probes._deltas import Deltas
from soak.core.model import Column
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOOK_NS = 30 * SECOND_NS  # between two looks for new processes
SOON_NS = 2 * SECOND_NS  # and after one has gone: its daemon is started again, and starts others

_OF_A_RUN = frozenset({"--run-dir", "--home", "--owed"})

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float  # since the process began
    resident_bytes: int


def daemon_of(command: Sequence[str]) -> str:
    """Return the daemon's name, as the run's journals have it, or "" for any other command line.

    Who makes a report is one, too: it starts a JVM.
    """
    for at, word in enumerate(command[:-1]):
        if word == "soak.cli.main" or PurePath(word).name == "soak":
            rest = list(command[at + 1 :])
            if rest[0] != "report" and not _OF_A_RUN.intersection(rest):
                return ""
            index = rest.index("--index") + 1 if "--index" in rest else len(rest)
            return ".".join([rest[0], *rest[index : index + 1]])
    return ""


def processes() -> dict[int, str]:
    """Return the process ids of all daemons and of what they started, with the daemon's name."""
    names: dict[int, str] = {}
    sessions: dict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter():
        try:
            names[process.pid] = daemon_of(process.cmdline())
            sessions[os.getsid(process.pid)].append(process.pid)
        except (psutil.Error, OSError):  # it has ended
            continue
    return {
        member: name
        for pid, name in names.items()
        if name
        for member in {pid, *sessions.get(pid, ())}
    }


def usage(pid: int) -> Usage | None:
    """Return what a process has used, None when it is gone."""
    try:
        process = psutil.Process(pid)
        spent = process.cpu_times()
        return Usage(spent.user + spent.system, process.memory_info().rss)
    except psutil.Error:
        return None


class OwnDaemons:
    def __init__(
        self,
        clock: Clock,
        *,
        look: Callable[[], Mapping[int, str]] = processes,
        ask: Callable[[int], Usage | None] = usage,
    ) -> None:
        self._clock = clock
        self._look = look
        self._ask = ask
        self._names: Mapping[int, str] = {}
        self._next_look_ns = 0
        self._soon_until_ns = 0
        self._deltas: Deltas[int] = Deltas()

    def samples(self) -> Samples:
        """Return memory at once, and CPU from the second look at a process on."""
        now_ns = self._clock.mono_ns()
        if now_ns >= self._next_look_ns:
            self._names = self._look()
            self._next_look_ns = now_ns + (SOON_NS if now_ns < self._soon_until_ns else LOOK_NS)
        asked = {pid: self._ask(pid) for pid in self._names}
        found = {pid: one for pid, one in asked.items() if one is not None}
        if len(found) < len(asked):
            self._soon_until_ns = now_ns + LOOK_NS
            self._next_look_ns = min(self._next_look_ns, now_ns + SOON_NS)
        spent = {pid: one.cpu_seconds for pid, one in found.items()}
        grown = self._deltas.take(spent, now_ns)
        cores: dict[str, float] = defaultdict(float)
        resident: dict[str, float] = defaultdict(float)
        for pid, one in found.items():
            resident[self._names[pid]] += one.resident_bytes
            rate = grown.per_second(pid)
            if rate is not None:
                cores[self._names[pid]] += rate
        return [
            *_columns("host_daemon_cpu_cores", "cores", cores),
            *_columns("host_daemon_resident_bytes", "bytes", resident),
        ]


def _columns(metric: str, unit: str, values: Mapping[str, float]) -> Samples:
    return [
        (Column(metric, (("daemon", name),), unit), value) for name, value in sorted(values.items())
    ]
