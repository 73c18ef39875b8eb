"""What soakd's own daemons use on this machine, each with all processes that it started.

A daemon is known by its command line; what it started, such as the detector's JVM, by its parent or session.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import psutil

from probes._deltas import Deltas
from soak.core.model import Column
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOOK_NS = 30 * SECOND_NS  # between two looks at all processes: a number may come again
NEW_NS = 3 * SECOND_NS  # a process is looked at again for so long

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


def name_of(pid: int, known: Mapping[int, str]) -> str:
    """Return the daemon that a process is, or that started it; "" for any other, and for one that is gone."""
    try:
        process = psutil.Process(pid)
        name = daemon_of(process.cmdline())
        leader = os.getsid(pid)
        # who begins a session of its own is no part of its parent: a lab's broker, a daemon of a run
        kin = () if leader == pid else (process.ppid(), leader)
    except (psutil.Error, OSError):
        return ""
    return name or next((known[one] for one in kin if known.get(one)), "")


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
        pids: Callable[[], Iterable[int]] = psutil.pids,
        look: Callable[[int, Mapping[int, str]], str] = name_of,
        ask: Callable[[int], Usage | None] = usage,
    ) -> None:
        self._clock = clock
        self._pids = pids
        self._look = look
        self._ask = ask
        self._seen_ns: dict[int, int] = {}  # when each process was first seen
        self._names: dict[int, str] = {}
        self._next_look_ns = 0
        self._deltas: Deltas[int] = Deltas()

    def samples(self) -> Samples:
        """Return memory at once, and CPU from the second look at a process on."""
        now_ns = self._clock.mono_ns()
        self._find(now_ns)
        asked = {pid: self._ask(pid) for pid, name in self._names.items() if name}
        found = {pid: one for pid, one in asked.items() if one is not None}
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

    def _find(self, now_ns: int) -> None:
        """Look at processes that are new, or were a moment ago: a child begins as its parent's image."""
        is_due = now_ns >= self._next_look_ns
        if is_due:
            self._next_look_ns = now_ns + LOOK_NS
        pids = sorted(self._pids())
        self._seen_ns = {pid: self._seen_ns.get(pid, now_ns) for pid in pids}
        self._names = {pid: self._names.get(pid, "") for pid in pids}
        for pid, seen_ns in self._seen_ns.items():
            if is_due or now_ns - seen_ns <= NEW_NS:
                self._names[pid] = self._look(pid, self._names)


def _columns(metric: str, unit: str, values: Mapping[str, float]) -> Samples:
    return [
        (Column(metric, (("daemon", name),), unit), value) for name, value in sorted(values.items())
    ]
