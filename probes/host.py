"""The host: CPU with steal, memory, swap, network, load, and the resources used by our own daemons.

Source:   psutil: /proc/stat, meminfo, vmstat, net/dev and loadavg; stat and statm of our daemons' processes.
Overhead: five reads of /proc a second and two for each process of ours; the command lines of new processes,
          and those of all processes every 30 s, a tenth of them a second.
Caveats:  Steal is what a hypervisor reports; in a container, CPU and memory are those of the whole host, or
          of the container where lxcfs shows them so.
          Network is the sum over all interfaces but loopback: traffic of a bond or bridge counts at each
          layer, and an interface counts from its second reading on. Swap traffic is missing where the kernel
          does not show it, as in gVisor.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import dataclass as plain_dataclass
from pathlib import Path, PurePath
from typing import TypeVar

import psutil
from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.counters import Deltas, Growth, SummedDeltas
from soak.core.errors import PartialReadingError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

Answer = TypeVar("Answer")

Counters = Mapping[str, Mapping[str, float]]
"""Counters by interface and name; every interface has the same names."""

SCAN_PERIOD_NS = 30 * SECOND_NS  # between two scans of a process: its id may be reused
SCAN_TURNS = 10  # readings in which all of them are scanned
NEW_PROCESS_NS = 3 * SECOND_NS  # a process younger than this is scanned again

_OF_A_RUN = frozenset({"--run-dir", "--home", "--pending", "--owed"})  # --owed: in earlier versions

Samples = list[tuple[Column, float]]

_IDLE = ("idle", "iowait")
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # guest is inside user
_CPU = (*_BUSY, *_IDLE)
_WITHOUT_WORK = "idle and iowait"
_SWAP = {
    "swap_in": ("host_swap_in_bytes", "bytes"),
    "swap_out": ("host_swap_out_bytes", "bytes"),
}
_NETWORK = {
    "received": ("host_network_received_bytes", "bytes"),
    "sent": ("host_network_sent_bytes", "bytes"),
    "errors": ("host_network_errors", "packets"),
    "drops": ("host_network_drops", "packets"),
}


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float  # since the process started
    resident_bytes: int


def daemon_of(command: Sequence[str]) -> str:
    """Return the name of a daemon, as in the run's journals, from its command line; "" for any other.

    `soak report` counts as one, because it starts a JVM.
    """
    for at, word in enumerate(command[:-1]):
        if word == "soak.cli.main" or PurePath(word).name == "soak":
            rest = list(command[at + 1 :])
            if rest[0] == "service" and len(rest) > 1:
                rest = rest[1:]
            if rest[0] != "report" and not _OF_A_RUN.intersection(rest):
                return ""
            index = rest.index("--index") + 1 if "--index" in rest else len(rest)
            return ".".join([rest[0], *rest[index : index + 1]])
    return ""


def daemon_name(pid: int, known: Mapping[int, str]) -> str:
    """Return the name of the daemon that a process is or was started by; "" for others and for ended ones."""
    try:
        process = psutil.Process(pid)
        name = daemon_of(process.cmdline())
        leader = os.getsid(pid)
        # The leader of a session is independent of its parent: a lab's broker, a daemon of a run.
        kin = () if leader == pid else (process.ppid(), leader)
    except (psutil.Error, OSError):
        return ""
    return name or next((known[one] for one in kin if known.get(one)), "")


def process_usage(pid: int) -> Usage | None:
    """Return the resources that a process has used; None if it has ended."""
    try:
        process = psutil.Process(pid)
        spent = process.cpu_times()
        return Usage(spent.user + spent.system, process.memory_info().rss)
    except psutil.Error:
        return None


class OwnDaemons:
    """The resources of our own daemons on this host, each with the processes that it started.

    A daemon is known by its command line; its children, such as the detector's JVM, by their parent or
    session.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        pids: Callable[[], Iterable[int]] = psutil.pids,
        name: Callable[[int, Mapping[int, str]], str] = daemon_name,
        ask: Callable[[int], Usage | None] = process_usage,
    ) -> None:
        self._clock = clock
        self._pids = pids
        self._name = name
        self._ask = ask
        self._seen_ns: dict[int, int] = {}  # when each process was first seen
        self._names: dict[int, str] = {}
        self._scanned_ns: dict[int, int] = {}
        self._deltas: Deltas[int] = Deltas()

    def samples(self) -> Samples:
        """Return memory at once, and CPU from the second reading of a process on."""
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
        """Scan processes that are new or were a moment ago: a child starts as a copy of its parent.

        The others in turns, as a host may have thousands: else all would be due at one instant.
        """
        pids = sorted(self._pids())
        self._seen_ns = {pid: self._seen_ns.get(pid, now_ns) for pid in pids}
        self._scanned_ns = {pid: self._scanned_ns.get(pid, now_ns) for pid in pids}
        self._names = {pid: self._names.get(pid, "") for pid in pids}
        new = [pid for pid, seen in self._seen_ns.items() if now_ns - seen <= NEW_PROCESS_NS]
        due = [pid for pid, at in self._scanned_ns.items() if now_ns - at >= SCAN_PERIOD_NS]
        for pid in (*new, *due[: len(pids) // SCAN_TURNS + 1]):
            self._scanned_ns[pid] = now_ns
            self._names[pid] = self._name(pid, self._names)


def _columns(metric: str, unit: str, values: Mapping[str, float]) -> Samples:
    return [
        (Column(metric, (("daemon", name),), unit), value) for name, value in sorted(values.items())
    ]


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    pass


@plain_dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the host. `counters` are CPU seconds by mode, and swap.

    What could not be read is missing, or None, and `trouble` says why.
    """

    counters: Mapping[str, float]
    interfaces: Counters
    memory_available_bytes: int | None
    swap_used_bytes: int | None
    load_1m: float | None
    cpu_count: int | None
    trouble: str = ""


def build(config: Config, clock: Clock) -> Host:
    return Host(config, clock)


def snapshot() -> Snapshot:
    """Return the state of this host, from psutil; a file of /proc that is damaged costs no other."""
    troubles: list[str] = []

    def asked(what: str, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except (OSError, psutil.Error, ValueError, LookupError, TypeError) as error:
            troubles.append(f"cannot read the host's {what}: {error}")
            return None

    cpu, swap = asked("CPU times", psutil.cpu_times), asked("swap", psutil.swap_memory)
    nics = asked("network", lambda: psutil.net_io_counters(pernic=True, nowrap=False))
    memory = asked("memory", psutil.virtual_memory)
    load = asked("load", psutil.getloadavg)
    counters = {mode: float(getattr(cpu, mode, 0.0)) for mode in _CPU if cpu is not None}
    if swap is not None and (swap.sin or swap.sout or _counts_swapping()):
        counters |= {"swap_in": swap.sin, "swap_out": swap.sout}
    interfaces = {
        name: {
            "received": nic.bytes_recv,
            "sent": nic.bytes_sent,
            "errors": nic.errin + nic.errout,
            "drops": nic.dropin + nic.dropout,
        }
        for name, nic in (nics or {}).items()
        if name != "lo"
    }
    return Snapshot(
        counters,
        interfaces,
        memory.available if memory is not None else None,
        swap.used if swap is not None else None,
        load[0] if load is not None else None,
        asked("processors", psutil.cpu_count),
        "; ".join(troubles),
    )


def _counts_swapping() -> bool:
    """Return whether the kernel counts swap traffic: where it does not, psutil's counters are 0."""
    try:
        counters = Path(psutil.PROCFS_PATH, "vmstat").read_bytes()
    except OSError:  # a sandbox without the file, or one that may not be read
        return False
    return b"pswpin" in counters and b"pswpout" in counters


class Host:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        ask: Callable[[], Snapshot] = snapshot,
        daemons: OwnDaemons | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._ask = ask
        self._daemons = daemons or OwnDaemons(clock)
        self._deltas: Deltas[str] = Deltas()
        self._interfaces: SummedDeltas[str] = SummedDeltas()

    def read(self) -> Reading:
        """Return levels at once and rates from the second reading on.

        Raises:
            PartialReadingError: a file of /proc cannot be read; with what the others say.
        """
        begin_ns = self._clock.mono_ns()
        now = self._ask()
        now_ns = self._clock.mono_ns()
        grown = self._deltas.take(_with_sum_of_idle(now.counters), now_ns)
        traffic = self._interfaces.take(now.interfaces, now_ns)
        levels = (
            (Column("host_memory_available_bytes", (), "bytes"), now.memory_available_bytes),
            (Column("host_swap_used_bytes", (), "bytes"), now.swap_used_bytes),
            (Column("host_load_1m", (), "tasks"), now.load_1m),
            (Column("host_cpu_count", (), "processors"), now.cpu_count),
        )
        known = ((column, float(value)) for column, value in levels if value is not None)
        rates = (*_rate_samples(grown, _SWAP), *_rate_samples(traffic, _NETWORK))
        samples = (*_cpu_samples(grown), *known, *rates, *self._daemons.samples())
        reading = Reading(samples, (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)
        if now.trouble:
            raise PartialReadingError(now.trouble, reading)
        return reading

    def close(self) -> None:
        """Do nothing: the probe holds no resource."""


def _with_sum_of_idle(counters: Mapping[str, float]) -> Mapping[str, float]:
    if not counters.keys() >= set(_IDLE):
        return counters
    return {**counters, _WITHOUT_WORK: sum(counters[mode] for mode in _IDLE)}


def _cpu_samples(grown: Growth[str]) -> list[tuple[Column, float]]:
    """Return ratios over all cores; nothing if a mode went backwards.

    Time without work moves between `idle` and `iowait` once a task that waited has woken up elsewhere: of
    their sum each second counts, and of `iowait` those in which neither fell.
    """
    spent = [grown.by.get(mode) for mode in (*_BUSY, _WITHOUT_WORK)]
    known = [value for value in spent if value is not None]
    total = sum(known)
    if len(known) < len(spent) or total <= 0:
        return []
    found = [
        (Column("host_cpu_ratio", (), "ratio"), (total - grown.by[_WITHOUT_WORK]) / total),
        (Column("host_cpu_steal_ratio", (), "ratio"), grown.by["steal"] / total),
    ]
    if grown.by.keys() >= set(_IDLE):
        found.append((Column("host_cpu_iowait_ratio", (), "ratio"), grown.by["iowait"] / total))
    return found


def _rate_samples(
    grown: Growth[str], named: Mapping[str, tuple[str, str]]
) -> list[tuple[Column, float]]:
    rates = ((metric, unit, grown.per_second(key)) for key, (metric, unit) in named.items())
    return [(Column(metric, (), unit), rate) for metric, unit, rate in rates if rate is not None]
